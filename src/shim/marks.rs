//! Markers: how far the program's streams have come.
//!
//! Under pressure an event is recorded behind every submission, on its own stream; without pressure only the stream
//! is noted, which costs no driver call. When pressure starts, every noted stream gets one marker for all that was
//! submitted before. So every wait for the program's work is a poll, which can have a deadline.
//!
//! Lock order: the table of lines, then nothing; a line's lock is held while its event is recorded, which may block
//! as a launch on that stream would. Polling skips lines that are locked, and holds no lock that a launch takes while
//! it asks the driver.

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

/// A stream of a context; the per-thread default stream exists once per thread.
type Key = (Context, usize, i32);

/// One stream.
struct Line {
    index: u32,
    /// Work was submitted behind the last marker.
    unmarked: AtomicBool,
    /// Held by the one who asks for its oldest marker, which stays where it is; before `events`. Whoever lets the
    /// events end takes it, too.
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
    /// Of streams that are gone, ready for others. Lines live as long as the process.
    unused: Vec<&'static Line>,
    made: u32,
}

impl Lines {
    /// The lines whose work may go on.
    fn all(&self) -> Vec<&'static Line> {
        self.by_key.values().copied().chain(self.left.iter().map(|(_, line)| *line)).collect()
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
    let Lines { by_key, unused, made, .. } = lines.get_or_insert_default();
    let line = *by_key.entry(key).or_insert_with(|| {
        unused.pop().unwrap_or_else(|| {
            *made += 1;
            let (unmarked, asking, events) = Default::default();
            Box::leak(Box::new(Line { index: *made - 1, unmarked, asking, events }))
        })
    });
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
/// submits meanwhile.
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
        let marked =
            own && engine.pool.device().works_in(context, || record(engine, line, stream as CUstream));
        all &= marked;
    }
    all
}

/// Looks how far the streams have come, and tells the pool; whether all work that has a marker is over.
pub fn poll(engine: &Engine) -> bool {
    let all = {
        let mut lines = lines();
        let Some(lines) = lines.as_mut() else { return true };
        let Lines { left, unused, .. } = lines;
        left.retain(|(_, line)| {
            let over = line.events.try_lock().is_ok_and(|events| events.pending.is_empty());
            if over {
                unused.push(line);
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

fn poll_line(engine: &Engine, line: &Line) -> bool {
    let Ok(_asking) = line.asking.try_lock() else { return false };
    let mut passed = 0;
    let left = loop {
        let oldest = line.events.try_lock().map(|events| events.pending.front().copied());
        let Ok(Some((number, event))) = oldest else { break oldest.is_err() };
        // SAFETY: an event of ours whose context has not ended. An error other than "not ready" is that of a lost
        // context: nothing runs there any more.
        if unsafe { (engine.pool.device().call.cuEventQuery)(event as CUevent) } == CUDA_ERROR_NOT_READY
            && !broken::is("marks")
        {
            break true;
        }
        let Ok(mut events) = line.events.try_lock() else { break true };
        events.pending.pop_front();
        events.free.push(event);
        passed = number;
    };
    if passed > 0 {
        SEEN.fetch_add(1, Ordering::Relaxed);
        engine.pool.completed(Mark { stream: line.index, number: passed });
    }
    !left
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
pub fn stream_gone(stream: CUstream) {
    leave(|key| key.1 == stream as usize);
}

/// A context is gone, and its work and events with it.
pub fn context_ended(engine: Option<&Engine>, context: Context) {
    leave(|key| key.0 == context);
    let gone: Vec<&'static Line> = {
        let mut lines = lines();
        let Some(lines) = lines.as_mut() else { return };
        let (gone, stay) = lines.left.drain(..).partition(|(of, _)| *of == context);
        lines.left = stay;
        let gone: Vec<(Context, &'static Line)> = gone;
        gone.into_iter().map(|(_, line)| line).collect()
    };
    for line in &gone {
        let _asking = line.asking.lock().unwrap_or_else(PoisonError::into_inner);
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
        lines.unused.extend(gone);
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
