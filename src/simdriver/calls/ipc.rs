//! Legacy IPC.

use crate::decode::{handle, pointer, room};
use vgmem_abi::*;
use vgmem_sim::{Answer, machine};

/// Bytes of a handle, as the program passes them.
fn bytes(reserved: [c_char; 64]) -> [u8; 64] {
    reserved.map(|byte| byte as u8)
}

pub(crate) unsafe fn cuIpcGetMemHandle(out: *mut CUipcMemHandle, address: CUdeviceptr) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    out.put(CUipcMemHandle { reserved: machine.ipc_handle(address)?.map(|byte| byte as c_char) });
    Ok(())
}

fn open(out: *mut CUdeviceptr, memory: CUipcMemHandle, flags: c_uint) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    out.put(machine.open_ipc(&bytes(memory.reserved), flags)?);
    Ok(())
}

pub(crate) unsafe fn cuIpcOpenMemHandle(
    out: *mut CUdeviceptr,
    memory: CUipcMemHandle,
    flags: c_uint,
) -> Answer {
    open(out, memory, flags)
}

pub(crate) unsafe fn cuIpcOpenMemHandle_v2(
    out: *mut CUdeviceptr,
    memory: CUipcMemHandle,
    flags: c_uint,
) -> Answer {
    open(out, memory, flags)
}

pub(crate) unsafe fn cuIpcCloseMemHandle(address: CUdeviceptr) -> Answer {
    machine()?.close_ipc(address)
}

pub(crate) unsafe fn cuIpcGetEventHandle(out: *mut CUipcEventHandle, event: CUevent) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    let found = machine.event_handle(handle(event))?;
    out.put(CUipcEventHandle { reserved: found.map(|byte| byte as c_char) });
    Ok(())
}

pub(crate) unsafe fn cuIpcOpenEventHandle(out: *mut CUevent, event: CUipcEventHandle) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    out.put(pointer(machine.open_event(&bytes(event.reserved))?));
    Ok(())
}
