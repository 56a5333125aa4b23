//! The order of work: operations run on worker threads as soon as what they wait for is done.
//!
//! A lane is the queue of one stream. An operation waits for the one before it in its lane, for
//! the events it names, and, between the legacy default stream and the streams that block with
//! it, for those. Of several that are ready the seed decides which runs first.

use crate::context::Context;
use crate::exec::Exec;
use crate::machine::Machine;
use crate::stream::host_function;
use crate::util::{Answer, Random, lock};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use vgmem_abi::*;

/// Threads that are made as soon as there is work for them.
const EAGER: usize = 4;
/// Threads at most: each may be stuck in a kernel that waits for another.
const MOST: usize = 256;
/// How long ready work waits before another thread is made beyond the first few.
const STARVED: Duration = Duration::from_millis(3);

/// How a lane goes with the legacy default stream of its context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// It is the legacy default stream.
    Legacy,
    /// It waits for the legacy default stream, which waits for it.
    Blocking,
    /// It goes its own way.
    Free,
}

struct Lane {
    context: u64,
    device: u32,
    order: Order,
    /// The operation that was put in last.
    tail: u64,
    /// The stream was destroyed; the lane goes with its last operation.
    dead: bool,
}

type Job = Box<dyn FnOnce(&Exec) -> Answer + Send>;

/// What an operation does.
pub(crate) enum Work {
    /// Nothing but take its turn; notes the time.
    Marker(Option<Arc<AtomicU64>>),
    /// A kernel, a copy, a memset.
    Device(Job),
    /// The same, but it waits for a value that somebody writes into memory.
    Gate(Job),
    /// A function of the program; `true`: it is called even if the context was lost.
    Host(Box<dyn FnOnce(CUresult) + Send>, bool),
}

/// One operation of several that are put into a lane together.
pub(crate) struct Step {
    pub context: Arc<Context>,
    pub work: Work,
    /// Places of the steps that must end first.
    pub after: Vec<usize>,
    /// Further operations that must end first.
    pub also: Vec<u64>,
}

struct Operation {
    lane: u64,
    context: Arc<Context>,
    work: Option<Work>,
    /// How many operations must end first.
    waits: usize,
    /// Operations that wait for this one.
    next: Vec<u64>,
    /// It waits for a value in memory.
    gate: bool,
}

struct State {
    last: u64,
    operations: HashMap<u64, Operation>,
    ready: Vec<u64>,
    lanes: HashMap<u64, Lane>,
    /// Lanes of per-thread default streams, by context and thread.
    threads: HashMap<(u64, u64), u64>,
    random: Random,
    workers: usize,
    idle: usize,
    watched: bool,
    started: u64,
}

/// All queues and the threads that drain them.
pub(crate) struct Scheduler {
    state: Mutex<State>,
    work: Condvar,
    done: Condvar,
    latency: Duration,
}

impl Scheduler {
    /// No work yet.
    pub fn new(seed: u64, latency: Duration) -> Scheduler {
        let state = State {
            last: 0,
            operations: HashMap::new(),
            ready: Vec::new(),
            lanes: HashMap::new(),
            threads: HashMap::new(),
            random: Random(seed),
            workers: 0,
            idle: 0,
            watched: false,
            started: 0,
        };
        Scheduler { state: Mutex::new(state), work: Condvar::new(), done: Condvar::new(), latency }
    }

    /// A lane for a new stream.
    pub fn lane(&self, id: u64, context: u64, device: u32, order: Order) {
        let lane = Lane { context, device, order, tail: 0, dead: false };
        lock(&self.state).lanes.insert(id, lane);
    }

    /// How a lane goes with the legacy default stream.
    pub fn order(&self, id: u64) -> Option<Order> {
        lock(&self.state).lanes.get(&id).map(|lane| lane.order)
    }

    /// The lane of a new context's legacy default stream.
    pub fn legacy_lane(&self, context: u64, device: u32) -> u64 {
        let id = crate::handle::fresh(crate::handle::Kind::Stream);
        self.lane(id, context, device, Order::Legacy);
        id
    }

    /// The lane of a thread's default stream in a context.
    pub fn thread_lane(&self, context: u64, device: u32, thread: u64) -> u64 {
        let found = lock(&self.state).threads.get(&(context, thread)).copied();
        found.unwrap_or_else(|| {
            // Only this thread makes this lane: nobody else can have been faster.
            let id = crate::handle::fresh(crate::handle::Kind::Stream);
            self.lane(id, context, device, Order::Blocking);
            lock(&self.state).threads.insert((context, thread), id);
            id
        })
    }

    /// The stream of a lane was destroyed.
    pub fn end_lane(&self, id: u64) {
        let mut state = lock(&self.state);
        let idle = state.lanes.get(&id).is_some_and(|lane| !state.operations.contains_key(&lane.tail));
        if idle {
            state.lanes.remove(&id);
        } else if let Some(lane) = state.lanes.get_mut(&id) {
            lane.dead = true;
        }
    }

