//! Scans: does memory that a launch works on hold addresses of the pool?
//!
//! A small kernel of ours (`scan.ptx`) looks at ranges of memory, on the program's stream, and stores a flag in pinned
//! memory if it finds a word that lies in the arena as far as it was ever used. It counts also where no allocation is:
//! a stale pointer is a pointer. An event behind the kernel says when the flag is final. Nothing here waits for the
//! program's work.
//!
//! The answer is never *clean* by accident: an error, a context that has ended, or a lost event reads as pointers. The
//! kernel has to find, and not to find, words of ours in each context before its answers count there.
//!
//! All functions are called with the context current, and never while a stream that matters is captured. The lock
//! is held for no driver call: a launch may block until another thread has made a call that comes through here.

use std::collections::{HashMap, VecDeque};
use std::ffi::CStr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use vgmem_abi::*;
use vgmem_engine::Context;

use crate::kernel::{Kernel, check, query};
use crate::real::{Functions, NON_BLOCKING};
use crate::start::{Engine, engine};

/// The kernel's text, as `cuModuleLoadData` takes it.
const TEXT: &CStr = match CStr::from_bytes_with_nul(concat!(include_str!("scan.ptx"), "\0").as_bytes()) {
    Ok(text) => text,
    Err(_) => c"",
};
const _: () = assert!(!TEXT.is_empty(), "scan.ptx holds a NUL");
const ENTRY: &CStr = c"vgmem_scan";

/// Threads of a block, words that a thread looks at before there is another block, and most blocks: enough to read
/// at the memory's rate, few enough to leave room for the program's kernels.
const THREADS: u64 = 256;
const WORDS_OF_A_THREAD: u64 = 8;
const MOST_BLOCKS: u64 = 512;

/// Bytes of pinned memory of a context.
const PINNED: u64 = 4096;
/// Where the words of the test lie in it, its flags, and the flags of the scans. A flag has 4 bytes.
const TEST_FLAGS: u64 = 48;
const FLAGS: u64 = 64;
/// Scans of the test: first word, words, whether there is something to find.
const TEST: [(u64, u64, bool); 3] = [(0, 4, false), (4, 1, true), (5, 1, true)];
/// How long [`prepare`] looks whether the test is over. It may be behind any work of the program.
const PATIENCE: Duration = Duration::from_millis(20);

static CONTEXTS: Mutex<Option<HashMap<Context, State>>> = Mutex::new(None);
/// Numbers the contexts: a handle may come back for another one.
static NUMBER: AtomicU64 = AtomicU64::new(1);

fn contexts() -> MutexGuard<'static, Option<HashMap<Context, State>>> {
    CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How far a context is.
enum State {
    /// A thread makes the scans with this number.
    Preparing(u64),
    /// The kernel is there, and runs its test up to this event.
    Testing(Scans, usize),
    Ready(Scans),
    /// The driver cannot, or the test failed. Not tried again.
    Failed,
}

/// What a context needs for scans. It all goes with the context. Handles and addresses as numbers.
struct Scans {
    number: u64,
    kernel: Kernel,
    /// Flags that can be used next: at the front those that were read, at the back those that nobody waits for.
    slots: VecDeque<Slot>,
}

/// A flag in pinned memory.
struct Slot {
    /// Where it lies in the pinned memory.
    offset: u64,
    /// Its event, or 0 before the first use.
    event: usize,
    /// A scan may still store to it.
    busy: bool,
}

/// Scans that have been launched and whose result nobody has seen.
pub struct Ticket {
    context: Context,
    number: u64,
    /// Gone once there is an answer.
    slot: Option<Slot>,
    answer: Found,
}

/// What scans found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// They are not over.
    Pending,
    /// No word that lies in the arena.
    Clean,
    /// At least one word that lies in the arena, or the scans failed.
    Pointers,
}

/// Addresses that count: from the first to before the second.
type Bounds = (u64, u64);

/// One launch of the kernel.
struct Scan {
    address: u64,
    words: u64,
    bounds: Bounds,
    result: u64,
}

