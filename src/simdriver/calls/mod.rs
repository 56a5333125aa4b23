//! The calls that the simulated driver implements, each under the name of its symbol.
//!
//! A function decodes its arguments, asks the machine, and writes the results. Where the table has
//! a twin for per-thread default streams, the first parameter says whether the twin was called.
//!
//! # Safety
//! Every function here trusts the program as a driver does: a pointer that is not NULL points to
//! what the driver's documentation says.
#![allow(clippy::missing_safety_doc)]

mod boxes;
mod capture;
mod context;
mod copy;
mod device;
mod event;
mod execution;
mod graph;
mod graph_exec;
mod graph_nodes;
mod ipc;
mod limits;
mod memory;
mod module;
mod start;
mod stream;
mod stream_memory;
mod values;
mod vmm;

pub(crate) use boxes::*;
pub(crate) use capture::*;
pub(crate) use context::*;
pub(crate) use copy::*;
pub(crate) use device::*;
pub(crate) use event::*;
pub(crate) use execution::*;
pub(crate) use graph::*;
pub(crate) use graph_exec::*;
pub(crate) use graph_nodes::*;
pub(crate) use ipc::*;
pub(crate) use limits::*;
pub(crate) use memory::*;
pub(crate) use module::*;
pub(crate) use start::*;
pub(crate) use stream::*;
pub(crate) use stream_memory::*;
pub(crate) use values::*;
pub(crate) use vmm::*;
