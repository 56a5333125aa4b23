//! `libvgmem.so`: one pool of memory of all GPUs and host RAM for unmodified CUDA programs.
//!
//! How a call travels: `lookup` (or the dynamic linker) gives the program one of our `exports`; that asks its
//! `slot` for the driver's function and calls a hook in `hooks`, which decodes, asks the engine and encodes.
//!
//! Architecture invariants: lookup starts nothing; the engine starts after the first successful `cuInit`;
//! a hook never calls another hook; only `real` calls the driver for ourselves; when in doubt, forward.

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("libvgmem.so is written for Linux on x86-64: the lookup functions are in its assembly");

mod beside;
mod broken;
mod capi;
mod capture;
mod chaos;
mod events;
mod exports;
mod fork;
mod functions;
mod gate;
mod graph_nodes;
mod graph_plan;
mod graph_read;
mod graphs;
mod held;
mod hooks;
mod kernel;
mod leave;
mod ledger;
mod log;
mod lookup;
mod loud;
mod marks;
mod mover;
mod nvml;
mod pager;
mod paths;
mod pinning;
mod prints;
mod quiet;
mod real;
mod report;
mod runtime;
mod scan;
mod settings;
mod slot;
mod start;
mod stats;
mod system;
mod times;
mod trace;
mod trust;
