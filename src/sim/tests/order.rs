//! Streams, events, and what waits for what.
#![allow(clippy::unwrap_used)] // helpers of tests are tests too

mod common;

use common::*;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use vgmem_abi::*;
use vgmem_sim::{HostCall, Machine, StreamRef};

const NON_BLOCKING: u32 = 1;
const NO_TIMING: u32 = 2;
const NOT_READY: u32 = CUDA_ERROR_NOT_READY;

fn sleep(m: &'static Machine, millis: u64, on: StreamRef) {
    launch(m, "sleep_us", &[Long(millis * 1000)], on).unwrap();
}

/// Notes `name` when the stream gets there.
fn note(m: &'static Machine, log: &Arc<Mutex<Vec<u32>>>, name: u32, on: StreamRef) {
    let log = log.clone();
    m.host_call(on, HostCall::new(0, 0, move |_| log.lock().unwrap().push(name))).unwrap();
}

#[test]
fn a_stream_keeps_its_order_for_every_seed() {
    for seed in 0..20 {
        let m = machine(&format!("seed={seed}"));
        let at = m.allocate(4).unwrap();
        let on = stream(m.create_stream(0, 0).unwrap());
        for value in 0..50 {
            launch(m, "fill_u32", &[Long(at), Word(value), Long(1)], on).unwrap();
        }
        m.synchronize_stream(on).unwrap();
        assert_eq!(words(m, at, 1).unwrap(), [49]);
    }
}

#[test]
fn seeds_give_other_orders_between_streams() {
    let mut orders = std::collections::HashSet::new();
    for seed in 0..12 {
        let m = machine(&format!("seed={seed}"));
        let log = Arc::new(Mutex::new(Vec::new()));
        let gate = stream(m.create_stream(NON_BLOCKING, 0).unwrap());
        sleep(m, 20, gate);
        let event = m.create_event(NO_TIMING).unwrap();
        m.record_event(event, gate, false).unwrap();
        for name in 0..8 {
            let on = stream(m.create_stream(NON_BLOCKING, 0).unwrap());
            m.wait_event(on, event, false).unwrap();
            note(m, &log, name, on);
        }
        m.synchronize_context(&m.current().unwrap()).unwrap();
        let order = log.lock().unwrap().clone();
        assert_eq!(order.len(), 8);
        orders.insert(order);
    }
    assert!(orders.len() > 3, "{orders:?}");
}

#[test]
fn the_legacy_stream_is_a_barrier_for_blocking_streams_only() {
    let m = machine("");
    let log = Arc::new(Mutex::new(Vec::new()));
    let blocking = stream(m.create_stream(0, 0).unwrap());
    let free = stream(m.create_stream(NON_BLOCKING, 0).unwrap());
    sleep(m, 60, blocking);
    note(m, &log, 1, blocking);
    note(m, &log, 2, stream(0));
    note(m, &log, 3, blocking);
    note(m, &log, 4, stream(CU_STREAM_LEGACY.addr() as u64));
    note(m, &log, 0, free);
    assert_eq!(m.query_stream(blocking), Err(NOT_READY));
    assert_eq!(m.query_stream(stream(0)), Err(NOT_READY));
    m.synchronize_stream(free).unwrap();
    assert_eq!(*log.lock().unwrap(), [0]);
    m.synchronize_stream(stream(0)).unwrap();
    assert_eq!(*log.lock().unwrap(), [0, 1, 2, 3, 4]);
    assert_eq!(m.query_stream(blocking), Ok(()));
}

#[test]
fn every_thread_has_a_default_stream_of_its_own() {
    let m = machine("");
    let context = m.current_handle();
    let own = StreamRef { handle: 0, per_thread: true };
    sleep(m, 150, own);
    assert_eq!(m.query_stream(own), Err(NOT_READY));
    assert_eq!(m.query_stream(stream(CU_STREAM_PER_THREAD.addr() as u64)), Err(NOT_READY));
    std::thread::spawn(move || {
        m.set_context(context).unwrap();
        assert_eq!(m.query_stream(own), Ok(()), "the other thread's is idle");
        assert_eq!(m.query_stream(stream(0)), Err(NOT_READY), "but the legacy stream waits for all");
    })
    .join()
    .unwrap();
    m.synchronize_stream(own).unwrap();
}

