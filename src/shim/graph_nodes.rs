//! Graphs under pressure, launched node by node: the pages of each kernel come as those of any launch.
//!
//! What a graph does is copied when it is instantiated or updated, where all its nodes are *plain*: kernels, copies
//! within GPU memory, memsets, and empty ones. Its nodes follow one another on the stream in an order that its edges
//! allow; that kernels may not overlap is all that is lost. Any other graph, and one of which a node was changed by
//! itself, is launched whole (`pager`'s `of_graph`).
//!
//! The driver orders a graph behind its last launch, also on another stream; so does an event here.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use vgmem_abi::*;

use crate::broken;
use crate::functions::Functions;
use crate::hooks::access::give;
use crate::hooks::launch::{Block, launch_plain, layout_of};
use crate::start::Engine;

/// Kinds of nodes, as the driver numbers them.
const KERNEL: c_int = 0;
const COPY: c_int = 1;
const MEMSET: c_int = 2;
const EMPTY: c_int = 5;
/// Flag of an instantiated graph: kernels may launch it.
const DEVICE_LAUNCH: u64 = 4;

/// What a graph does, node by node.
pub struct Plan {
    /// The context of its kernels; 0 where it has none.
    context: u64,
    nodes: Vec<Node>,
}

/// Keeps launches of one graph in their order.
#[derive(Default)]
pub struct Order(Mutex<Last>);

/// The last launch.
#[derive(Clone, Copy, Default)]
struct Last {
    stream: usize,
    /// The event that is behind it, or was behind an earlier one, and its context; 0 is none.
    event: usize,
    context: u64,
    /// The event is behind the last launch: it was by nodes.
    is_marked: bool,
}

enum Node {
    Kernel(Box<Kernel>),
    Copy { to: u64, from: u64, bytes: usize },
    Set(Memset),
}

/// A kernel with its parameters' bytes.
struct Kernel {
    function: usize,
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared: c_uint,
    cooperative: bool,
    /// Blocks of a cluster.
    cluster: Option<[c_uint; 3]>,
    values: Box<[Block]>,
    /// Where in `values` each parameter begins.
    places: Vec<usize>,
}

/// A memset's parameters, as the driver lays them out.
#[repr(C)]
#[derive(Clone, Copy)]
struct Memset {
    address: CUdeviceptr,
    pitch: usize,
    value: c_uint,
    unit: c_uint,
    width: usize,
    height: usize,
}

impl Plan {
    /// What a graph does that `exec` was made from or updated to; `None` where it must be launched whole.
    pub fn of(engine: &Engine, exec: CUgraphExec, graph: CUgraph) -> Option<Plan> {
        let call = &engine.pool.device().call;
        let mut flags = 0;
        // SAFETY: the graph was just made; the out-parameter is live.
        if unsafe { (call.cuGraphExecGetFlags?)(exec, &mut flags) } != CUDA_SUCCESS
            || flags & DEVICE_LAUNCH != 0
        {
            return None;
        }
        let mut plan = Plan { context: 0, nodes: Vec::new() };
        for node in in_order(call, graph)? {
            let mut kind: c_int = -1;
            // SAFETY: a node of the graph; the out-parameter is live.
            if unsafe { (call.cuGraphNodeGetType?)(node, &mut kind) } != CUDA_SUCCESS {
                return None;
            }
            match kind {
                KERNEL => {
                    let (kernel, context) = kernel(call, node)?;
                    if context != 0 && plan.context != 0 && plan.context != context {
                        return None;
                    }
                    plan.context = plan.context.max(context);
                    plan.nodes.push(Node::Kernel(Box::new(kernel)));
                }
                COPY => plan.nodes.push(copy(call, node)?),
                MEMSET => plan.nodes.push(memset(call, node)?),
                EMPTY => {}
                _ => return None,
            }
        }
        (!plan.nodes.is_empty()).then_some(plan)
    }

