//! Markers: how far the program's streams have come.
//!
//! Under pressure an event is recorded behind every submission, on its own stream; without pressure only the stream
//! is noted, which costs no driver call. When pressure starts, every noted stream gets one marker for all that was
//! submitted before. So every wait for the program's work is a poll, which can have a deadline.
//!
//! Lock order: the table of lines, by itself; of a line `asking`, then `events`, which is held while an event is
//! recorded, and that may block as a launch on that stream would. Polling skips lines that are locked, and holds no
//! lock that a launch takes while it asks the driver.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use vgmem_abi::*;
use vgmem_engine::{Context, Mark};

use crate::broken;
use crate::start::Engine;

/// Markers of one stream that are kept apart; a further one moves the newest, which is late but never early.
const MOST_PENDING: usize = 512;
/// Streams that are gone and whose work may still run, before it is looked whether it does.
const MOST_LEFT: usize = 16;
/// Markers of a line that are asked for in one poll; fewer than are kept apart, as the newest may be moved meanwhile.
const AT_ONCE: usize = 64;
/// How often a poll tries to note what it was told while launches keep a line locked, a microsecond or two each time.
const TRIES: usize = 100;

/// A stream of a context; the per-thread default stream exists once per thread.
type Key = (Context, usize, i32);

/// One stream.
struct Line {
    index: u32,
    /// Work was submitted behind the last marker.
    unmarked: AtomicBool,
    /// Held by the one who asks for its oldest markers, which stay where they are. Whoever lets the events end, with
    /// their context, holds it meanwhile.
    asking: Mutex<()>,
    events: Mutex<Events>,
}

#[derive(Default)]
struct Events {
    /// Number of the newest marker.
    issued: u64,
    /// Markers that were not seen complete, oldest first: number and event.
    pending: VecDeque<(u64, usize)>,
    free: Vec<usize>,
}

#[derive(Default)]
struct Lines {
    by_key: HashMap<Key, &'static Line>,
    /// Of streams that are gone, whose work may go on.
    left: Vec<(Context, &'static Line)>,
    /// Of streams that are gone, with the events of that context: ready for others of it.
    unused: Vec<(Context, &'static Line)>,
    /// Of contexts that are gone, without events: ready for any. Lines live as long as the process.
    blank: Vec<&'static Line>,
    made: u32,
}

impl Lines {
    /// The lines whose work may go on.
    fn all(&self) -> Vec<&'static Line> {
        self.by_key.values().copied().chain(self.left.iter().map(|(_, line)| *line)).collect()
    }

    /// The lines that have, or had, events of this context.
    fn of(&self, context: Context) -> Vec<&'static Line> {
        let own = self.by_key.iter().filter(|(key, _)| key.0 == context).map(|(_, line)| *line);
        let left = self.left.iter().chain(&self.unused).filter(|(of, _)| *of == context);
        own.chain(left.map(|(_, line)| *line)).collect()
    }

    /// A line for a stream of this context.
    fn take(&mut self, context: Context) -> &'static Line {
        if let Some(at) = self.unused.iter().position(|(of, _)| *of == context) {
            return self.unused.swap_remove(at).1;
        }
        self.blank.pop().unwrap_or_else(|| {
            self.made += 1;
            let (unmarked, asking, events) = Default::default();
            Box::leak(Box::new(Line { index: self.made - 1, unmarked, asking, events }))
        })
    }
}

static LINES: Mutex<Option<Lines>> = Mutex::new(None);
/// Grows when a stream or a context goes: its handle may come back.
static ERA: AtomicU64 = AtomicU64::new(0);
/// Markers that were seen complete, to tell whether anything goes on.
static SEEN: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The line that this thread used last, and the era of that.
    static LAST: Cell<Option<(Key, &'static Line, u64)>> = const { Cell::new(None) };
}

fn lines() -> MutexGuard<'static, Option<Lines>> {
    LINES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn events(line: &Line) -> MutexGuard<'_, Events> {
    line.events.lock().unwrap_or_else(PoisonError::into_inner)
}

fn key(context: Context, stream: CUstream) -> Key {
    let per_thread = stream == CU_STREAM_PER_THREAD;
    // SAFETY: takes no arguments.
    (context, stream as usize, if per_thread { unsafe { libc::gettid() } } else { 0 })
}

fn line(key: Key) -> &'static Line {
    let era = ERA.load(Ordering::Acquire);
    if let Some((last, line, then)) = LAST.get()
        && last == key
        && then == era
    {
        return line;
    }
    let mut lines = lines();
    let lines = lines.get_or_insert_default();
    let line = match lines.by_key.get(&key) {
        Some(line) => *line,
        None => {
            let line = lines.take(key.0);
            lines.by_key.insert(key, line);
            line
        }
    };
    LAST.set(Some((key, line, era)));
    line
}

