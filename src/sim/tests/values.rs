//! Streams that wait for values; lazy loading behind such a wait; limits and occupancy.
#![allow(clippy::unwrap_used)] // helpers of tests are tests too

mod common;

use common::*;
use std::ffi::CString;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use vgmem_abi::*;
use vgmem_sim::{Answer, CUDA_ERROR_UNSUPPORTED_LIMIT, Machine, StreamRef, ValueOp};

const INVALID: u32 = CUDA_ERROR_INVALID_VALUE;
const SOON: Duration = Duration::from_millis(40);

fn on_new_stream(m: &Machine) -> StreamRef {
    stream(m.create_stream(1, 0).unwrap())
}

fn wait(address: u64, value: u32, flags: u32) -> Answer<ValueOp> {
    ValueOp::wait(address, u64::from(value), false, flags)
}

/// A word of pinned memory.
fn word(m: &Machine) -> (u64, &'static AtomicU32) {
    let at = m.host_allocate(4096, 0).unwrap();
    // SAFETY: the memory is mapped until the process ends, and only used as atomics.
    (at, unsafe { &*std::ptr::with_exposed_provenance(at as usize) })
}

#[test]
fn operations_on_values_are_checked_as_on_hardware() {
    let m = machine("");
    let on = on_new_stream(m);
    let at = m.allocate(64).unwrap();
    fill(m, at, 0, 16).unwrap();
    let program = [0_u64; 4];
    let program = program.as_ptr().expose_provenance() as u64;
    let write = |at, wide| m.value_ops(vec![ValueOp::write(at, 5, wide, 0).unwrap()], on);
    assert_eq!(write(at, false), Ok(()));
    for (bad, wide) in [(at + 2, false), (0, false), (program, false), (at + 4, true), (at + 64, true)] {
        assert_eq!(write(bad, wide), Err(INVALID), "{bad:x}");
    }
    assert_eq!(write(at + 8, true), Ok(()));
    assert_eq!(ValueOp::write(at, 5, false, 1).err(), Some(INVALID));
    assert_eq!(wait(at, 5, 4).err(), Some(INVALID));
    assert_eq!(wait(at, 5, 1 << 30).err(), Some(CUDA_ERROR_NOT_SUPPORTED));
    m.value_ops(vec![wait(at, 5, 1).unwrap(), ValueOp::barrier(0).unwrap()], on).unwrap();
    m.value_ops(Vec::new(), on).unwrap();
    m.synchronize_stream(on).unwrap();
    assert_eq!(words(m, at, 4), Ok(vec![5, 0, 5, 0]));
}

#[test]
fn a_stream_waits_until_the_condition_holds_and_others_go_on() {
    let m = machine("");
    let (at, flag) = word(m);
    let out = m.allocate(64).unwrap();
    for (flags, not_yet, value, enough) in [(0, 6, 7, 8), (1, 8, 7, 7), (2, 8, 7, 4), (3, !7, 7, 0)] {
        flag.store(not_yet, Ordering::SeqCst);
        fill(m, out, 0, 1).unwrap();
        let on = on_new_stream(m);
        m.value_ops(vec![wait(at, value, flags).unwrap()], on).unwrap();
        launch(m, "fill_u32", &[Long(out), Word(1), Long(1)], stream(0)).unwrap();
        m.synchronize_stream(stream(0)).unwrap();
        assert_eq!(m.query_stream(on), Err(CUDA_ERROR_NOT_READY), "{flags}");
        flag.store(enough, Ordering::SeqCst);
        m.synchronize_stream(on).unwrap();
    }
}

#[test]
fn a_kernel_behind_a_wait_uses_the_mapping_that_stands_when_it_runs() {
    let m = machine("gpus=2");
    let (at, flag) = word(m);
    let start = reserve(m, 1);
    let on = on_new_stream(m);
    let module = m.load_module().unwrap();
    let function = m.module_function(module, &CString::new("fill_u32").unwrap()).unwrap();
    m.load_function(function).unwrap();
    m.value_ops(vec![wait(at, 1, 0).unwrap()], on).unwrap();
    let prepared = m.prepare_launch(function, [1; 3], [1; 3], 0, on).unwrap();
    let mut bytes = start.to_le_bytes().to_vec();
    bytes.extend([9_u64.to_le_bytes(), 4_u64.to_le_bytes()].concat());
    m.launch(prepared, bytes).unwrap();
    std::thread::sleep(SOON);
    page(m, start, &gpu(1));
    flag.store(1, Ordering::SeqCst);
    m.synchronize_stream(on).unwrap();
    assert_eq!(words(m, start, 4), Ok(vec![9; 4]));
}

