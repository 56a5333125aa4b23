//! What a graph does, read from the driver: see `graph_nodes`.

use std::collections::HashMap;

use vgmem_abi::*;

use crate::functions::Functions;
use crate::graph_nodes::{Form, Kernel, Node, Plan, launch_all_whole};
use crate::graph_read;
use crate::hooks::launch::{Block, layout_of, packed};
use crate::start::Engine;

/// Flag of an instantiated graph: kernels may launch it.
const DEVICE_LAUNCH: u64 = 4;

/// Port of an edge that waits for the end of the first node, or for its leave to begin (programmatic launches); others
/// only keep an order.
const PROGRAMMATIC: u8 = 1;

/// Why a graph is launched whole.
pub type Why = &'static str;

impl Plan {
    /// What a graph does that `exec` was made from or updated to; why not, where it must be launched whole.
    pub fn of(engine: &Engine, exec: CUgraphExec, graph: CUgraph) -> Result<Plan, Why> {
        let call = &engine.pool.device().call;
        let flags = flags(call, exec).ok_or("its flags are not known")?;
        if flags & DEVICE_LAUNCH != 0 {
            launch_all_whole();
        }
        let mut plan = Plan { context: 0, nodes: Vec::new() };
        for node in in_order(call, graph)? {
            match graph_read::kind(call, node).ok_or("a node's kind is not known")? {
                graph_read::KERNEL => {
                    let (kernel, context) = kernel(call, node)?;
                    if context != 0 && plan.context != 0 && plan.context != context {
                        return Err("its kernels are of several contexts");
                    }
                    plan.context = plan.context.max(context);
                    plan.nodes.push(Node::Kernel(Box::new(kernel)));
                }
                graph_read::COPY => {
                    plan.nodes
                        .push(copy(call, node).ok_or("a copy is not within GPU memory and in one piece")?);
                }
                graph_read::MEMSET => {
                    plan.nodes.push(memset(call, node).ok_or("a memset cannot be read")?);
                }
                graph_read::EMPTY => {}
                _ => return Err("a node is no kernel, copy or memset"),
            }
        }
        if plan.context == 0 { Err("it has no kernel") } else { Ok(plan) }
    }
}

/// Flags that a graph was instantiated with.
fn flags(call: &Functions, exec: CUgraphExec) -> Option<u64> {
    let mut flags = 0;
    // SAFETY: the graph was just made; the out-parameter is live.
    let rc = unsafe { (call.cuGraphExecGetFlags?)(exec, &mut flags) };
    (rc == CUDA_SUCCESS).then_some(flags)
}

/// The nodes of a graph that is a chain, in their order.
fn in_order(call: &Functions, graph: CUgraph) -> Result<Vec<CUgraphNode>, Why> {
    let nodes = graph_read::nodes(call, graph).ok_or("its nodes are not known")?;
    let edges = edges(call, graph)?;
    let index: HashMap<usize, usize> =
        nodes.iter().enumerate().map(|(index, &node)| (node as usize, index)).collect();
    let (mut waits, mut next) = (vec![0; nodes.len()], vec![Vec::new(); nodes.len()]);
    for (from, to) in edges {
        let place = |node| index.get(&node).copied().ok_or("an edge leads to no node");
        let (from, to) = (place(from)?, place(to)?);
        waits[to] += 1;
        next[from].push(to);
    }
    let mut order = Vec::with_capacity(nodes.len());
    let mut ready: Vec<usize> = (0..nodes.len()).filter(|&index| waits[index] == 0).collect();
    // In a chain there is one next node at any time.
    while let [index] = ready[..] {
        order.push(nodes[index]);
        ready = next[index]
            .iter()
            .copied()
            .filter(|&to| {
                waits[to] -= 1;
                waits[to] == 0
            })
            .collect();
    }
    let is_chain = ready.is_empty() && order.len() == nodes.len();
    if is_chain { Ok(order) } else { Err("it has branches") }
}

/// The edges of a graph: from, to. Not where one lets a node begin before the other's is over but for its memory: those
/// may run side by side.
fn edges(call: &Functions, graph: CUgraph) -> Result<Vec<(usize, usize)>, Why> {
    let ask = |from: *mut CUgraphNode, to: *mut CUgraphNode, data: *mut c_void, count: &mut usize| {
        let rc = match call.cuGraphGetEdges_v2 {
            // SAFETY: the arrays are NULL, or have room for `count` edges.
            Some(ask) => unsafe { ask(graph, from, to, data, count) },
            // SAFETY: as above.
            None => call.cuGraphGetEdges.map_or(1, |ask| unsafe { ask(graph, from, to, count) }),
        };
        if rc == CUDA_SUCCESS { Ok(()) } else { Err("its edges are not known") }
    };
    let mut count = 0;
    ask(std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut(), &mut count)?;
    let mut from: Vec<CUgraphNode> = vec![std::ptr::null_mut(); count];
    let mut to = from.clone();
    let mut data = vec![0u64; count]; // eight bytes for each edge
    ask(from.as_mut_ptr(), to.as_mut_ptr(), data.as_mut_ptr().cast(), &mut count)?;
    let port = |data: &u64| data.to_ne_bytes()[0];
    if data.iter().any(|data| port(data) > PROGRAMMATIC) {
        return Err("a node does not wait for the end of the one before");
    }
    Ok(from.iter().zip(&to).map(|(&from, &to)| (from as usize, to as usize)).take(count).collect())
}

