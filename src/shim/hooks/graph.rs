//! Stream capture: while a stream is captured the pool waits for nothing, or the capture would end.

use std::sync::{Arc, Mutex, PoisonError};

use vgmem_abi::*;

use super::access::stream_of;
use super::launch::pooled_words;
use crate::broken;
use crate::capture::{Capture, capture_of};
use crate::exports::graph::slots;
use crate::graph_nodes::{self, Order, Plan};
use crate::graphs;
use crate::leave;
use crate::pager::{self, Held, Use};
use crate::start::{Engine, engine, with_room};
use crate::stats;

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
    if let Some(engine) = engine() {
        pager::capture_begins(engine);
    }
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
    graphs::context_ended(context);
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

/// Lets the driver destroy a stream. A capture ends with it, its work goes on, and the handle may come back.
fn destroy(stream: CUstream, call: impl FnOnce() -> CUresult) -> CUresult {
    leave::stream_leaves(stream);
    let rc = call();
    if rc == CUDA_SUCCESS {
        ended(stream);
        leave::stream_gone(stream);
    }
    rc
}

/// `cuStreamDestroy`.
pub unsafe fn cuStreamDestroy_v2(real: pointers::cuStreamDestroy_v2, stream: CUstream) -> CUresult {
    // SAFETY: the program's own call, unchanged.
    destroy(stream, || unsafe { real(stream) })
}

/// `cuStreamDestroy`, the older symbol.
pub unsafe fn cuStreamDestroy(real: pointers::cuStreamDestroy, stream: CUstream) -> CUresult {
    // SAFETY: the program's own call, unchanged.
    destroy(stream, || unsafe { real(stream) })
}

/// `cuGraphLaunch`: what its nodes name is brought home.
pub unsafe fn cuGraphLaunch(real: pointers::cuGraphLaunch, exec: CUgraphExec, stream: CUstream) -> CUresult {
    let on = stream_of(stream, real as usize, &slots::cuGraphLaunch);
    let ordered = engine().and_then(|engine| Some((engine, order_of(engine, exec, on)?)));
    if let Some((engine, (plan, order))) = &ordered
        && let Some(rc) = by_nodes(engine, plan.as_deref(), order, on)
    {
        return rc;
    }
    let made = match engine() {
        Some(engine) if pager::is_needed(engine) && !broken::is("graphs") => {
            Use::of_graph(engine, exec as u64, &graphs::of(exec))
        }
        _ => Use::noted(),
    };
    // SAFETY: the program's own call, unchanged.
    let rc = unsafe { real(exec, stream) };
    if rc == CUDA_SUCCESS
        && let Some((engine, (_, order))) = &ordered
    {
        order.went_whole(engine, on);
    }
    made.done(rc, on)
}

/// The order of a graph's launches, where they are kept in order by us: see [`by_nodes`].
fn order_of(engine: &Engine, exec: CUgraphExec, on: CUstream) -> Option<(Option<Arc<Plan>>, Arc<Order>)> {
    let ours = engine.settings.graph_nodes && matches!(capture_of(engine, on), Capture::None);
    ours.then(|| graphs::plan_of(exec)).flatten()
}

/// Launches a graph node by node, where it can be and pages lie away from home; `None` where it goes whole.
fn by_nodes(engine: &Engine, plan: Option<&Plan>, order: &Order, on: CUstream) -> Option<CUresult> {
    let rc = plan.filter(|_| pager::is_needed(engine)).and_then(|plan| plan.launch(engine, order, on));
    match rc {
        None => order.goes_whole(engine, on),
        Some(_) => stats::BY_NODES.add(1),
    }
    rc
}

/// Notes what a new graph names, where it was made.
///
/// # Safety
/// `exec` is NULL or where the driver has just written.
unsafe fn made(rc: CUresult, exec: *mut CUgraphExec, graph: CUgraph) -> CUresult {
    if rc == CUDA_SUCCESS && !exec.is_null() {
        // SAFETY: by contract.
        graphs::made_from(unsafe { *exec }, graph);
    }
    rc
}

/// Hooks of `cuGraphInstantiate` in its forms: asked again after out of memory, and what the graph names is noted.
macro_rules! instantiate {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),*);)*) => { $(
        $(#[$doc])*
        pub unsafe fn $name(
            real: pointers::$name, exec: *mut CUgraphExec, graph: CUgraph, $($arg: $type),*
        ) -> CUresult {
            let _held = Held::of_everything();
            // SAFETY: the program's own call, unchanged; one that failed for want of memory has done nothing.
            let rc = with_room(|| unsafe { real(exec, graph, $($arg),*) });
            // SAFETY: the driver has just written it.
            unsafe { made(rc, exec, graph) }
        }
    )* };
}

