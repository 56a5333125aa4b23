//! Decisions of the pool, as pure functions: sizes and numbers in, a plan out.
//!
//! Architecture invariant: `policy` never sees a pointer, a handle or a clock, and runs no driver;
//! whatever it decides can be replayed from a trace.
#![forbid(unsafe_code)]

mod advertise;
mod ahead;
mod extents;
mod follow;
mod gaps;
mod pager;
mod pieces;
mod place;
mod rolling;
mod room;
mod sequence;
mod touch;
#[cfg(test)]
mod traffic;

pub use advertise::{Advertise, Amount, advertised};
pub use ahead::Standings;
pub use extents::Extents;
pub use pager::{Exchange, PageRef, Pager};
pub use pieces::{GRANULE, Pieces, auto_page_size, pieces, round_up};
pub use place::{Placement, Shortage, Tier, TierKind, place, spill_order};
pub use room::Room;
pub use touch::{Sight, Speed, Touch};