    /// The context is gone, and its work was waited for.
    pub fn forget_context(&self, context: u64) {
        let mut state = lock(&self.state);
        state.lanes.retain(|_, lane| lane.context != context);
        state.threads.retain(|(owner, _), _| *owner != context);
    }

    /// Waits until operation `id` is over.
    pub fn wait(&self, id: u64) {
        let mut state = lock(&self.state);
        while state.operations.contains_key(&id) {
            state = self.done.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }

    fn wait_for(&self, which: impl Fn(&Lane) -> bool) {
        let tails: Vec<u64> =
            lock(&self.state).lanes.values().filter(|lane| which(lane)).map(|lane| lane.tail).collect();
        tails.into_iter().for_each(|tail| self.wait(tail));
    }

    /// Waits for all work of a context.
    pub fn wait_for_context(&self, context: u64) {
        self.wait_for(|lane| lane.context == context);
    }

    /// Waits for all work of a GPU.
    pub fn wait_for_device(&self, device: u32) {
        self.wait_for(|lane| lane.device == device);
    }

    /// Waits for all work.
    pub fn wait_for_all(&self) {
        self.wait_for(|_| true);
    }

    /// Whether operation `id` is over.
    pub fn is_done(&self, id: u64) -> bool {
        !lock(&self.state).operations.contains_key(&id)
    }

    /// Operations that a new one in lane `id` must wait for.
    fn before(state: &State, id: u64) -> Option<Vec<u64>> {
        let lane = state.lanes.get(&id)?;
        let with = |other: &&Lane| {
            other.context == lane.context
                && match lane.order {
                    Order::Legacy => other.order == Order::Blocking,
                    Order::Blocking => other.order == Order::Legacy,
                    Order::Free => false,
                }
        };
        let mut before = vec![lane.tail];
        before.extend(state.lanes.values().filter(with).map(|other| other.tail));
        Some(before)
    }

    /// Whether everything is over that a new operation in lane `id` would wait for.
    pub fn is_idle(&self, id: u64) -> bool {
        let state = lock(&self.state);
        let before = Self::before(&state, id).unwrap_or_default();
        !before.iter().any(|id| state.operations.contains_key(id))
    }

    /// Whether a lane waits for a value in memory, or will.
    pub fn waits_for_value(&self, id: u64) -> bool {
        lock(&self.state).operations.values().any(|operation| operation.gate && operation.lane == id)
    }

    /// The operation that was put into lane `id` last.
    pub fn tail(&self, id: u64) -> u64 {
        lock(&self.state).lanes.get(&id).map_or(0, |lane| lane.tail)
    }

    fn finish(&self, state: &mut State, machine: &Machine, id: u64) {
        let mut over = vec![id];
        while let Some(id) = over.pop() {
            let Some(operation) = state.operations.remove(&id) else { continue };
            if state.lanes.get(&operation.lane).is_some_and(|lane| lane.dead && lane.tail == id) {
                state.lanes.remove(&operation.lane);
            }
            for next in operation.next {
                let Some(waiting) = state.operations.get_mut(&next) else { continue };
                waiting.waits -= 1;
                if waiting.waits == 0 && self.make_ready(state, machine, next) {
                    over.push(next);
                }
            }
        }
        self.done.notify_all();
    }

    /// Puts an operation up for the workers; gives true if it is over at once.
    fn make_ready(&self, state: &mut State, machine: &Machine, id: u64) -> bool {
        if let Some(Operation { work: Some(Work::Marker(time)), .. }) = state.operations.get(&id) {
            if let Some(time) = time {
                time.store(machine.now().max(1), Ordering::Release);
            }
            return true;
        }
        state.ready.push(id);
        self.work.notify_one();
        false
    }
}

impl Machine {
    /// Puts work into a lane, after everything that it must wait for; gives the operation's number.
    pub(crate) fn submit(
        &'static self,
        context: &Arc<Context>,
        lane: u64,
        after: &[u64],
        work: Work,
    ) -> Answer<u64> {
        // A thread that waits in `cuMemFree` keeps all others from the context's queues.
        drop(context.shut());
        let mut state = lock(&self.scheduler.state);
        let mut before = Scheduler::before(&state, lane).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        before.extend_from_slice(after);
        let id = self.enqueue(&mut state, context, lane, before, work, true);
        self.staff(&mut state)?;
        Ok(id)
    }

    /// Adds an operation that waits for those of `before` that are not over yet; as the `tail` of
    /// its lane it comes before everything that is put into the lane later.
    fn enqueue(
        &self,
        state: &mut State,
        context: &Arc<Context>,
        lane: u64,
        mut before: Vec<u64>,
        work: Work,
        tail: bool,
    ) -> u64 {
        before.sort_unstable();
        before.dedup();
        state.last += 1;
        let id = state.last;
        let mut waits = 0;
        for one in before {
            if let Some(earlier) = state.operations.get_mut(&one) {
                earlier.next.push(id);
                waits += 1;
            }
        }
        if let Some(lane) = state.lanes.get_mut(&lane).filter(|_| tail) {
            lane.tail = id;
        }
        let (context, gate) = (context.clone(), matches!(work, Work::Gate(_)));
        let operation = Operation { lane, context, work: Some(work), waits, next: Vec::new(), gate };
        state.operations.insert(id, operation);
        if waits == 0 && self.scheduler.make_ready(state, self, id) {
            self.scheduler.finish(state, self, id);
        }
        id
    }