/// Work was given to a stream, and needs no marker now.
#[inline]
pub fn note(context: Context, stream: CUstream) {
    let line = line(key(context, stream));
    if !line.unmarked.load(Ordering::Relaxed) {
        line.unmarked.store(true, Ordering::SeqCst);
    }
}

/// Records a marker behind all work of a stream of the current context; `None` where the driver refuses.
pub fn mark(engine: &Engine, context: Context, stream: CUstream) -> Option<Mark> {
    let line = line(key(context, stream));
    let marked = engine.pool.device().relaxed(|| record(engine, line, stream));
    if marked.is_none() {
        line.unmarked.store(true, Ordering::SeqCst);
    }
    marked
}

fn record(engine: &Engine, line: &Line, stream: CUstream) -> Option<Mark> {
    let call = &engine.pool.device().call;
    let mut events = events(line);
    let full = events.pending.len() >= MOST_PENDING;
    let taken = if full { events.pending.pop_back().map(|(_, event)| event) } else { events.free.pop() };
    let event = match taken {
        Some(event) => event as CUevent,
        None => call.new_event().ok()?,
    };
    line.unmarked.store(false, Ordering::SeqCst);
    // SAFETY: our event, on a stream of the program that it has just used.
    let recorded = unsafe { (call.cuEventRecord)(event, stream) } == CUDA_SUCCESS;
    if !recorded && !full {
        events.free.push(event as usize);
        return None;
    }
    if recorded {
        events.issued += 1;
    }
    // A refused record leaves the event as it was: behind the older work that it stands for.
    let number = events.issued;
    events.pending.push_back((number, event as usize));
    recorded.then_some(Mark { stream: line.index, number })
}

/// Gives every stream a marker behind all that was submitted to it; false where one could not be had. Nobody
/// submits meanwhile. The legacy default stream gets none: a record there waits for all blocking streams, and what
/// comes after for it, so that kernels which need one another could never meet.
pub fn mark_all(engine: &Engine) -> bool {
    let waiting: Vec<(Key, &'static Line)> = {
        let lines = lines();
        let all = lines.iter().flat_map(|lines| &lines.by_key);
        all.filter(|(_, line)| line.unmarked.load(Ordering::SeqCst))
            .map(|(key, line)| (*key, *line))
            .collect()
    };
    let mut all = true;
    for ((context, stream, thread), line) in waiting {
        // SAFETY: takes no arguments.
        let own = thread == 0 || thread == unsafe { libc::gettid() };
        let able = own && stream > CU_STREAM_LEGACY as usize;
        let marked =
            able && engine.pool.device().works_in(context, || record(engine, line, stream as CUstream));
        all &= marked;
    }
    all
}

/// Everything that was submitted is over, and nobody submits meanwhile.
pub fn all_over() {
    let lines = lines();
    let all = lines.iter().flat_map(|lines| lines.by_key.values());
    all.for_each(|line| line.unmarked.store(false, Ordering::SeqCst));
}

/// Looks how far the streams have come, and tells the pool; whether all work that has a marker is over.
pub fn poll(engine: &Engine) -> bool {
    let all = {
        let mut lines = lines();
        let Some(lines) = lines.as_mut() else { return true };
        let Lines { left, unused, .. } = lines;
        left.retain(|one| {
            let over = one.1.events.try_lock().is_ok_and(|events| events.pending.is_empty());
            if over {
                unused.push(*one);
            }
            !over
        });
        lines.all()
    };
    engine.pool.device().relaxed(|| {
        let mut over = true;
        for line in all {
            over &= poll_line(engine, line);
        }
        over
    })
}

/// Whether all markers of a line are passed. Some may be seen only by the next poll.
fn poll_line(engine: &Engine, line: &Line) -> bool {
    let Ok(_asking) = line.asking.try_lock() else { return false };
    let oldest: Vec<(u64, usize)> = match line.events.try_lock() {
        Ok(events) => events.pending.iter().take(AT_ONCE).copied().collect(),
        Err(_) => return false,
    };
    // SAFETY: an event of ours whose context has not ended. An error other than "not ready" is that of a lost
    // context: nothing runs there any more.
    let ask = |event| unsafe { (engine.pool.device().call.cuEventQuery)(event as CUevent) };
    let passed = oldest
        .iter()
        .take_while(|(_, event)| ask(*event) != CUDA_ERROR_NOT_READY || broken::is("marks"))
        .count();
    if passed == 0 {
        return oldest.is_empty();
    }
    let is_over = {
        let Some(mut events) = (0..TRIES).find_map(|_| line.events.try_lock().ok()) else { return false };
        events.pending.drain(..passed);
        events.free.extend(oldest[..passed].iter().map(|(_, event)| event));
        events.pending.is_empty()
    };
    SEEN.fetch_add(1, Ordering::Relaxed);
    engine.pool.completed(Mark { stream: line.index, number: oldest[passed - 1].0 });
    is_over
}

