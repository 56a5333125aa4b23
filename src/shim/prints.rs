//! Fingerprints of pages: has a page been written since it came home?
//!
//! A kernel of ours (`print.ptx`) adds up two sums of 64 bits over all words of a page, on a stream of its own that
//! goes before the program's. The words are mixed with a key that each process draws, so that bytes which meet by
//! chance differ in every other run; that two ranges of different bytes have the same fingerprint happens once in
//! more than 2^100 cases. (One word that differs is seen in any case. Of more the differences of the mixed words
//! must cancel out in both sums, whose weights differ by (i - j) * TURN: for a page of 2^22 words that leaves at
//! most 23 of 128 bits to chance.)
//!
//! An answer is never *the same* by accident: an error, a context that has ended, or an answer that is late reads as
//! unknown, and then the page is copied. The kernel has to give what [`reference`] gives in each context before its
//! answers count there. A GPU that is full of the program's work may let the kernel wait: after [`PATIENCE`] nobody
//! asks any more until it is over.
//!
//! No lock is held across a driver call.

use std::collections::HashMap;
use std::ffi::{CStr, c_int};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use vgmem_abi::*;
use vgmem_engine::{Context, Taken, Taking};

use crate::kernel::{Kernel, check, query};
use crate::real::{Functions, NON_BLOCKING};

/// The kernel's text, as `cuModuleLoadData` takes it.
const TEXT: &CStr = match CStr::from_bytes_with_nul(concat!(include_str!("print.ptx"), "\0").as_bytes()) {
    Ok(text) => text,
    Err(_) => c"",
};
const _: () = assert!(!TEXT.is_empty(), "print.ptx holds a NUL");
const ENTRY: &CStr = c"vgmem_print";
/// What is added to the weight for each further word, as in the kernel.
const TURN: u64 = 0x236a_96c6_4b2e_da06;
const MIX: u64 = 0xd6e8_feb8_6659_fd93;

/// Threads of a block, pairs of words of a thread before there is another block, and most blocks: enough loads under
/// way for the memory's rate.
const THREADS: u64 = 512;
const PAIRS_OF_A_THREAD: u64 = 4;
const MOST_BLOCKS: u64 = 256;
/// Bytes of the sums of one fingerprint, and fingerprints that can be under way.
const SUMS: u64 = 16 * MOST_BLOCKS;
const SLOTS: usize = 64;
/// The words of the test, behind the sums, and how many: an odd number of pairs, more than one round of the kernel.
const TEST: u64 = SLOTS as u64 * SUMS;
const TEST_WORDS: u64 = 2 * 4001;
/// How long an answer is waited for. A copy of the page takes a few hundred microseconds.
const PATIENCE: Duration = Duration::from_millis(4);
/// Who has not asked for so long will not ask again.
const FORGOTTEN: Duration = Duration::from_secs(2);
/// A priority before any; the driver takes the nearest that there is.
const FIRST: c_int = -1000;

/// How far a context is.
enum State {
    /// A thread makes what is needed, with this number.
    Preparing(u64),
    /// The kernel is there, and runs its test up to this event.
    Testing(Kit, usize),
    Ready(Kit),
    /// The driver cannot, or the test failed. Not tried again.
    Failed,
}

/// What a context needs. It all goes with the context.
struct Kit {
    kernel: Kernel,
    /// As a number.
    stream: usize,
    slots: Vec<Slot>,
}

/// Room for one fingerprint.
#[derive(Clone, Copy, Default)]
struct Slot {
    /// Its event, or 0 before the first use.
    event: usize,
    /// When it was begun, while somebody waits for it.
    begun: Option<Instant>,
    blocks: u64,
    /// Nobody waits for it any more, and the kernel may still read and store.
    late: bool,
    /// How often it was used.
    uses: u64,
    /// No event stands behind its kernel: it is over when the context is.
    lost: bool,
}

impl Slot {
    fn is_free(&self) -> bool {
        self.begun.is_none() && !self.late && !self.lost
    }
}

/// What words are mixed with: added to each, once more for each further word, and the weight of the first. The last two
/// are odd.
#[derive(Clone, Copy)]
struct Keys {
    key: u64,
    step: u64,
    factor: u64,
}

