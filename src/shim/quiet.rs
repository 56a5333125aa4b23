//! Waiting for the program's work, each time with a deadline: work may wait for work that is submitted later. After a
//! missed deadline nobody waits again until some work is seen complete; and all vain waits together take no more than
//! two deadlines and a part of the time since the first, or a kernel that never ends would cost one at every launch.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use vgmem_abi::*;

use crate::start::{Engine, engine};
use crate::{broken, gate, marks, mover, pager, stats, trace};

/// How long a launch waits for work, at most, before it goes on as things are.
pub const DEADLINE: Duration = Duration::from_secs(2);
/// Of the time since the first vain wait, vain waits may take this part, beside the first two deadlines.
const VAIN_PART: u32 = 16;
/// Every launch may wait so long.
const LEAST_PATIENCE: Duration = Duration::from_millis(10);
/// How long a thread that waits for a GPU keeps looking while nothing moves.
const STILL: Duration = Duration::from_millis(20);
/// Up to so many processors a poll gives its own up.
const FEW_PROCESSORS: libc::c_long = 4;

/// Work was submitted of which neither a marker nor a note of its stream tells.
static UNMARKED: AtomicBool = AtomicBool::new(false);
/// 1 more than `marks::seen` when a deadline was missed; 0 is never.
static GAVE_UP: AtomicU64 = AtomicU64::new(0);
/// When a deadline was missed first, and nanoseconds of all vain waits.
static FIRST_VAIN: OnceLock<Instant> = OnceLock::new();
static VAIN: AtomicU64 = AtomicU64::new(0);

/// Work was submitted that leaves no marker.
pub fn lose_track() {
    UNMARKED.store(true, Ordering::SeqCst);
}

/// One turn of a loop that polls. With few processors the thread sleeps a little: what it waits for needs them.
pub fn pause() {
    if has_few_processors() {
        std::thread::sleep(Duration::from_micros(20));
    } else {
        std::thread::yield_now();
    }
}

/// A short time, with few processors asleep. A sleep takes several times as long as it should.
pub fn nap(time: Duration) {
    if has_few_processors() {
        return std::thread::sleep(time);
    }
    let begin = Instant::now();
    while begin.elapsed() < time {
        std::hint::spin_loop();
    }
}

fn has_few_processors() -> bool {
    static FEW: AtomicU8 = AtomicU8::new(0);
    match FEW.load(Ordering::Relaxed) {
        0 => {
            // SAFETY: takes a number and gives one.
            let few = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) } <= FEW_PROCESSORS;
            FEW.store(1 + u8::from(few), Ordering::Relaxed);
            few
        }
        known => known == 2,
    }
}

/// Whether a deadline was missed and nothing was seen complete since.
pub fn has_given_up() -> bool {
    GAVE_UP.load(Ordering::Relaxed) == marks::seen() + 1
}

/// How long a wait that begins now may take.
pub fn patience() -> Duration {
    let since = FIRST_VAIN.get().map_or(Duration::ZERO, Instant::elapsed);
    let vain = Duration::from_nanos(VAIN.load(Ordering::Relaxed));
    (2 * DEADLINE + since / VAIN_PART).saturating_sub(vain).clamp(LEAST_PATIENCE, DEADLINE)
}

/// A deadline was missed, after so long.
pub fn give_up(waited: Duration) {
    FIRST_VAIN.get_or_init(Instant::now);
    VAIN.fetch_add(waited.as_nanos() as u64, Ordering::Relaxed);
    GAVE_UP.store(marks::seen() + 1, Ordering::Relaxed);
    stats::MISSED.add(1);
    log::debug!("pages stay where they are: work goes on");
}

/// Waits, with the gate open, until what has been submitted so far is over; false at the deadline. Others may submit
/// meanwhile: what this work waits for may be among it.
pub fn passes(engine: &Engine) -> bool {
    if broken::is("idle") {
        return true;
    }
    let newest = marks::newest();
    in_time(|| engine.pool.have_passed(&newest) || marks::poll(engine))
}

