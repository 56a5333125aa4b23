//! Streams whose work is captured into a graph.

use crate::decode::{handle, handles, pointer, read, room, stream};
use std::cell::RefCell;
use vgmem_abi::*;
use vgmem_sim::{Answer, StreamRef, machine};

pub(crate) unsafe fn cuThreadExchangeStreamCaptureMode(mode: *mut c_int) -> Answer {
    let machine = machine()?;
    let out = room(mode)?;
    // SAFETY: not null, as `room` found, and a number by the driver's contract.
    out.put(machine.exchange_capture_mode(unsafe { read(mode) }?)?);
    Ok(())
}

pub(crate) unsafe fn cuStreamIsCapturing(per_thread: bool, which: CUstream, out: *mut c_int) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    out.put(machine.capture_status(stream(per_thread, which))?);
    Ok(())
}

/// The first form of the call knew no modes, and captured as the global one does now.
pub(crate) unsafe fn cuStreamBeginCapture(per_thread: bool, which: CUstream) -> Answer {
    machine()?.begin_capture(stream(per_thread, which), 0, None)
}

pub(crate) unsafe fn cuStreamBeginCapture_v2(per_thread: bool, which: CUstream, mode: c_int) -> Answer {
    machine()?.begin_capture(stream(per_thread, which), mode, None)
}

pub(crate) unsafe fn cuStreamBeginCaptureToGraph(
    per_thread: bool,
    which: CUstream,
    graph: CUgraph,
    after: *const CUgraphNode,
    _edges: *const c_void,
    count: usize,
    mode: c_int,
) -> Answer {
    let machine = machine()?;
    // SAFETY: `count` nodes, by the driver's contract.
    let after = unsafe { handles(after, count) }?;
    machine.begin_capture(stream(per_thread, which), mode, Some((handle(graph), &after)))
}

pub(crate) unsafe fn cuStreamEndCapture(per_thread: bool, which: CUstream, graph: *mut CUgraph) -> Answer {
    let ended = machine()?.end_capture(stream(per_thread, which));
    if let Ok(out) = room(graph) {
        out.put(pointer(ended.unwrap_or(0)));
    }
    ended.map(|_| ())
}

thread_local! {
    /// The nodes that the last question on this thread was answered with: the program reads them
    /// after the call.
    static NODES: RefCell<Vec<CUgraphNode>> = const { RefCell::new(Vec::new()) };
}

/// Where the answers about a capture go; all but the first may be NULL.
struct Info {
    status: *mut c_int,
    id: *mut u64,
    graph: *mut CUgraph,
    nodes: *mut *const CUgraphNode,
    edges: *mut *const c_void,
    count: *mut usize,
}

impl Info {
    fn answer(self, on: StreamRef) -> Answer {
        let machine = machine()?;
        let out = room(self.status)?;
        let (status, info) = machine.capture_info(on)?;
        out.put(status);
        let Some(info) = info else { return Ok(()) };
        if let Ok(out) = room(self.id) {
            out.put(info.id);
        }
        if let Ok(out) = room(self.graph) {
            out.put(pointer(info.graph));
        }
        if let Ok(out) = room(self.count) {
            out.put(info.after.len());
        }
        if let Ok(out) = room(self.edges) {
            out.put(std::ptr::null());
        }
        if let Ok(out) = room(self.nodes) {
            NODES.with_borrow_mut(|nodes| {
                *nodes = info.after.iter().map(|node| pointer(*node)).collect();
                out.put(if nodes.is_empty() { std::ptr::null() } else { nodes.as_ptr() });
            });
        }
        Ok(())
    }
}

pub(crate) unsafe fn cuStreamGetCaptureInfo(
    per_thread: bool,
    which: CUstream,
    status: *mut c_int,
    id: *mut u64,
) -> Answer {
    let (graph, nodes) = (std::ptr::null_mut(), std::ptr::null_mut());
    let (edges, count) = (std::ptr::null_mut(), std::ptr::null_mut());
    Info { status, id, graph, nodes, edges, count }.answer(stream(per_thread, which))
}

pub(crate) unsafe fn cuStreamGetCaptureInfo_v2(
    per_thread: bool,
    which: CUstream,
    status: *mut c_int,
    id: *mut u64,
    graph: *mut CUgraph,
    nodes: *mut *const CUgraphNode,
    count: *mut usize,
) -> Answer {
    let edges = std::ptr::null_mut();
    Info { status, id, graph, nodes, edges, count }.answer(stream(per_thread, which))
}

pub(crate) unsafe fn cuStreamGetCaptureInfo_v3(
    per_thread: bool,
    which: CUstream,
    status: *mut c_int,
    id: *mut u64,
    graph: *mut CUgraph,
    nodes: *mut *const CUgraphNode,
    edges: *mut *const c_void,
    count: *mut usize,
) -> Answer {
    Info { status, id, graph, nodes, edges, count }.answer(stream(per_thread, which))
}

/// # Safety
/// `nodes` must be NULL or point to `count` nodes.
unsafe fn update(on: StreamRef, nodes: *const CUgraphNode, count: usize, flags: c_uint) -> Answer {
    let machine = machine()?;
    // SAFETY: the caller's promise.
    let nodes = unsafe { handles(nodes, count) }?;
    match flags {
        0 | 1 => machine.update_capture(on, &nodes, flags == 1),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

pub(crate) unsafe fn cuStreamUpdateCaptureDependencies(
    per_thread: bool,
    which: CUstream,
    nodes: *mut CUgraphNode,
    count: usize,
    flags: c_uint,
) -> Answer {
    // SAFETY: the driver's contract.
    unsafe { update(stream(per_thread, which), nodes, count, flags) }
}

pub(crate) unsafe fn cuStreamUpdateCaptureDependencies_v2(
    per_thread: bool,
    which: CUstream,
    nodes: *mut CUgraphNode,
    _edges: *const c_void,
    count: usize,
    flags: c_uint,
) -> Answer {
    // SAFETY: the driver's contract.
    unsafe { update(stream(per_thread, which), nodes, count, flags) }
}
