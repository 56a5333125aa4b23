//! Access for the GPU that is about to touch pooled memory, for all hooks.

use vgmem_abi::*;

use crate::start::engine;

/// First address and bytes.
pub type Range = (CUdeviceptr, usize);

/// The current GPU is about to use these ranges. In a program on one GPU it has access already.
#[inline]
pub fn give(ranges: &[Range]) {
    if let Some(engine) = engine()
        && let Some(gpu) = engine.current_of_several()
    {
        for &(address, bytes) in ranges {
            engine.pool.use_range(gpu, address, bytes as u64);
        }
    }
}

/// The GPU of `context` may be about to use these ranges.
pub fn give_to_context(context: CUcontext, ranges: &[Range]) {
    let Some(engine) = engine() else { return };
    if engine.gpus.len() < 2 || ranges.iter().all(|&(address, _)| !engine.pool.in_arena(address)) {
        return;
    }
    if let Some(gpu) = engine.pool.device().gpu_of(context as u64) {
        engine.pool.note_context(gpu, context as u64);
        for &(address, bytes) in ranges {
            engine.pool.use_range(gpu, address, bytes as u64);
        }
    }
}
