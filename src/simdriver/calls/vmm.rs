//! Virtual memory management.

use crate::decode::{handle, read, room};
use vgmem_abi::*;
use vgmem_sim::{Answer, machine};

pub(crate) unsafe fn cuMemCreate(
    out: *mut CUmemHandle,
    size: usize,
    properties: *const CUmemAllocationProp,
    flags: u64,
) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    // SAFETY: a structure or NULL, by the driver's contract.
    let properties = unsafe { read(properties) }?;
    if flags != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    out.put(machine.create(size as u64, &properties)?);
    Ok(())
}

pub(crate) unsafe fn cuMemRelease(memory: CUmemHandle) -> Answer {
    machine()?.release(memory)
}

pub(crate) unsafe fn cuMemRetainAllocationHandle(out: *mut CUmemHandle, address: *mut c_void) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    out.put(machine.retain(handle(address))?);
    Ok(())
}

pub(crate) unsafe fn cuMemGetAllocationPropertiesFromHandle(
    out: *mut CUmemAllocationProp,
    memory: CUmemHandle,
) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    out.put(machine.properties(memory)?);
    Ok(())
}

pub(crate) unsafe fn cuMemGetAllocationGranularity(
    out: *mut usize,
    properties: *const CUmemAllocationProp,
    option: c_int,
) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    // SAFETY: a structure or NULL, by the driver's contract.
    let properties = unsafe { read(properties) }?;
    if !matches!(option, CU_MEM_ALLOC_GRANULARITY_MINIMUM | CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    out.put(machine.granularity(&properties)? as usize);
    Ok(())
}

pub(crate) unsafe fn cuMemAddressReserve(
    out: *mut CUdeviceptr,
    size: usize,
    alignment: usize,
    hint: CUdeviceptr,
    flags: u64,
) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    if flags != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    out.put(machine.reserve(size as u64, alignment as u64, hint)?);
    Ok(())
}

pub(crate) unsafe fn cuMemAddressFree(address: CUdeviceptr, size: usize) -> Answer {
    machine()?.unreserve(address, size as u64)
}

pub(crate) unsafe fn cuMemMap(
    address: CUdeviceptr,
    size: usize,
    offset: usize,
    memory: CUmemHandle,
    flags: u64,
) -> Answer {
    let machine = machine()?;
    if flags != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    machine.map(address, size as u64, offset as u64, memory)
}

pub(crate) unsafe fn cuMemUnmap(address: CUdeviceptr, size: usize) -> Answer {
    machine()?.unmap(address, size as u64)
}

pub(crate) unsafe fn cuMemSetAccess(
    address: CUdeviceptr,
    size: usize,
    wanted: *const CUmemAccessDesc,
    count: usize,
) -> Answer {
    let machine = machine()?;
    if wanted.is_null() || count == 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: `count` structures, by the driver's contract.
    let wanted = unsafe { std::slice::from_raw_parts(wanted, count) };
    machine.set_access(address, size as u64, wanted)
}

pub(crate) unsafe fn cuMemGetAccess(
    out: *mut u64,
    location: *const CUmemLocation,
    address: CUdeviceptr,
) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    // SAFETY: a structure or NULL, by the driver's contract.
    let location = unsafe { read(location) }?;
    let found = machine.get_access(address, location);
    if let Ok(flags) | Err((CUDA_ERROR_INVALID_VALUE, flags)) = found.map_err(|code| (code, 0)) {
        out.put(flags);
    }
    found.map(|_| ())
}

pub(crate) unsafe fn cuMemExportToShareableHandle(
    out: *mut c_void,
    memory: CUmemHandle,
    kind: c_int,
    flags: u64,
) -> Answer {
    let machine = machine()?;
    let out = room(out.cast::<c_int>())?;
    if flags != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    out.put(machine.export(memory, kind)?);
    Ok(())
}

/// The descriptor comes as the pointer itself.
pub(crate) unsafe fn cuMemImportFromShareableHandle(
    out: *mut CUmemHandle,
    shared: *mut c_void,
    kind: c_int,
) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    // A number that is no descriptor is found to be none later.
    let fd = c_int::try_from(shared.addr()).unwrap_or(-1);
    out.put(machine.import(fd, kind)?);
    Ok(())
}