instantiate! {
    /// `cuGraphInstantiate`, first ABI.
    cuGraphInstantiate(error: *mut CUgraphNode, text: *mut c_char, bytes: usize);
    /// `cuGraphInstantiate`, second ABI.
    cuGraphInstantiate_v2(error: *mut CUgraphNode, text: *mut c_char, bytes: usize);
    /// `cuGraphInstantiateWithFlags`.
    cuGraphInstantiateWithFlags(flags: u64);
    /// `cuGraphInstantiateWithParams`.
    cuGraphInstantiateWithParams(params: *mut c_void);
}

/// `cuGraphExecDestroy`.
pub unsafe fn cuGraphExecDestroy(real: pointers::cuGraphExecDestroy, exec: CUgraphExec) -> CUresult {
    // SAFETY: the program's own call, unchanged.
    graphs::destroy(exec, || unsafe { real(exec) })
}

/// `cuGraphRetainUserObject`: the object lives until launches of the graph are over, of which the driver has to know.
pub unsafe fn cuGraphRetainUserObject(
    real: pointers::cuGraphRetainUserObject,
    graph: CUgraph,
    object: CUuserObject,
    count: c_uint,
    flags: c_uint,
) -> CUresult {
    graph_nodes::launch_all_whole();
    // SAFETY: the program's own call, unchanged.
    unsafe { real(graph, object, count, flags) }
}

/// `cuGraphExecUpdate`, first ABI.
pub unsafe fn cuGraphExecUpdate(
    real: pointers::cuGraphExecUpdate,
    exec: CUgraphExec,
    graph: CUgraph,
    node: *mut CUgraphNode,
    result: *mut c_int,
) -> CUresult {
    let _held = Held::of_everything();
    // SAFETY: the program's own call, unchanged.
    updated(unsafe { real(exec, graph, node, result) }, exec, graph)
}

/// `cuGraphExecUpdate`, second ABI.
pub unsafe fn cuGraphExecUpdate_v2(
    real: pointers::cuGraphExecUpdate_v2,
    exec: CUgraphExec,
    graph: CUgraph,
    result: *mut c_void,
) -> CUresult {
    let _held = Held::of_everything();
    // SAFETY: the program's own call, unchanged.
    updated(unsafe { real(exec, graph, result) }, exec, graph)
}

fn updated(rc: CUresult, exec: CUgraphExec, graph: CUgraph) -> CUresult {
    match rc {
        CUDA_SUCCESS => graphs::updated_to(exec, graph),
        _ => graphs::changed(exec, false),
    }
    rc
}

/// Hooks of calls that change one node of an instantiated graph.
macro_rules! changes {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),*);)*) => { $(
        $(#[$doc])*
        pub unsafe fn $name(
            real: pointers::$name, exec: CUgraphExec, node: CUgraphNode, $($arg: $type),*
        ) -> CUresult {
            let _held = Held::of_everything();
            // SAFETY: the program's own call, unchanged.
            let rc = unsafe { real(exec, node, $($arg),*) };
            graphs::changed(exec, false);
            rc
        }
    )* };
}

changes! {
    /// `cuGraphExecKernelNodeSetParams`, first ABI.
    cuGraphExecKernelNodeSetParams(params: *const c_void);
    /// `cuGraphExecMemsetNodeSetParams`.
    cuGraphExecMemsetNodeSetParams(params: *const c_void, context: CUcontext);
    /// `cuGraphExecChildGraphNodeSetParams`.
    cuGraphExecChildGraphNodeSetParams(graph: CUgraph);
    /// `cuGraphExecNodeSetParams`.
    cuGraphExecNodeSetParams(params: *mut c_void);
}

/// `cuGraphNodeSetEnabled`.
pub unsafe fn cuGraphNodeSetEnabled(
    real: pointers::cuGraphNodeSetEnabled,
    exec: CUgraphExec,
    node: CUgraphNode,
    enabled: c_uint,
) -> CUresult {
    // SAFETY: the program's own call, unchanged.
    let rc = unsafe { real(exec, node, enabled) };
    if rc == CUDA_SUCCESS {
        graphs::changed(exec, true);
    }
    rc
}

/// `cuGraphExecKernelNodeSetParams`.
pub unsafe fn cuGraphExecKernelNodeSetParams_v2(
    real: pointers::cuGraphExecKernelNodeSetParams_v2,
    exec: CUgraphExec,
    node: CUgraphNode,
    params: *const CUDA_KERNEL_NODE_PARAMS,
) -> CUresult {
    let _held = Held::of_everything();
    // SAFETY: the program's own call, unchanged.
    let rc = unsafe { real(exec, node, params) };
    graphs::changed(exec, false);
    // SAFETY: the driver has just read it.
    if let Some(params) = unsafe { params.as_ref() }
        && rc == CUDA_SUCCESS
        && let Some(engine) = engine()
    {
        // SAFETY: as above.
        graphs::adds(exec, unsafe { pooled_words(engine, params) });
    }
    rc
}
