//! Stream capture: while a stream is captured the pool waits for nothing, or the capture would end.

use std::sync::{Mutex, PoisonError};

use vgmem_abi::*;

use crate::pager;
use crate::start::{Engine, engine};

/// A captured stream, with its context; the default streams exist once per thread.
type Captured = (u64, usize, i32);

static CAPTURED: Mutex<Vec<Captured>> = Mutex::new(Vec::new());

fn key(engine: &Engine, stream: CUstream) -> Captured {
    let number = stream as usize;
    // SAFETY: takes no arguments.
    let thread = if number <= 2 { unsafe { libc::gettid() } } else { 0 };
    (engine.current().map_or(0, |(context, _)| context), number, thread)
}

fn change(change: impl FnOnce(&Engine, &mut Vec<Captured>)) {
    let Some(engine) = engine() else { return };
    let mut captured = CAPTURED.lock().unwrap_or_else(PoisonError::into_inner);
    change(engine, &mut captured);
    engine.pool.hold(!captured.is_empty());
}

/// Makes the call that begins a capture. The pool is on hold before it: a wait in between would end the capture.
fn begin(stream: CUstream, call: impl FnOnce() -> CUresult) -> CUresult {
    change(|engine, captured| captured.push(key(engine, stream)));
    let rc = call();
    if rc != CUDA_SUCCESS {
        change(|engine, captured| {
            let key = key(engine, stream);
            if let Some(index) = captured.iter().rposition(|&other| other == key) {
                captured.remove(index);
            }
        });
    }
    rc
}

/// The stream is not captured any more, whether the capture gave a graph or an error.
fn ended(stream: CUstream) {
    change(|engine, captured| {
        let (_, number, thread) = key(engine, stream);
        captured.retain(|&(_, other, of)| (other, of) != (number, thread));
    });
}

/// A context is gone, and its streams' captures with it.
pub(crate) fn context_ended(context: u64) {
    change(|_, captured| captured.retain(|&(owner, _, _)| owner != context));
}

/// `cuStreamBeginCapture`, first ABI.
pub unsafe fn cuStreamBeginCapture(real: pointers::cuStreamBeginCapture, stream: CUstream) -> CUresult {
    // SAFETY: the program's own call, unchanged.
    begin(stream, || unsafe { real(stream) })
}

/// `cuStreamBeginCapture`, second ABI.
pub unsafe fn cuStreamBeginCapture_v2(
    real: pointers::cuStreamBeginCapture_v2,
    stream: CUstream,
    mode: c_int,
) -> CUresult {
    // SAFETY: the program's own call, unchanged.
    begin(stream, || unsafe { real(stream, mode) })
}

/// `cuStreamBeginCaptureToGraph`.
pub unsafe fn cuStreamBeginCaptureToGraph(
    real: pointers::cuStreamBeginCaptureToGraph,
    stream: CUstream,
    graph: CUgraph,
    nodes: *const CUgraphNode,
    edges: *const c_void,
    count: usize,
    mode: c_int,
) -> CUresult {
    // SAFETY: the program's own call, unchanged.
    begin(stream, || unsafe { real(stream, graph, nodes, edges, count, mode) })
}

/// After `cuStreamEndCapture`: over, but where the call itself was refused.
pub fn cuStreamEndCapture(rc: CUresult, stream: CUstream, _graph: *mut CUgraph) {
    let refused = matches!(
        rc,
        CUDA_ERROR_INVALID_CONTEXT
            | CUDA_ERROR_INVALID_HANDLE
            | CUDA_ERROR_CONTEXT_IS_DESTROYED
            | CUDA_ERROR_STREAM_CAPTURE_UNMATCHED
            | CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD
    );
    if !refused {
        ended(stream);
    }
}

/// After `cuStreamDestroy`: a capture ends with its stream, and the handle may come back for another.
pub fn cuStreamDestroy_v2(rc: CUresult, stream: CUstream) {
    if rc == CUDA_SUCCESS {
        ended(stream);
        pager::stream_destroyed(stream);
    }
}

/// After `cuStreamDestroy`, the older symbol.
pub fn cuStreamDestroy(rc: CUresult, stream: CUstream) {
    if rc == CUDA_SUCCESS {
        ended(stream);
        pager::stream_destroyed(stream);
    }
}
