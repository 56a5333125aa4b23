//! `VGMEM_VERIFY`: every page's bytes are compared at both ends of every move, and before a move with what they were
//! when the page was put away.

use crate::device::{Context, Device};
use crate::pool::Pool;

impl<D: Device> Pool<D> {
    /// Compares the two ends of a move whose copy is over. The checksum, where moves are verified.
    pub(crate) fn verify(
        &self,
        page: u64,
        bytes: u64,
        [from, to]: [u64; 2],
        context: Context,
    ) -> Option<u128> {
        if !self.config.verify {
            return None;
        }
        let before = self.device.checksum(from, bytes, context).ok()?;
        let after = self.device.checksum(to, bytes, context).ok()?;
        if before != after {
            self.device.stop(&format!("page {page:#x} of {bytes} bytes changed while it was moved"));
        }
        Some(after)
    }

    /// Compares a page that no work could use with its checksum of the time when it was put away.
    pub(crate) fn verify_rest(&self, page: u64, bytes: u64, at: u64, sum: Option<u128>, context: Context) {
        if let Some(sum) = sum.filter(|_| self.config.verify)
            && self.device.checksum(at, bytes, context).is_ok_and(|now| now != sum)
        {
            self.device.stop(&format!("page {page:#x} of {bytes} bytes changed while it was put away"));
        }
    }
}
