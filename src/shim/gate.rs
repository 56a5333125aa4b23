//! The gate between the program's submissions and page moves.
//!
//! Every export that gives work to a GPU, or allocates or frees, holds a pass while it runs. A mover closes the
//! gate, waits until all passes are back, waits until the GPUs are idle, moves, and opens again. A submission that
//! finds the gate closed waits. A mover that does not get all passes back in time gives up: a pass may be held by
//! a call that blocks until some other thread submits.
//!
//! Without moves (neither `VGMEM_PAGING` nor `VGMEM_CHAOS`) the gate is off and a pass costs one load.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use vgmem_engine::Gate;

use crate::broken;
use crate::start::{Engine, engine};

/// How long a mover waits for passes.
const PATIENCE: Duration = Duration::from_millis(20);

static ON: AtomicBool = AtomicBool::new(false);
static GATE: Gate = Gate::new();

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
            GATE.leave();
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
    while !GATE.enter() {
        std::thread::yield_now();
    }
    Pass { counted: true }
}

/// Between two parts of a call that holds a pass: a mover that waits for all passes goes first.
pub fn step_aside() {
    if ON.load(Ordering::Relaxed) && engine().is_some() {
        GATE.leave();
        while !GATE.enter() {
            std::thread::yield_now();
        }
    }
}

/// Runs `work` while nothing can be submitted; whether it ran. For callers that hold no pass.
fn closed(work: impl FnOnce()) -> bool {
    closed_but(0, work)
}

/// As `closed`, for a caller that holds a pass: the others' submissions wait, its own comes after `work`.
pub fn closed_by_holder(work: impl FnOnce()) -> bool {
    closed_but(1, work)
}

fn closed_but(own: usize, work: impl FnOnce()) -> bool {
    if !GATE.close() {
        return false; // another thread is moving pages
    }
    let are_out = || broken::is("gate") || GATE.is_empty_but(own);
    let start = Instant::now();
    while !are_out() && start.elapsed() < PATIENCE {
        std::thread::yield_now();
    }
    let all_out = are_out();
    if all_out {
        work();
    }
    GATE.open();
    all_out
}

/// The program has just waited for a GPU: a good moment to move pages.
#[inline]
pub fn idle_point() {
    if crate::chaos::is_on()
        && let Some(engine) = engine()
    {
        closed(|| crate::chaos::move_pages(engine));
    }
}

/// Whether nothing is in flight anywhere; waits for what still is.
pub fn quiet(engine: &Engine) -> bool {
    matches!(engine.pool.quiesce(), Ok(true))
}
