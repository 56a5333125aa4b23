//! The CUDA driver interface as data.
//!
//! One row states everything about a function: its names, the CUDA version of each ABI, the
//! per-thread twin, the types, and what we do with it. The exports of the library, its resolver,
//! the simulated driver, the test client and the expected list of symbols all expand from here.
//!
//! Architecture invariant: this crate depends on nothing and runs nothing.
#![no_std]

mod codes;
mod table;
mod types;

pub use codes::*;
pub use table::pointers;
pub use types::*;

/// What the library does with a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The library answers: decode, ask the engine, encode; the driver is asked where it must be.
    Hook,
    /// The driver answers; the library looks at the call and its result.
    Observe,
    /// The driver answers; the call gives work to a GPU, so no page moves while it runs.
    Submit,
    /// The driver answers; when it has no memory, the pool gives back what it keeps and the driver is asked once
    /// more.
    Retry,
    /// The driver answers; when it has, the program has waited for a GPU.
    Wait,
    /// The driver answers, and looks at memory meanwhile: every page is mapped at its address, and none moves.
    Look,
    /// The library exports nothing: calls reach the driver as if it were not there.
    Forward,
}

/// One ABI of one function.
#[derive(Clone, Copy, Debug)]
pub struct Function {
    /// Name that `cuGetProcAddress` takes.
    pub base: &'static str,
    /// Exported name.
    pub symbol: &'static str,
    /// CUDA version that brought this ABI (`12040` is 12.4).
    pub version: u32,
    /// Exported name and version of the variant for per-thread default streams.
    pub twin: Option<(&'static str, u32)>,
    /// What the library does with it.
    pub action: Action,
    /// Whether the simulated driver implements it.
    pub simulated: bool,
}

impl Function {
    /// Exported names of this row: the plain one, then the per-thread twin.
    pub fn symbols(&self) -> impl Iterator<Item = &'static str> {
        core::iter::once(self.symbol).chain(self.twin.map(|(name, _)| name))
    }
}

/// Every driver function.
pub fn functions() -> impl Iterator<Item = &'static Function> {
    table::DRIVER.iter().copied().flatten()
}

/// Names of the runtime functions that the library exports and passes to the caller's runtime.
pub const RUNTIME: &[&str] = table::RUNTIME;

/// Names of the management library's functions that the library answers.
pub const NVML: &[&str] = table::NVML;
