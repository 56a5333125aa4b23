//! Captured streams: what becomes a node, what is forbidden, what makes a capture invalid. Every
//! answer here was given by a real driver to the same calls.
#![allow(clippy::unwrap_used)] // helpers of tests are tests too

mod common;

use common::*;
use vgmem_abi::*;
use vgmem_sim::{
    Answer, CUDA_ERROR_CAPTURED_EVENT, CUDA_ERROR_STREAM_CAPTURE_ISOLATION, CUDA_ERROR_STREAM_CAPTURE_MERGE,
    CUDA_ERROR_STREAM_CAPTURE_UNJOINED, Fill, HostCall, Machine, NodeContent, StreamRef, Towards, Transfer,
    ValueOp,
};

const UNSUPPORTED: u32 = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
const INVALIDATED: u32 = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
const IMPLICIT: u32 = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
const GLOBAL: i32 = 0;
const THREAD: i32 = 1;
const RELAXED: i32 = 2;
const BLOCKING: u32 = 0;
const FREE: u32 = 1;

/// Captures in a new stream while `call` is made; gives its answer, the status then, and the end.
fn during<T>(
    m: &'static Machine,
    mode: i32,
    flags: u32,
    call: impl FnOnce(StreamRef) -> Answer<T>,
) -> (u32, i32, Answer<u64>) {
    let on = stream(m.create_stream(flags, 0).unwrap());
    m.begin_capture(on, mode, None).unwrap();
    let code = call(on).err().unwrap_or(0);
    let status = m.capture_status(on).unwrap();
    let end = m.end_capture(on);
    assert_eq!(m.capture_status(on), Ok(0));
    m.destroy_stream(on.handle).unwrap();
    (code, status, end)
}

/// The call is refused with `code`, and the capture is invalid.
fn breaks<T>(
    m: &'static Machine,
    mode: i32,
    flags: u32,
    code: u32,
    call: impl FnOnce(StreamRef) -> Answer<T>,
) {
    let seen = during(m, mode, flags, call);
    assert_eq!(seen, (code, 2, Err(INVALIDATED)), "mode {mode}");
}

/// The call is done, and the capture goes on; gives the types of the nodes.
fn works<T>(
    m: &'static Machine,
    mode: i32,
    flags: u32,
    call: impl FnOnce(StreamRef) -> Answer<T>,
) -> Vec<i32> {
    let (code, status, end) = during(m, mode, flags, call);
    assert_eq!((code, status), (0, 1), "mode {mode}");
    let graph = end.unwrap();
    let types = m.graph_nodes(graph).unwrap().into_iter().map(|node| m.node_type(node).unwrap()).collect();
    m.destroy_graph(graph).unwrap();
    types
}

/// Makes the call on another thread, in another interaction mode if that is wanted.
fn elsewhere<T: Send + 'static>(
    m: &'static Machine,
    mode: Option<i32>,
    call: impl FnOnce() -> Answer<T> + Send + 'static,
) -> Answer<T> {
    let context = m.current_handle();
    let act = move || {
        m.set_context(context)?;
        if let Some(mode) = mode {
            m.exchange_capture_mode(mode)?;
        }
        call()
    };
    std::thread::spawn(act).join().unwrap()
}

#[test]
fn allocation_is_forbidden_as_the_modes_say() {
    let m = machine("");
    let other = stream(m.create_stream(FREE, 0).unwrap());
    let event = m.create_event(0).unwrap();
    m.record_event(event, other, false).unwrap();
    for mode in [GLOBAL, THREAD] {
        let at = m.allocate(4096).unwrap();
        breaks(m, mode, FREE, UNSUPPORTED, |_| m.allocate(4096));
        breaks(m, mode, FREE, UNSUPPORTED, |_| m.free(at));
        breaks(m, mode, FREE, UNSUPPORTED, |_| m.free(0));
        breaks(m, mode, FREE, UNSUPPORTED, |_| m.host_allocate(4096, 0));
        breaks(m, mode, FREE, UNSUPPORTED, |_| m.synchronize_stream(other));
        breaks(m, mode, FREE, UNSUPPORTED, |_| m.synchronize_stream(stream(0)));
        breaks(m, mode, FREE, UNSUPPORTED, |_| m.query_event(event));
        breaks(m, mode, FREE, UNSUPPORTED, |_| m.synchronize_event(event));
    }
    breaks(m, GLOBAL, FREE, UNSUPPORTED, |_| elsewhere(m, None, || m.allocate(64)));
    works(m, THREAD, FREE, |_| elsewhere(m, None, || m.allocate(64)));
    works(m, GLOBAL, FREE, |_| elsewhere(m, Some(RELAXED), || m.allocate(64)));
    works(m, RELAXED, FREE, |_| m.allocate(64).and_then(|at| m.free(at)));
    works(m, RELAXED, FREE, |_| m.synchronize_stream(other).and(m.query_event(event)));
    // The calling thread's own mode counts for its own calls.
    assert_eq!(m.exchange_capture_mode(RELAXED), Ok(GLOBAL));
    works(m, GLOBAL, FREE, |_| m.allocate(64));
    breaks(m, GLOBAL, FREE, UNSUPPORTED, |_| elsewhere(m, None, || m.allocate(64)));
    assert_eq!(m.exchange_capture_mode(GLOBAL), Ok(RELAXED));
    assert_eq!(m.exchange_capture_mode(9), Ok(GLOBAL), "not looked at");
    assert_eq!(m.exchange_capture_mode(GLOBAL), Ok(9));
}

