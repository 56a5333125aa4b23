//! `VGMEM_TRACE`: what the program gives to the GPUs, with its times there, for `vgmem replay`.
//!
//! One record a line; `src/replay` describes them. Two timed events stand around each operation, on its own stream, so
//! a traced program runs a little slower. Records are written in the order of the calls, as soon as the operations
//! before them are over; what is not over when the process exits is left out. Not recorded: what is captured into
//! graphs, the graphs' launches, copies of boxes and arrays, copies between contexts.

use std::collections::{HashMap, VecDeque};
use std::ffi::CString;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

use vgmem_abi::*;
use vgmem_engine::Context;

use crate::capture::{Capture, capture_of};
use crate::start::{Engine, engine};
use crate::{events, fork, trust};

/// Bytes of text that are gathered before they are written.
const CHUNK: usize = 1 << 16;
/// What the pager does is recorded where it takes longer.
const LONG: Duration = Duration::from_micros(20);
/// Operations that are looked at after each one.
const LOOKS: usize = 8;

static ON: AtomicBool = AtomicBool::new(false);
static TRACE: Mutex<Option<Trace>> = Mutex::new(None);

struct Trace {
    file: i32,
    start: Instant,
    text: String,
    entries: VecDeque<Entry>,
    functions: HashMap<usize, usize>,
    streams: HashMap<(Context, usize), usize>,
    /// Events that no record needs any more, as numbers.
    free: HashMap<Context, Vec<usize>>,
}

enum Entry {
    Plain(String),
    /// An operation: the words before its time and behind it, and the events around it.
    Timed {
        head: String,
        tail: String,
        context: Context,
        events: [usize; 2],
    },
}

fn trace() -> MutexGuard<'static, Option<Trace>> {
    TRACE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether operations are recorded.
#[inline]
pub fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Lets `work` at the trace where operations are recorded.
#[inline]
fn with(work: impl FnOnce(&mut Trace)) {
    if is_on()
        && let Some(trace) = trace().as_mut()
    {
        work(trace);
    }
}

/// Opens the file and writes what the machine is: bytes of each GPU in the pool, and of the largest page.
pub fn start(path: &str, gpus: &[u64], page: u64) -> std::io::Result<()> {
    let name = CString::new(path)?;
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC | libc::O_CLOEXEC;
    // SAFETY: the path ends with NUL.
    let file = unsafe { libc::open(name.as_ptr(), flags, 0o644) };
    if file < 0 {
        return Err(std::io::Error::last_os_error());
    }
    let mut text = String::from("vgmem-trace 1\n");
    for (gpu, bytes) in gpus.iter().enumerate() {
        let _ = writeln!(text, "gpu {gpu} {bytes}");
    }
    let _ = writeln!(text, "page {page}");
    *trace() = Some(Trace {
        file,
        start: Instant::now(),
        text,
        entries: VecDeque::new(),
        functions: HashMap::new(),
        streams: HashMap::new(),
        free: HashMap::new(),
    });
    ON.store(true, Ordering::SeqCst);
    Ok(())
}

impl Trace {
    fn micros(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }

    fn plain(&mut self, line: String) {
        self.entries.push_back(Entry::Plain(line));
    }

    fn waited(&mut self, wait: &Wait) {
        let now = self.micros();
        self.plain(format!("w {} {now}\n", wait.0));
    }

    fn stream(&mut self, context: Context, stream: CUstream) -> usize {
        let next = self.streams.len();
        *self.streams.entry((context, stream as usize)).or_insert(next)
    }

    fn function(&mut self, engine: &Engine, function: CUfunction) -> usize {
        let next = self.functions.len();
        if let Some(&known) = self.functions.get(&(function as usize)) {
            return known;
        }
        self.functions.insert(function as usize, next);
        let name = trust::name(engine, function).replace(['\n', '\r'], " ");
        self.plain(format!("n {next} {name}\n"));
        next
    }

    fn event(&mut self, engine: &Engine, context: Context) -> Option<usize> {
        let free = self.free.get_mut(&context).and_then(Vec::pop);
        free.or_else(|| events::timed(engine))
    }

