//! How a trace is replayed.

use std::ops::Range;

use crate::machine::Nanos;

/// What launches write. A trace does not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writes {
    /// Each all that it names.
    All,
    /// Each what kernels of its kind write: those of cuBLAS what follows two matrices, others what they name first.
    Likely,
    /// None anything.
    Nothing,
}

impl Writes {
    /// Which of so many operands a launch of this function writes.
    pub(crate) fn of(self, function: &str, operands: usize) -> Range<usize> {
        match self {
            Writes::All => 0..operands,
            Writes::Likely => likely(function, operands),
            Writes::Nothing => 0..0,
        }
    }
}

/// As the kernels of PyTorch and cuBLAS have them.
fn likely(function: &str, operands: usize) -> Range<usize> {
    let output = match function {
        // What they read, then what they write, then scratch memory.
        name if name.starts_with("nvjet") => return 2.min(operands)..operands,
        // One output and one input, behind what happens to lie in unused parameters.
        name if name.contains("18elementwise_kernel") => operands.saturating_sub(2),
        _ => 0,
    };
    output..operands.min(output + 1)
}

/// How a trace is replayed.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How often the part after `skip` is played.
    pub rounds: usize,
    /// Records at the beginning that are played once.
    pub skip: usize,
    /// Whether a thread of its own moves pages; else the launching thread does.
    pub mover: bool,
    /// `VGMEM_SAFETY=strict`.
    pub strict: bool,
    /// How long a launch waits for the best page to go before it lets another one go that is idle.
    pub patience: Nanos,
    /// What launches write.
    pub writes: Writes,
}

impl Default for Options {
    /// As the library is.
    fn default() -> Options {
        let (rounds, patience, writes) = (8, 20_000_000, Writes::All);
        Options { rounds, skip: 0, mover: true, strict: false, patience, writes }
    }
}