#[test]
fn mapping_and_making_things_is_allowed() {
    let m = machine("");
    let start = reserve(m, 1);
    let all = |_| {
        let handle = m.create(PAGE, &gpu(0))?;
        m.map(start, PAGE, 0, handle)?;
        m.set_access(start, PAGE, &[grant(0, WRITE)])?;
        m.unmap(start, PAGE)?;
        m.release(handle)?;
        m.load_module()?;
        m.create_event(0)?;
        m.create_stream(0, 0)?;
        m.current_memory_info()
    };
    assert_eq!(works(m, GLOBAL, FREE, all), []);
}

#[test]
fn waiting_for_a_captured_stream_is_never_allowed() {
    let m = machine("");
    for mode in [GLOBAL, THREAD, RELAXED] {
        breaks(m, mode, FREE, UNSUPPORTED, |on| m.synchronize_stream(on));
        breaks(m, mode, FREE, UNSUPPORTED, |on| m.query_stream(on));
        for flags in [FREE, BLOCKING] {
            breaks(m, mode, flags, UNSUPPORTED, |_| m.synchronize_context(&*m.current()?));
        }
        breaks(m, mode, FREE, UNSUPPORTED, |on| elsewhere(m, None, move || m.synchronize_stream(on)));
        breaks(m, mode, FREE, UNSUPPORTED, |on| m.callback(on, |_| {}));
    }
}

#[test]
fn the_legacy_stream_must_not_wait_for_a_captured_one() {
    let m = machine("");
    let at = m.allocate(64).unwrap();
    let event = m.create_event(0).unwrap();
    let set = |_| fill_words(m, at, stream(0));
    for mode in [GLOBAL, THREAD, RELAXED] {
        breaks(m, mode, BLOCKING, IMPLICIT, set);
        breaks(m, mode, BLOCKING, IMPLICIT, |_| put(m, at, &[1]));
        breaks(m, mode, BLOCKING, IMPLICIT, |_| m.synchronize_stream(stream(0)));
        breaks(m, mode, BLOCKING, IMPLICIT, |_| m.query_stream(stream(0)));
        breaks(m, mode, BLOCKING, IMPLICIT, |_| m.record_event(event, stream(0), false));
        assert_eq!(works(m, mode, FREE, set), []);
        assert_eq!(works(m, mode, FREE, |_| put(m, at, &[1])), []);
        let asked = during(m, mode, BLOCKING, |_| m.capture_status(stream(0)));
        assert_eq!((asked.0, asked.1), (IMPLICIT, 1), "a question breaks nothing");
    }
}

fn fill_words(m: &'static Machine, at: u64, on: StreamRef) -> Answer {
    m.fill(Fill { address: at, pitch: 0, unit: 4, value: 5, width: 4, height: 1 }, on, false)
}