    /// Launches the nodes; `None` where nothing was launched and the graph has to be launched whole.
    pub fn launch(&self, engine: &Engine, order: &Order, stream: CUstream) -> Option<CUresult> {
        let (context, _) = engine.current()?;
        if (self.context != 0 && self.context != context) || !order.follow(engine, stream, true) {
            return None;
        }
        for (index, node) in self.nodes.iter().enumerate() {
            match node.launch(engine, stream) {
                CUDA_SUCCESS => {}
                _ if index == 0 => return None,
                rc => return Some(rc),
            }
        }
        order.mark(engine, context, stream);
        Some(CUDA_SUCCESS)
    }
}

impl Order {
    /// The graph is about to be launched whole on this stream.
    pub fn goes_whole(&self, engine: &Engine, stream: CUstream) {
        if !self.follow(engine, stream, false) {
            log::debug!("a graph's launch on another stream may overlap its last one");
        }
        let mut last = self.last();
        (last.stream, last.is_marked) = (stream as usize, false);
    }

    /// The graph is gone.
    pub fn end(&self, engine: &Engine) {
        let last = std::mem::take(&mut *self.last());
        // An event of a context that is not current may be gone with it.
        if last.event != 0 && engine.current().is_some_and(|(context, _)| context == last.context) {
            // SAFETY: nobody uses the event any more; the driver keeps it until its work is over.
            let _ =
                engine.pool.device().call.cuEventDestroy_v2.map(|end| unsafe { end(last.event as CUevent) });
        }
    }

    /// The graph's last launch ends before what comes next on this stream; whether that is so where the driver does
    /// not see to it by itself.
    fn follow(&self, engine: &Engine, stream: CUstream, by_nodes: bool) -> bool {
        let last = *self.last();
        if last.stream == 0 || last.stream == stream as usize || broken::is("graph-order") {
            return true;
        }
        if !last.is_marked {
            return !by_nodes;
        }
        // SAFETY: the event is ours, recorded behind the last launch.
        let wait = |wait: pointers::cuStreamWaitEvent| unsafe { wait(stream, last.event as CUevent, 0) };
        engine.pool.device().call.cuStreamWaitEvent.is_some_and(|call| wait(call) == CUDA_SUCCESS)
    }

    /// Puts the event behind a launch by nodes.
    fn mark(&self, engine: &Engine, context: u64, stream: CUstream) {
        let call = &engine.pool.device().call;
        let mut last = self.last();
        if last.event == 0 || last.context != context {
            (last.event, last.context) = (call.new_event().map_or(0, |event| event as usize), context);
        }
        let event = last.event as CUevent;
        // SAFETY: an event of this context, as the stream is.
        last.is_marked = !event.is_null() && unsafe { (call.cuEventRecord)(event, stream) } == CUDA_SUCCESS;
        last.stream = stream as usize;
    }

    fn last(&self) -> MutexGuard<'_, Last> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Node {
    fn launch(&self, engine: &Engine, stream: CUstream) -> CUresult {
        match self {
            Node::Kernel(kernel) => kernel.launch(engine, stream),
            Node::Copy { to, from, bytes } => {
                let Some(made) = give(&[(*to, *bytes), (*from, *bytes)]) else {
                    return CUDA_ERROR_INVALID_VALUE;
                };
                // SAFETY: what a node of the program's graph does, on the stream that it was launched on.
                let rc =
                    unsafe { (engine.pool.device().call.cuMemcpyDtoDAsync_v2)(*to, *from, *bytes, stream) };
                made.done(rc, stream)
            }
            Node::Set(set) => set.launch(engine, stream),
        }
    }
}

impl Kernel {
    fn launch(&self, engine: &Engine, stream: CUstream) -> CUresult {
        let values = self.values.as_ptr();
        // SAFETY: every place lies in the values.
        let mut params: Vec<*mut c_void> =
            self.places.iter().map(|&place| unsafe { values.add(place) }.cast_mut().cast()).collect();
        let (function, cooperative) = (self.function as CUfunction, self.cooperative);
        let size = (self.grid, self.block, self.shared);
        // SAFETY: a kernel's node of the program's graph, with its parameters.
        unsafe { launch_plain(engine, function, size, cooperative, self.cluster, stream, &mut params) }
    }
}

