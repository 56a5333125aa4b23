//! Copies and memsets.

use crate::decode::{handle, stream};
use vgmem_abi::*;
use vgmem_sim::{Answer, Fill, StreamRef, Transfer, machine};

fn copy(
    how: Transfer,
    to: CUdeviceptr,
    from: CUdeviceptr,
    size: usize,
    stream: StreamRef,
    synchronous: bool,
) -> Answer {
    machine()?.copy(how, to, from, size as u64, stream, synchronous)
}

/// Address of host memory, known to the machine as one that was handed in.
fn host(pointer: *const c_void) -> u64 {
    pointer.expose_provenance() as u64
}

fn default(per_thread: bool) -> StreamRef {
    stream(per_thread, std::ptr::null_mut())
}

pub(crate) unsafe fn cuMemcpy(per_thread: bool, to: CUdeviceptr, from: CUdeviceptr, size: usize) -> Answer {
    copy(Transfer::Unified, to, from, size, default(per_thread), true)
}

pub(crate) unsafe fn cuMemcpyAsync(
    per_thread: bool,
    to: CUdeviceptr,
    from: CUdeviceptr,
    size: usize,
    which: CUstream,
) -> Answer {
    copy(Transfer::Unified, to, from, size, stream(per_thread, which), false)
}

pub(crate) unsafe fn cuMemcpyDtoD_v2(
    per_thread: bool,
    to: CUdeviceptr,
    from: CUdeviceptr,
    size: usize,
) -> Answer {
    copy(Transfer::OnDevice, to, from, size, default(per_thread), true)
}

pub(crate) unsafe fn cuMemcpyDtoDAsync_v2(
    per_thread: bool,
    to: CUdeviceptr,
    from: CUdeviceptr,
    size: usize,
    which: CUstream,
) -> Answer {
    copy(Transfer::OnDevice, to, from, size, stream(per_thread, which), false)
}

pub(crate) unsafe fn cuMemcpyDtoH_v2(
    per_thread: bool,
    to: *mut c_void,
    from: CUdeviceptr,
    size: usize,
) -> Answer {
    copy(Transfer::FromDevice, host(to), from, size, default(per_thread), true)
}

pub(crate) unsafe fn cuMemcpyDtoHAsync_v2(
    per_thread: bool,
    to: *mut c_void,
    from: CUdeviceptr,
    size: usize,
    which: CUstream,
) -> Answer {
    copy(Transfer::FromDevice, host(to), from, size, stream(per_thread, which), false)
}

pub(crate) unsafe fn cuMemcpyHtoD_v2(
    per_thread: bool,
    to: CUdeviceptr,
    from: *const c_void,
    size: usize,
) -> Answer {
    copy(Transfer::ToDevice, to, host(from), size, default(per_thread), true)
}

pub(crate) unsafe fn cuMemcpyHtoDAsync_v2(
    per_thread: bool,
    to: CUdeviceptr,
    from: *const c_void,
    size: usize,
    which: CUstream,
) -> Answer {
    copy(Transfer::ToDevice, to, host(from), size, stream(per_thread, which), false)
}

pub(crate) unsafe fn cuMemcpyPeer(
    per_thread: bool,
    to: CUdeviceptr,
    to_context: CUcontext,
    from: CUdeviceptr,
    from_context: CUcontext,
    size: usize,
) -> Answer {
    let how = Transfer::Peer(handle(to_context), handle(from_context));
    copy(how, to, from, size, default(per_thread), true)
}

pub(crate) unsafe fn cuMemcpyPeerAsync(
    per_thread: bool,
    to: CUdeviceptr,
    to_context: CUcontext,
    from: CUdeviceptr,
    from_context: CUcontext,
    size: usize,
    which: CUstream,
) -> Answer {
    let how = Transfer::Peer(handle(to_context), handle(from_context));
    copy(how, to, from, size, stream(per_thread, which), false)
}

/// A memset of one row: units of `unit` bytes.
fn row(address: CUdeviceptr, unit: u64, value: u32, count: usize) -> Fill {
    Fill { address, pitch: 0, unit, value, width: count as u64, height: 1 }
}

