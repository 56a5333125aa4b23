//! Which functions use only what their launches name (rule S4).
//!
//! A function is not trusted until scans of its operands, on its own stream before and after a launch, found no pool
//! address in them: then it cannot have followed one. A function whose operands held one is never trusted. A trusted
//! one is looked at again now and then. What a scan misses is loud: the page that such a function reaches is
//! unmapped while it is away.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use vgmem_abi::*;
use vgmem_engine::Context;

use crate::broken;
use crate::scan::{self, Found, Ticket};
use crate::start::{Engine, engine};

/// Bytes of one operand that are scanned, at most: tables of addresses are small.
const MOST: u64 = 64 << 20;
/// A trusted function is scanned again at launches whose number is a power of two from here on.
const AGAIN: u64 = 64;

/// What is known of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Its launches have to be scanned.
    Unknown,
    /// It uses what it names.
    Trusted,
    /// As before, and this launch shall be scanned.
    Sample,
    /// It may use anything.
    Opaque,
}

#[derive(Default)]
struct Known {
    trusted: bool,
    opaque: bool,
    launches: u64,
    /// Launches that were scanned and whose results have not been seen.
    scanned: Vec<Scanned>,
    /// One launch was clean; those that were under way then have to be, too.
    is_candidate: bool,
}

/// The scans of one launch.
struct Scanned {
    before: Ticket,
    /// None where it could not be made: the launch tells nothing good.
    behind: Option<Ticket>,
    /// It was under way when another launch was found clean.
    decides: bool,
}

impl Scanned {
    /// What they found together; the same again once they are over.
    fn result(&mut self, engine: &Engine) -> Found {
        let before = scan::result(engine, &mut self.before);
        let behind = self.behind.as_mut().map(|ticket| scan::result(engine, ticket));
        match (before, behind) {
            (Found::Pointers, _) | (_, Some(Found::Pointers)) => Found::Pointers,
            (Found::Clean, None | Some(Found::Clean)) => Found::Clean,
            _ => Found::Pending,
        }
    }
}

/// A function in a context: handles of kernels are the same in all.
type Key = (usize, Context);

impl Known {
    /// Looks at the results of its scans. One that found an address decides for good. Else a launch that was clean
    /// does, when those that were under way with it have been found so as well; not later ones, as a program may launch
    /// faster than its scans end.
    fn settle(&mut self, engine: &Engine) {
        let (mut opaque, mut clean) = (false, false);
        self.scanned.retain_mut(|scanned| {
            let found = scanned.result(engine);
            opaque |= found == Found::Pointers;
            clean |= found == Found::Clean && scanned.behind.is_some();
            found == Found::Pending
        });
        self.opaque |= opaque;
        if self.opaque {
            return self.scanned.clear();
        }
        if clean && !self.is_candidate {
            self.is_candidate = true;
            self.scanned.iter_mut().for_each(|scanned| scanned.decides = true);
        }
        self.trusted |= self.is_candidate && !self.scanned.iter().any(|scanned| scanned.decides);
    }
}

static KNOWN: Mutex<Option<HashMap<Key, Known>>> = Mutex::new(None);

fn known() -> MutexGuard<'static, Option<HashMap<Key, Known>>> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Functions are unloaded: their handles may come back for others.
pub fn forget_functions() {
    if engine().is_some() {
        *known() = None;
    }
}

/// What is known of `function` now. Counts one launch.
pub fn of(engine: &Engine, context: Context, function: CUfunction) -> Trust {
    let mut known = known();
    let one = known.get_or_insert_default().entry((function as usize, context)).or_default();
    one.launches += 1;
    if one.opaque {
        return Trust::Opaque;
    }
    one.settle(engine);
    if one.opaque {
        log::debug!(
            "function {} works with addresses in memory: nothing moves beside it",
            name(engine, function)
        );
        return Trust::Opaque;
    }
    match one.trusted {
        false if broken::is("trust") => Trust::Trusted,
        false => Trust::Unknown,
        true if one.launches >= AGAIN && one.launches.is_power_of_two() => Trust::Sample,
        true => Trust::Trusted,
    }
}

/// The function's name, for people.
pub fn name(engine: &Engine, function: CUfunction) -> String {
    let call = &engine.pool.device().call;
    for ask in [call.cuFuncGetName, call.cuKernelGetName].into_iter().flatten() {
        let mut name: *const c_char = std::ptr::null();
        // SAFETY: the out-parameter is live; a handle of the other kind is refused.
        if unsafe { ask(&mut name, function) } == CUDA_SUCCESS && !name.is_null() {
            // SAFETY: the driver's string ends with NUL and lives as long as the function.
            return unsafe { std::ffi::CStr::from_ptr(name) }.to_string_lossy().into_owned();
        }
    }
    format!("{function:?}")
}

