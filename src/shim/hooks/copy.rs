//! One-dimensional copies and memsets.
//!
//! The driver copies across pages that lie anywhere (FACTS), as long as the GPU that runs the copy has access.
//! In a program on one GPU it always has; with several, access is given before the call goes on.

use vgmem_abi::*;

use crate::start::engine;

/// The current GPU is about to use these ranges.
#[inline]
fn prepare(ranges: &[(CUdeviceptr, usize)]) {
    if let Some(engine) = engine()
        && let Some((context, gpu)) = engine.current_of_several()
    {
        for &(address, bytes) in ranges {
            engine.pool.use_range(gpu, context, address, bytes as u64);
        }
    }
}

/// A copy between two contexts: either GPU may run it, so both need both ranges.
fn prepare_peers(contexts: [CUcontext; 2], ranges: &[(CUdeviceptr, usize)]) {
    let Some(engine) = engine() else { return };
    if engine.gpus.len() < 2 || ranges.iter().all(|&(address, _)| !engine.pool.in_arena(address)) {
        return;
    }
    for context in contexts {
        if let Some(gpu) = engine.pool.device().gpu_of(context as u64) {
            for &(address, bytes) in ranges {
                engine.pool.use_range(gpu, context as u64, address, bytes as u64);
            }
        }
    }
}

/// Hooks that give access to the named ranges and pass the call on.
macro_rules! give_access {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),*) uses $($address:ident[$bytes:expr])*;)*) => { $(
        $(#[$doc])*
        pub unsafe fn $name(real: pointers::$name, $($arg: $type),*) -> CUresult {
            prepare(&[$(($address, $bytes)),*]);
            // SAFETY: the program's own call, unchanged.
            unsafe { real($($arg),*) }
        }
    )* };
}

give_access! {
    /// `cuMemcpy`.
    cuMemcpy(to: CUdeviceptr, from: CUdeviceptr, bytes: usize) uses to[bytes] from[bytes];
    /// `cuMemcpyAsync`.
    cuMemcpyAsync(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream) uses to[bytes] from[bytes];
    /// `cuMemcpyHtoD`.
    cuMemcpyHtoD_v2(to: CUdeviceptr, from: *const c_void, bytes: usize) uses to[bytes];
    /// `cuMemcpyHtoDAsync`.
    cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream) uses to[bytes];
    /// `cuMemcpyDtoH`.
    cuMemcpyDtoH_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize) uses from[bytes];
    /// `cuMemcpyDtoHAsync`.
    cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream) uses from[bytes];
    /// `cuMemcpyDtoD`.
    cuMemcpyDtoD_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize) uses to[bytes] from[bytes];
    /// `cuMemcpyDtoDAsync`.
    cuMemcpyDtoDAsync_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream)
        uses to[bytes] from[bytes];
    /// `cuMemsetD8`.
    cuMemsetD8_v2(to: CUdeviceptr, value: u8, count: usize) uses to[count];
    /// `cuMemsetD16`.
    cuMemsetD16_v2(to: CUdeviceptr, value: u16, count: usize) uses to[count.saturating_mul(2)];
    /// `cuMemsetD32`.
    cuMemsetD32_v2(to: CUdeviceptr, value: c_uint, count: usize) uses to[count.saturating_mul(4)];
    /// `cuMemsetD8Async`.
    cuMemsetD8Async(to: CUdeviceptr, value: u8, count: usize, stream: CUstream) uses to[count];
    /// `cuMemsetD16Async`.
    cuMemsetD16Async(to: CUdeviceptr, value: u16, count: usize, stream: CUstream)
        uses to[count.saturating_mul(2)];
    /// `cuMemsetD32Async`.
    cuMemsetD32Async(to: CUdeviceptr, value: c_uint, count: usize, stream: CUstream)
        uses to[count.saturating_mul(4)];
}

/// `cuMemcpyPeer`.
pub unsafe fn cuMemcpyPeer(
    real: pointers::cuMemcpyPeer,
    to: CUdeviceptr,
    to_context: CUcontext,
    from: CUdeviceptr,
    from_context: CUcontext,
    bytes: usize,
) -> CUresult {
    prepare_peers([to_context, from_context], &[(to, bytes), (from, bytes)]);
    // SAFETY: the program's own call, unchanged.
    unsafe { real(to, to_context, from, from_context, bytes) }
}

/// `cuMemcpyPeerAsync`.
pub unsafe fn cuMemcpyPeerAsync(
    real: pointers::cuMemcpyPeerAsync,
    to: CUdeviceptr,
    to_context: CUcontext,
    from: CUdeviceptr,
    from_context: CUcontext,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    prepare_peers([to_context, from_context], &[(to, bytes), (from, bytes)]);
    // SAFETY: the program's own call, unchanged.
    unsafe { real(to, to_context, from, from_context, bytes, stream) }
}
