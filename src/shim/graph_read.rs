//! The nodes of graphs and their parameters, as the driver tells them.

use vgmem_abi::*;

use crate::functions::Functions;

/// Kinds of nodes, as the driver numbers them.
pub const KERNEL: c_int = 0;
pub const COPY: c_int = 1;
pub const MEMSET: c_int = 2;
pub const CHILD: c_int = 4;
pub const EMPTY: c_int = 5;

/// A memset's parameters, as the driver lays them out.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Memset {
    pub address: CUdeviceptr,
    pub pitch: usize,
    pub value: c_uint,
    pub unit: c_uint,
    pub width: usize,
    pub height: usize,
}

/// More room than the driver's structure has needed in any version.
#[repr(C)]
#[derive(Default)]
struct Room {
    memset: Memset,
    rest: [u64; 11],
}

/// The nodes of a graph.
pub fn nodes(call: &Functions, graph: CUgraph) -> Option<Vec<CUgraphNode>> {
    let ask = call.cuGraphGetNodes?;
    let mut count = 0;
    // SAFETY: without an array the driver gives the number of nodes.
    if unsafe { ask(graph, std::ptr::null_mut(), &mut count) } != CUDA_SUCCESS {
        return None;
    }
    let mut nodes: Vec<CUgraphNode> = vec![std::ptr::null_mut(); count];
    // SAFETY: the array has room for `count` nodes.
    if unsafe { ask(graph, nodes.as_mut_ptr(), &mut count) } != CUDA_SUCCESS {
        return None;
    }
    nodes.truncate(count);
    Some(nodes)
}

/// What kind a node of a graph is.
pub fn kind(call: &Functions, node: CUgraphNode) -> Option<c_int> {
    let mut kind: c_int = -1;
    // SAFETY: a node of a graph; the out-parameter is live.
    let rc = unsafe { (call.cuGraphNodeGetType?)(node, &mut kind) };
    (rc == CUDA_SUCCESS).then_some(kind)
}

/// The parameters of a kernel's node; what they point to is the node's.
pub fn kernel(call: &Functions, node: CUgraphNode) -> Option<CUDA_KERNEL_NODE_PARAMS> {
    // SAFETY: all zero is a valid value of this plain structure.
    let mut params: CUDA_KERNEL_NODE_PARAMS = unsafe { std::mem::zeroed() };
    // SAFETY: a kernel's node; the out-parameter is live.
    let rc = unsafe { (call.cuGraphKernelNodeGetParams_v2?)(node, &mut params) };
    (rc == CUDA_SUCCESS).then_some(params)
}

/// The parameters of a copy's node.
pub fn copy(call: &Functions, node: CUgraphNode) -> Option<CUDA_MEMCPY3D> {
    // SAFETY: all zero is a valid value of this plain structure.
    let mut params: CUDA_MEMCPY3D = unsafe { std::mem::zeroed() };
    // SAFETY: a copy's node; the out-parameter is live.
    let rc = unsafe { (call.cuGraphMemcpyNodeGetParams?)(node, &mut params) };
    (rc == CUDA_SUCCESS).then_some(params)
}

/// The parameters of a memset's node.
pub fn memset(call: &Functions, node: CUgraphNode) -> Option<Memset> {
    let mut room = Room::default();
    // SAFETY: a memset's node; the out-parameter is larger than the driver's structure.
    let rc = unsafe { (call.cuGraphMemsetNodeGetParams?)(node, (&raw mut room).cast()) };
    (rc == CUDA_SUCCESS).then_some(room.memset)
}
