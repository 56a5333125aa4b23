//! Allocation and queries.

use crate::decode::{handle, pointer, room};
use vgmem_abi::*;
use vgmem_sim::{Answer, Attribute, machine};

pub(crate) unsafe fn cuMemAlloc_v2(out: *mut CUdeviceptr, size: usize) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    let made = machine.allocate(size as u64);
    // A call that fails writes too.
    out.put(made.unwrap_or(0));
    made.map(|_| ())
}

pub(crate) unsafe fn cuMemAllocPitch_v2(
    out: *mut CUdeviceptr,
    pitch: *mut usize,
    width: usize,
    height: usize,
    element: c_uint,
) -> Answer {
    let machine = machine()?;
    let (out, pitch_out) = (room(out)?, room(pitch)?);
    let (address, pitch) = machine.allocate_pitch(width as u64, height as u64, element)?;
    out.put(address);
    pitch_out.put(pitch as usize);
    Ok(())
}

pub(crate) unsafe fn cuMemFree_v2(address: CUdeviceptr) -> Answer {
    machine()?.free(address)
}

pub(crate) unsafe fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> Answer {
    let machine = machine()?;
    let (left, all) = machine.current_memory_info()?;
    // Either may be NULL: the program wants the other.
    for (out, value) in [(free, left), (total, all)] {
        if let Ok(out) = room(out) {
            out.put(value as usize);
        }
    }
    Ok(())
}

fn host_allocate(out: *mut *mut c_void, size: usize, flags: c_uint) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    out.put(pointer(machine.host_allocate(size as u64, flags)?));
    Ok(())
}

pub(crate) unsafe fn cuMemAllocHost_v2(out: *mut *mut c_void, size: usize) -> Answer {
    host_allocate(out, size, 0)
}

pub(crate) unsafe fn cuMemHostAlloc(out: *mut *mut c_void, size: usize, flags: c_uint) -> Answer {
    host_allocate(out, size, flags)
}

pub(crate) unsafe fn cuMemFreeHost(address: *mut c_void) -> Answer {
    machine()?.host_free(handle(address))
}

pub(crate) unsafe fn cuMemHostRegister_v2(address: *mut c_void, size: usize, flags: c_uint) -> Answer {
    machine()?.host_register(handle(address), size as u64, flags)
}

pub(crate) unsafe fn cuMemHostRegister(address: *mut c_void, size: usize, flags: c_uint) -> Answer {
    machine()?.host_register(handle(address), size as u64, flags)
}

pub(crate) unsafe fn cuMemHostUnregister(address: *mut c_void) -> Answer {
    machine()?.host_unregister(handle(address))
}

pub(crate) unsafe fn cuMemHostGetDevicePointer_v2(
    out: *mut CUdeviceptr,
    address: *mut c_void,
    flags: c_uint,
) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    if flags != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    machine.host_flags(handle(address))?;
    out.put(handle(address));
    Ok(())
}

pub(crate) unsafe fn cuMemHostGetFlags(out: *mut c_uint, address: *mut c_void) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    out.put(machine.host_flags(handle(address))?);
    Ok(())
}

pub(crate) unsafe fn cuMemGetAddressRange_v2(
    base: *mut CUdeviceptr,
    size: *mut usize,
    address: CUdeviceptr,
) -> Answer {
    let machine = machine()?;
    if base.is_null() && size.is_null() {
        return machine.current().map(|_| ());
    }
    let found = machine.address_range(address);
    // Of an unknown address both are zero.
    let (start, length) = match found {
        Err(CUDA_ERROR_NOT_FOUND) => (0, 0),
        found => found?,
    };
    // Either may be NULL: the program wants the other.
    if let Ok(base) = room(base) {
        base.put(start);
    }
    if let Ok(size) = room(size) {
        size.put(length as usize);
    }
    found.map(|_| ())
}

/// Tokens for third-party devices, as the program lays them out.
#[repr(C, packed)]
struct Tokens {
    token: u64,
    space: u32,
}

fn put(out: *mut c_void, value: Attribute) -> Answer {
    match value {
        Attribute::Word(word) => room(out.cast::<u32>())?.put(word),
        Attribute::Long(long) => room(out.cast::<u64>())?.put(long),
        Attribute::Tokens(token, space) => room(out.cast())?.put(Tokens { token, space }),
    }
    Ok(())
}

pub(crate) unsafe fn cuPointerGetAttribute(
    out: *mut c_void,
    attribute: c_int,
    address: CUdeviceptr,
) -> Answer {
    let machine = machine()?;
    room(out)?;
    match machine.attribute(attribute, address) {
        Ok(value) => put(out, value),
        Err(code) => {
            if let Some(value) = machine.written_on_failure(attribute, address) {
                put(out, value)?;
            }
            Err(code)
        }
    }
}

pub(crate) unsafe fn cuPointerGetAttributes(
    count: c_uint,
    attributes: *mut c_int,
    out: *mut *mut c_void,
    address: CUdeviceptr,
) -> Answer {
    let machine = machine()?;
    if count == 0 || attributes.is_null() || out.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    for index in 0..count as usize {
        // SAFETY: both arrays have `count` elements, by the driver's contract.
        let (attribute, to) = unsafe { (attributes.add(index).read(), out.add(index).read()) };
        if let Some(value) = machine.attribute_in_list(attribute, address)? {
            put(to, value)?;
        }
    }
    Ok(())
}

pub(crate) unsafe fn cuPointerSetAttribute(
    value: *const c_void,
    attribute: c_int,
    address: CUdeviceptr,
) -> Answer {
    let machine = machine()?;
    // SAFETY: the value of this attribute is a number of four bytes, by the driver's contract.
    let on = unsafe { crate::decode::read(value.cast::<u32>()) }?;
    machine.set_attribute(attribute, address, on != 0)
}