fn rows(address: CUdeviceptr, pitch: usize, unit: u64, value: u32, width: usize, height: usize) -> Fill {
    Fill { address, pitch: pitch as u64, unit, value, width: width as u64, height: height as u64 }
}

pub(crate) unsafe fn cuMemsetD8_v2(per_thread: bool, at: CUdeviceptr, value: u8, count: usize) -> Answer {
    machine()?.fill(row(at, 1, u32::from(value), count), default(per_thread), true)
}

pub(crate) unsafe fn cuMemsetD8Async(
    per_thread: bool,
    at: CUdeviceptr,
    value: u8,
    count: usize,
    which: CUstream,
) -> Answer {
    machine()?.fill(row(at, 1, u32::from(value), count), stream(per_thread, which), false)
}

pub(crate) unsafe fn cuMemsetD2D8_v2(
    per_thread: bool,
    at: CUdeviceptr,
    pitch: usize,
    value: u8,
    width: usize,
    height: usize,
) -> Answer {
    machine()?.fill(rows(at, pitch, 1, u32::from(value), width, height), default(per_thread), true)
}

pub(crate) unsafe fn cuMemsetD2D8Async(
    per_thread: bool,
    at: CUdeviceptr,
    pitch: usize,
    value: u8,
    width: usize,
    height: usize,
    which: CUstream,
) -> Answer {
    machine()?.fill(rows(at, pitch, 1, u32::from(value), width, height), stream(per_thread, which), false)
}

pub(crate) unsafe fn cuMemsetD16_v2(per_thread: bool, at: CUdeviceptr, value: u16, count: usize) -> Answer {
    machine()?.fill(row(at, 2, u32::from(value), count), default(per_thread), true)
}

pub(crate) unsafe fn cuMemsetD16Async(
    per_thread: bool,
    at: CUdeviceptr,
    value: u16,
    count: usize,
    which: CUstream,
) -> Answer {
    machine()?.fill(row(at, 2, u32::from(value), count), stream(per_thread, which), false)
}

pub(crate) unsafe fn cuMemsetD2D16_v2(
    per_thread: bool,
    at: CUdeviceptr,
    pitch: usize,
    value: u16,
    width: usize,
    height: usize,
) -> Answer {
    machine()?.fill(rows(at, pitch, 2, u32::from(value), width, height), default(per_thread), true)
}

pub(crate) unsafe fn cuMemsetD2D16Async(
    per_thread: bool,
    at: CUdeviceptr,
    pitch: usize,
    value: u16,
    width: usize,
    height: usize,
    which: CUstream,
) -> Answer {
    machine()?.fill(rows(at, pitch, 2, u32::from(value), width, height), stream(per_thread, which), false)
}

pub(crate) unsafe fn cuMemsetD32_v2(
    per_thread: bool,
    at: CUdeviceptr,
    value: c_uint,
    count: usize,
) -> Answer {
    machine()?.fill(row(at, 4, value, count), default(per_thread), true)
}

pub(crate) unsafe fn cuMemsetD32Async(
    per_thread: bool,
    at: CUdeviceptr,
    value: c_uint,
    count: usize,
    which: CUstream,
) -> Answer {
    machine()?.fill(row(at, 4, value, count), stream(per_thread, which), false)
}

pub(crate) unsafe fn cuMemsetD2D32_v2(
    per_thread: bool,
    at: CUdeviceptr,
    pitch: usize,
    value: c_uint,
    width: usize,
    height: usize,
) -> Answer {
    machine()?.fill(rows(at, pitch, 4, value, width, height), default(per_thread), true)
}

pub(crate) unsafe fn cuMemsetD2D32Async(
    per_thread: bool,
    at: CUdeviceptr,
    pitch: usize,
    value: c_uint,
    width: usize,
    height: usize,
    which: CUstream,
) -> Answer {
    machine()?.fill(rows(at, pitch, 4, value, width, height), stream(per_thread, which), false)
}
