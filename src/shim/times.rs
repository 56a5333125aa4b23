//! How long launches take that name large allocations: the policy tells from it which they hardly touch.
//!
//! Two timed events stand around such a launch, on its stream; they are asked at later ones. A launch is timed a few
//! times for each function and allocation, then ever more rarely, but for those that use one in place.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use vgmem_abi::*;
use vgmem_engine::{Context, Timing};

use crate::capture::{Capture, capture_of};
use crate::events;
use crate::start::Engine;

/// Launches that may wait for their end at a time; further ones are not timed.
const MOST: usize = 64;
/// Of them, those that are asked about at each launch.
const LOOKS: usize = 4;

/// A launch and the events around it, as numbers.
struct Pending {
    context: Context,
    events: [usize; 2],
    timing: Timing,
    /// When it was made, in microseconds.
    made: u64,
}

#[derive(Default)]
struct Times {
    pending: VecDeque<Pending>,
    /// Events that nobody needs.
    free: HashMap<Context, Vec<usize>>,
}

/// A launch that is about to be made.
pub struct Begun {
    context: Context,
    event: usize,
    timing: Timing,
    made: u64,
}

static TIMES: Mutex<Option<Times>> = Mutex::new(None);

fn times() -> MutexGuard<'static, Option<Times>> {
    TIMES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// As above, unless another thread has it, whose call of the driver may wait: what is not timed is no harm.
fn try_times<T>(work: impl FnOnce(&mut Times) -> T) -> Option<T> {
    TIMES.try_lock().ok().map(|mut times| work(times.get_or_insert_default()))
}

/// A launch on this stream of the current context is about to be made; `None` where it cannot be timed.
pub fn begin(engine: &Engine, context: Context, stream: CUstream, timing: Timing) -> Option<Begun> {
    // The pages may have been waited for: a capture may have begun meanwhile.
    let timing = engine.pool.settle_timing(timing)?;
    if !matches!(capture_of(engine, stream), Capture::None) {
        return None;
    }
    let known = try_times(|times| {
        times.settle(engine);
        (times.pending.len() < MOST).then(|| times.free.get_mut(&context).and_then(Vec::pop))
    });
    let event = known??.or_else(|| events::timed(engine))?;
    if !events::record(engine, event, stream) {
        give_back(engine, context, &[event]);
        return None;
    }
    Some(Begun { context, event, timing, made: micros() })
}

/// The launch was made and `tells` something; or it was refused, or the stream captures.
pub fn end(engine: &Engine, stream: CUstream, begun: Option<Begun>, tells: bool) {
    let Some(Begun { context, event, timing, made }) = begun else { return };
    let known = || try_times(|times| times.free.get_mut(&context).and_then(Vec::pop)).flatten();
    let last = tells.then(|| known().or_else(|| events::timed(engine))).flatten();
    let Some(last) = last else { return give_back(engine, context, &[event]) };
    let events = [event, last];
    if !events::record(engine, last, stream) {
        return give_back(engine, context, &events);
    }
    let kept = try_times(|times| times.pending.push_back(Pending { context, events, timing, made }));
    if kept.is_none() {
        events.into_iter().for_each(|event| events::destroy(engine, event));
    }
}

/// A context may be about to end, and its events with it.
pub fn context_leaves(context: Context) {
    if let Some(times) = times().as_mut() {
        times.pending.retain(|pending| pending.context != context);
        times.free.remove(&context);
    }
}

impl Times {
    /// Tells the pool of launches that are over.
    fn settle(&mut self, engine: &Engine) {
        let device = engine.pool.device();
        for _ in 0..LOOKS {
            let Some(&Pending { events: [_, end], .. }) = self.pending.front() else { return };
            // SAFETY: our event; its context has not ended.
            let asked = device.relaxed(|| unsafe { (device.call.cuEventQuery)(end as CUevent) });
            if asked == CUDA_ERROR_NOT_READY {
                return;
            }
            let Some(Pending { context, events, timing, made }) = self.pending.pop_front() else { return };
            self.free.entry(context).or_default().extend(events);
            let told = (asked == CUDA_SUCCESS).then(|| events::milliseconds(engine, events)).flatten();
            if let Some(milliseconds) = told {
                engine.pool.took(&timing, (milliseconds * 1e3).ceil() as u64, (made, micros()));
            }
        }
    }
}

fn give_back(engine: &Engine, context: Context, events: &[usize]) {
    let kept = try_times(|times| times.free.entry(context).or_default().extend(events));
    if kept.is_none() {
        events.iter().for_each(|&event| events::destroy(engine, event));
    }
}

/// Microseconds of a clock that only goes forward.
pub fn micros() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the out-parameter is live.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1_000
}