/// Loads the kernel into `context` and starts its test. Takes a little memory of the GPU and may wait for it: to be
/// called while there is room, and not before each launch.
///
/// False where there are no scans, or not yet: [`begin`] looks by itself when the test is over.
pub fn prepare(engine: &Engine, context: Context) -> bool {
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let known = {
        let mut contexts = contexts();
        let contexts = contexts.get_or_insert_default();
        let known = contexts.contains_key(&context);
        contexts.entry(context).or_insert(State::Preparing(number));
        known
    };
    if known {
        return is_ready(engine, context);
    }
    let made = engine.pool.device().relaxed(|| Scans::make(engine, number));
    if let Err(rc) = made {
        log::debug!("no scans in context {context:#x}: the driver answered {rc}");
    }
    match contexts().as_mut().and_then(|contexts| contexts.get_mut(&context)) {
        Some(state) if matches!(*state, State::Preparing(mine) if mine == number) => {
            *state = match made {
                Ok((scans, event)) => State::Testing(scans, event),
                Err(_) => State::Failed,
            };
        }
        _ => return false, // the context has ended meanwhile
    }
    let begin = Instant::now();
    while !is_ready(engine, context) {
        let goes_on = matches!(
            contexts().as_ref().and_then(|contexts| contexts.get(&context)),
            Some(State::Testing(..))
        );
        if !goes_on || begin.elapsed() > PATIENCE {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

/// Launches a scan of each range (address, bytes) on the program's stream, NULL being the legacy default stream. Of a
/// range, the aligned words that lie in it count. The GPU must be able to read the ranges when the stream gets there: a
/// scan that cannot ends the program's context. In front of the launch that works on the ranges a scan is over
/// whenever the program can know that the launch is, and may take the memory away.
///
/// `None` if scans are not to be had now. Some may run even so; they do no harm.
pub fn begin(engine: &Engine, context: Context, stream: CUstream, ranges: &[(u64, u64)]) -> Option<Ticket> {
    if !is_ready(engine, context) {
        return None;
    }
    let mut taken = {
        let mut contexts = contexts();
        let Some(State::Ready(scans)) = contexts.as_mut()?.get_mut(&context) else { return None };
        let slot = scans.slots.pop_front()?;
        Taken { number: scans.number, kernel: scans.kernel, slot }
    };
    let call = &engine.pool.device().call;
    if !engine.pool.device().relaxed(|| make_usable(call, &mut taken.slot)) {
        give_back(context, taken.number, taken.slot);
        return None;
    }
    if !clear(context, taken.number, taken.slot.offset) {
        return None; // the context has ended
    }
    taken.slot.busy = true;
    let result = taken.kernel.device + taken.slot.offset;
    let launched = ranges.iter().map(|&range| inner_words(range)).filter(|&(_, words)| words > 0).all(
        |(address, words)| {
            let scan = Scan { address, words, bounds: bounds(engine), result };
            // SAFETY: the function is the kernel in this context, whose flag nothing else uses.
            unsafe { scan.launch(&taken.kernel, stream) == CUDA_SUCCESS }
        },
    );
    // SAFETY: an event of ours, on the stream that the program uses in this context.
    let recorded = unsafe { (call.cuEventRecord)(taken.slot.event as CUevent, stream) } == CUDA_SUCCESS;
    if !recorded {
        return None; // nobody can know when the flag is free: it is not used again
    }
    if !launched {
        give_back(context, taken.number, taken.slot);
        return None;
    }
    Some(Ticket { context, number: taken.number, slot: Some(taken.slot), answer: Found::Pending })
}

/// What a thread works with while it holds no lock.
struct Taken {
    number: u64,
    kernel: Kernel,
    slot: Slot,
}

/// What the scans found. Once that is not [`Found::Pending`] it stays so.
///
/// With another context current the answer is [`Found::Pending`] too.
pub fn result(engine: &Engine, ticket: &mut Ticket) -> Found {
    let Some(slot) = &mut ticket.slot else { return ticket.answer };
    let device = engine.pool.device();
    if !is_live(ticket.context, ticket.number) {
        ticket.slot = None;
        ticket.answer = Found::Pointers;
    } else if device.current_context() == ticket.context {
        match device.relaxed(|| query(&device.call, slot.event)) {
            CUDA_ERROR_NOT_READY => {}
            CUDA_SUCCESS => {
                ticket.answer = read(ticket.context, ticket.number, slot.offset);
                slot.busy = false;
                if let Some(slot) = ticket.slot.take() {
                    give_back(ticket.context, ticket.number, slot);
                }
            }
            _ => {
                ticket.slot = None; // not used again: who knows what still stores to it
                ticket.answer = Found::Pointers;
            }
        }
    }
    ticket.answer
}

/// A context has ended, and with it its scans.
pub fn context_ended(context: Context) {
    if let Some(contexts) = contexts().as_mut() {
        contexts.remove(&context);
    }
}

impl Drop for Ticket {
    /// Nobody wants to know any more. The flag is used again when its scans are over.
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take()
            && engine().is_some()
        {
            give_back(self.context, self.number, slot);
        }
    }
}

impl Scans {
    /// All that scans need in the current context, and the event behind the test. Whatever was made before a failure
    /// is left to the end of the context: the driver waits for the GPU before it takes anything back.
    fn make(engine: &Engine, number: u64) -> Result<(Scans, usize), CUresult> {
        let call = &engine.pool.device().call;
        let kernel = Kernel::load(call, TEXT, ENTRY, PINNED)?;
        let slot = |offset| Slot { offset, event: 0, busy: false };
        let scans = Scans { number, kernel, slots: (FLAGS..PINNED).step_by(4).map(slot).collect() };
        let event = scans.start_test(call, bounds(engine))?;
        Ok((scans, event))
    }

    /// Lets the kernel look at words at the edges of the arena, on a stream of its own. The event behind it.
    fn start_test(&self, call: &Functions, bounds: Bounds) -> Result<usize, CUresult> {
        let (low, high) = bounds;
        let words = [0, low.wrapping_sub(1), high, u64::MAX, low, high.wrapping_sub(1)];
        for (index, word) in words.into_iter().enumerate() {
            // SAFETY: aligned, and in front of the flags in pinned memory that nothing else uses yet.
            unsafe { AtomicU64::from_ptr((self.kernel.host as *mut u64).add(index)) }
                .store(word, Ordering::Relaxed);
        }
        let mut stream = std::ptr::null_mut();
        // SAFETY: the out-parameter is live.
        check(unsafe { (call.cuStreamCreate)(&mut stream, NON_BLOCKING) })?;
        let event = call.new_event()?;
        for (index, (first, words, _)) in (0..).zip(TEST) {
            self.flag(TEST_FLAGS + 4 * index).store(0, Ordering::Relaxed);
            let result = self.kernel.device + TEST_FLAGS + 4 * index;
            let scan = Scan { address: self.kernel.device + 8 * first, words, bounds, result };
            // SAFETY: the kernel in the current context; words and flag lie in its pinned memory.
            check(unsafe { scan.launch(&self.kernel, stream) })?;
        }
        // SAFETY: an event and a stream of ours.
        check(unsafe { (call.cuEventRecord)(event, stream) })?;
        Ok(event as usize)
    }

    /// Whether the test, which is over, found what is there and nothing else.
    fn test_is_right(&self) -> bool {
        let found = |index: u64| self.flag(TEST_FLAGS + 4 * index).load(Ordering::Acquire) != 0;
        (0..).zip(TEST).all(|(index, (_, _, wanted))| found(index) == wanted)
    }

    /// A flag in pinned memory. The context has not ended: the memory would have gone with it.
    fn flag(&self, offset: u64) -> &AtomicU32 {
        // SAFETY: all offsets are multiples of 4 below `PINNED`; host and GPU use whole flags only.
        unsafe { AtomicU32::from_ptr((self.kernel.host + offset as usize) as *mut u32) }
    }
}

impl Scan {
    /// # Safety
    /// The kernel is the current context's; `result` is a flag that it may store to.
    unsafe fn launch(&self, kernel: &Kernel, stream: CUstream) -> CUresult {
        let values = [self.address, self.words, self.bounds.0, self.bounds.1, self.result];
        let blocks = self.words.div_ceil(THREADS * WORDS_OF_A_THREAD).clamp(1, MOST_BLOCKS);
        // SAFETY: the caller's promise; these are the kernel's parameters.
        unsafe { kernel.launch(blocks, THREADS, stream, values) }
    }
}

/// The part of the arena that was ever given to the program: fewer numbers look like its addresses.
fn bounds(engine: &Engine) -> Bounds {
    (engine.pool.config().base, engine.pool.highest())
}

/// First aligned word in a range, and how many there are.
fn inner_words((address, bytes): (u64, u64)) -> (u64, u64) {
    let Some(first) = address.checked_next_multiple_of(8) else { return (0, 0) };
    (first, (address.saturating_add(bytes) & !7).saturating_sub(first) / 8)
}

/// Makes the slot's event, or sees whether the scans that nobody waited for are over.
fn make_usable(call: &Functions, slot: &mut Slot) -> bool {
    if slot.event == 0 {
        let Ok(event) = call.new_event() else { return false };
        slot.event = event as usize;
    }
    slot.busy = slot.busy && query(call, slot.event) != CUDA_SUCCESS;
    !slot.busy
}

/// Calls `work` with the scans of a context, unless they are gone.
fn with_scans<T>(context: Context, number: u64, work: impl FnOnce(&mut Scans) -> T) -> Option<T> {
    match contexts().as_mut()?.get_mut(&context)? {
        State::Ready(scans) if scans.number == number => Some(work(scans)),
        _ => None,
    }
}

fn is_live(context: Context, number: u64) -> bool {
    with_scans(context, number, |_| ()).is_some()
}

fn clear(context: Context, number: u64, offset: u64) -> bool {
    // The launch is behind the store for the GPU as well.
    with_scans(context, number, |scans| scans.flag(offset).store(0, Ordering::Release)).is_some()
}

fn read(context: Context, number: u64, offset: u64) -> Found {
    match with_scans(context, number, |scans| scans.flag(offset).load(Ordering::Acquire)) {
        Some(0) => Found::Clean,
        _ => Found::Pointers,
    }
}

fn give_back(context: Context, number: u64, slot: Slot) {
    with_scans(context, number, |scans| {
        if slot.busy { scans.slots.push_back(slot) } else { scans.slots.push_front(slot) }
    });
}

/// Whether scans can be launched. Looks at the test if it was not over the last time.
fn is_ready(engine: &Engine, context: Context) -> bool {
    let (number, event) = match contexts().as_ref().and_then(|contexts| contexts.get(&context)) {
        Some(State::Ready(_)) => return true,
        Some(State::Testing(scans, event)) => (scans.number, *event),
        _ => return false,
    };
    let device = engine.pool.device();
    let rc = device.relaxed(|| query(&device.call, event));
    if rc == CUDA_ERROR_NOT_READY {
        return false;
    }
    let mut contexts = contexts();
    let Some(contexts) = contexts.as_mut() else { return false };
    match contexts.remove(&context) {
        Some(State::Testing(scans, _)) if scans.number == number => {
            let right = rc == CUDA_SUCCESS && scans.test_is_right();
            if !right {
                log::warn!("no scans in context {context:#x}: their test failed (the driver answered {rc})");
            }
            contexts.insert(context, if right { State::Ready(scans) } else { State::Failed });
            right
        }
        Some(other) => {
            // Another thread has looked, or the context has ended and its handle has come back.
            let ready = matches!(other, State::Ready(_));
            contexts.insert(context, other);
            ready
        }
        None => false,
    }
}