#[test]
fn operations_become_nodes() {
    let m = machine("");
    let (a, b) = (m.allocate(4096).unwrap(), m.allocate(4096).unwrap());
    let event = m.create_event(0).unwrap();
    let mut program = [0_u8; 64];
    let program = program.as_mut_ptr().expose_provenance() as u64;
    let copy = |how, to, from, size| move |on| m.copy(how, to, from, size, on, false);
    let nodes = |call: &dyn Fn(StreamRef) -> Answer| works(m, GLOBAL, FREE, call);
    assert_eq!(nodes(&|on| launch(m, "fill_u32", &[Long(a), Word(1), Long(4)], on)), [0]);
    assert_eq!(nodes(&copy(Transfer::OnDevice, a, b, 64)), [1]);
    assert_eq!(nodes(&copy(Transfer::ToDevice, a, program, 64)), [1]);
    assert_eq!(nodes(&copy(Transfer::FromDevice, program, a, 64)), [1]);
    assert_eq!(nodes(&copy(Transfer::OnDevice, a, b, 0)), []);
    assert_eq!(nodes(&|on| fill_words(m, a, on)), [2]);
    assert_eq!(nodes(&|on| fill_words(m, 4096, on)), [2], "looked at when it runs");
    assert_eq!(nodes(&|on| m.host_call(on, HostCall::new(0, 0, |_| {}))), [3]);
    assert_eq!(nodes(&|on| m.wait_event(on, event, true)), [6]);
    assert_eq!(nodes(&|on| m.record_event(event, on, true)), [7]);
    assert_eq!(nodes(&|on| m.record_event(event, on, false)), []);
    let write = |on| m.value_ops(vec![ValueOp::write(a, 1, false, 0)?], on);
    assert_eq!(nodes(&write), [12]);
    let memory = |on| m.allocate_async(4096, None, on).and_then(|at| m.free_async(at, on));
    assert_eq!(nodes(&memory), [10, 11]);
    let outside = during(m, GLOBAL, FREE, |on| m.free_async(a, on));
    assert_eq!((outside.0, outside.1), (CUDA_ERROR_INVALID_VALUE, 1));
    let bad = during(m, GLOBAL, FREE, copy(Transfer::OnDevice, 4096, b, 64));
    assert_eq!((bad.0, bad.1), (CUDA_ERROR_INVALID_VALUE, 1));
    breaks(m, GLOBAL, FREE, UNSUPPORTED, |on| m.prefetch(a, 4096, on));
}

#[test]
fn begin_and_end_know_their_stream_and_thread() {
    let m = machine("");
    let on = stream(m.create_stream(FREE, 0).unwrap());
    assert_eq!(m.begin_capture(stream(0), GLOBAL, None), Err(UNSUPPORTED));
    assert_eq!(m.begin_capture(on, 3, None), Err(CUDA_ERROR_INVALID_VALUE));
    assert_eq!(m.end_capture(on), Err(CUDA_ERROR_ILLEGAL_STATE));
    let again = during(m, GLOBAL, FREE, |on| m.begin_capture(on, GLOBAL, None));
    assert_eq!((again.0, again.1), (CUDA_ERROR_ILLEGAL_STATE, 1));
    m.begin_capture(on, GLOBAL, None).unwrap();
    assert_eq!(elsewhere(m, None, move || m.end_capture(on)), Err(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD));
    assert_eq!(m.capture_status(on), Ok(0), "it is over all the same");
    m.begin_capture(on, RELAXED, None).unwrap();
    elsewhere(m, None, move || m.end_capture(on)).unwrap();
    m.begin_capture(on, GLOBAL, None).unwrap();
    m.destroy_stream(on.handle).unwrap();
    m.allocate(64).unwrap();
    let own = StreamRef { handle: 0, per_thread: true };
    m.begin_capture(own, GLOBAL, None).unwrap();
    m.end_capture(own).unwrap();
}

