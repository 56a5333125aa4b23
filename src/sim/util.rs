//! Small helpers of the whole crate.

use std::sync::{Mutex, MutexGuard, PoisonError};
use vgmem_abi::CUresult;

/// What a call of the driver gives: a value, or the driver's code.
pub type Answer<T = ()> = Result<T, CUresult>;

/// Takes a lock; a thread that died with it has left nothing half done that we could repair.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Least multiple of `unit` (a power of two) that is at least `value`.
pub(crate) fn round_up(value: u64, unit: u64) -> Option<u64> {
    Some(value.checked_add(unit - 1)? & !(unit - 1))
}

/// A generator of pseudo-random numbers (SplitMix64): small, and the same everywhere.
pub(crate) struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }
}

/// Spreads the bits of `value`.
pub(crate) fn mix(value: u64) -> u64 {
    let a = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let b = (a ^ (a >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    b ^ (b >> 31)
}
