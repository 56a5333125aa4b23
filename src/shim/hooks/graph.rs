//! Stream capture: while a stream is captured the pool waits for nothing, or the capture would end.

use std::sync::{Mutex, PoisonError};

use vgmem_abi::*;

use crate::start::engine;

/// A captured stream; the default streams exist once per thread.
type Captured = (usize, i32);

static CAPTURED: Mutex<Vec<Captured>> = Mutex::new(Vec::new());

fn key(stream: CUstream) -> Captured {
    let number = stream as usize;
    // SAFETY: takes no arguments.
    let thread = if number <= 2 { unsafe { libc::gettid() } } else { 0 };
    (number, thread)
}

fn change(change: impl FnOnce(&mut Vec<Captured>)) {
    let Some(engine) = engine() else { return };
    let mut captured = CAPTURED.lock().unwrap_or_else(PoisonError::into_inner);
    change(&mut captured);
    engine.pool.hold(!captured.is_empty());
}

fn began(rc: CUresult, stream: CUstream) {
    if rc == CUDA_SUCCESS {
        change(|captured| captured.push(key(stream)));
    }
}

/// The stream is not captured any more, whether the capture gave a graph or an error.
fn ended(stream: CUstream) {
    change(|captured| captured.retain(|&other| other != key(stream)));
}

/// After `cuStreamBeginCapture`, first ABI.
pub fn cuStreamBeginCapture(rc: CUresult, stream: CUstream) {
    began(rc, stream);
}

/// After `cuStreamBeginCapture`, second ABI.
pub fn cuStreamBeginCapture_v2(rc: CUresult, stream: CUstream, _mode: c_int) {
    began(rc, stream);
}

/// After `cuStreamBeginCaptureToGraph`.
pub fn cuStreamBeginCaptureToGraph(
    rc: CUresult,
    stream: CUstream,
    _graph: CUgraph,
    _nodes: *const CUgraphNode,
    _edges: *const c_void,
    _count: usize,
    _mode: c_int,
) {
    began(rc, stream);
}

/// After `cuStreamEndCapture`.
pub fn cuStreamEndCapture(_rc: CUresult, stream: CUstream, _graph: *mut CUgraph) {
    ended(stream);
}

/// After `cuStreamDestroy`: a capture ends with its stream.
pub fn cuStreamDestroy_v2(rc: CUresult, stream: CUstream) {
    if rc == CUDA_SUCCESS {
        ended(stream);
    }
}