/// The function cannot be scanned: its operands may lie where we must not read.
pub fn distrust(engine: &Engine, context: Context, function: CUfunction) {
    if let Some(one) = known().get_or_insert_default().get_mut(&(function as usize, context)) {
        log::debug!(
            "function {} works with memory that cannot be looked at: nothing moves beside it",
            name(engine, function)
        );
        one.opaque = true;
    }
}

/// Ranges of the operands that a launch names: `words` are the 8-byte words of its parameters. `None` where one of
/// them is memory that must not be read from this GPU, or where no operand is named at all: such a kernel works on
/// what it finds elsewhere.
pub fn operands(engine: &Engine, gpu: u8, words: &[u64]) -> Option<Vec<(u64, u64)>> {
    let mut ranges = Vec::new();
    for &word in words {
        if let Some(found) = engine.pool.find(word) {
            let end = found.base + found.bytes;
            if !engine.pool.reaches(gpu, word, end - word) {
                return None;
            }
            ranges.push((word, end));
        } else if engine.pool.in_arena(word) {
            continue; // freed: such an address is not followed by a program that runs without us
        } else if let Some(end) = unpooled(engine, gpu, word)? {
            ranges.push((word, end));
        }
    }
    // An operand ends where the next one of the same memory begins.
    ranges.sort_unstable();
    ranges.dedup_by_key(|range| range.0);
    let starts: Vec<u64> = ranges.iter().map(|range| range.0).chain([u64::MAX]).collect();
    let cut = ranges.iter().zip(&starts[1..]).map(|(&(start, end), &next)| (start, end.min(next) - start));
    let cut: Vec<(u64, u64)> = cut.map(|(start, bytes)| (start, bytes.min(MOST))).collect();
    (!cut.is_empty()).then_some(cut)
}

/// The end of the memory that an address lies in, if it is memory at all; `None` where it may be unreadable.
fn unpooled(engine: &Engine, gpu: u8, address: u64) -> Option<Option<u64>> {
    if address < 1 << 16 || address >> 57 != 0 {
        return Some(None);
    }
    let Some(start) = ask(engine, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address) else { return Some(None) };
    let bytes = ask(engine, CU_POINTER_ATTRIBUTE_RANGE_SIZE, address)?;
    let kind = ask(engine, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address)? as c_int;
    let managed = ask(engine, CU_POINTER_ATTRIBUTE_IS_MANAGED, address)? != 0;
    let near = match kind {
        CU_MEMORYTYPE_HOST => ask(engine, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, address) == Some(address),
        // Memory of `cuMemAlloc` on this GPU; other kinds may be mapped in part, or without access.
        CU_MEMORYTYPE_DEVICE => {
            ask(engine, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address) == Some(u64::from(gpu))
                && ask(engine, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, address) == Some(1)
        }
        _ => false,
    };
    (near && !managed).then_some(Some(start + bytes))
}

/// An attribute of memory that is not pooled, as a number.
fn ask(engine: &Engine, attribute: c_int, address: u64) -> Option<u64> {
    let mut value: u64 = 0; // attributes of one or four bytes fill the lower part
    // SAFETY: no attribute asked for here is larger than eight bytes.
    let rc = unsafe {
        (engine.pool.device().call.cuPointerGetAttribute)((&raw mut value).cast(), attribute, address)
    };
    (rc == CUDA_SUCCESS).then_some(value)
}

/// Begins to scan the operands of a launch on its stream, where that can be done.
pub fn scan(engine: &Engine, context: Context, stream: CUstream, ranges: &[(u64, u64)]) -> Option<Ticket> {
    scan::begin(engine, context, stream, ranges).or_else(|| {
        // Results that nobody asked for keep the flags.
        for one in known().iter_mut().flat_map(HashMap::values_mut) {
            one.settle(engine);
        }
        scan::begin(engine, context, stream, ranges)
    })
}

/// A launch of a function was made between these scans of its operands.
pub fn was_scanned(context: Context, function: CUfunction, before: Ticket, behind: Option<Ticket>) {
    if let Some(one) = known().get_or_insert_default().get_mut(&(function as usize, context)) {
        one.scanned.push(Scanned { before, behind, decides: false });
    }
}