/// The newest marker of every stream.
pub fn newest() -> Vec<Mark> {
    let all = lines().as_ref().map(Lines::all).unwrap_or_default();
    let newest = |line: &Line| {
        line.events
            .try_lock()
            .ok()
            .and_then(|events| events.pending.back().map(|&(number, _)| Mark { stream: line.index, number }))
    };
    all.into_iter().filter_map(newest).collect()
}

/// Grows whenever some work was seen complete.
pub fn seen() -> u64 {
    SEEN.load(Ordering::Relaxed)
}

/// A stream is about to be destroyed; its work goes on. Whether a marker stands behind all of it.
pub fn stream_leaves(engine: &Engine, context: Context, stream: CUstream) -> bool {
    let unmarked: Vec<Key> = {
        let lines = lines();
        let all = lines.iter().flat_map(|lines| &lines.by_key);
        let of_stream = all.filter(|(key, _)| key.1 == stream as usize);
        of_stream.filter(|(_, line)| line.unmarked.load(Ordering::SeqCst)).map(|(key, _)| *key).collect()
    };
    // Its context need not be the current one.
    unmarked.iter().all(|key| key.0 == context && mark(engine, context, stream).is_some())
}

/// A stream is gone, and its handle may come back for another.
pub fn stream_gone(engine: &Engine, stream: CUstream) {
    leave(|key| key.1 == stream as usize);
    // Without pressure nobody else asks whether their work is over, and each would keep an event and a line.
    if lines().as_ref().is_some_and(|lines| lines.left.len() >= MOST_LEFT) {
        poll(engine);
    }
}

/// Nobody asks for the events of a context while this lives.
pub struct Unasked {
    context: Context,
    lines: Vec<&'static Line>,
    asking: Vec<MutexGuard<'static, ()>>,
}

/// A context may be about to end.
pub fn context_may_leave(context: Context) -> Unasked {
    let own = lines().as_ref().map(|lines| lines.of(context)).unwrap_or_default();
    let asking = own.iter().map(|line| line.asking.lock().unwrap_or_else(PoisonError::into_inner)).collect();
    Unasked { context, lines: own, asking }
}

/// A context is gone, and its work and events with it.
pub fn context_ended(engine: Option<&Engine>, context: Context) {
    context_may_leave(context).ended(engine);
}

impl Unasked {
    /// The context is gone, and its work and events with it.
    pub fn ended(mut self, engine: Option<&Engine>) {
        let Unasked { context, .. } = self;
        {
            let mut lines = lines();
            let Some(lines) = lines.as_mut() else { return };
            let later = lines.of(context).into_iter().filter(|line| !self.has(line));
            self.lines.extend(later.collect::<Vec<_>>());
            lines.by_key.retain(|key, _| key.0 != context);
            lines.left.retain(|(of, _)| *of != context);
            lines.unused.retain(|(of, _)| *of != context);
            ERA.fetch_add(1, Ordering::AcqRel);
        }
        for line in &self.lines[self.asking.len()..] {
            self.asking.push(line.asking.lock().unwrap_or_else(PoisonError::into_inner));
        }
        for line in &self.lines {
            let mut events = events(line);
            events.pending.clear();
            events.free.clear();
            line.unmarked.store(false, Ordering::SeqCst);
            let mark = Mark { stream: line.index, number: events.issued };
            if let Some(engine) = engine {
                engine.pool.completed(mark);
            }
        }
        if let Some(lines) = lines().as_mut() {
            lines.blank.extend(self.lines);
        }
    }

    fn has(&self, line: &Line) -> bool {
        self.lines.iter().any(|own| own.index == line.index)
    }
}

fn leave(which: impl Fn(&Key) -> bool) {
    let mut lines = lines();
    let Some(Lines { by_key, left, .. }) = lines.as_mut() else { return };
    by_key.retain(|key, line| {
        let leaves = which(key);
        if leaves {
            left.push((key.0, line));
        }
        !leaves
    });
    ERA.fetch_add(1, Ordering::AcqRel);
}
