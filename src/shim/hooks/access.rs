//! Access for the GPU that is about to touch pooled memory, for all hooks.

use vgmem_abi::*;

use crate::pager;
use crate::slot::Slot;
use crate::start::engine;

/// First address and bytes.
pub type Range = (CUdeviceptr, usize);

/// The current GPU is about to use these ranges. In a program on one GPU it has access already.
///
/// False where a range begins in the arena but in no allocation, or ends behind its allocation. The memory there may be
/// mapped, as another allocation's or kept for the next one, so the driver would not notice.
#[inline]
#[must_use]
pub fn give(ranges: &[Range]) -> bool {
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

/// As [`give`], for calls that leave no marker behind: the pager waits for them with their context.
#[must_use]
pub fn give_unmarked(ranges: &[Range]) -> bool {
    if engine().is_some_and(|engine| ranges.iter().any(|&(address, _)| engine.pool.in_arena(address))) {
        pager::unmarked();
    }
    give(ranges)
}

/// After a call that gave work to `stream`: leaves the pager's marker behind it. `plain` is the slot of the symbol, by
/// which the call of a per-thread twin is known: NULL names another stream there.
#[inline]
pub fn submitted(rc: CUresult, stream: CUstream, real: usize, plain: &Slot) -> CUresult {
    if rc == CUDA_SUCCESS
        && let Some(engine) = pager::needed()
    {
        let twin = !plain.is_driver_function(real);
        let default = if twin { CU_STREAM_PER_THREAD } else { CU_STREAM_LEGACY };
        pager::after_submission(engine, if stream.is_null() { default } else { stream });
    }
    rc
}
