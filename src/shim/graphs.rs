//! What instantiated graphs name: the addresses in their kernels' parameters, copies and memsets.
//!
//! Known for speed alone: a graph's launch may use anything, and what its nodes name is brought home before. So a node
//! that cannot be read names nothing, and an update only adds.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use vgmem_abi::*;

use crate::hooks::launch::pooled_words;
use crate::start::{Engine, engine};

/// Nodes of graphs in graphs are followed so deep.
const DEEPEST: u32 = 8;
/// Kinds of nodes, as the driver numbers them.
const KERNEL: c_int = 0;
const COPY: c_int = 1;
const MEMSET: c_int = 2;
const CHILD: c_int = 4;

static NAMED: Mutex<Option<HashMap<usize, Vec<u64>>>> = Mutex::new(None);

fn named() -> MutexGuard<'static, Option<HashMap<usize, Vec<u64>>>> {
    NAMED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `exec` was made from `graph`, or updated to it.
pub fn made_from(exec: CUgraphExec, graph: CUgraph) {
    let Some(engine) = engine().filter(|engine| engine.settings.paging) else { return };
    let mut words = Vec::new();
    walk(engine, graph, DEEPEST, &mut words);
    adds(exec, words);
}

/// A node of `exec` names these addresses now.
pub fn adds(exec: CUgraphExec, words: Vec<u64>) {
    if engine().is_some_and(|engine| engine.settings.paging) {
        let mut named = named();
        let list = named.get_or_insert_default().entry(exec as usize).or_default();
        list.extend(words);
        list.sort_unstable();
        list.dedup();
    }
}

/// `exec` is gone.
pub fn gone(exec: CUgraphExec) {
    if engine().is_some()
        && let Some(named) = named().as_mut()
    {
        named.remove(&(exec as usize));
    }
}

/// What a graph names.
pub fn of(exec: CUgraphExec) -> Vec<u64> {
    named().as_ref().and_then(|named| named.get(&(exec as usize)).cloned()).unwrap_or_default()
}

/// The first part of a memset's parameters, as the driver lays them out.
#[repr(C)]
struct Memset {
    address: CUdeviceptr,
    rest: [u64; 15],
}

fn walk(engine: &Engine, graph: CUgraph, depth: u32, words: &mut Vec<u64>) {
    let call = &engine.pool.device().call;
    let (Some(nodes_of), Some(kind_of)) = (call.cuGraphGetNodes, call.cuGraphNodeGetType) else { return };
    let mut count = 0;
    // SAFETY: without an array the driver gives the number of nodes.
    if unsafe { nodes_of(graph, std::ptr::null_mut(), &mut count) } != CUDA_SUCCESS {
        return;
    }
    let mut nodes: Vec<CUgraphNode> = vec![std::ptr::null_mut(); count];
    // SAFETY: the array has room for `count` nodes.
    if unsafe { nodes_of(graph, nodes.as_mut_ptr(), &mut count) } != CUDA_SUCCESS {
        return;
    }
    for &node in nodes.iter().take(count) {
        let mut kind: c_int = -1;
        // SAFETY: a node of the graph; the out-parameter is live.
        if unsafe { kind_of(node, &mut kind) } != CUDA_SUCCESS {
            continue;
        }
        match kind {
            KERNEL => kernel(engine, node, words),
            COPY => copy(engine, node, words),
            MEMSET => memset(engine, node, words),
            CHILD if depth > 0 => {
                let mut child: CUgraph = std::ptr::null_mut();
                // SAFETY: a node with a graph in it; the out-parameter is live.
                let found = call
                    .cuGraphChildGraphNodeGetGraph
                    .is_some_and(|ask| unsafe { ask(node, &mut child) } == CUDA_SUCCESS);
                if found {
                    walk(engine, child, depth - 1, words);
                }
            }
            _ => {}
        }
    }
}

fn kernel(engine: &Engine, node: CUgraphNode, words: &mut Vec<u64>) {
    // SAFETY: all zero is a valid value of this plain structure.
    let mut params: CUDA_KERNEL_NODE_PARAMS = unsafe { std::mem::zeroed() };
    let ask = engine.pool.device().call.cuGraphKernelNodeGetParams_v2;
    // SAFETY: a kernel node; the out-parameter is live.
    if ask.is_some_and(|ask| unsafe { ask(node, &mut params) } == CUDA_SUCCESS) {
        // SAFETY: the driver has just written it.
        words.extend(unsafe { pooled_words(engine, &params) });
    }
}

fn copy(engine: &Engine, node: CUgraphNode, words: &mut Vec<u64>) {
    // SAFETY: as for a kernel.
    let mut params: CUDA_MEMCPY3D = unsafe { std::mem::zeroed() };
    let ask = engine.pool.device().call.cuGraphMemcpyNodeGetParams;
    // SAFETY: a copy node; the out-parameter is live.
    if ask.is_some_and(|ask| unsafe { ask(node, &mut params) } == CUDA_SUCCESS) {
        words.extend([params.srcDevice, params.dstDevice]);
    }
}

fn memset(engine: &Engine, node: CUgraphNode, words: &mut Vec<u64>) {
    let mut params = Memset { address: 0, rest: [0; 15] };
    let ask = engine.pool.device().call.cuGraphMemsetNodeGetParams;
    // SAFETY: a memset node; the out-parameter is larger than the driver's structure.
    if ask.is_some_and(|ask| unsafe { ask(node, (&raw mut params).cast()) } == CUDA_SUCCESS) {
        words.push(params.address);
    }
}
