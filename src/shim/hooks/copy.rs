//! Copies and memsets named by addresses and sizes.
//!
//! The driver copies across pages that lie anywhere (FACTS), as long as the GPU that runs the copy has access.
//! In a program on one GPU it always has; with several, access is given before the call goes on.

use vgmem_abi::*;

use super::access::{give, give_to_context, stream_of};
use crate::exports::copy::slots;
use crate::start::engine;
use crate::trace;

/// Bytes from the first to the last of rows that lie `pitch` bytes apart: the last row ends before its padding, which
/// may be behind the end of the allocation.
pub(crate) fn rectangle(pitch: usize, width: usize, height: usize, unit: usize) -> usize {
    match height.checked_sub(1) {
        None => 0,
        Some(rows) => pitch.saturating_mul(rows).saturating_add(width.saturating_mul(unit)),
    }
}

/// Hooks that give access to the named ranges and pass the call on.
macro_rules! give_access {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),*) $(on $stream:ident)?
        uses $($address:ident[$bytes:expr])*;)*) => { $(
        $(#[$doc])*
        pub unsafe fn $name(real: pointers::$name, $($arg: $type),*) -> CUresult {
            let Some(made) = give(&[$(($address, $bytes)),*]) else { return CUDA_ERROR_INVALID_VALUE };
            let streams: &[CUstream] = &[$($stream)?]; // without one, the default stream
            let stream = streams.first().copied().unwrap_or(std::ptr::null_mut());
            let stream = stream_of(stream, real as usize, &slots::$name);
            let traced = trace::copy(stringify!($name), &[$(($address, $bytes)),*], stream);
            // SAFETY: the program's own call, unchanged.
            let rc = unsafe { real($($arg),*) };
            trace::done(traced, rc);
            made.done(rc, stream)
        }
    )* };
}

give_access! {
    /// `cuMemcpyHtoD`.
    cuMemcpyHtoD_v2(to: CUdeviceptr, from: *const c_void, bytes: usize) uses to[bytes];
    /// `cuMemcpyHtoDAsync`.
    cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream) on stream
        uses to[bytes];
    /// `cuMemcpyDtoH`.
    cuMemcpyDtoH_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize) uses from[bytes];
    /// `cuMemcpyDtoHAsync`.
    cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream) on stream
        uses from[bytes];
    /// `cuMemsetD8`.
    cuMemsetD8_v2(to: CUdeviceptr, value: u8, count: usize) uses to[count];
    /// `cuMemsetD16`.
    cuMemsetD16_v2(to: CUdeviceptr, value: u16, count: usize) uses to[count.saturating_mul(2)];
    /// `cuMemsetD32`.
    cuMemsetD32_v2(to: CUdeviceptr, value: c_uint, count: usize) uses to[count.saturating_mul(4)];
    /// `cuMemsetD8Async`.
    cuMemsetD8Async(to: CUdeviceptr, value: u8, count: usize, stream: CUstream) on stream uses to[count];
    /// `cuMemsetD16Async`.
    cuMemsetD16Async(to: CUdeviceptr, value: u16, count: usize, stream: CUstream) on stream
        uses to[count.saturating_mul(2)];
    /// `cuMemsetD32Async`.
    cuMemsetD32Async(to: CUdeviceptr, value: c_uint, count: usize, stream: CUstream) on stream
        uses to[count.saturating_mul(4)];
    /// `cuMemsetD2D8`.
    cuMemsetD2D8_v2(to: CUdeviceptr, pitch: usize, value: u8, width: usize, height: usize)
        uses to[rectangle(pitch, width, height, 1)];
    /// `cuMemsetD2D16`.
    cuMemsetD2D16_v2(to: CUdeviceptr, pitch: usize, value: u16, width: usize, height: usize)
        uses to[rectangle(pitch, width, height, 2)];
    /// `cuMemsetD2D32`.
    cuMemsetD2D32_v2(to: CUdeviceptr, pitch: usize, value: c_uint, width: usize, height: usize)
        uses to[rectangle(pitch, width, height, 4)];
    /// `cuMemsetD2D8Async`.
    cuMemsetD2D8Async(
        to: CUdeviceptr, pitch: usize, value: u8, width: usize, height: usize, stream: CUstream
    ) on stream uses to[rectangle(pitch, width, height, 1)];
    /// `cuMemsetD2D16Async`.
    cuMemsetD2D16Async(
        to: CUdeviceptr, pitch: usize, value: u16, width: usize, height: usize, stream: CUstream
    ) on stream uses to[rectangle(pitch, width, height, 2)];
    /// `cuMemsetD2D32Async`.
    cuMemsetD2D32Async(
        to: CUdeviceptr, pitch: usize, value: c_uint, width: usize, height: usize, stream: CUstream
    ) on stream uses to[rectangle(pitch, width, height, 4)];
    /// `cuMemcpyAtoD`.
    cuMemcpyAtoD_v2(to: CUdeviceptr, array: CUarray, offset: usize, bytes: usize) uses to[bytes];
    /// `cuMemcpyDtoA`.
    cuMemcpyDtoA_v2(array: CUarray, offset: usize, from: CUdeviceptr, bytes: usize) uses from[bytes];
    /// `cuMemcpyWithAttributesAsync`.
    cuMemcpyWithAttributesAsync(
        to: CUdeviceptr, from: CUdeviceptr, bytes: usize, attributes: *mut c_void, stream: CUstream
    ) on stream uses to[bytes] from[bytes];
}

