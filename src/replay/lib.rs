//! Recorded programs in virtual time: the engine and the policy that ship, over a driver without bytes.
//!
//! What comes out is how long the program would take on a machine, against the same program with all memory
//! that it wants and against the least that any pager could move. Simplifications: a pointer stands for its
//! allocation up to the next pointer that is ever seen into it, streams do not wait for one another, every
//! function is trusted, copies of the program and kernels that read in place do not slow the pager's copies
//! down.
#![forbid(unsafe_code)]

mod bound;
mod device;
mod foretold;
mod intervals;
mod lanes;
mod losses;
mod machine;
pub mod made;
mod moves;
mod options;
mod outcome;
mod parts;
mod replay;
mod steps;
#[cfg(test)]
mod tests;
mod trace;

pub use bound::Least;
pub use device::VirtualDevice;
pub use losses::{Loss, Reason, by_reason};
pub use machine::{Costs, Machine, Nanos, Rate, Rates};
pub use options::{Options, Writes};
pub use outcome::{Outcome, replay};
pub use trace::{Kind, Operand, Record, Trace, Work};
