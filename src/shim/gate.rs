//! The gate between the program's submissions and page moves.
//!
//! Every export that gives work to a GPU, or allocates or frees, holds a pass while it runs. A mover closes the
//! gate, waits until all passes are back, waits until the GPUs are idle, moves, and opens again. A submission that
//! finds the gate closed waits. A mover that does not get all passes back in time gives up: a pass may be held by
//! a call that blocks until some other thread submits.
//!
//! Without moves (today: without `VGMEM_CHAOS`) the gate is off and a pass costs one load.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::start::{Engine, engine};

/// How long a mover waits for passes.
const PATIENCE: Duration = Duration::from_millis(20);

static ON: AtomicBool = AtomicBool::new(false);
static CLOSED: AtomicBool = AtomicBool::new(false);
static INSIDE: AtomicUsize = AtomicUsize::new(0);

/// Turns the gate on, before the program's first submission.
pub fn turn_on() {
    ON.store(true, Ordering::SeqCst);
}

/// Leave to submit; given back when dropped.
pub struct Pass {
    counted: bool,
}

impl Drop for Pass {
    #[inline]
    fn drop(&mut self) {
        if self.counted {
            INSIDE.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// A pass for one call. Waits while pages move.
#[inline]
pub fn pass() -> Pass {
    if ON.load(Ordering::Relaxed) { counted_pass() } else { Pass { counted: false } }
}

#[cold]
fn counted_pass() -> Pass {
    let Some(engine) = engine() else { return Pass { counted: false } };
    engine.current(); // a mover waits in every context that submits: this one must be known
    loop {
        INSIDE.fetch_add(1, Ordering::SeqCst);
        if !CLOSED.load(Ordering::SeqCst) {
            return Pass { counted: true };
        }
        INSIDE.fetch_sub(1, Ordering::SeqCst);
        while CLOSED.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
    }
}

/// Runs `work` while nothing can be submitted; whether it ran.
fn closed(work: impl FnOnce()) -> bool {
    if CLOSED.swap(true, Ordering::SeqCst) {
        return false; // another thread is moving pages
    }
    let start = Instant::now();
    while INSIDE.load(Ordering::SeqCst) != 0 && start.elapsed() < PATIENCE {
        std::thread::yield_now();
    }
    let all_out = INSIDE.load(Ordering::SeqCst) == 0;
    if all_out {
        work();
    }
    CLOSED.store(false, Ordering::SeqCst);
    all_out
}

/// The program has just waited for a GPU: a good moment to move pages.
#[inline]
pub fn idle_point() {
    if ON.load(Ordering::Relaxed)
        && let Some(engine) = engine()
    {
        closed(|| crate::chaos::move_pages(engine));
    }
}

/// Whether nothing is in flight anywhere; waits for what still is.
pub fn quiet(engine: &Engine) -> bool {
    matches!(engine.pool.quiesce(), Ok(true))
}
