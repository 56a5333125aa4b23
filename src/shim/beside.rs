//! Waiting for the pages of a launch while other work runs (rule S4).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use vgmem_engine::{Context, Ended, Progress, Using};

use crate::mover::Wanted;
use crate::start::Engine;
use crate::{marks, pager, quiet, stats, trace};

/// How long a launch waits for the best page to go before it lets another one go that is idle.
const PATIENCE: Duration = Duration::from_millis(20);

/// Brings the pages of a launch home while other work runs; leaves them where they are at the deadline.
///
/// One thread at a time: two that each hold half of what they need would wait for one another.
pub fn bring(engine: &Engine, context: Context, gpu: u8, function: u64, named: &[u64]) -> Using {
    let (mut using, ready) = engine.pool.begin_use_at(gpu, named);
    engine.pool.note_use(function, &using);
    if ready || (engine.pool.are_at_home(gpu, &using) && engine.pool.is_ready(&mut using)) {
        return using;
    }
    let begin = Instant::now();
    if quiet::has_given_up() {
        marks::poll(engine); // what was waited for in vain may be over, and nobody has looked
    }
    let mut turn = Turn::take(gpu);
    if turn.is_none() {
        // What a thread waits for must not keep the other's pages away.
        engine.pool.end_use(using, Ended::Nothing);
        while turn.is_none()
            && begin.elapsed() <= quiet::DEADLINE
            && !engine.pool.on_hold()
            && !quiet::has_given_up()
        {
            quiet::pause();
            marks::poll(engine);
            turn = Turn::take(gpu);
        }
        using = engine.pool.begin_use(named);
    }
    let (begin_own, patience) = (Instant::now(), quiet::patience());
    let wanted = turn.is_some().then(|| Wanted::post(context, gpu, using.named(), begin_own + PATIENCE));
    while let Some(wanted) = &wanted {
        match wanted.look(engine, context) {
            Progress::Ready | Progress::Stuck => break,
            Progress::Waiting(_) => {}
        }
        if !pager::is_calm(engine) || quiet::has_given_up() {
            break;
        }
        if begin_own.elapsed() > patience {
            quiet::give_up(begin_own.elapsed());
            break;
        }
        quiet::pause();
    }
    drop(wanted);
    drop(turn);
    // Mostly all is there; what is not, nor can be brought, is shown where it lies.
    if !engine.pool.is_ready(&mut using) {
        engine.pool.claim(&mut using);
    }
    stats::WAITED_BESIDE.add_since(begin);
    trace::stalled(begin);
    using
}

/// A launch uses these where they lie: they stay there until the end of the use. Counted when all that it wants is at
/// home, or it would wait for pages that only its own end sets free.
pub fn show(engine: &Engine, aside: &[u64]) -> Using {
    let mut using = engine.pool.begin_use(aside);
    if !engine.pool.is_ready(&mut using) {
        engine.pool.claim(&mut using);
    }
    using
}

/// Leave to wait for pages of a GPU, for one thread at a time; given back when dropped.
struct Turn(u64);

/// GPUs whose turn is taken, one bit each.
static TAKEN: AtomicU64 = AtomicU64::new(0);

impl Turn {
    fn take(gpu: u8) -> Option<Turn> {
        let bit = 1 << (gpu & 63);
        // Not `then_some`: that would make a turn in any case, and drop it.
        (TAKEN.fetch_or(bit, Ordering::AcqRel) & bit == 0).then(|| Turn(bit))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        TAKEN.fetch_and(!self.0, Ordering::Release);
    }
}
