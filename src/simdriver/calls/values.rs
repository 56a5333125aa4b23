//! Streams that wait for values in memory, or write them.

use crate::decode::{handle, list, read, stream};
use vgmem_abi::*;
use vgmem_sim::{Answer, Machine, NodeContent, StreamRef, ValueOp, machine};

fn one(op: Answer<ValueOp>, on: StreamRef) -> Answer {
    let machine = machine()?;
    machine.value_ops(vec![op?], on)
}

pub(crate) unsafe fn cuStreamWaitValue32_v2(
    per_thread: bool,
    which: CUstream,
    address: CUdeviceptr,
    value: u32,
    flags: c_uint,
) -> Answer {
    one(ValueOp::wait(address, u64::from(value), false, flags), stream(per_thread, which))
}

pub(crate) unsafe fn cuStreamWaitValue64_v2(
    per_thread: bool,
    which: CUstream,
    address: CUdeviceptr,
    value: u64,
    flags: c_uint,
) -> Answer {
    one(ValueOp::wait(address, value, true, flags), stream(per_thread, which))
}

pub(crate) unsafe fn cuStreamWriteValue32_v2(
    per_thread: bool,
    which: CUstream,
    address: CUdeviceptr,
    value: u32,
    flags: c_uint,
) -> Answer {
    one(ValueOp::write(address, u64::from(value), false, flags), stream(per_thread, which))
}

pub(crate) unsafe fn cuStreamWriteValue64_v2(
    per_thread: bool,
    which: CUstream,
    address: CUdeviceptr,
    value: u64,
    flags: c_uint,
) -> Answer {
    one(ValueOp::write(address, value, true, flags), stream(per_thread, which))
}

/// One operation of a batch, as the driver lays it out: waits and writes have these fields,
/// barriers have their flags in the second word.
#[repr(C)]
#[derive(Clone, Copy)]
struct MemOp {
    operation: c_uint,
    barrier_flags: c_uint,
    address: CUdeviceptr,
    value: u64,
    flags: c_uint,
    alias: [u64; 2],
}

const _: () = assert!(size_of::<MemOp>() == 48);

impl MemOp {
    fn decode(&self) -> Answer<ValueOp> {
        let narrow = self.value & u64::from(u32::MAX);
        match self.operation {
            1 => ValueOp::wait(self.address, narrow, false, self.flags),
            2 => ValueOp::write(self.address, narrow, false, self.flags),
            4 => ValueOp::wait(self.address, self.value, true, self.flags),
            5 => ValueOp::write(self.address, self.value, true, self.flags),
            6 => ValueOp::barrier(self.barrier_flags),
            3 | 8 => Err(CUDA_ERROR_NOT_SUPPORTED),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }
}

/// Operations of one call at most.
const MOST: usize = 256;

/// # Safety
/// `ops` must be NULL or point to `count` operations.
unsafe fn decode(ops: *const c_void, count: usize, flags: c_uint) -> Answer<Vec<ValueOp>> {
    if count > MOST || flags != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: the caller's promise.
    unsafe { list(ops.cast::<MemOp>(), count) }?.iter().map(MemOp::decode).collect()
}

pub(crate) unsafe fn cuStreamBatchMemOp_v2(
    per_thread: bool,
    which: CUstream,
    count: c_uint,
    ops: *mut c_void,
    flags: c_uint,
) -> Answer {
    let machine = machine()?;
    // SAFETY: the driver's contract.
    machine.value_ops(unsafe { decode(ops, count as usize, flags) }?, stream(per_thread, which))
}

/// A node of a graph, as the driver lays it out.
#[repr(C)]
#[derive(Clone, Copy)]
struct NodeParameters {
    context: CUcontext,
    count: c_uint,
    ops: *const c_void,
    flags: c_uint,
}

/// What a node of a graph shall do, and in which context.
///
/// # Safety
/// As the driver's contract for the structure says.
pub(super) unsafe fn node(machine: &Machine, parameters: *const c_void) -> Answer<(NodeContent, u64)> {
    // SAFETY: the caller's promise.
    let p = unsafe { read(parameters.cast::<NodeParameters>()) }?;
    // SAFETY: the caller's promise.
    let ops = unsafe { decode(p.ops, p.count as usize, p.flags) }?;
    machine.check_values(&ops)?;
    Ok((NodeContent::Values(ops), handle(p.context)))
}
