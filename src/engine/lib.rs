//! The pool: allocations as pages over GPUs and host RAM, under addresses that never change.
//!
//! Architecture invariant: the engine knows no CUDA; it sees [`Device`]. It decides nothing about where
//! pages go; it asks `policy`. It makes no driver call while it holds its lock.

mod access;
mod ahead;
mod allocate;
mod depart;
mod device;
mod exchange;
mod frames;
mod free;
mod gate;
mod map;
mod overlap;
mod parts;
mod paths;
mod pool;
mod relocate;
mod show;
mod slab;
mod small;
mod snapshot;
mod spans;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_overlap;
#[cfg(test)]
mod tests_pager;
#[cfg(test)]
mod tests_parts;
#[cfg(test)]
mod tests_paths;
#[cfg(test)]
mod tests_touch;
#[cfg(test)]
mod tests_twins;
#[cfg(test)]
mod tests_unwritten;
mod tiers;
mod touch;
mod twins;
mod uses;
mod vain;
mod verify;

pub use device::{Context, Copies, Device, DriverError, Handle, Place, Taken, Taking};
pub use exchange::Exchanged;
pub use free::Freed;
pub use gate::Gate;
pub use map::{PageId, PageMap};
pub use overlap::{Progress, Still};
pub use pool::{Config, Found, GpuConfig, Pool, Request};
pub use snapshot::{Snapshot, TierUse};
pub use touch::{Timing, Wish};
pub use uses::{Ended, Mark, Using};
