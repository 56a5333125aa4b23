//! What the pager did, counted for the report.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    const fn zero() -> Count {
        Count(AtomicU64::new(0))
    }

    /// Adds to it.
    #[inline]
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    /// Adds the microseconds since `begin`.
    pub fn add_since(&self, begin: Instant) {
        self.add(begin.elapsed().as_micros() as u64);
    }

    /// Its value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Launches that stopped no other work.
pub static BESIDE: Count = Count::zero();
/// Launches while some allocation was brought by parts.
pub static BY_PARTS: Count = Count::zero();
/// Launches that used some allocation where it lay as they hardly touch it.
pub static IN_PLACE: Count = Count::zero();
/// Graphs that were launched node by node.
pub static BY_NODES: Count = Count::zero();
/// Submissions that may use anything.
pub static ANYTHING: Count = Count::zero();
/// Launches that asked for an exchange while nothing runs, made or not.
pub static STRICT: Count = Count::zero();
/// Waits for work that ended at their deadline; not those for a turn, or for work without markers.
pub static MISSED: Count = Count::zero();
/// Pages that were mapped again where they lay, for work that may use anything.
pub static SHOWN: Count = Count::zero();
/// Microseconds that launches waited: beside other work, and strictly.
pub static WAITED_BESIDE: Count = Count::zero();
/// As above.
pub static WAITED_STRICT: Count = Count::zero();

/// All of them by name.
pub fn all() -> [(&'static str, u64); 10] {
    [
        ("launches_beside", BESIDE.get()),
        ("launches_by_parts", BY_PARTS.get()),
        ("launches_in_place", IN_PLACE.get()),
        ("graphs_by_nodes", BY_NODES.get()),
        ("submissions_of_anything", ANYTHING.get()),
        ("strict_exchanges", STRICT.get()),
        ("missed_deadlines", MISSED.get()),
        ("pages_shown", SHOWN.get()),
        ("waited_beside_us", WAITED_BESIDE.get()),
        ("waited_strictly_us", WAITED_STRICT.get()),
    ]
}