impl Memset {
    fn launch(&self, engine: &Engine, stream: CUstream) -> CUresult {
        let Memset { address, pitch, value, unit, width, height } = *self;
        let call = &engine.pool.device().call;
        let bytes = pitch * height.saturating_sub(1) + width * unit as usize;
        let Some(made) = give(&[(address, bytes)]) else { return CUDA_ERROR_INVALID_VALUE };
        let set = || {
            // SAFETY: what a node of the program's graph does, on the stream that it was launched on.
            Some(unsafe {
                match (unit, height) {
                    (1, 1) => (call.cuMemsetD8Async?)(address, value as u8, width, stream),
                    (2, 1) => (call.cuMemsetD16Async?)(address, value as u16, width, stream),
                    (4, 1) => (call.cuMemsetD32Async?)(address, value, width, stream),
                    (1, _) => (call.cuMemsetD2D8Async?)(address, pitch, value as u8, width, height, stream),
                    (2, _) => (call.cuMemsetD2D16Async?)(address, pitch, value as u16, width, height, stream),
                    _ => (call.cuMemsetD2D32Async?)(address, pitch, value, width, height, stream),
                }
            })
        };
        made.done(set().unwrap_or(CUDA_ERROR_NOT_SUPPORTED), stream)
    }
}

/// The nodes of a graph in an order that its edges allow, as they were made where there is a choice.
fn in_order(call: &Functions, graph: CUgraph) -> Option<Vec<CUgraphNode>> {
    let mut count = 0;
    // SAFETY: without an array the driver gives the number of nodes.
    if unsafe { (call.cuGraphGetNodes?)(graph, std::ptr::null_mut(), &mut count) } != CUDA_SUCCESS {
        return None;
    }
    let mut nodes: Vec<CUgraphNode> = vec![std::ptr::null_mut(); count];
    // SAFETY: the array has room for `count` nodes.
    if unsafe { (call.cuGraphGetNodes?)(graph, nodes.as_mut_ptr(), &mut count) } != CUDA_SUCCESS {
        return None;
    }
    let edges = edges(call, graph)?;
    let index: HashMap<usize, usize> =
        nodes.iter().enumerate().map(|(i, &node)| (node as usize, i)).collect();
    let (mut waits, mut next) = (vec![0; nodes.len()], vec![Vec::new(); nodes.len()]);
    for (from, to) in edges {
        let (from, to) = (*index.get(&from)?, *index.get(&to)?);
        waits[to] += 1;
        next[from].push(to);
    }
    let mut ready: VecDeque<usize> = (0..nodes.len()).filter(|&i| waits[i] == 0).collect();
    let mut order = Vec::with_capacity(nodes.len());
    while let Some(i) = ready.pop_front() {
        order.push(nodes[i]);
        for &to in &next[i] {
            waits[to] -= 1;
            if waits[to] == 0 {
                ready.push_back(to);
            }
        }
    }
    (order.len() == nodes.len()).then_some(order)
}

/// The edges of a graph: from, to. Those with data of their own only let a kernel begin early.
fn edges(call: &Functions, graph: CUgraph) -> Option<Vec<(usize, usize)>> {
    let ask = |from: *mut CUgraphNode, to: *mut CUgraphNode, data: *mut c_void, count: &mut usize| {
        let rc = match call.cuGraphGetEdges_v2 {
            // SAFETY: the arrays are NULL, or have room for `count` edges.
            Some(ask) => unsafe { ask(graph, from, to, data, count) },
            // SAFETY: as above.
            None => unsafe { (call.cuGraphGetEdges?)(graph, from, to, count) },
        };
        (rc == CUDA_SUCCESS).then_some(())
    };
    let mut count = 0;
    ask(std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut(), &mut count)?;
    let mut from: Vec<CUgraphNode> = vec![std::ptr::null_mut(); count];
    let mut to = from.clone();
    let mut data = vec![0u64; count]; // eight bytes for each edge
    ask(from.as_mut_ptr(), to.as_mut_ptr(), data.as_mut_ptr().cast(), &mut count)?;
    Some(from.iter().zip(&to).map(|(&from, &to)| (from as usize, to as usize)).take(count).collect())
}

