//! Contexts.

use crate::decode::{handle, pointer, room};
use vgmem_abi::*;
use vgmem_sim::{Answer, machine};

fn ordinal(device: CUdevice) -> Answer<u32> {
    u32::try_from(device).map_err(|_| CUDA_ERROR_INVALID_DEVICE)
}

fn create(out: *mut CUcontext, flags: c_uint, device: CUdevice) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    out.put(pointer(machine.create_context(ordinal(device)?, flags)?));
    Ok(())
}

pub(crate) unsafe fn cuCtxCreate(out: *mut CUcontext, flags: c_uint, device: CUdevice) -> Answer {
    create(out, flags, device)
}

pub(crate) unsafe fn cuCtxCreate_v2(out: *mut CUcontext, flags: c_uint, device: CUdevice) -> Answer {
    create(out, flags, device)
}

pub(crate) unsafe fn cuCtxCreate_v3(
    out: *mut CUcontext,
    affinity: *mut c_void,
    count: c_int,
    flags: c_uint,
    device: CUdevice,
) -> Answer {
    if !affinity.is_null() || count != 0 {
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    create(out, flags, device)
}

pub(crate) unsafe fn cuCtxCreate_v4(
    out: *mut CUcontext,
    parameters: *mut c_void,
    flags: c_uint,
    device: CUdevice,
) -> Answer {
    if !parameters.is_null() {
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    create(out, flags, device)
}

pub(crate) unsafe fn cuCtxDestroy(context: CUcontext) -> Answer {
    machine()?.destroy_context(handle(context))
}

pub(crate) unsafe fn cuCtxDestroy_v2(context: CUcontext) -> Answer {
    machine()?.destroy_context(handle(context))
}

pub(crate) unsafe fn cuCtxPushCurrent(context: CUcontext) -> Answer {
    machine()?.push_context(handle(context))
}

pub(crate) unsafe fn cuCtxPushCurrent_v2(context: CUcontext) -> Answer {
    machine()?.push_context(handle(context))
}

fn pop(out: *mut CUcontext) -> Answer {
    let popped = machine()?.pop_context()?;
    // NULL: the program does not want to know which it was.
    if let Ok(out) = room(out) {
        out.put(pointer(popped));
    }
    Ok(())
}

pub(crate) unsafe fn cuCtxPopCurrent(out: *mut CUcontext) -> Answer {
    pop(out)
}

pub(crate) unsafe fn cuCtxPopCurrent_v2(out: *mut CUcontext) -> Answer {
    pop(out)
}

pub(crate) unsafe fn cuCtxSetCurrent(context: CUcontext) -> Answer {
    machine()?.set_context(handle(context))
}

pub(crate) unsafe fn cuCtxGetCurrent(out: *mut CUcontext) -> Answer {
    let machine = machine()?;
    room(out)?.put(pointer(machine.current_handle()));
    Ok(())
}

pub(crate) unsafe fn cuCtxGetDevice(out: *mut CUdevice) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    out.put(machine.current_even_if_lost()?.device as CUdevice);
    Ok(())
}

pub(crate) unsafe fn cuCtxGetDevice_v2(out: *mut CUdevice, context: CUcontext) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    let context = match handle(context) {
        0 => machine.current_even_if_lost()?,
        handle => machine.context(handle)?,
    };
    out.put(context.device as CUdevice);
    Ok(())
}

pub(crate) unsafe fn cuCtxGetFlags(out: *mut c_uint) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    out.put(machine.current()?.flags());
    Ok(())
}

pub(crate) unsafe fn cuCtxSetFlags(flags: c_uint) -> Answer {
    machine()?.current()?.set_flags(flags);
    Ok(())
}

pub(crate) unsafe fn cuCtxGetId(context: CUcontext, out: *mut u64) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    let context = match handle(context) {
        0 => machine.current()?,
        handle => machine.context(handle)?,
    };
    // Handles are never used twice, which is all that is asked of the number.
    out.put(context.handle);
    Ok(())
}

pub(crate) unsafe fn cuCtxGetApiVersion(context: CUcontext, out: *mut c_uint) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    match handle(context) {
        0 => machine.current()?,
        handle => machine.context(handle)?,
    };
    out.put(machine.settings.driver);
    Ok(())
}

pub(crate) unsafe fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) -> Answer {
    let machine = machine()?;
    machine.current()?;
    let (low, high) = machine.priorities();
    for (out, value) in [(least, low), (greatest, high)] {
        if let Ok(out) = room(out) {
            out.put(value);
        }
    }
    Ok(())
}

pub(crate) unsafe fn cuCtxSynchronize() -> Answer {
    let machine = machine()?;
    machine.synchronize_context(&*machine.current()?)
}

pub(crate) unsafe fn cuCtxSynchronize_v2(context: CUcontext) -> Answer {
    let machine = machine()?;
    let context = match handle(context) {
        0 => machine.current()?,
        handle => machine.context(handle)?,
    };
    machine.synchronize_context(&context)
}

pub(crate) unsafe fn cuCtxEnablePeerAccess(peer: CUcontext, flags: c_uint) -> Answer {
    machine()?.enable_peer(handle(peer), flags)
}

pub(crate) unsafe fn cuCtxDisablePeerAccess(peer: CUcontext) -> Answer {
    machine()?.disable_peer(handle(peer))
}

pub(crate) unsafe fn cuDevicePrimaryCtxRetain(out: *mut CUcontext, device: CUdevice) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    out.put(pointer(machine.retain_primary(ordinal(device)?)?));
    Ok(())
}

pub(crate) unsafe fn cuDevicePrimaryCtxRelease(device: CUdevice) -> Answer {
    machine()?.release_primary(ordinal(device)?)
}

pub(crate) unsafe fn cuDevicePrimaryCtxRelease_v2(device: CUdevice) -> Answer {
    machine()?.release_primary(ordinal(device)?)
}

pub(crate) unsafe fn cuDevicePrimaryCtxReset(device: CUdevice) -> Answer {
    machine()?.reset_primary(ordinal(device)?)
}

pub(crate) unsafe fn cuDevicePrimaryCtxReset_v2(device: CUdevice) -> Answer {
    machine()?.reset_primary(ordinal(device)?)
}

pub(crate) unsafe fn cuDevicePrimaryCtxGetState(
    device: CUdevice,
    flags: *mut c_uint,
    active: *mut c_int,
) -> Answer {
    let machine = machine()?;
    let (flags, active) = (room(flags)?, room(active)?);
    let (value, is_active) = machine.primary_state(ordinal(device)?)?;
    flags.put(value);
    active.put(is_active as c_int);
    Ok(())
}

pub(crate) unsafe fn cuDevicePrimaryCtxSetFlags(device: CUdevice, flags: c_uint) -> Answer {
    machine()?.set_primary_flags(ordinal(device)?, flags)
}

pub(crate) unsafe fn cuDevicePrimaryCtxSetFlags_v2(device: CUdevice, flags: c_uint) -> Answer {
    machine()?.set_primary_flags(ordinal(device)?, flags)
}