/// Polls until `is_over`; false at the deadline, or where one was missed and nothing was seen complete since.
fn in_time(is_over: impl Fn() -> bool) -> bool {
    let (begin, patience) = (Instant::now(), patience());
    while !is_over() {
        if has_given_up() {
            return false;
        }
        if begin.elapsed() > patience {
            give_up(begin.elapsed());
            return false;
        }
        pause();
    }
    true
}

/// Waits until everything that was submitted is over; false at the deadline. The gate is closed.
pub fn is_idle(engine: &Engine) -> bool {
    if broken::is("idle") {
        return true;
    }
    if UNMARKED.load(Ordering::SeqCst) || !marks::mark_all(engine) {
        if !quiet_in_time() {
            UNMARKED.store(true, Ordering::SeqCst);
            return false;
        }
        UNMARKED.store(false, Ordering::SeqCst);
        marks::all_over();
    }
    in_time(|| marks::poll(engine))
}

/// Waits for all contexts, for work of which no marker tells; false at the deadline. The driver's wait has none: it is
/// made on a thread of its own, which is left behind.
fn quiet_in_time() -> bool {
    static WAITING: AtomicBool = AtomicBool::new(false);
    static QUIET: AtomicBool = AtomicBool::new(false);
    if WAITING.swap(true, Ordering::SeqCst) {
        return false; // an earlier wait is not over
    }
    QUIET.store(false, Ordering::SeqCst);
    let thread = std::thread::Builder::new().name("vgmem-wait".into()).spawn(|| {
        QUIET.store(engine().is_some_and(gate::quiet), Ordering::SeqCst);
        WAITING.store(false, Ordering::SeqCst);
    });
    if thread.is_err() {
        WAITING.store(false, Ordering::SeqCst);
        return false;
    }
    let (begin, patience) = (Instant::now(), patience());
    while WAITING.load(Ordering::SeqCst) {
        if begin.elapsed() > patience {
            give_up(begin.elapsed());
            return false;
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    QUIET.load(Ordering::SeqCst)
}

/// The program is about to wait in the driver's function `base`: meanwhile pages are fetched ahead. What it gives is
/// dropped after the wait.
#[inline]
pub fn before_wait(base: &str, handle: Option<usize>) -> Option<trace::Wait> {
    let wait = trace::wait();
    if let Some(engine) = engine().filter(|engine| pager::is_beside(engine)) {
        look_ahead_until(engine, || is_over(engine, base, handle.unwrap_or(0)));
    }
    wait
}

/// Whether the wait would return at once.
fn is_over(engine: &Engine, base: &str, handle: usize) -> bool {
    let call = &engine.pool.device().call;
    // A query of a default stream could end a capture that begins just now.
    engine.pool.device().relaxed(|| match base {
        // SAFETY: the program's handle; the driver checks it.
        "cuEventSynchronize" => unsafe { (call.cuEventQuery)(handle as CUevent) != CUDA_ERROR_NOT_READY },
        // SAFETY: as above.
        "cuStreamSynchronize" if handle > CU_STREAM_PER_THREAD as usize => unsafe {
            (call.cuStreamQuery)(handle as CUstream) != CUDA_ERROR_NOT_READY
        },
        _ => marks::poll(engine),
    })
}

fn look_ahead_until(engine: &Engine, is_over: impl Fn() -> bool) {
    let Some((context, gpu)) = engine.current() else { return };
    if mover::is_there(gpu) {
        return mover::nudge(engine, context, gpu);
    }
    let mut moved = Instant::now();
    while pager::is_calm(engine) && !is_over() && moved.elapsed() < STILL {
        marks::poll(engine);
        if engine.pool.look_ahead(gpu, context, 0) {
            moved = Instant::now();
        }
        pause();
    }
}