/// The contexts of both sides, where the current GPU cannot reach both: without a link between two GPUs the driver
/// copies plain memory all the same, but mapped memory only as a copy between contexts.
fn apart(to: CUdeviceptr, from: CUdeviceptr, bytes: usize) -> Option<[CUcontext; 2]> {
    let engine = engine()?;
    let gpu = engine.current_of_several()?;
    if [to, from].iter().all(|&address| engine.pool.reaches(gpu, address, bytes as u64)) {
        return None;
    }
    let owner = |address| match engine.pool.find(address) {
        Some(found) => Some(found.context as CUcontext),
        None => engine.pool.device().context_of(address),
    };
    Some([owner(to)?, owner(from)?])
}

/// Hooks of copies between two addresses that may lie on GPUs without a link: without a stream and with one.
macro_rules! between {
    ($($(#[$doc:meta])* $name:ident $(on $stream:ident)? by $plain:ident $twin:ident;)*) => { $(
        $(#[$doc])*
        pub unsafe fn $name(
            real: pointers::$name, to: CUdeviceptr, from: CUdeviceptr, bytes: usize, $($stream: CUstream)?
        ) -> CUresult {
            let Some(made) = give(&[(to, bytes), (from, bytes)]) else { return CUDA_ERROR_INVALID_VALUE };
            let streams: &[CUstream] = &[$($stream)?];
            let on = streams.first().copied().unwrap_or(std::ptr::null_mut());
            let on = stream_of(on, real as usize, &slots::$name);
            let traced = trace::copy(stringify!($name), &[(to, bytes), (from, bytes)], on);
            let twin = !slots::$name.is_driver_function(real as usize);
            let peer = if twin { &slots::$twin } else { &slots::$plain };
            let rc = match apart(to, from, bytes).and_then(|sides| Some((sides, peer.real()?))) {
                // SAFETY: the driver's copy between contexts, of the same kind of stream; both contexts own their side.
                Some(([there, here], peer)) => unsafe {
                    std::mem::transmute::<*mut c_void, pointers::$plain>(peer)(
                        to, there, from, here, bytes, $($stream)?
                    )
                },
                // SAFETY: the program's own call, unchanged.
                None => unsafe { real(to, from, bytes, $($stream)?) },
            };
            trace::done(traced, rc);
            made.done(rc, on)
        }
    )* };
}

between! {
    /// `cuMemcpy`.
    cuMemcpy by cuMemcpyPeer cuMemcpyPeer_ptds;
    /// `cuMemcpyDtoD`.
    cuMemcpyDtoD_v2 by cuMemcpyPeer cuMemcpyPeer_ptds;
    /// `cuMemcpyAsync`.
    cuMemcpyAsync on stream by cuMemcpyPeerAsync cuMemcpyPeerAsync_ptsz;
    /// `cuMemcpyDtoDAsync`.
    cuMemcpyDtoDAsync_v2 on stream by cuMemcpyPeerAsync cuMemcpyPeerAsync_ptsz;
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
    let Some(made) = give(&[(to, bytes), (from, bytes)]) else { return CUDA_ERROR_INVALID_VALUE };
    // Either GPU may run the copy, so both need both ranges.
    give_to_context(to_context, &[(to, bytes), (from, bytes)]);
    give_to_context(from_context, &[(to, bytes), (from, bytes)]);
    // SAFETY: the program's own call, unchanged.
    let rc = unsafe { real(to, to_context, from, from_context, bytes) };
    made.done(rc, stream_of(std::ptr::null_mut(), real as usize, &slots::cuMemcpyPeer))
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
    let Some(made) = give(&[(to, bytes), (from, bytes)]) else { return CUDA_ERROR_INVALID_VALUE };
    // Either GPU may run the copy, so both need both ranges.
    give_to_context(to_context, &[(to, bytes), (from, bytes)]);
    give_to_context(from_context, &[(to, bytes), (from, bytes)]);
    // SAFETY: the program's own call, unchanged.
    let rc = unsafe { real(to, to_context, from, from_context, bytes, stream) };
    made.done(rc, stream_of(stream, real as usize, &slots::cuMemcpyPeerAsync))
}
