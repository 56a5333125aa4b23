//! Graphs under pressure, launched node by node: the pages of each kernel come as those of any launch.
//!
//! What a graph does is copied when it is instantiated or updated, where it is a chain of *plain* nodes: kernels,
//! copies within GPU memory, memsets, and empty ones. Nodes that may run side by side could wait for one another, and
//! on one stream would do so for ever. Any other graph, and one of which a node was changed by itself, is launched
//! whole (`pager`'s `of_graph`); so are all once the program lets kernels launch graphs, or ties objects to their
//! lives: the driver does not know of launches by nodes.
//!
//! The driver orders a graph behind its last launch, on any stream; so does an event here, behind every launch.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use vgmem_abi::*;

use crate::broken;
use crate::functions::Functions;
use crate::gate;
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

/// Port of an edge that waits for the end of the first node, or for its leave to begin (programmatic launches); others
/// only keep an order.
const PROGRAMMATIC: u8 = 1;
/// Nodes that a stream's queue has room for in any case (of about a thousand).
const QUEUE: usize = 512;
/// Bytes of dynamic shared memory that every function may have, and the attribute that tells how many it may.
const SHARED_ALWAYS: c_uint = 48 << 10;
const MOST_SHARED: c_int = 8;

/// What a graph does, node by node.
pub struct Plan {
    /// The context of its kernels.
    context: u64,
    nodes: Vec<Node>,
}

/// Keeps launches of one graph in their order: an event behind the last one.
#[derive(Default)]
pub struct Order(Mutex<Last>);

/// The event behind the last launch, and its context; 0 is none.
#[derive(Clone, Copy, Default)]
struct Last {
    event: usize,
    context: u64,
}

/// The program does something with graphs that launches by nodes cannot do: all go whole.
static ALL_WHOLE: AtomicBool = AtomicBool::new(false);

/// From here on all graphs are launched whole.
pub fn launch_all_whole() {
    ALL_WHOLE.store(true, Ordering::Relaxed);
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
        if unsafe { (call.cuGraphExecGetFlags?)(exec, &mut flags) } != CUDA_SUCCESS {
            return None;
        }
        if flags & DEVICE_LAUNCH != 0 {
            launch_all_whole();
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
        (plan.context != 0).then_some(plan)
    }

    /// Whether it belongs to a context.
    pub fn is_of(&self, context: u64) -> bool {
        self.context == context
    }

    /// Launches the nodes; `None` where nothing was launched and the graph has to be launched whole.
    pub fn launch(&self, engine: &Engine, order: &Order, stream: CUstream) -> Option<CUresult> {
        let (context, _) = engine.current()?;
        let one_gpu = engine.current_of_several().is_none();
        if ALL_WHOLE.load(Ordering::Relaxed)
            || self.context != context
            || !one_gpu
            || !self.is_good(engine, stream)
        {
            return None;
        }
        if !order.follow(engine, context, stream) {
            return None;
        }
        for (index, node) in self.nodes.iter().enumerate() {
            match node.launch(engine, stream) {
                CUDA_SUCCESS => gate::step_aside(),
                _ if index == 0 => return None,
                rc => {
                    order.mark_or_wait(engine, context, stream);
                    return Some(rc);
                }
            }
        }
        order.mark_or_wait(engine, context, stream);
        Some(CUDA_SUCCESS)
    }

    /// Whether no node is known to fail, and a stream has room for all: one that is far behind may wait for what this
    /// thread does next, and the driver blocks where its queue is full.
    fn is_good(&self, engine: &Engine, stream: CUstream) -> bool {
        // SAFETY: the program's stream.
        let is_idle = || unsafe { (engine.pool.device().call.cuStreamQuery)(stream) } == CUDA_SUCCESS;
        (self.nodes.len() <= QUEUE || is_idle()) && self.nodes.iter().all(|node| node.is_good(engine))
    }
}

impl Order {
    /// The graph is about to be launched whole on this stream. The driver knows of its own launches only.
    pub fn goes_whole(&self, engine: &Engine, stream: CUstream) {
        if let Some((context, _)) = engine.current()
            && !self.follow(engine, context, stream)
        {
            log::debug!("a graph's launch may overlap its last one");
        }
    }