#[test]
fn an_event_joins_streams_of_two_gpus() {
    for seed in 0..10 {
        let m = machine(&format!("gpus=2,seed={seed}"));
        let zero = m.current_handle();
        let at = m.host_allocate(4, 0).unwrap();
        let first = stream(m.create_stream(NON_BLOCKING, 0).unwrap());
        let event = m.create_event(NO_TIMING).unwrap();
        launch(m, "write_after_us", &[Long(at), Word(1), Long(5_000)], first).unwrap();
        m.record_event(event, first, false).unwrap();
        assert_eq!(m.query_event(event), Err(NOT_READY));
        m.create_context(1, 0).unwrap();
        let second = stream(m.create_stream(NON_BLOCKING, 0).unwrap());
        assert_eq!(m.record_event(event, second, false), Err(CUDA_ERROR_INVALID_HANDLE), "another context");
        m.wait_event(second, event, false).unwrap();
        launch(m, "fill_u32", &[Long(at), Word(2), Long(1)], second).unwrap();
        m.synchronize_stream(second).unwrap();
        m.set_context(zero).unwrap();
        m.query_event(event).unwrap();
        assert_eq!(words(m, at, 1).unwrap(), [2]);
    }
}

#[test]
fn events_measure_time() {
    let m = machine("");
    let (from, to) = (m.create_event(0).unwrap(), m.create_event(0).unwrap());
    assert_eq!(m.elapsed(from, to), Err(CUDA_ERROR_INVALID_HANDLE), "not recorded");
    m.query_event(from).unwrap();
    m.record_event(from, stream(0), false).unwrap();
    sleep(m, 30, stream(0));
    m.record_event(to, stream(0), false).unwrap();
    assert_eq!(m.elapsed(from, to), Err(NOT_READY));
    m.synchronize_event(to).unwrap();
    let time = m.elapsed(from, to).unwrap();
    assert!((30.0..2000.0).contains(&time), "{time}");
    let untimed = m.create_event(NO_TIMING).unwrap();
    m.record_event(untimed, stream(0), false).unwrap();
    m.synchronize_event(untimed).unwrap();
    assert_eq!(m.elapsed(from, untimed), Err(CUDA_ERROR_INVALID_HANDLE));
    m.destroy_event(from).unwrap();
    assert_eq!(m.query_event(from), Err(CUDA_ERROR_INVALID_HANDLE));
}

#[test]
fn many_kernels_may_wait_for_one() {
    let m = machine("");
    let flag = m.allocate(4).unwrap();
    fill(m, flag, 0, 1).unwrap();
    for _ in 0..40 {
        let on = stream(m.create_stream(NON_BLOCKING, 0).unwrap());
        launch(m, "spin_until_u32", &[Long(flag), Word(1)], on).unwrap();
    }
    let last = stream(m.create_stream(NON_BLOCKING, 0).unwrap());
    launch(m, "fill_u32", &[Long(flag), Word(1), Long(1)], last).unwrap();
    m.synchronize_context(&m.current().unwrap()).unwrap();
}

#[test]
fn a_launch_does_not_wait_and_takes_its_parameters_along() {
    let m = machine("");
    let on = stream(m.create_stream(NON_BLOCKING, 0).unwrap());
    let at = m.allocate(4).unwrap();
    let begin = Instant::now();
    sleep(m, 200, on);
    let mut source = vec![5_u32; 1000];
    let target = m.allocate(4000).unwrap();
    let host = source.as_mut_ptr().expose_provenance() as u64;
    m.copy(vgmem_sim::Transfer::ToDevice, target, host, 4000, on, false).unwrap();
    source.fill(6);
    launch(m, "fill_u32", &[Long(at), Word(9), Long(1)], on).unwrap();
    assert!(begin.elapsed() < Duration::from_millis(150));
    m.destroy_stream(on.handle).unwrap();
    assert_eq!(m.query_stream(on), Err(CUDA_ERROR_INVALID_HANDLE));
    m.synchronize_context(&m.current().unwrap()).unwrap();
    assert!(begin.elapsed() >= Duration::from_millis(200));
    assert_eq!(words(m, target, 1000).unwrap(), [5; 1000]);
    assert_eq!(words(m, at, 1).unwrap(), [9]);
}

#[test]
fn copies_to_the_programs_own_memory_are_over_when_they_return() {
    let m = machine("");
    let at = m.allocate(400).unwrap();
    launch(m, "write_after_us", &[Long(at), Word(3), Long(30_000)], stream(0)).unwrap();
    let mut to = [0_u32; 1];
    let host = to.as_mut_ptr().expose_provenance() as u64;
    m.copy(vgmem_sim::Transfer::FromDevice, host, at, 4, stream(0), false).unwrap();
    assert_eq!(to, [3]);
    // Pinned memory is not waited for.
    let pinned = m.host_allocate(4, 0).unwrap();
    sleep(m, 100, stream(0));
    m.copy(vgmem_sim::Transfer::FromDevice, pinned, at, 4, stream(0), false).unwrap();
    assert_eq!(m.query_stream(stream(0)), Err(NOT_READY));
}

