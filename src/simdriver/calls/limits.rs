//! Limits, attributes of functions, occupancy.

use crate::decode::{handle, room};
use vgmem_abi::*;
use vgmem_sim::{Answer, machine};

fn ordinal(device: CUdevice) -> Answer<u32> {
    u32::try_from(device).map_err(|_| CUDA_ERROR_INVALID_DEVICE)
}

pub(crate) unsafe fn cuCtxGetLimit(out: *mut usize, limit: c_int) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    out.put(machine.limit(limit)? as usize);
    Ok(())
}

pub(crate) unsafe fn cuCtxSetLimit(limit: c_int, value: usize) -> Answer {
    machine()?.set_limit(limit, value as u64)
}

pub(crate) unsafe fn cuCtxGetCacheConfig(out: *mut c_int) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    out.put(machine.cache_config()? as c_int);
    Ok(())
}

pub(crate) unsafe fn cuCtxSetCacheConfig(config: c_int) -> Answer {
    machine()?.set_cache_config(config)
}

pub(crate) unsafe fn cuFuncSetCacheConfig(function: CUfunction, config: c_int) -> Answer {
    machine()?.set_function_cache(handle(function), config)
}

pub(crate) unsafe fn cuKernelSetCacheConfig(kernel: CUkernel, config: c_int, device: CUdevice) -> Answer {
    let machine = machine()?;
    machine.check_device(ordinal(device)?)?;
    machine.set_function_cache(handle(kernel), config)
}

pub(crate) unsafe fn cuFuncGetAttribute(out: *mut c_int, attribute: c_int, function: CUfunction) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    out.put(machine.function_attribute(handle(function), attribute)?);
    Ok(())
}

pub(crate) unsafe fn cuFuncSetAttribute(function: CUfunction, attribute: c_int, value: c_int) -> Answer {
    machine()?.set_function_attribute(handle(function), attribute, value)
}

pub(crate) unsafe fn cuKernelGetAttribute(
    out: *mut c_int,
    attribute: c_int,
    kernel: CUkernel,
    device: CUdevice,
) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    out.put(machine.kernel_attribute(handle(kernel), attribute, ordinal(device)?)?);
    Ok(())
}

pub(crate) unsafe fn cuKernelSetAttribute(
    attribute: c_int,
    value: c_int,
    kernel: CUkernel,
    device: CUdevice,
) -> Answer {
    machine()?.set_kernel_attribute(handle(kernel), attribute, value, ordinal(device)?)
}

fn occupancy(out: *mut c_int, function: CUfunction, threads: c_int, shared: usize) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    out.put(machine.occupancy(handle(function), threads, shared as u64)? as c_int);
    Ok(())
}

pub(crate) unsafe fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
    out: *mut c_int,
    function: CUfunction,
    threads: c_int,
    shared: usize,
) -> Answer {
    occupancy(out, function, threads, shared)
}

pub(crate) unsafe fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    out: *mut c_int,
    function: CUfunction,
    threads: c_int,
    shared: usize,
    flags: c_uint,
) -> Answer {
    if flags > 1 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    occupancy(out, function, threads, shared)
}

type SharedOfBlock = unsafe extern "C" fn(c_int) -> usize;

/// # Safety
/// `of_block` must be NULL or a function of the program that says how much shared memory a block
/// needs.
unsafe fn best_block(
    grid: *mut c_int,
    block: *mut c_int,
    function: CUfunction,
    of_block: CUoccupancyB2DSize,
    shared: usize,
    limit: c_int,
) -> Answer {
    let machine = machine()?;
    let (grid, block) = (room(grid)?, room(block)?);
    let needed = |threads: u32| {
        if of_block.is_null() {
            return shared as u64;
        }
        // SAFETY: the caller's promise.
        unsafe { std::mem::transmute::<CUoccupancyB2DSize, SharedOfBlock>(of_block)(threads as c_int) as u64 }
    };
    let (blocks, threads) = machine.best_block(handle(function), limit, needed)?;
    grid.put(blocks as c_int);
    block.put(threads as c_int);
    Ok(())
}

pub(crate) unsafe fn cuOccupancyMaxPotentialBlockSize(
    grid: *mut c_int,
    block: *mut c_int,
    function: CUfunction,
    of_block: CUoccupancyB2DSize,
    shared: usize,
    limit: c_int,
) -> Answer {
    // SAFETY: the driver's contract.
    unsafe { best_block(grid, block, function, of_block, shared, limit) }
}

pub(crate) unsafe fn cuOccupancyMaxPotentialBlockSizeWithFlags(
    grid: *mut c_int,
    block: *mut c_int,
    function: CUfunction,
    of_block: CUoccupancyB2DSize,
    shared: usize,
    limit: c_int,
    flags: c_uint,
) -> Answer {
    if flags > 1 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: the driver's contract.
    unsafe { best_block(grid, block, function, of_block, shared, limit) }
}

pub(crate) unsafe fn cuOccupancyAvailableDynamicSMemPerBlock(
    out: *mut usize,
    function: CUfunction,
    blocks: c_int,
    threads: c_int,
) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    out.put(machine.shared_left(handle(function), blocks, threads)? as usize);
    Ok(())
}