    /// Moves records into the text, up to `most` operations that are over, and writes it where it is long.
    fn settle(&mut self, engine: &Engine, most: usize) {
        let call = &engine.pool.device().call;
        let mut operations = 0;
        while operations < most {
            match self.entries.front() {
                None => break,
                Some(Entry::Timed { events: [_, end], .. }) => {
                    operations += 1;
                    // SAFETY: our event; its context has not ended.
                    let rc = unsafe { (call.cuEventQuery)(*end as CUevent) };
                    if rc == CUDA_ERROR_NOT_READY {
                        break;
                    }
                }
                Some(Entry::Plain(_)) => {}
            }
            match self.entries.pop_front() {
                Some(Entry::Plain(line)) => self.text.push_str(&line),
                Some(Entry::Timed { head, tail, context, events }) => {
                    let milliseconds = events::milliseconds(engine, events).unwrap_or(0.0);
                    let nanoseconds = (milliseconds * 1e6) as u64;
                    let _ = writeln!(self.text, "{head} {nanoseconds}{tail}");
                    self.free.entry(context).or_default().extend(events);
                }
                None => break,
            }
        }
        if self.text.len() >= CHUNK {
            self.write();
        }
    }

    fn write(&mut self) {
        let mut left = self.text.as_bytes();
        while !left.is_empty() {
            // SAFETY: the buffer is live.
            let count = unsafe { libc::write(self.file, left.as_ptr().cast(), left.len()) };
            let Some(written) = usize::try_from(count).ok().filter(|&count| count > 0) else { break };
            left = &left[written..];
        }
        self.text.clear();
    }
}

/// An operation that is about to be submitted.
pub struct Started {
    head: String,
    tail: String,
    context: Context,
    begin: usize,
    stream: usize,
    /// The call comes back when the operation is over.
    wait: Option<Wait>,
}

/// A launch; `words` are those of its parameters.
pub fn launch(engine: &Engine, function: CUfunction, words: &[u64], stream: CUstream) -> Option<Started> {
    if !is_on() {
        return None;
    }
    begin(engine, stream, |trace, number, now| {
        let function = trace.function(engine, function);
        let mut tail = String::new();
        let mut named: Vec<(u64, u64)> = Vec::new(); // structures name the same again and again
        for (id, offset) in words.iter().filter_map(|&word| place(engine, word)) {
            if !named.contains(&(id, offset)) {
                named.push((id, offset));
                let _ = write!(tail, " {id}+{offset}");
            }
        }
        (format!("k {now} {number} {function}"), tail)
    })
}

/// A copy or memset by the driver's function `name` of ranges that begin with the destination.
#[inline]
pub fn copy(name: &str, ranges: &[(u64, usize)], stream: CUstream) -> Option<Started> {
    if is_on() { begin_copy(engine()?, name, ranges, stream) } else { None }
}

fn begin_copy(engine: &Engine, name: &str, ranges: &[(u64, usize)], stream: CUstream) -> Option<Started> {
    let kind = match name {
        _ if name.contains("Memset") => "set",
        _ if name.contains("HtoD") => "in",
        _ if name.contains("DtoH") => "out",
        _ => "dev",
    };
    let started = begin(engine, stream, |_, number, now| {
        let mut tail = String::new();
        for &(address, bytes) in ranges {
            if let Some((id, offset)) = place(engine, address) {
                let _ = write!(tail, " {id}+{offset}+{bytes}");
            }
        }
        (format!("m {now} {number} {kind}"), tail)
    });
    let waits = kind != "set" && !name.contains("Async");
    started.map(|started| Started { wait: if waits { wait() } else { None }, ..started })
}

/// After the driver's call.
#[inline]
pub fn done(started: Option<Started>, rc: CUresult) {
    if let Some(started) = started {
        started.done(rc);
    }
}

fn place(engine: &Engine, address: u64) -> Option<(u64, u64)> {
    engine.pool.find(address).map(|found| (found.serial, address - found.base))
}

fn begin(
    engine: &Engine,
    stream: CUstream,
    words: impl FnOnce(&mut Trace, usize, u64) -> (String, String),
) -> Option<Started> {
    if !matches!(capture_of(engine, stream), Capture::None) {
        return None;
    }
    let (context, _) = engine.current()?;
    start_in(engine, context, stream, words)
}

