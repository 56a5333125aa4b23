//! The hooks: one function for each exported driver function, named after its symbol.
//!
//! A hook decodes the arguments, asks the engine, and encodes the answer. Where nothing is to be done it passes
//! the call on as it came. `real` is the driver's function of the very symbol that was called: for the
//! per-thread twins it is the twin's.
//!
//! Architecture invariant: a hook never calls another hook, and never panics.
#![allow(non_snake_case)]
// Every hook is called by the export of its symbol alone, with the program's own arguments: the contract of
// each is that of the driver's function.
#![allow(clippy::missing_safety_doc)]

pub(crate) mod access;
mod alloc;
mod boxes;
mod context;
pub(crate) mod copy;
pub(crate) mod graph;
pub(crate) mod launch;
mod peer;
mod pin;
mod query;

pub use alloc::*;
pub use boxes::*;
pub use context::*;
pub use copy::*;
pub use graph::*;
pub use launch::*;
pub use peer::*;
pub use pin::*;
pub use query::*;