#[test]
fn the_first_launch_behind_a_wait_blocks_and_keeps_others_out_of_the_context() {
    let m = machine("");
    let (at, flag) = word(m);
    let out = m.allocate(64).unwrap();
    let start = reserve(m, 1);
    let on = on_new_stream(m);
    let other = on_new_stream(m);
    m.value_ops(vec![wait(at, 1, 0).unwrap()], on).unwrap();
    let context = m.current_handle();
    let enter = move || m.set_context(context).unwrap();
    let begin = Instant::now();
    let release = std::thread::spawn(move || {
        std::thread::sleep(6 * SOON);
        flag.store(1, Ordering::SeqCst);
    });
    let first = std::thread::spawn(move || {
        enter();
        launch(m, "fill_u32", &[Long(out), Word(1), Long(1)], on).unwrap();
        begin.elapsed()
    });
    std::thread::sleep(SOON);
    page(m, start, &gpu(0));
    assert!(begin.elapsed() < 4 * SOON, "mapping goes on");
    let copied = std::thread::spawn(move || {
        enter();
        m.copy(vgmem_sim::Transfer::OnDevice, out, out + 32, 32, other, false).unwrap();
        begin.elapsed()
    });
    assert!(first.join().unwrap() >= 6 * SOON);
    assert!(copied.join().unwrap() >= 6 * SOON, "a copy of another thread waits too");
    release.join().unwrap();
    // Loaded first, the same launch does not wait.
    flag.store(0, Ordering::SeqCst);
    m.value_ops(vec![wait(at, 1, 0).unwrap()], on).unwrap();
    let module = m.load_module().unwrap();
    let function = m.module_function(module, &CString::new("sleep_us").unwrap()).unwrap();
    assert_eq!(m.is_loaded(function), Ok(false));
    m.load_function(function).unwrap();
    let begin = Instant::now();
    let prepared = m.prepare_launch(function, [1; 3], [1; 3], 0, on).unwrap();
    m.launch(prepared, 1_u64.to_le_bytes().to_vec()).unwrap();
    assert!(begin.elapsed() < SOON);
    flag.store(1, Ordering::SeqCst);
    m.synchronize_stream(on).unwrap();
}

#[test]
fn limits_and_attributes_and_occupancy_answer_as_on_hardware() {
    let m = machine("");
    let first = [(0, 1024), (1, 8_650_752), (2, 8_388_608), (4, 2048), (5, 64), (6, 11_796_480)];
    for (limit, value) in first {
        assert_eq!(m.limit(limit), Ok(value));
        m.set_limit(limit, value + 64).unwrap();
        assert_eq!(m.limit(limit), Ok(value + 64));
    }
    assert_eq!([m.limit(3), m.limit(9)], [Err(CUDA_ERROR_UNSUPPORTED_LIMIT); 2]);
    assert_eq!([m.limit(10), m.limit(11)], [Err(INVALID); 2]);
    assert_eq!([m.set_limit(7, 0), m.set_limit(8, 0)], [Err(CUDA_ERROR_NOT_PERMITTED); 2]);
    assert_eq!(m.set_cache_config(7), Err(INVALID));
    m.set_cache_config(2).unwrap();
    assert_eq!(m.cache_config(), Ok(2));
    let module = m.load_module().unwrap();
    let f = m.module_function(module, &CString::new("fill_u32").unwrap()).unwrap();
    let library = m.load_library().unwrap();
    let kernel = m.library_kernel(library, &CString::new("fill_u32").unwrap()).unwrap();
    let blocks = [256, 1024, 32, 2048].map(|threads| m.occupancy(f, threads, 0).unwrap());
    assert_eq!(blocks, [8, 2, 32, 0]);
    assert_eq!(m.occupancy(f, 0, 0), Err(INVALID));
    assert_eq!(m.occupancy(kernel, 256, 0), Ok(8));
    assert_eq!(m.occupancy(f, 256, 100 << 10), Ok(0), "more than the function may have");
    assert_eq!(m.set_function_attribute(f, 8, 232_449), Err(INVALID));
    m.set_function_attribute(f, 8, 232_448).unwrap();
    assert_eq!(m.occupancy(f, 256, 100 << 10), Ok(2));
    m.set_function_attribute(f, 9, 50).unwrap();
    assert_eq!(m.occupancy(f, 256, 100 << 10), Ok(1));
    assert_eq!(m.shared_left(f, 2, 256), Ok(67584));
    assert_eq!(m.best_block(f, 0, |_| 0), Ok((264, 1024)));
    assert_eq!(m.set_function_attribute(f, 0, 1), Err(INVALID));
    assert_eq!(m.function_attribute(kernel, 0), Err(CUDA_ERROR_INVALID_HANDLE));
    assert_eq!(m.kernel_attribute(kernel, 0, 0), Ok(1024));
}
