//! Launches.

use crate::context::Context;
use crate::machine::Machine;
use crate::registry::Kernel;
use crate::scheduler::Work;
use crate::stream::StreamRef;
use crate::util::Answer;
use std::sync::Arc;
use vgmem_abi::*;

/// Threads of a block at most.
const BLOCK: u64 = 1024;
/// Shared memory of a block at most.
const SHARED: u32 = 227 << 10;

/// A launch that waits for its parameters.
pub struct Launch {
    /// What runs.
    pub kernel: Arc<Kernel>,
    context: Arc<Context>,
    lane: u64,
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
        let kernel = self.launchable(function, &destination.context)?;
        let threads: u64 = block.iter().map(|n| u64::from(*n)).product();
        if grid.contains(&0) || grid[1] > 65535 || grid[2] > 65535 || threads == 0 || threads > BLOCK {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if shared > SHARED {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        Ok(Launch { kernel, context: destination.context, lane: destination.lane })
    }

    /// Launches with the parameters' bytes.
    pub fn launch(&'static self, launch: Launch, parameters: Vec<u8>) -> Answer {
        if parameters.len() < launch.kernel.size {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let kernel = launch.kernel;
        let job = Work::Device(Box::new(move |exec| kernel.run(exec, &parameters)));
        self.submit(&launch.context, launch.lane, &[], job)?;
        Ok(())
    }
}