    /// The graph was launched whole.
    pub fn went_whole(&self, engine: &Engine, stream: CUstream) {
        let marked = engine.current().is_some_and(|(context, _)| self.mark(engine, context, stream));
        if !marked {
            launch_all_whole(); // launches by nodes could not follow it
        }
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

    /// A context has ended, and its events.
    pub fn context_ended(&self, context: u64) {
        let mut last = self.last();
        if last.context == context {
            *last = Last::default();
        }
    }

    /// What comes next on this stream begins when the graph's last launch is over; false where that cannot be had.
    fn follow(&self, engine: &Engine, context: u64, stream: CUstream) -> bool {
        let last = *self.last();
        if last.event == 0 || broken::is("graph-order") {
            return true;
        }
        // SAFETY: the event is ours, recorded behind the last launch.
        let wait = |wait: pointers::cuStreamWaitEvent| unsafe { wait(stream, last.event as CUevent, 0) };
        let call = engine.pool.device().call.cuStreamWaitEvent;
        last.context == context && call.is_some_and(|call| wait(call) == CUDA_SUCCESS)
    }

    /// Puts the event behind a launch.
    fn mark(&self, engine: &Engine, context: u64, stream: CUstream) -> bool {
        let call = &engine.pool.device().call;
        let mut last = self.last();
        if last.event == 0 || last.context != context {
            *last = Last { event: call.new_event().map_or(0, |event| event as usize), context };
        }
        let event = last.event as CUevent;
        drop(last);
        // SAFETY: an event of this context, as the stream is.
        !event.is_null() && unsafe { (call.cuEventRecord)(event, stream) } == CUDA_SUCCESS
    }

    /// As above for a launch that the driver does not know of.
    fn mark_or_wait(&self, engine: &Engine, context: u64, stream: CUstream) {
        if !self.mark(engine, context, stream) {
            launch_all_whole();
            // SAFETY: the program's stream.
            unsafe { (engine.pool.device().call.cuStreamSynchronize)(stream) };
        }
    }

    fn last(&self) -> MutexGuard<'_, Last> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Node {
    /// Whether a launch is not known to fail.
    fn is_good(&self, engine: &Engine) -> bool {
        let holds = |at: u64, bytes: usize| !engine.pool.in_arena(at) || engine.pool.holds(at, bytes as u64);
        match self {
            Node::Kernel(kernel) => kernel.is_good(engine),
            Node::Copy { to, from, bytes } => holds(*to, *bytes) && holds(*from, *bytes),
            Node::Set(set) => holds(set.address, set.bytes()),
        }
    }

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
    /// Whether the function may have as much shared memory as the node has: the program can have taken it back since.
    fn is_good(&self, engine: &Engine) -> bool {
        if self.shared <= SHARED_ALWAYS {
            return true;
        }
        let call = &engine.pool.device().call;
        let mut most: c_int = 0;
        let (function, gpu) = (self.function as CUfunction, engine.current().map_or(0, |(_, gpu)| gpu));
        // SAFETY: the out-parameter is live; a handle of the other kind is refused.
        let of_function = call.cuFuncGetAttribute.map(|ask| unsafe { ask(&mut most, MOST_SHARED, function) });
        let is_known = of_function == Some(CUDA_SUCCESS)
            || call.cuKernelGetAttribute.is_some_and(|ask| {
                // SAFETY: as above.
                unsafe { ask(&mut most, MOST_SHARED, function.cast(), c_int::from(gpu)) == CUDA_SUCCESS }
            });
        is_known && most as c_uint >= self.shared
    }

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
    /// Bytes from the first to the last.
    fn bytes(&self) -> usize {
        let row = self.width.saturating_mul(self.unit as usize);
        self.pitch.saturating_mul(self.height.saturating_sub(1)).saturating_add(row)
    }

    fn launch(&self, engine: &Engine, stream: CUstream) -> CUresult {
        let Memset { address, pitch, value, unit, width, height } = *self;
        let call = &engine.pool.device().call;
        let Some(made) = give(&[(address, self.bytes())]) else { return CUDA_ERROR_INVALID_VALUE };
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

/// The nodes of a graph that is a chain, in their order; `None` for others.
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
        nodes.iter().enumerate().map(|(index, &node)| (node as usize, index)).collect();
    let (mut waits, mut next) = (vec![0; nodes.len()], vec![Vec::new(); nodes.len()]);
    for (from, to) in edges {
        let (from, to) = (*index.get(&from)?, *index.get(&to)?);
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
    (ready.is_empty() && order.len() == nodes.len()).then_some(order)
}

/// The edges of a graph: from, to. `None` where one lets a node begin before the other's is over but for its memory:
/// those may run side by side.
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
    let port = |data: &u64| data.to_ne_bytes()[0];
    if data.iter().any(|data| port(data) > PROGRAMMATIC) {
        return None;
    }
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
