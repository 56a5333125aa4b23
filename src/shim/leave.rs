//! Contexts and streams that end: what the pager does first, and what it forgets.

use std::sync::MutexGuard;

use vgmem_abi::*;
use vgmem_engine::{Context, Still};

use crate::start::engine;
use crate::{marks, mover, pager, times, trace};

/// A context may be about to end: none of its copies is under way, none begins, and nobody asks about its events until
/// this is dropped.
pub struct Leaving {
    marks: marks::Unasked,
    still: Still<'static>,
    asleep: Vec<MutexGuard<'static, ()>>,
}

impl Leaving {
    /// The context has ended, or is about to, and its markers with it. Pages still stay where they are.
    pub fn without_marks(self) -> impl Sized {
        self.marks.ended(engine());
        (self.still, self.asleep)
    }
}

/// A context is about to end.
pub fn context_leaves(context: Context) -> Option<impl Sized> {
    Some(context_may_leave(context)?.without_marks())
}

/// A context may be about to end.
pub fn context_may_leave(context: Context) -> Option<Leaving> {
    trace::context_leaves(context);
    let engine = engine().filter(|_| pager::is_on())?;
    times::context_leaves(context);
    let asleep = mover::context_leaves(context);
    let still = engine.pool.hold_still(context);
    Some(Leaving { marks: marks::context_may_leave(context), still, asleep })
}

/// The context has not ended after all, and its markers are gone.
pub fn context_stays() {
    pager::unmarked();
}

/// A stream is about to be destroyed: its work may go on.
pub fn stream_leaves(stream: CUstream) {
    if let Some(engine) = engine().filter(|_| pager::is_on())
        && let Some((context, _)) = engine.current()
        && !marks::stream_leaves(engine, context, stream)
    {
        pager::lose_track();
    }
}

/// A stream was destroyed: its handle may come back for another.
pub fn stream_gone(stream: CUstream) {
    if let Some(engine) = engine().filter(|_| pager::is_on()) {
        marks::stream_gone(engine, stream);
    }
}
