//! Handles: numbers that are never used twice, so that a stale one is always noticed.

use std::sync::atomic::{AtomicU64, Ordering};

/// What a handle names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Context = 1,
    Stream,
    Event,
    Module,
    Function,
    Library,
    Kernel,
    Physical,
    Graph,
    Node,
    GraphExec,
    Pool,
}

static NEXT: AtomicU64 = AtomicU64::new(1);

/// A new handle. Low addresses that no program maps: whoever looks behind a handle faults.
pub(crate) fn fresh(kind: Kind) -> u64 {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    0x0c00_0000_0000 | (kind as u64) << 36 | (number & 0xffff_ffff) << 4
}

/// Whether `handle` was made as `kind`; a thing can be gone all the same.
pub(crate) fn is(handle: u64, kind: Kind) -> bool {
    handle >> 36 == (0x0c00_0000_0000 >> 36) | kind as u64
}

/// Whether a handle names a kernel of a library: launches take it in place of a function.
pub fn is_kernel(handle: u64) -> bool {
    is(handle, Kind::Kernel)
}