/// An attribute of a kernel's node; `None` where the driver does not say.
fn attribute(call: &Functions, node: CUgraphNode, attribute: c_int) -> Option<[c_uint; 16]> {
    let mut value = [0; 16]; // the driver's structure is 64 bytes
    // SAFETY: a kernel's node; the out-parameter is as large as the driver's structure.
    let rc = unsafe { (call.cuGraphKernelNodeGetAttribute?)(node, attribute, value.as_mut_ptr().cast()) };
    (rc == CUDA_SUCCESS).then_some(value)
}

/// A kernel's node, and its context.
fn kernel(call: &Functions, node: CUgraphNode) -> Option<(Kernel, u64)> {
    // SAFETY: all zero is a valid value of this plain structure.
    let mut params: CUDA_KERNEL_NODE_PARAMS = unsafe { std::mem::zeroed() };
    // SAFETY: a kernel's node; the out-parameter is live.
    if unsafe { (call.cuGraphKernelNodeGetParams_v2?)(node, &mut params) } != CUDA_SUCCESS {
        return None;
    }
    let cooperative = attribute(call, node, CU_LAUNCH_ATTRIBUTE_COOPERATIVE)?[0] != 0;
    let [x, y, z, ..] = attribute(call, node, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)?;
    let cluster = (x.max(y).max(z) > 1).then_some([x, y, z]);
    // Drivers that do not know the attribute have no such nodes.
    let updatable = attribute(call, node, CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE);
    if updatable.is_some_and(|value| value[0] != 0) || (cooperative && cluster.is_some()) {
        return None;
    }
    let function = if params.func.is_null() { params.kern } else { params.func };
    let sizes = layout_of(call, function)?;
    if params.kernelParams.is_null() && !(sizes.is_empty() && params.extra.is_null()) {
        return None;
    }
    let (mut values, mut places) = (Vec::<Block>::new(), Vec::new());
    for (index, &size) in sizes.iter().enumerate() {
        places.push(values.len());
        values.resize(values.len() + size.div_ceil(size_of::<Block>()), Block::default());
        let place = places[index];
        // SAFETY: the driver has written one pointer for each parameter, to as many bytes; there is room for them.
        unsafe {
            let from = (*params.kernelParams.add(index)).cast_const().cast::<u8>();
            from.copy_to_nonoverlapping(values.as_mut_ptr().add(place).cast(), size);
        }
    }
    let kernel = Kernel {
        function: function as usize,
        grid: [params.gridDimX, params.gridDimY, params.gridDimZ],
        block: [params.blockDimX, params.blockDimY, params.blockDimZ],
        shared: params.sharedMemBytes,
        cooperative,
        cluster,
        values: values.into(),
        places,
    };
    Some((kernel, params.ctx as u64))
}

/// A copy in one piece, from GPU memory to GPU memory.
fn copy(call: &Functions, node: CUgraphNode) -> Option<Node> {
    // SAFETY: all zero is a valid value of this plain structure.
    let mut copy: CUDA_MEMCPY3D = unsafe { std::mem::zeroed() };
    // SAFETY: a copy's node; the out-parameter is live.
    if unsafe { (call.cuGraphMemcpyNodeGetParams?)(node, &mut copy) } != CUDA_SUCCESS {
        return None;
    }
    let in_gpu = [copy.dstMemoryType, copy.srcMemoryType] == [CU_MEMORYTYPE_DEVICE; 2];
    let steps = [copy.dstY, copy.dstZ, copy.srcY, copy.srcZ, copy.dstLOD, copy.srcLOD];
    if !in_gpu || copy.Height > 1 || copy.Depth > 1 || steps != [0; 6] {
        return None;
    }
    let (to, from) = (copy.dstDevice + copy.dstXInBytes as u64, copy.srcDevice + copy.srcXInBytes as u64);
    Some(Node::Copy { to, from, bytes: copy.WidthInBytes })
}

fn memset(call: &Functions, node: CUgraphNode) -> Option<Node> {
    let mut set = Memset { address: 0, pitch: 0, value: 0, unit: 0, width: 0, height: 0 };
    // SAFETY: a memset's node; the out-parameter is laid out as the driver's structure.
    let rc = unsafe { (call.cuGraphMemsetNodeGetParams?)(node, (&raw mut set).cast()) };
    (rc == CUDA_SUCCESS && matches!(set.unit, 1 | 2 | 4) && set.height > 0).then_some(Node::Set(set))
}
