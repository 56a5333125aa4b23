//! Access of one GPU to another's memory.

use vgmem_abi::*;

use crate::start::engine;

/// `cuCtxEnablePeerAccess`: pooled memory of the peer becomes accessible too, now and later; the driver's own
/// call does nothing for mapped memory.
pub unsafe fn cuCtxEnablePeerAccess(
    real: pointers::cuCtxEnablePeerAccess,
    peer: CUcontext,
    flags: c_uint,
) -> CUresult {
    // SAFETY: the program's own call, unchanged.
    let rc = unsafe { real(peer, flags) };
    if matches!(rc, CUDA_SUCCESS | CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)
        && let Some(engine) = engine()
        && let Some((_, gpu)) = engine.current()
        && let Some(home) = engine.pool.device().gpu_of(peer as u64)
    {
        engine.pool.enable_peer(gpu, home);
    }
    rc
}

/// `cuCtxDisablePeerAccess`: new allocations are not shared any more.
pub unsafe fn cuCtxDisablePeerAccess(real: pointers::cuCtxDisablePeerAccess, peer: CUcontext) -> CUresult {
    // SAFETY: the program's own call, unchanged.
    let rc = unsafe { real(peer) };
    if rc == CUDA_SUCCESS
        && let Some(engine) = engine()
        && let Some((_, gpu)) = engine.current()
        && let Some(home) = engine.pool.device().gpu_of(peer as u64)
    {
        engine.pool.disable_peer(gpu, home);
    }
    rc
}
