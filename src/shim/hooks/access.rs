//! Access for the GPU that is about to touch pooled memory, for all hooks.

use vgmem_abi::*;

use crate::broken;
use crate::pager::{Use, default_stream};
use crate::slot::Slot;
use crate::start::engine;

/// First address and bytes.
pub type Range = (CUdeviceptr, usize);

/// The current GPU is about to use these ranges, in work that the caller submits next and then ends the use of. In a
/// program on one GPU it has access already.
///
/// `None` as [`reach`] is false.
#[inline]
pub fn give(ranges: &[Range]) -> Option<Use> {
    let mut made = Use::of_ranges(ranges.iter().map(|&(address, _)| address));
    if broken::is("copies") {
        made.done(CUDA_ERROR_INVALID_VALUE, CU_STREAM_LEGACY);
        made = Use::default();
    }
    if reach(ranges) {
        return Some(made);
    }
    made.done(CUDA_ERROR_INVALID_VALUE, CU_STREAM_LEGACY);
    None
}

/// Gives the current GPU access to ranges.
///
/// False where a range begins in the arena but in no allocation, or ends behind its allocation. The memory there may be
/// mapped, as another allocation's or kept for the next one, so the driver would not notice.
#[inline]
#[must_use]
pub fn reach(ranges: &[Range]) -> bool {
    let Some(engine) = engine() else { return true };
    for &(address, bytes) in ranges {
        if bytes > 0 && engine.pool.in_arena(address) && !engine.pool.holds(address, bytes as u64) {
            return false;
        }
    }
    if let Some(gpu) = engine.current_of_several() {
        for &(address, bytes) in ranges {
            engine.pool.use_range(gpu, address, bytes as u64);
        }
    }
    true
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

/// The stream that a call names. `plain` is the slot of the symbol, by which the call of a per-thread twin is known:
/// NULL names another stream there.
#[inline]
pub fn stream_of(stream: CUstream, real: usize, plain: &Slot) -> CUstream {
    if stream.is_null() { default_stream(stream, !plain.is_driver_function(real)) } else { stream }
}
