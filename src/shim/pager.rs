//! `VGMEM_PAGING=auto`: before a launch, the pages that it names come home.
//!
//! Strict: the launching thread closes the gate, waits until everything that was submitted is over, lets the engine
//! exchange pages, and launches. The wait has a deadline, after which the launch goes on with its pages where they
//! lie: work may wait for work that is launched later. Under pressure each launch, and each copy and memset by
//! address, leaves a marker (an event) on its stream, so that the wait is a poll; what was submitted otherwise (graphs,
//! boxes, peers, wait-values) is waited for with its context, without a deadline.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use vgmem_abi::*;
use vgmem_engine::Context;

use crate::gate;
use crate::start::{Engine, engine};

/// How long a launch waits for work before it goes on as things are.
const DEADLINE: Duration = Duration::from_secs(2);
/// Event flag: no time stamps.
const DISABLE_TIMING: c_uint = 2;

static ON: AtomicBool = AtomicBool::new(false);
/// Something touched pooled memory without leaving a marker. True at the start: nothing had markers then.
static UNMARKED: AtomicBool = AtomicBool::new(true);
static MARKS: Mutex<Option<Marks>> = Mutex::new(None);

/// A stream of a context; the default streams exist once per thread.
type Key = (Context, usize, i32);

/// One event for each stream, and the streams whose event has not been seen complete.
#[derive(Default)]
struct Marks {
    events: HashMap<Key, usize>,
    pending: Vec<Key>,
}

/// Turns the pager on, before the program's first submission.
pub fn start() {
    ON.store(true, Ordering::SeqCst);
    gate::turn_on();
}

/// Whether launches have to be looked at: the pager is on, and pages lie away from their home.
#[inline]
pub fn is_needed(engine: &Engine) -> bool {
    ON.load(Ordering::Relaxed) && engine.pool.is_under_pressure()
}

/// A copy, a memset or a graph is about to use pooled memory.
#[inline]
pub fn unmarked() {
    if ON.load(Ordering::Relaxed) {
        UNMARKED.store(true, Ordering::SeqCst);
    }
}

/// A launch that names these addresses is about to be made by this thread, which holds a pass.
pub fn before_launch(engine: &Engine, addresses: &[u64]) {
    let Some((context, gpu)) = engine.current() else { return };
    if !engine.pool.note_launch(gpu, addresses) || engine.pool.on_hold() {
        return;
    }
    let exchanged = gate::closed_by_holder(|| {
        if !is_idle(engine) {
            log::debug!("pages stay where they are: work goes on");
            return;
        }
        match engine.pool.bring(gpu, context, addresses) {
            Ok(done) => log::trace!("before a launch: {done:?}"),
            Err(error) => log::debug!("pages stay where they are: the driver answered {}", error.code()),
        }
    });
    if !exchanged {
        log::debug!("pages stay where they are: another thread submits");
    }
}

/// A launch or copy was given to this stream of the current context: leaves a marker behind it.
pub fn after_submission(engine: &Engine, stream: CUstream) {
    let Some((context, _)) = engine.current() else { return };
    if engine.pool.on_hold() || !mark(engine, context, stream) {
        unmarked();
    }
}

fn mark(engine: &Engine, context: Context, stream: CUstream) -> bool {
    let number = stream as usize;
    // SAFETY: takes no arguments.
    let thread = if number <= 2 { unsafe { libc::gettid() } } else { 0 };
    let key = (context, number, thread);
    let call = &engine.pool.device().call;
    let mut marks = MARKS.lock().unwrap_or_else(PoisonError::into_inner);
    let marks = marks.get_or_insert_default();
    let event = match marks.events.get(&key) {
        Some(&event) => event as CUevent,
        None => {
            let mut event: CUevent = std::ptr::null_mut();
            // SAFETY: the out-parameter is live; the stream's context is current.
            if unsafe { (call.cuEventCreate)(&mut event, DISABLE_TIMING) } != CUDA_SUCCESS {
                return false;
            }
            marks.events.insert(key, event as usize);
            event
        }
    };
    // SAFETY: our event, on the stream that the program has just launched on.
    let recorded = unsafe { (call.cuEventRecord)(event, stream) } == CUDA_SUCCESS;
    if recorded && !marks.pending.contains(&key) {
        marks.pending.push(key);
    }
    recorded
}

/// A stream is destroyed: its work may go on, and its handle may come back for another stream.
pub fn stream_destroyed(stream: CUstream) {
    if !ON.load(Ordering::Relaxed) {
        return;
    }
    unmarked();
    if let Some(marks) = MARKS.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
        marks.events.retain(|key, _| key.1 != stream as usize);
        marks.pending.retain(|key| key.1 != stream as usize);
    }
}

/// A context has ended, and its events with it.
pub fn context_ended(context: Context) {
    if let Some(marks) = MARKS.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
        marks.events.retain(|key, _| key.0 != context);
        marks.pending.retain(|key| key.0 != context);
    }
}

/// Waits until everything that was submitted is over; false at the deadline. The gate is closed.
fn is_idle(engine: &Engine) -> bool {
    if UNMARKED.swap(false, Ordering::SeqCst) {
        let quiet = gate::quiet(engine);
        if !quiet {
            UNMARKED.store(true, Ordering::SeqCst);
        }
        return quiet;
    }
    let call = &engine.pool.device().call;
    let begin = Instant::now();
    let mut marks = MARKS.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(marks) = marks.as_mut() else { return true };
    while let Some(key) = marks.pending.last() {
        let Some(&event) = marks.events.get(key) else {
            marks.pending.pop();
            continue;
        };
        // SAFETY: an event of ours whose context has not ended.
        match unsafe { (call.cuEventQuery)(event as CUevent) } {
            CUDA_SUCCESS => {
                marks.pending.pop();
            }
            CUDA_ERROR_NOT_READY if begin.elapsed() < DEADLINE => std::hint::spin_loop(),
            _ => return false,
        }
    }
    true
}

/// The engine, if its launches have to be looked at.
#[inline]
pub fn needed() -> Option<&'static Engine> {
    engine().filter(|engine| is_needed(engine))
}
