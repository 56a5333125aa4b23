//! What the process tests share: the library and the simulated driver as users get them, small C
//! programs, and processes that are watched.
//!
//! Architecture invariant: nothing here links the library. It is only ever preloaded, so that the
//! file under test is the file that is shipped.

use std::io::Write;

mod artifacts;
mod compile;
mod process;
mod report;

pub use artifacts::{Artifacts, artifacts, broken_library, target, workspace};
pub use compile::{Source, compile};
pub use process::{Outcome, Run};
pub use report::{Report, Room};

/// Says on the test's output that a check is left out, and why. A skip is never silent: the test
/// runner keeps back what a passing test prints by the usual macros, and not this.
pub fn skip(name: &str, why: &str) {
    let _ = std::io::stderr().write_all(format!("\nSKIP {name}: {why}\n").as_bytes());
}

/// Names of the driver functions that the library exports: rows with `hook` or `observe`.
pub fn hooked_symbols() -> Vec<&'static str> {
    let ours = vgmem_abi::functions().filter(|f| f.action != vgmem_abi::Action::Forward);
    ours.flat_map(|f| f.symbols()).collect()
}

/// One mebibyte.
pub const MIB: u64 = 1 << 20;