    /// Puts steps into a lane, ordered among each other only as they say; gives the number of each,
    /// and that of the operation that ends them all.
    pub(crate) fn submit_steps(
        &'static self,
        context: &Arc<Context>,
        lane: u64,
        after: &[u64],
        steps: Vec<Step>,
    ) -> Answer<(Vec<u64>, u64)> {
        drop(context.shut());
        let mut state = lock(&self.scheduler.state);
        let mut before = Scheduler::before(&state, lane).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        before.extend_from_slice(after);
        let begin = self.enqueue(&mut state, context, lane, before, Work::Marker(None), true);
        let mut numbers = Vec::with_capacity(steps.len());
        for step in steps {
            let mut before = step.also;
            before.push(begin);
            before.extend(step.after.iter().filter_map(|place| numbers.get(*place)));
            numbers.push(self.enqueue(&mut state, &step.context, lane, before, step.work, false));
        }
        let mut before = numbers.clone();
        before.push(begin);
        let end = self.enqueue(&mut state, context, lane, before, Work::Marker(None), true);
        self.staff(&mut state)?;
        Ok((numbers, end))
    }

    /// Sees to it that there are threads for the work.
    fn staff(&'static self, state: &mut State) -> Answer {
        while state.ready.len() > state.idle && state.workers < EAGER {
            self.hire(state)?;
        }
        if state.ready.len() > state.idle && !state.watched && state.workers < MOST {
            let watch = move || self.watch();
            state.watched = std::thread::Builder::new().name("sim-watch".into()).spawn(watch).is_ok();
        }
        Ok(())
    }

    fn hire(&'static self, state: &mut State) -> Answer {
        let work = move || self.work();
        let made = std::thread::Builder::new().name("sim-worker".into()).spawn(work);
        match made {
            Ok(_) => {
                state.workers += 1;
                // Counted as idle until it has taken something, so that no more are made than needed.
                state.idle += 1;
                Ok(())
            }
            Err(_) if state.workers > 0 => Ok(()),
            Err(_) => Err(CUDA_ERROR_OUT_OF_MEMORY),
        }
    }

    /// Makes further threads while ready work finds none: the others may be stuck in kernels that
    /// wait for it.
    fn watch(&'static self) {
        quiet();
        let mut seen = u64::MAX;
        loop {
            let mut state = lock(&self.scheduler.state);
            if state.ready.is_empty() {
                state.watched = false;
                return;
            }
            if state.started == seen && state.workers < MOST {
                let _ = self.hire(&mut state);
            }
            seen = state.started;
            drop(state);
            std::thread::sleep(STARVED);
        }
    }

    /// A worker thread.
    fn work(&'static self) {
        quiet();
        let scheduler = &self.scheduler;
        let mut state = lock(&scheduler.state);
        loop {
            while state.ready.is_empty() {
                state = scheduler.work.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
            }
            state.idle -= 1;
            state.started += 1;
            let choice = (state.random.next() % state.ready.len() as u64) as usize;
            let id = state.ready.swap_remove(choice);
            let taken =
                state.operations.get_mut(&id).and_then(|op| Some((op.context.clone(), op.work.take()?)));
            let _ = self.staff(&mut state);
            drop(state);
            if let Some((context, work)) = taken {
                self.run(&context, work);
            }
            state = lock(&scheduler.state);
            scheduler.finish(&mut state, self, id);
            state.idle += 1;
            let _ = self.staff(&mut state);
        }
    }

    fn run(&'static self, context: &Arc<Context>, work: Work) {
        match work {
            Work::Marker(_) => {}
            Work::Host(call, always) => match context.check() {
                Ok(()) => host_function(|| call(CUDA_SUCCESS)),
                Err(code) if always => host_function(|| call(code)),
                Err(_) => {}
            },
            Work::Device(job) | Work::Gate(job) => {
                if context.check().is_err() {
                    return;
                }
                if !self.scheduler.latency.is_zero() {
                    std::thread::sleep(self.scheduler.latency);
                }
                let exec = Exec::new(self, context.clone());
                let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| job(&exec)));
                let ended = exec.finish();
                if let Err(code) = ran.unwrap_or(Err(CUDA_ERROR_LAUNCH_FAILED)).and(ended) {
                    self.lose(context.device, code);
                }
            }
        }
    }
}

/// Signals of the program are none of our threads' business.
fn quiet() {
    // SAFETY: only the calling thread's own mask changes; the set is initialised by sigfillset.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&mut all);
        for fault in [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGABRT] {
            libc::sigdelset(&mut all, fault);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &all, std::ptr::null_mut());
    }
}
