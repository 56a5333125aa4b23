//! GPUs.

use crate::decode::{name, room, text};
use vgmem_abi::*;
use vgmem_sim::{Answer, machine};

fn ordinal(device: CUdevice) -> Answer<u32> {
    u32::try_from(device).map_err(|_| CUDA_ERROR_INVALID_DEVICE)
}

pub(crate) unsafe fn cuDeviceGet(out: *mut CUdevice, device: c_int) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    machine.check_device(ordinal(device)?)?;
    out.put(device);
    Ok(())
}

pub(crate) unsafe fn cuDeviceGetCount(out: *mut c_int) -> Answer {
    let machine = machine()?;
    room(out)?.put(machine.settings.gpus as c_int);
    Ok(())
}

pub(crate) unsafe fn cuDeviceGetName(out: *mut c_char, size: c_int, device: CUdevice) -> Answer {
    let name = machine()?.device_name(ordinal(device)?)?;
    // SAFETY: `size` bytes, by the driver's contract.
    unsafe { text(out, size, &name) }
}

fn uuid(out: *mut CUuuid, device: CUdevice) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    out.put(CUuuid { bytes: machine.device_uuid(ordinal(device)?)? });
    Ok(())
}

pub(crate) unsafe fn cuDeviceGetUuid(out: *mut CUuuid, device: CUdevice) -> Answer {
    uuid(out, device)
}

pub(crate) unsafe fn cuDeviceGetUuid_v2(out: *mut CUuuid, device: CUdevice) -> Answer {
    uuid(out, device)
}

pub(crate) unsafe fn cuDeviceGetPCIBusId(out: *mut c_char, size: c_int, device: CUdevice) -> Answer {
    let id = machine()?.device_pci(ordinal(device)?)?;
    // SAFETY: `size` bytes, by the driver's contract.
    unsafe { text(out, size, &id) }
}

pub(crate) unsafe fn cuDeviceGetByPCIBusId(out: *mut CUdevice, id: *const c_char) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    // SAFETY: a C string, by the driver's contract.
    let id = unsafe { name(id) }?.to_str().map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
    out.put(machine.device_by_pci(id)? as CUdevice);
    Ok(())
}

pub(crate) unsafe fn cuDeviceGetAttribute(out: *mut c_int, attribute: c_int, device: CUdevice) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    out.put(machine.device_attribute(attribute, ordinal(device)?)?);
    Ok(())
}

pub(crate) unsafe fn cuDeviceComputeCapability(
    major: *mut c_int,
    minor: *mut c_int,
    device: CUdevice,
) -> Answer {
    let machine = machine()?;
    let (major, minor) = (room(major)?, room(minor)?);
    major.put(machine.device_attribute(75, ordinal(device)?)?);
    minor.put(machine.device_attribute(76, ordinal(device)?)?);
    Ok(())
}

pub(crate) unsafe fn cuDeviceTotalMem_v2(out: *mut usize, device: CUdevice) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    out.put(machine.memory_info(ordinal(device)?)?.1 as usize);
    Ok(())
}

pub(crate) unsafe fn cuDeviceCanAccessPeer(out: *mut c_int, device: CUdevice, peer: CUdevice) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    out.put(machine.can_access_peer(ordinal(device)?, ordinal(peer)?)? as c_int);
    Ok(())
}

pub(crate) unsafe fn cuDeviceGetP2PAttribute(
    out: *mut c_int,
    attribute: c_int,
    from: CUdevice,
    to: CUdevice,
) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    out.put(machine.peer_attribute(attribute, ordinal(from)?, ordinal(to)?)?);
    Ok(())
}