/// The fingerprints of all contexts.
pub struct Prints {
    contexts: Mutex<HashMap<Context, State>>,
    keys: Keys,
    /// Numbers the contexts: a handle may come back for another one.
    number: AtomicU64,
}

impl Prints {
    /// With keys that other processes do not have.
    pub fn new() -> Prints {
        let mut keys = [0u64; 3];
        // SAFETY: the buffer is live and has that many bytes. Where there is no chance, the keys are what they are.
        unsafe { libc::getrandom(keys.as_mut_ptr().cast(), size_of_val(&keys), libc::GRND_NONBLOCK) };
        let keys = Keys { key: keys[0], step: keys[1] | 1, factor: keys[2] | 1 };
        Prints { contexts: Mutex::default(), keys, number: AtomicU64::new(1) }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Context, State>> {
        self.contexts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Loads the kernel into the current context and starts its test. To be called while there is room.
    pub fn prepare(&self, call: &Functions, context: Context) {
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let is_own = |state: &State| matches!(state, State::Preparing(own) if *own == number);
        if !is_own(self.lock().entry(context).or_insert(State::Preparing(number))) {
            return; // it is there, or another thread does it
        }
        let made = self.make(call);
        if let Err(rc) = &made {
            log::debug!("no fingerprints in context {context:#x}: the driver answered {rc}");
        }
        if let Some(state) = self.lock().get_mut(&context).filter(|state| is_own(state)) {
            *state = made.map_or(State::Failed, |(kit, event)| State::Testing(kit, event));
        }
    }

    /// A context has ended, and everything of it.
    pub fn forget(&self, context: Context) {
        self.lock().remove(&context);
    }

    /// Begins to take a fingerprint in the current context.
    pub fn begin(&self, call: &Functions, context: Context, address: u64, bytes: u64) -> Option<Taking> {
        self.settle(call, context);
        let (kernel, stream, mut slot, index) = {
            let mut contexts = self.lock();
            let Some(State::Ready(kit)) = contexts.get_mut(&context) else { return None };
            if kit.slots.iter().any(|slot| slot.late) {
                return None; // the next one would wait behind it
            }
            let index = kit.slots.iter().position(Slot::is_free)?;
            let slot = &mut kit.slots[index];
            slot.begun = Some(Instant::now());
            slot.uses += 1;
            (kit.kernel, kit.stream as CUstream, *slot, index)
        };
        if slot.event == 0 {
            slot.event = call.new_event().map_or(0, |event| event as usize);
        }
        slot.blocks = blocks(bytes / 16);
        let launched = slot.event != 0
            // SAFETY: the kernel and a stream of this context; its sums go where nothing else is.
            && unsafe { self.launch(&kernel, stream, address, bytes / 16, sums_of(index)) } == CUDA_SUCCESS;
        let recorded = launched && {
            // SAFETY: an event and a stream of ours in this context.
            let rc = unsafe { (call.cuEventRecord)(slot.event as CUevent, stream) };
            rc == CUDA_SUCCESS
        };
        if let Some(State::Ready(kit)) = self.lock().get_mut(&context) {
            let begun = kit.slots[index].begun.filter(|_| recorded);
            kit.slots[index] = Slot { begun, lost: launched && !recorded, ..slot };
        }
        launched.then_some(taking(index, slot.uses))
    }

    /// How far one is.
    pub fn look(&self, call: &Functions, context: Context, taking: Taking) -> Taken {
        let index = slot_of(taking);
        let slot = match self.lock().get(&context) {
            Some(State::Ready(kit)) => kit.slots[index],
            _ => return Taken::Never,
        };
        let Some(begun) = slot.begun.filter(|_| slot.uses == taking >> 8) else {
            return if slot.lost { Taken::Late } else { Taken::Never };
        };
        let rc = query(call, slot.event);
        let mut contexts = self.lock();
        let Some(State::Ready(kit)) = contexts.get_mut(&context) else { return Taken::Never };
        if rc == CUDA_ERROR_NOT_READY && begun.elapsed() < PATIENCE {
            return Taken::Pending;
        }
        let slot = &mut kit.slots[index];
        (slot.begun, slot.late) = (None, rc != CUDA_SUCCESS);
        if rc != CUDA_SUCCESS {
            return Taken::Late; // or the context is lost, and ends
        }
        let blocks = slot.blocks;
        Taken::Print(kit.print(sums_of(index), blocks))
    }

    /// Whether one that was late is over.
    pub fn is_over(&self, call: &Functions, context: Context, taking: Taking) -> bool {
        self.settle(call, context);
        match self.lock().get(&context) {
            Some(State::Ready(kit)) => {
                let slot = &kit.slots[slot_of(taking)];
                slot.uses != taking >> 8 || !(slot.late || slot.lost || slot.begun.is_some())
            }
            _ => true, // the context has ended
        }
    }

    /// Looks whether the test, or those that were late, are over.
    fn settle(&self, call: &Functions, context: Context) {
        let (test, late) = match self.lock().get(&context) {
            Some(State::Testing(_, event)) => (Some(*event), Vec::new()),
            Some(State::Ready(kit)) => {
                let is_late =
                    |slot: &Slot| slot.late || slot.begun.is_some_and(|begun| begun.elapsed() > FORGOTTEN);
                let late = kit.slots.iter().enumerate().filter(|(_, slot)| is_late(slot));
                (None, late.map(|(index, slot)| (index, slot.event)).collect())
            }
            _ => return,
        };
        if let Some(event) = test {
            let rc = query(call, event);
            let mut contexts = self.lock();
            if rc != CUDA_ERROR_NOT_READY
                && let Some(State::Testing(kit, own)) = contexts.get(&context)
                && *own == event
            {
                let right = rc == CUDA_SUCCESS && self.is_right(kit);
                if !right {
                    log::warn!(
                        "no fingerprints in context {context:#x}: their test failed (the driver answered {rc})"
                    );
                }
                let state = contexts.remove(&context).filter(|_| right);
                contexts.insert(
                    context,
                    match state {
                        Some(State::Testing(kit, _)) => State::Ready(kit),
                        _ => State::Failed,
                    },
                );
            }
        }
        let over = late.into_iter().filter(|(_, event)| query(call, *event) == CUDA_SUCCESS);
        let over: Vec<usize> = over.map(|(index, _)| index).collect();
        if !over.is_empty()
            && let Some(State::Ready(kit)) = self.lock().get_mut(&context)
        {
            over.into_iter()
                .for_each(|index| (kit.slots[index].late, kit.slots[index].begun) = (false, None));
        }
    }

    /// All that is needed in the current context, and the event behind the test.
    fn make(&self, call: &Functions) -> Result<(Kit, usize), CUresult> {
        let kernel = Kernel::load(call, TEXT, ENTRY, TEST + 8 * TEST_WORDS)?;
        let mut stream = std::ptr::null_mut();
        check(match call.cuStreamCreateWithPriority {
            // SAFETY: the out-parameter is live.
            Some(create) => unsafe { create(&mut stream, NON_BLOCKING, FIRST) },
            // SAFETY: the same.
            None => unsafe { (call.cuStreamCreate)(&mut stream, NON_BLOCKING) },
        })?;
        let kit = Kit { kernel, stream: stream as usize, slots: vec![Slot::default(); SLOTS] };
        let event = call.new_event()?;
        for (at, word) in (TEST..).step_by(8).zip(test_words()) {
            kit.word(at).store(word, Ordering::Relaxed);
        }
        // SAFETY: the kernel in the current context; the words of the test and the first slot are in its pinned memory.
        check(unsafe { self.launch(&kernel, stream, kernel.device + TEST, TEST_WORDS / 2, sums_of(0)) })?;
        // SAFETY: an event and a stream of ours.
        check(unsafe { (call.cuEventRecord)(event, stream) })?;
        Ok((kit, event as usize))
    }

    /// Whether the test, which is over, gave what is right.
    fn is_right(&self, kit: &Kit) -> bool {
        kit.print(sums_of(0), blocks(TEST_WORDS / 2)) == reference(test_words(), self.keys)
    }

    /// # Safety
    /// The kernel and the stream are the current context's, and `pairs` pairs of words can be read at `address`;
    /// nothing else uses the room for the sums.
    unsafe fn launch(
        &self,
        kernel: &Kernel,
        stream: CUstream,
        address: u64,
        pairs: u64,
        sums: u64,
    ) -> CUresult {
        let Keys { key, step, factor } = self.keys;
        let values = [address, pairs, key, step, factor, kernel.device + sums];
        // SAFETY: the caller's promise; these are the kernel's parameters.
        unsafe { kernel.launch(blocks(pairs), THREADS, stream, values) }
    }
}

impl Kit {
    /// A word in the pinned memory. The context has not ended: the memory would have gone with it.
    fn word(&self, offset: u64) -> &AtomicU64 {
        // SAFETY: all offsets are multiples of 8 inside the memory; host and GPU use whole words only.
        unsafe { AtomicU64::from_ptr((self.kernel.host + offset as usize) as *mut u64) }
    }

    /// The fingerprint whose sums so many blocks have stored there.
    fn print(&self, sums: u64, blocks: u64) -> u128 {
        let word = |offset| self.word(offset).load(Ordering::Acquire);
        joined((0..blocks).map(|block| sums + 16 * block).fold((0, 0), |(first, second): (u64, u64), at| {
            (first.wrapping_add(word(at)), second.wrapping_add(word(at + 8)))
        }))
    }
}

/// Where a slot's sums lie in the pinned memory.
fn sums_of(index: usize) -> u64 {
    index as u64 * SUMS
}

fn taking(index: usize, uses: u64) -> Taking {
    uses << 8 | index as u64
}

fn slot_of(taking: Taking) -> usize {
    (taking & 0xff) as usize % SLOTS
}

fn blocks(pairs: u64) -> u64 {
    pairs.div_ceil(THREADS * PAIRS_OF_A_THREAD).clamp(1, MOST_BLOCKS)
}

fn joined((first, second): (u64, u64)) -> u128 {
    u128::from(first) | u128::from(second) << 64
}

/// What the kernel gives for these words.
fn reference(words: impl Iterator<Item = u64>, Keys { key, step, factor }: Keys) -> u128 {
    let mix = |word: u64| {
        let word = (word ^ word >> 32).wrapping_mul(MIX);
        let word = (word ^ word >> 32).wrapping_mul(MIX);
        word ^ word >> 32
    };
    joined((0u64..).zip(words).fold((0, 0), |(first, second): (u64, u64), (at, word)| {
        let mixed = mix(word.wrapping_add(key).wrapping_add(at.wrapping_mul(step)));
        let weight = factor.wrapping_add(at.wrapping_mul(TURN));
        (first.wrapping_add(mixed), second.wrapping_add(mixed.wrapping_mul(weight)))
    }))
}

/// Words of all kinds, equal neighbours among them.
fn test_words() -> impl Iterator<Item = u64> {
    (0..TEST_WORDS).map(|at| if at % 7 < 2 { 0 } else { at.wrapping_mul(at).wrapping_mul(MIX) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn print(words: &[u64]) -> u128 {
        reference(words.iter().copied(), Keys { key: 12345, step: 0x1234_5678_9abc_def1, factor: 678_901 })
    }

    #[test]
    fn a_word_that_changes_or_moves_is_seen_in_both_sums() {
        let plain = [7u64; 64];
        let base = print(&plain);
        let differs = |words: &[u64]| {
            let other = print(words);
            other as u64 != base as u64 && other >> 64 != base >> 64
        };
        for at in 0..64 {
            for bit in 0..64 {
                let mut words = plain;
                words[at] ^= 1 << bit;
                assert!(differs(&words), "bit {bit} of word {at}");
            }
        }
        let mut swapped = plain;
        (swapped[3], swapped[9]) = (1, 2);
        let once = print(&swapped);
        swapped.swap(3, 9);
        assert_ne!(once, print(&swapped));
        assert_ne!(print(&[0; 63]), print(&[0; 64]));
    }

    #[test]
    fn the_key_changes_everything() {
        let with = |key, step, factor| reference(test_words(), Keys { key, step, factor });
        let one = with(1, 3, 5);
        assert_ne!(one as u64, with(2, 3, 5) as u64);
        assert_ne!(one as u64, with(1, 5, 5) as u64);
        assert_ne!(one >> 64, with(1, 3, 7) >> 64);
    }
}
