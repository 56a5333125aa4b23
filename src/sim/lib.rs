//! A machine with simulated GPUs: memory, mappings, streams, events, kernels.
//!
//! Memory is a sparse memfd per GPU, a mapping is a real `mmap` of it, a stream is a queue that
//! worker threads drain in an order drawn from a seed, and a kernel is a host function registered
//! by name. The rules are those measured on real drivers; where hardware lets a mistake pass by
//! luck, this machine does not.
//!
//! Architecture invariant: this crate exports no symbol and reads no pointer of the program before
//! it was told to; the driver interface over it is `src/simdriver`.

mod boxes;
mod codes;
mod context;
mod copy;
mod device;
mod event;
mod exec;
mod fault;
mod fill;
mod fork;
mod graph;
mod handle;
mod ipc;
mod kernels;
mod launch;
mod ledger;
mod limits;
pub mod lookup;
mod machine;
mod memory;
mod module;
mod registry;
mod scheduler;
mod settings;
mod storage;
mod stream;
mod stream_memory;
mod task;
mod util;
mod values;

pub use boxes::{BoxCopy, Operand};
pub use codes::*;
pub use context::Context;
pub use copy::{Shape, Side, Transfer};
pub use device::facts;
pub use exec::Exec;
pub use fill::Fill;
pub use fork::forked;
pub use graph::{CaptureInfo, NodeContent, Towards, Update};
pub use handle::is_kernel;
pub use launch::{Grid, Launch};
pub use ledger::shared_use;
pub use machine::{Machine, init, machine};
pub use memory::{Access, Attribute, Place, PoolValue, Wanted};
pub use registry::{Args, Kernel, register};
pub use settings::{Link, Settings};
pub use stream::StreamRef;
pub use task::{HostCall, KernelCall};
pub use util::Answer;
pub use values::ValueOp;