#[test]
fn callbacks_of_a_lost_context_hear_why_and_host_functions_are_left_out() {
    let m = machine("");
    let heard = Arc::new(AtomicU32::new(0));
    let left_out = Arc::new(AtomicU32::new(0));
    sleep(m, 20, stream(0));
    launch(m, "fill_u32", &[Long(4096), Word(9), Long(1)], stream(0)).unwrap();
    let (a, b) = (heard.clone(), left_out.clone());
    m.callback(stream(0), move |code| a.store(code, Ordering::SeqCst)).unwrap();
    m.host_call(stream(0), HostCall::new(0, 0, move |_| b.store(1, Ordering::SeqCst))).unwrap();
    assert_eq!(m.synchronize_stream(stream(0)), Err(CUDA_ERROR_ILLEGAL_ADDRESS));
    let deadline = Instant::now() + Duration::from_secs(5);
    while heard.load(Ordering::SeqCst) == 0 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(heard.load(Ordering::SeqCst), CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_eq!(left_out.load(Ordering::SeqCst), 0);
}

#[test]
fn streams_answer_for_themselves() {
    let m = machine("gpus=2");
    let first = m.current_handle();
    let a = stream(m.create_stream(NON_BLOCKING, -100).unwrap());
    let b = stream(m.create_stream(0, 0).unwrap());
    assert_eq!(m.create_stream(2, 0), Err(CUDA_ERROR_INVALID_VALUE));
    let (flags, priority, id) = m.stream_facts(a).unwrap();
    assert_eq!((flags, priority), (NON_BLOCKING, m.priorities().1));
    assert_ne!(id, m.stream_facts(b).unwrap().2);
    m.create_context(1, 0).unwrap();
    assert_eq!(m.stream_context(a), Ok((first, 0)), "whatever is current");
    assert_eq!(m.destroy_stream(0), Err(CUDA_ERROR_INVALID_HANDLE));
}

#[test]
fn waiting_in_free_keeps_others_from_the_queues_but_not_from_mapping() {
    let m = machine("");
    let context = m.current_handle();
    let (kept, freed) = (m.allocate(4).unwrap(), m.allocate(4 * MIB).unwrap());
    let at = reserve(m, 1);
    let begin = Instant::now();
    sleep(m, 250, stream(0));
    let free = std::thread::spawn(move || {
        m.set_context(context).unwrap();
        m.free(freed).unwrap();
    });
    std::thread::sleep(Duration::from_millis(50));
    page(m, at, &gpu(0));
    assert_eq!(m.query_stream(stream(0)), Err(NOT_READY));
    m.unmap(at, PAGE).unwrap();
    assert!(begin.elapsed() < Duration::from_millis(200), "mapping goes on");
    let on = stream(m.create_stream(NON_BLOCKING, 0).unwrap());
    launch(m, "fill_u32", &[Long(kept), Word(1), Long(1)], on).unwrap();
    assert!(begin.elapsed() >= Duration::from_millis(250), "the launch waits");
    free.join().unwrap();
}

/// A small generator, so that every seed is another program.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

#[test]
fn random_programs_joined_by_events_compute_what_they_say() {
    for seed in 1..=25 {
        let m = machine(&format!("gpus=2,seed={seed}"));
        let mut dice = Dice(seed);
        let one = floats(m, &[1.0; 64]);
        let buffers: Vec<u64> = (0..4).map(|_| floats(m, &[8.0; 64])).collect();
        let streams: Vec<_> = (0..4).map(|i| stream(m.create_stream(i % 2, 0).unwrap())).collect();
        let mut events = [None; 4];
        let mut wanted = [8.0_f32; 4];
        for _ in 0..120 {
            let (which, on) = (dice.roll(4) as usize, streams[dice.roll(4) as usize]);
            if let Some(event) = events[which] {
                m.wait_event(on, event, false).unwrap();
            }
            let at = buffers[which];
            if dice.roll(2) == 0 {
                launch(m, "scale_f32", &[Long(at), Float(0.5), Long(64)], on).unwrap();
                wanted[which] *= 0.5;
            } else {
                launch(m, "axpy_f32", &[Long(at), Long(one), Float(1.0), Long(64)], on).unwrap();
                wanted[which] += 1.0;
            }
            let event = m.create_event(NO_TIMING).unwrap();
            m.record_event(event, on, false).unwrap();
            events[which] = Some(event);
        }
        m.synchronize_context(&m.current().unwrap()).unwrap();
        for (buffer, wanted) in buffers.iter().zip(wanted) {
            assert_eq!(values(m, *buffer, 64), [wanted; 64], "seed {seed}");
        }
    }
}
