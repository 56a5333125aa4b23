//! What the exit report and the control interface show.

use crate::device::Device;
use crate::pool::Pool;

/// What one tier holds, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierUse {
    /// What the pool may place here.
    pub capacity: u64,
    /// What lies here now.
    pub now: u64,
    /// What lay here when the pool held most.
    pub at_peak: u64,
}

/// The pool at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The GPUs, by ordinal.
    pub gpus: Vec<TierUse>,
    /// Host RAM.
    pub host: TierUse,
    /// The most bytes that the pool ever held.
    pub peak: u64,
    /// Allocations that exist.
    pub live: u64,
    /// Allocations that were made.
    pub made: u64,
    /// Allocations that were refused for want of memory.
    pub refused: u64,
    /// Pages that were moved.
    pub moved: u64,
    /// Pages that the pager brought home.
    pub fetched: u64,
    /// Pages that the pager sent away.
    pub evicted: u64,
    /// Those of them that were not copied, as they had not been written since they came home.
    pub unwritten: u64,
    /// Pages that were copied over another GPU's link.
    pub helped: u64,
    /// Bytes that the driver did not take back.
    pub lost: u64,
    /// Allocations that the program has freed and whose memory is not given back yet.
    pub deferred: u64,
}

impl<D: Device> Pool<D> {
    /// The pool as it is now. Calls no driver.
    pub fn snapshot(&self) -> Snapshot {
        let state = self.lock();
        let mut tiers: Vec<TierUse> = state
            .tiers
            .iter()
            .map(|t| TierUse { capacity: t.capacity, now: t.held(), at_peak: t.used_at_peak })
            .collect();
        let host = tiers.pop().unwrap_or_default();
        Snapshot {
            gpus: tiers,
            host,
            peak: state.peak,
            live: state.allocations.len() as u64,
            made: state.made,
            refused: state.refused,
            moved: state.moved,
            fetched: state.fetched,
            evicted: state.evicted,
            unwritten: state.unwritten,
            helped: state.helped,
            lost: state.lost,
            deferred: state.deferred.len() as u64,
        }
    }
}
