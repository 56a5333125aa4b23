//! Memory that something outside the pool's sight knows the place of: its pages stay where they are.

use vgmem_abi::*;

use crate::start::engine;

/// Kinds of resources that are linear memory, as the driver numbers them; the address lies behind the kind.
const LINEAR: c_int = 2;
const PITCHED: c_int = 3;

/// The part of a resource's description that says where linear memory lies.
#[repr(C)]
struct Resource {
    kind: c_int,
    address: CUdeviceptr,
}

fn pin(address: CUdeviceptr) {
    if let Some(engine) = engine().filter(|engine| engine.pool.in_arena(address)) {
        engine.pool.pin(address);
    }
}

/// `cuTexObjectCreate`: a texture over linear memory.
pub unsafe fn cuTexObjectCreate(
    real: pointers::cuTexObjectCreate,
    object: *mut u64,
    resource: *const c_void,
    texture: *const c_void,
    view: *const c_void,
) -> CUresult {
    // SAFETY: NULL, or the description that the driver is about to read; the address is there for these kinds.
    if let Some(resource) = unsafe { resource.cast::<Resource>().as_ref() }
        && matches!(resource.kind, LINEAR | PITCHED)
    {
        pin(resource.address);
    }
    // SAFETY: the program's own call, unchanged.
    unsafe { real(object, resource, texture, view) }
}

/// `cuTexRefSetAddress`.
pub unsafe fn cuTexRefSetAddress_v2(
    real: pointers::cuTexRefSetAddress_v2,
    offset: *mut usize,
    texture: CUtexref,
    address: CUdeviceptr,
    bytes: usize,
) -> CUresult {
    pin(address);
    // SAFETY: the program's own call, unchanged.
    unsafe { real(offset, texture, address, bytes) }
}

/// `cuTexRefSetAddress2D`, second ABI.
pub unsafe fn cuTexRefSetAddress2D_v2(
    real: pointers::cuTexRefSetAddress2D_v2,
    texture: CUtexref,
    format: *const c_void,
    address: CUdeviceptr,
    pitch: usize,
) -> CUresult {
    pin(address);
    // SAFETY: the program's own call, unchanged.
    unsafe { real(texture, format, address, pitch) }
}

/// `cuTexRefSetAddress2D`, third ABI.
pub unsafe fn cuTexRefSetAddress2D_v3(
    real: pointers::cuTexRefSetAddress2D_v3,
    texture: CUtexref,
    format: *const c_void,
    address: CUdeviceptr,
    pitch: usize,
) -> CUresult {
    pin(address);
    // SAFETY: the program's own call, unchanged.
    unsafe { real(texture, format, address, pitch) }
}

/// `cuMemGetHandleForAddressRange`: other devices reach the memory by it.
pub unsafe fn cuMemGetHandleForAddressRange(
    real: pointers::cuMemGetHandleForAddressRange,
    handle: *mut c_void,
    address: CUdeviceptr,
    bytes: usize,
    kind: c_int,
    flags: u64,
) -> CUresult {
    pin(address);
    // SAFETY: the program's own call, unchanged.
    unsafe { real(handle, address, bytes, kind, flags) }
}
