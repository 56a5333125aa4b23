//! Graphs under pressure, launched node by node: the pages of each kernel come as those of any launch.
//!
//! What a graph does is copied when it is instantiated or updated, where it is a chain of *plain* nodes: kernels,
//! copies within GPU memory, memsets, and empty ones. Nodes that may run side by side could wait for one another, and
//! on one stream would do so for ever. Any other graph, and one of which a node was changed by itself, is launched
//! whole (`pager`'s `of_graph`); so are all once the program lets kernels launch graphs, or ties objects to their
//! lives: the driver does not know of launches by nodes.
//!
//! The driver orders a graph behind its last launch, on any stream; so does an event here, behind every launch.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use vgmem_abi::*;

use crate::broken;
use crate::events;
use crate::gate;
use crate::graph_read::Memset;
use crate::hooks::access::give;
use crate::hooks::copy::rectangle;
use crate::hooks::launch::{self, Block, launch_plain};
use crate::start::Engine;
use crate::{marks, quiet};

/// Nodes that a stream's queue has room for in any case (of about a thousand).
const QUEUE: usize = 512;
/// Bytes of dynamic shared memory that every function may have, and the attribute that tells how many it may.
const SHARED_ALWAYS: c_uint = 48 << 10;
const MOST_SHARED: c_int = 8;

/// What a graph does, node by node.
pub struct Plan {
    /// The context of its kernels.
    pub(crate) context: u64,
    pub(crate) nodes: Vec<Node>,
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

pub(crate) enum Node {
    Kernel(Box<Kernel>),
    Copy { to: u64, from: u64, bytes: usize },
    Set(Memset),
}

/// A kernel with its parameters' bytes.
pub(crate) struct Kernel {
    pub(crate) function: usize,
    pub(crate) grid: [c_uint; 3],
    pub(crate) block: [c_uint; 3],
    pub(crate) shared: c_uint,
    pub(crate) cooperative: bool,
    /// Blocks of a cluster.
    pub(crate) cluster: Option<[c_uint; 3]>,
    pub(crate) values: Box<[Block]>,
    pub(crate) form: Form,
}

/// How a kernel's parameters are given.
pub(crate) enum Form {
    /// Each by itself: where in the values it begins.
    Each(Vec<usize>),
    /// In one piece of so many bytes.
    Packed(usize),
}

impl Plan {
    /// Whether it belongs to a context.
    pub fn is_of(&self, context: u64) -> bool {
        self.context == context
    }

    /// Launches the nodes; `None` where nothing was launched and the graph has to be launched whole.
    pub fn launch(&self, engine: &Engine, order: &Order, stream: CUstream) -> Option<CUresult> {
        let (context, _) = engine.current()?;
        let one_gpu = engine.current_of_several().is_none();
        if ALL_WHOLE.load(Ordering::Relaxed) || self.context != context || !one_gpu {
            log::debug!("a graph is launched whole: another context or GPU, or all graphs are");
            return None;
        }
        if !self.nodes.iter().all(|node| node.is_good(engine)) {
            log::debug!("a graph is launched whole: a node of it would fail");
            return None;
        }
        if !order.has_room(engine, self.nodes.len(), stream) || !order.follow(engine, stream) {
            log::debug!("a graph is launched whole: its stream is full, or its order cannot be kept");
            return None;
        }
        for (index, node) in self.nodes.iter().enumerate() {
            match node.launch(engine, stream) {
                CUDA_SUCCESS => gate::step_aside(),
                rc if index == 0 => {
                    log::debug!("a graph is launched whole: the driver answered {rc} for its first node");
                    return None;
                }
                rc => {
                    order.mark_or_wait(engine, context, stream);
                    return Some(rc);
                }
            }
        }
        order.mark_or_wait(engine, context, stream);
        Some(CUDA_SUCCESS)
    }
}

impl Order {
    /// The graph is about to be launched whole on this stream. The driver knows of its own launches only.
    pub fn goes_whole(&self, engine: &Engine, stream: CUstream) {
        if !self.follow(engine, stream) {
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
            events::destroy(engine, last.event);
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
    fn follow(&self, engine: &Engine, stream: CUstream) -> bool {
        let last = *self.last();
        if last.event == 0 || broken::is("graph-order") {
            return true;
        }
        // SAFETY: the event is ours, recorded behind the last launch.
        let wait = |wait: pointers::cuStreamWaitEvent| unsafe { wait(stream, last.event as CUevent, 0) };
        let call = engine.pool.device().call.cuStreamWaitEvent;
        call.is_some_and(|call| wait(call) == CUDA_SUCCESS)
    }

    /// Whether a stream's queue has room for so many nodes. One that is far behind may wait for what this thread does
    /// next, and the driver blocks where its queue is full: so the graph's last launch has to be over, which is waited
    /// for as for pages.
    fn has_room(&self, engine: &Engine, nodes: usize, stream: CUstream) -> bool {
        let device = engine.pool.device();
        let event = self.last().event as CUevent;
        // SAFETY: the program's stream, and an event of ours.
        let rests = || device.relaxed(|| unsafe { (device.call.cuStreamQuery)(stream) }) == CUDA_SUCCESS;
        // SAFETY: as above.
        let is_over = || device.relaxed(|| unsafe { (device.call.cuEventQuery)(event) }) == CUDA_SUCCESS;
        if event.is_null() || nodes > QUEUE {
            return rests();
        }
        let (begin, patience) = (Instant::now(), quiet::patience());
        while !is_over() && !broken::is("graph-order") {
            if quiet::has_given_up() {
                return false;
            }
            if begin.elapsed() > patience {
                quiet::give_up(begin.elapsed());
                return false;
            }
            quiet::pause();
            marks::poll(engine);
        }
        true
    }

    /// Puts the event behind a launch.
    fn mark(&self, engine: &Engine, context: u64, stream: CUstream) -> bool {
        let call = &engine.pool.device().call;
        let mut last = self.last();
        if last.event != 0 && last.context != context {
            events::destroy(engine, last.event);
        }
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
        let values: *mut Block = self.values.as_ptr().cast_mut();
        let mut bytes = match self.form {
            Form::Packed(bytes) => bytes,
            Form::Each(_) => 0,
        };
        let mut list: Vec<*mut c_void> = match &self.form {
            // SAFETY: every place lies in the values.
            Form::Each(places) => places.iter().map(|&place| unsafe { values.add(place) }.cast()).collect(),
            Form::Packed(_) => launch::list_of(values.cast(), &mut bytes),
        };
        let none = std::ptr::null_mut();
        let (params, extra) = match self.form {
            Form::Each(_) => (list.as_mut_ptr(), none),
            Form::Packed(_) => (none, list.as_mut_ptr()),
        };
        let (function, cooperative) = (self.function as CUfunction, self.cooperative);
        let size = (self.grid, self.block, self.shared);
        // SAFETY: a kernel's node of the program's graph, with its parameters.
        unsafe { launch_plain(engine, function, size, cooperative, self.cluster, stream, (params, extra)) }
    }
}

impl Memset {
    /// Bytes from the first to the last.
    fn bytes(&self) -> usize {
        rectangle(self.pitch, self.width, self.height, self.unit as usize)
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