#[test]
fn events_fork_and_join() {
    let m = machine("");
    let [a, b] = [0; 2].map(|_| stream(m.create_stream(FREE, 0).unwrap()));
    let [fork, join] = [0; 2].map(|_| m.create_event(2).unwrap());
    let at = m.allocate(64).unwrap();
    let work = |on| fill_words(m, at, on).unwrap();
    m.begin_capture(a, GLOBAL, None).unwrap();
    work(a);
    m.record_event(fork, a, false).unwrap();
    m.wait_event(b, fork, false).unwrap();
    assert_eq!(m.capture_status(b), Ok(1));
    work(b);
    work(a);
    m.record_event(join, b, false).unwrap();
    m.wait_event(a, join, false).unwrap();
    work(a);
    let graph = m.end_capture(a).unwrap();
    assert_eq!(m.capture_status(b), Ok(0));
    let nodes = m.graph_nodes(graph).unwrap();
    let [n0, n1, n2, n3] = nodes[..] else { panic!("{nodes:?}") };
    let mut edges = m.graph_edges(graph).unwrap();
    edges.sort_unstable();
    assert_eq!(edges, [(n0, n1), (n0, n2), (n1, n3), (n2, n3)]);
    // Not joined.
    m.begin_capture(a, GLOBAL, None).unwrap();
    m.record_event(fork, a, false).unwrap();
    m.wait_event(b, fork, false).unwrap();
    work(b);
    assert_eq!(m.end_capture(a), Err(CUDA_ERROR_STREAM_CAPTURE_UNJOINED));
    assert_eq!([m.capture_status(a), m.capture_status(b)], [Ok(0), Ok(0)]);
    // Ended in the wrong stream.
    m.begin_capture(a, GLOBAL, None).unwrap();
    m.record_event(fork, a, false).unwrap();
    m.wait_event(b, fork, false).unwrap();
    assert_eq!(m.end_capture(b), Err(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED));
    assert_eq!([m.capture_status(a), m.capture_status(b)], [Ok(2), Ok(2)]);
    assert_eq!(m.wait_event(a, fork, false), Err(INVALIDATED));
    assert_eq!(fill_words(m, at, b), Err(INVALIDATED));
    assert_eq!(m.end_capture(a), Err(INVALIDATED));
    assert_eq!(m.query_event(fork), Err(CUDA_ERROR_INVALID_VALUE), "its capture is gone");
    assert_eq!(m.wait_event(b, fork, false), Err(CUDA_ERROR_INVALID_VALUE));
    // Two captures cannot become one.
    m.begin_capture(a, GLOBAL, None).unwrap();
    m.begin_capture(b, GLOBAL, None).unwrap();
    m.record_event(fork, a, false).unwrap();
    assert_eq!(m.wait_event(b, fork, false), Err(CUDA_ERROR_STREAM_CAPTURE_MERGE));
    assert_eq!([m.end_capture(a), m.end_capture(b)], [Err(INVALIDATED); 2]);
}

#[test]
fn events_do_not_cross_the_border_of_a_capture() {
    let m = machine("");
    let other = stream(m.create_stream(FREE, 0).unwrap());
    let [before, never, inside] = [0; 3].map(|_| m.create_event(0).unwrap());
    m.record_event(before, other, false).unwrap();
    breaks(m, GLOBAL, FREE, CUDA_ERROR_STREAM_CAPTURE_ISOLATION, |on| m.wait_event(on, before, false));
    assert_eq!(works(m, GLOBAL, FREE, |on| m.wait_event(on, never, false)), []);
    let ask = |on| m.record_event(inside, on, false).and_then(|()| m.query_event(inside));
    breaks(m, RELAXED, FREE, CUDA_ERROR_CAPTURED_EVENT, ask);
    m.record_event(inside, other, false).unwrap();
    m.synchronize_event(inside).unwrap();
}

#[test]
fn a_capture_tells_about_itself_and_takes_nodes() {
    let m = machine("");
    let on = stream(m.create_stream(FREE, 0).unwrap());
    let at = m.allocate(64).unwrap();
    assert_eq!(m.capture_info(on), Ok((0, None)));
    m.begin_capture(on, GLOBAL, None).unwrap();
    let (status, info) = m.capture_info(on).unwrap();
    let info = info.unwrap();
    assert_eq!((status, &info.after[..]), (1, &[][..]));
    fill_words(m, at, on).unwrap();
    let node = m.capture_info(on).unwrap().1.unwrap().after[0];
    let own = m.add_node(info.graph, &[node], NodeContent::Empty, 0).unwrap();
    assert_eq!(m.update_capture(on, &[own, own], true), Err(CUDA_ERROR_INVALID_VALUE));
    m.update_capture(on, &[own], true).unwrap();
    fill_words(m, at, on).unwrap();
    let last = m.capture_info(on).unwrap().1.unwrap();
    assert_eq!(last.id, info.id);
    assert_eq!(m.node_neighbours(last.after[0], Towards::Before), Ok(vec![own]));
    assert_eq!(m.allocate(64), Err(UNSUPPORTED));
    assert_eq!(m.capture_info(on), Ok((2, None)));
    assert_eq!(m.end_capture(on), Err(INVALIDATED));
    // Into a graph that is there already.
    let graph = m.create_graph(0).unwrap();
    let root = m.add_node(graph, &[], NodeContent::Empty, 0).unwrap();
    m.begin_capture(on, GLOBAL, Some((graph, &[root]))).unwrap();
    fill_words(m, at, on).unwrap();
    assert_eq!(m.end_capture(on), Ok(graph));
    assert_eq!(m.graph_edges(graph).unwrap().len(), 1);
}