fn start_in(
    engine: &Engine,
    context: Context,
    stream: CUstream,
    words: impl FnOnce(&mut Trace, usize, u64) -> (String, String),
) -> Option<Started> {
    static AT_EXIT: Once = Once::new();
    // Before the handlers of the driver, which were registered when it started.
    // SAFETY: a function without arguments that lives as long as the process.
    AT_EXIT.call_once(|| unsafe {
        libc::atexit(at_exit);
    });
    let (head, tail, event) = {
        let mut trace = trace();
        let trace = trace.as_mut()?;
        let (number, now) = (trace.stream(context, stream), trace.micros());
        let (head, tail) = words(trace, number, now);
        (head, tail, trace.event(engine, context)?)
    };
    // Without the lock: it may wait as a launch on this stream would.
    if !events::record(engine, event, stream) {
        give_back(context, &[event]);
        return None;
    }
    Some(Started { head, tail, context, begin: event, stream: stream as usize, wait: None })
}

impl Started {
    fn done(self, rc: CUresult) {
        let Some(engine) = engine() else { return };
        if rc != CUDA_SUCCESS {
            return give_back(self.context, &[self.begin]);
        }
        let event = trace().as_mut().and_then(|trace| trace.event(engine, self.context));
        let Some(event) = event else { return };
        let events = [self.begin, event];
        if !events::record(engine, event, self.stream as CUstream) {
            return give_back(self.context, &events);
        }
        let mut trace = trace();
        let Some(trace) = trace.as_mut() else { return };
        let Started { head, tail, context, wait, .. } = self;
        trace.entries.push_back(Entry::Timed { head, tail, context, events });
        if let Some(wait) = wait {
            trace.waited(&wait);
            std::mem::forget(wait); // dropping it would take the lock once more
        }
        engine.pool.device().relaxed(|| trace.settle(engine, LOOKS));
    }
}

fn give_back(context: Context, events: &[usize]) {
    with(|trace| trace.free.entry(context).or_default().extend(events));
}

/// A context may be about to end, and its events with it: what is not over is left out.
pub fn context_leaves(context: Context) {
    with(|trace| {
        let Some(engine) = engine() else { return };
        engine.pool.device().relaxed(|| trace.settle(engine, usize::MAX));
        trace.entries.retain(|entry| !matches!(entry, Entry::Timed { context: of, .. } if *of == context));
        trace.free.remove(&context);
    });
}

/// The pager begins to copy a page on a stream of its own; `context` is current.
pub fn page_copy(context: Context, lane: usize, bytes: u64, stream: CUstream) -> Option<Started> {
    if !is_on() {
        return None;
    }
    start_in(engine()?, context, stream, |_, _, now| (format!("c {now} {lane} {bytes}"), String::new()))
}

/// The pager has seen the end of a copy.
pub fn page_copied() {
    with(|trace| trace.plain(format!("e {}\n", trace.micros())));
}

/// Something that the pager does; recorded with its nanoseconds where that is long.
#[inline]
pub fn call<T>(name: &str, work: impl FnOnce() -> T) -> T {
    if !is_on() {
        return work();
    }
    let begin = Instant::now();
    let answer = work();
    if begin.elapsed() >= LONG {
        with(|trace| {
            let (now, took) = (trace.micros(), begin.elapsed().as_nanos());
            trace.plain(format!("d {now} {name} {took}\n"));
        });
    }
    answer
}

/// A launch waited for pages from then until now.
pub fn stalled(since: Instant) {
    with(|trace| {
        let now = trace.micros();
        let before = since.elapsed().as_micros() as u64;
        trace.plain(format!("s {} {now}\n", now.saturating_sub(before)));
    });
}

/// An allocation of the pool was made at this address.
pub fn allocated(engine: &Engine, address: u64) {
    if is_on()
        && let Some(found) = engine.pool.find(address)
    {
        with(|trace| trace.plain(format!("a {} {} {}\n", found.serial, found.home, found.bytes)));
    }
}

/// The allocation of this number was freed.
pub fn freed(serial: u64) {
    with(|trace| trace.plain(format!("f {serial}\n")));
}

/// The program begins to wait for a GPU; the wait is recorded when this is dropped.
pub fn wait() -> Option<Wait> {
    is_on().then(|| Wait(trace().as_ref().map_or(0, Trace::micros)))
}

/// A wait of the program.
pub struct Wait(u64);

impl Drop for Wait {
    fn drop(&mut self) {
        with(|trace| trace.waited(self));
    }
}

extern "C" fn at_exit() {
    if fork::forked() {
        return;
    }
    if let Some(engine) = engine()
        && let Some(trace) = trace().as_mut()
    {
        engine.pool.device().relaxed(|| trace.settle(engine, usize::MAX));
        trace.write();
    }
    ON.store(false, Ordering::SeqCst);
}
