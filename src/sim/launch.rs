//! Launches.

use crate::handle::Kind;
use crate::machine::Machine;
use crate::module::Function;
use crate::registry::Kernel;
use crate::stream::{Destination, StreamRef};
use crate::task::{KernelCall, Task};
use crate::util::Answer;
use std::sync::Arc;
use vgmem_abi::*;

/// Threads of a block at most.
const BLOCK: u64 = 1024;

/// What is launched, and how wide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub shared: u32,
}

/// A launch that waits for its parameters.
pub struct Launch {
    /// What runs.
    pub kernel: Arc<Kernel>,
    /// All blocks run at once.
    pub cooperative: bool,
    /// The parameters are given in one piece.
    pub packed: bool,
    function: u64,
    size: Grid,
    destination: Destination,
}

impl Grid {
    fn check(&self, function: &Function) -> Answer {
        let threads: u64 = self.block.iter().map(|n| u64::from(*n)).product();
        let blocks = !self.grid.contains(&0) && self.grid[1] <= 65535 && self.grid[2] <= 65535;
        let shared = u64::from(self.shared) <= function.most_shared();
        match blocks && shared && threads > 0 && threads <= BLOCK {
            true => Ok(()),
            false => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }

    fn call(self, function: u64, kernel: Arc<Kernel>, parameters: Vec<u8>) -> Answer<KernelCall> {
        if parameters.len() < kernel.size {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let Grid { grid, block, shared } = self;
        Ok(KernelCall {
            function,
            kernel,
            grid,
            block,
            shared,
            cooperative: false,
            parameters: parameters.into(),
            packed: false,
        })
    }
}

impl Machine {
    /// Checks a launch of `function` and finds the layout of its parameters.
    pub fn prepare_launch(
        &self,
        function: u64,
        grid: [u32; 3],
        block: [u32; 3],
        shared: u32,
        stream: StreamRef,
    ) -> Answer<Launch> {
        let destination = self.destination(stream)?;
        let found = self.launchable(function, &destination)?;
        let size = Grid { grid, block, shared };
        size.check(&found)?;
        Ok(Launch {
            kernel: found.kernel.clone(),
            cooperative: false,
            packed: false,
            function,
            size,
            destination,
        })
    }

    /// Launches with the parameters' bytes.
    pub fn launch(&'static self, launch: Launch, parameters: Vec<u8>) -> Answer {
        let mut call = launch.size.call(launch.function, launch.kernel, parameters)?;
        (call.cooperative, call.packed) = (launch.cooperative, launch.packed);
        self.put(&launch.destination, Task::Kernel(call)).map(|_| ())
    }

    /// A launch as a node of a graph: a function of a module, or a kernel of a library.
    pub fn kernel_call(
        &self,
        function: u64,
        is_kernel: bool,
        size: Grid,
        parameters: impl FnOnce(&Kernel) -> Answer<Vec<u8>>,
    ) -> Answer<KernelCall> {
        let kind = if is_kernel { Kind::Kernel } else { Kind::Function };
        let found = self.function(function, kind)?;
        let kernel = found.kernel.clone();
        size.check(&found)?;
        let bytes = parameters(&kernel)?;
        size.call(function, kernel, bytes)
    }
}
