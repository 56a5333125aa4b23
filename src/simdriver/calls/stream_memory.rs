//! Memory that streams allocate and free, its pools, and managed memory.

use crate::decode::{handle, list, pointer, read, room, stream};
use vgmem_abi::*;
use vgmem_sim::{Answer, Machine, PoolValue, machine};

fn ordinal(device: CUdevice) -> Answer<u32> {
    u32::try_from(device).map_err(|_| CUDA_ERROR_INVALID_DEVICE)
}

pub(crate) unsafe fn cuMemAllocAsync(
    per_thread: bool,
    out: *mut CUdeviceptr,
    size: usize,
    which: CUstream,
) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    out.put(machine.allocate_async(size as u64, None, stream(per_thread, which))?);
    Ok(())
}

pub(crate) unsafe fn cuMemAllocFromPoolAsync(
    per_thread: bool,
    out: *mut CUdeviceptr,
    size: usize,
    pool: CUmemoryPool,
    which: CUstream,
) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    out.put(machine.allocate_async(size as u64, Some(handle(pool)), stream(per_thread, which))?);
    Ok(())
}

pub(crate) unsafe fn cuMemFreeAsync(per_thread: bool, address: CUdeviceptr, which: CUstream) -> Answer {
    machine()?.free_async(address, stream(per_thread, which))
}

pub(crate) unsafe fn cuDeviceGetDefaultMemPool(out: *mut CUmemoryPool, device: CUdevice) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    out.put(pointer(machine.default_pool(ordinal(device)?)?));
    Ok(())
}

pub(crate) unsafe fn cuDeviceGetMemPool(out: *mut CUmemoryPool, device: CUdevice) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    out.put(pointer(machine.current_pool(ordinal(device)?)?));
    Ok(())
}

pub(crate) unsafe fn cuDeviceSetMemPool(device: CUdevice, pool: CUmemoryPool) -> Answer {
    machine()?.set_current_pool(ordinal(device)?, handle(pool))
}

/// GPU of a location, which is the only place that pools lie in here.
fn device_of(location: CUmemLocation) -> Answer<u32> {
    match location.kind {
        CU_MEM_LOCATION_TYPE_DEVICE => ordinal(location.id),
        CU_MEM_LOCATION_TYPE_INVALID => Err(CUDA_ERROR_INVALID_VALUE),
        _ => Err(CUDA_ERROR_NOT_SUPPORTED),
    }
}

/// What a pool shall be: the first fields of the driver's structure.
#[repr(C)]
#[derive(Clone, Copy)]
struct PoolProperties {
    kind: c_int,
    handle_types: c_int,
    location: CUmemLocation,
}

pub(crate) unsafe fn cuMemPoolCreate(out: *mut CUmemoryPool, properties: *const c_void) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    // SAFETY: a structure that begins so, or NULL, by the driver's contract.
    let properties = unsafe { read(properties.cast::<PoolProperties>()) }?;
    if properties.kind != CU_MEM_ALLOCATION_TYPE_PINNED {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if properties.handle_types != CU_MEM_HANDLE_TYPE_NONE {
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    out.put(pointer(machine.create_pool(device_of(properties.location)?)?));
    Ok(())
}

pub(crate) unsafe fn cuMemPoolDestroy(pool: CUmemoryPool) -> Answer {
    machine()?.destroy_pool(handle(pool))
}

pub(crate) unsafe fn cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize) -> Answer {
    machine()?.trim_pool(handle(pool), keep as u64)
}

pub(crate) unsafe fn cuMemPoolGetAttribute(pool: CUmemoryPool, attribute: c_int, out: *mut c_void) -> Answer {
    let machine = machine()?;
    room(out)?;
    match machine.pool_attribute(handle(pool), attribute)? {
        PoolValue::Word(value) => room(out.cast::<u32>())?.put(value),
        PoolValue::Long(value) => room(out.cast::<u64>())?.put(value),
    }
    Ok(())
}

pub(crate) unsafe fn cuMemPoolSetAttribute(
    pool: CUmemoryPool,
    attribute: c_int,
    value: *mut c_void,
) -> Answer {
    let machine = machine()?;
    let value = match Machine::is_pool_word(attribute) {
        // SAFETY: the value of this attribute has four bytes, by the driver's contract.
        true => PoolValue::Word(unsafe { read(value.cast::<u32>()) }?),
        // SAFETY: the value of this attribute has eight bytes, by the driver's contract.
        false => PoolValue::Long(unsafe { read(value.cast::<u64>()) }?),
    };
    machine.set_pool_attribute(handle(pool), attribute, value)
}

pub(crate) unsafe fn cuMemPoolSetAccess(
    pool: CUmemoryPool,
    wanted: *const CUmemAccessDesc,
    count: usize,
) -> Answer {
    let machine = machine()?;
    // SAFETY: `count` structures, by the driver's contract.
    for one in unsafe { list(wanted, count) }? {
        let on = match one.flags {
            CU_MEM_ACCESS_FLAGS_PROT_READWRITE => true,
            CU_MEM_ACCESS_FLAGS_PROT_NONE => false,
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        };
        machine.set_pool_access(handle(pool), device_of(one.location)?, on)?;
    }
    Ok(())
}

pub(crate) unsafe fn cuMemPoolGetAccess(
    out: *mut c_int,
    pool: CUmemoryPool,
    location: *mut CUmemLocation,
) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    // SAFETY: a structure or NULL, by the driver's contract.
    let device = device_of(unsafe { read(location) }?)?;
    out.put(match machine.pool_access(handle(pool), device)? {
        true => CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        false => CU_MEM_ACCESS_FLAGS_PROT_NONE,
    });
    Ok(())
}

pub(crate) unsafe fn cuMemAllocManaged(out: *mut CUdeviceptr, size: usize, flags: c_uint) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    out.put(machine.allocate_managed(size as u64, flags)?);
    Ok(())
}

pub(crate) unsafe fn cuMemAdvise(
    address: CUdeviceptr,
    size: usize,
    advice: c_int,
    _device: CUdevice,
) -> Answer {
    machine()?.advise(address, size as u64, advice)
}

pub(crate) unsafe fn cuMemAdvise_v2(
    address: CUdeviceptr,
    size: usize,
    advice: c_int,
    _location: CUmemLocation,
) -> Answer {
    machine()?.advise(address, size as u64, advice)
}

pub(crate) unsafe fn cuMemPrefetchAsync(
    per_thread: bool,
    address: CUdeviceptr,
    size: usize,
    _device: CUdevice,
    which: CUstream,
) -> Answer {
    machine()?.prefetch(address, size as u64, stream(per_thread, which))
}

pub(crate) unsafe fn cuMemPrefetchAsync_v2(
    per_thread: bool,
    address: CUdeviceptr,
    size: usize,
    _location: CUmemLocation,
    flags: c_uint,
    which: CUstream,
) -> Answer {
    if flags != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    machine()?.prefetch(address, size as u64, stream(per_thread, which))
}