/// An attribute of a kernel's node; `None` where the driver does not say.
fn attribute(call: &Functions, node: CUgraphNode, attribute: c_int) -> Option<[c_uint; 16]> {
    let mut value = [0; 16]; // the driver's structure is 64 bytes
    // SAFETY: a kernel's node; the out-parameter is as large as the driver's structure.
    let rc = unsafe { (call.cuGraphKernelNodeGetAttribute?)(node, attribute, value.as_mut_ptr().cast()) };
    (rc == CUDA_SUCCESS).then_some(value)
}

/// A kernel's node, and its context.
fn kernel(call: &Functions, node: CUgraphNode) -> Result<(Kernel, u64), Why> {
    let params = graph_read::kernel(call, node).ok_or("a kernel's node cannot be read")?;
    let told = |id| attribute(call, node, id).ok_or("a kernel's attributes are not known");
    let cooperative = told(CU_LAUNCH_ATTRIBUTE_COOPERATIVE)?[0] != 0;
    let [x, y, z, ..] = told(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)?;
    let cluster = (x.max(y).max(z) > 1).then_some([x, y, z]);
    // Drivers that do not know the attribute have no such nodes.
    let updatable = attribute(call, node, CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE);
    if updatable.is_some_and(|value| value[0] != 0) || (cooperative && cluster.is_some()) {
        return Err("a kernel's node may be changed by kernels, or is cooperative with clusters");
    }
    let function = if params.func.is_null() { params.kern } else { params.func };
    let is_packed = params.kernelParams.is_null() && !params.extra.is_null();
    if is_packed && cooperative {
        return Err("a cooperative kernel's parameters are in one piece");
    }
    let (values, form) = if is_packed { in_one_piece(&params) } else { each(call, function, &params)? };
    let kernel = Kernel {
        function: function as usize,
        grid: [params.gridDimX, params.gridDimY, params.gridDimZ],
        block: [params.blockDimX, params.blockDimY, params.blockDimZ],
        shared: params.sharedMemBytes,
        cooperative,
        cluster,
        values: values.into(),
        form,
    };
    Ok((kernel, params.ctx as u64))
}

/// A copy of a node's parameters that are given each by itself.
fn each(
    call: &Functions,
    function: CUfunction,
    params: &CUDA_KERNEL_NODE_PARAMS,
) -> Result<(Vec<Block>, Form), Why> {
    let sizes = layout_of(call, function).ok_or("a kernel's parameters are not known")?;
    if params.kernelParams.is_null() && !sizes.is_empty() {
        return Err("a kernel's node has no parameters");
    }
    let (mut values, mut places) = (Vec::new(), Vec::new());
    for (index, &size) in sizes.iter().enumerate() {
        places.push(values.len());
        // SAFETY: the driver has written one pointer for each parameter, to as many bytes.
        values.extend(unsafe { blocks((*params.kernelParams.add(index)).cast_const(), size) });
    }
    Ok((values, Form::Each(places)))
}

/// A copy of a node's parameters that are given in one piece, as those of cuBLAS are.
fn in_one_piece(params: &CUDA_KERNEL_NODE_PARAMS) -> (Vec<Block>, Form) {
    // SAFETY: the driver's own list.
    let (buffer, size) = unsafe { packed(params.extra) };
    // SAFETY: the list says that there are so many bytes.
    (unsafe { blocks(buffer, size) }, Form::Packed(size))
}

/// A copy of some bytes.
///
/// # Safety
/// So many can be read there.
unsafe fn blocks(from: *const c_void, size: usize) -> Vec<Block> {
    let mut values = vec![Block::default(); size.div_ceil(size_of::<Block>())];
    if size > 0 {
        // SAFETY: by contract; there is room for them.
        unsafe { from.cast::<u8>().copy_to_nonoverlapping(values.as_mut_ptr().cast(), size) };
    }
    values
}

/// A copy in one piece, from GPU memory to GPU memory.
fn copy(call: &Functions, node: CUgraphNode) -> Option<Node> {
    let copy = graph_read::copy(call, node)?;
    let in_gpu = [copy.dstMemoryType, copy.srcMemoryType] == [CU_MEMORYTYPE_DEVICE; 2];
    let steps = [copy.dstY, copy.dstZ, copy.srcY, copy.srcZ, copy.dstLOD, copy.srcLOD];
    if !in_gpu || copy.Height > 1 || copy.Depth > 1 || steps != [0; 6] {
        return None;
    }
    let (to, from) = (copy.dstDevice + copy.dstXInBytes as u64, copy.srcDevice + copy.srcXInBytes as u64);
    Some(Node::Copy { to, from, bytes: copy.WidthInBytes })
}

fn memset(call: &Functions, node: CUgraphNode) -> Option<Node> {
    let set = graph_read::memset(call, node)?;
    (matches!(set.unit, 1 | 2 | 4) && set.height > 0).then_some(Node::Set(set))
}
