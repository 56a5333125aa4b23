//! Questions about memory: pooled memory answers as one plain allocation on its home GPU.

use vgmem_abi::*;
use vgmem_engine::Found;
use vgmem_policy::{Amount, GRANULE, advertised};

use crate::pager::Held;
use crate::start::{Engine, engine};

/// What GPU `gpu` shows to the program. `free` is what the driver has left there, where it could be asked.
pub fn shown(engine: &Engine, gpu: usize, free: Option<u64>) -> Amount {
    let (mut gpus, host) = engine.pool.amounts();
    for (index, amount) in gpus.iter_mut().enumerate() {
        if let Some(known) = engine.gpus.get(index) {
            amount.total = if known.pooled { known.shown } else { 0 };
        }
        if index == gpu
            && let (Some(free), Some(config)) = (free, engine.pool.config().gpus.get(index))
        {
            amount.free = amount.free.min((free + engine.pool.kept(gpu)).saturating_sub(config.reserve));
        }
    }
    advertised(engine.settings.advertise, gpu, &gpus, host)
}

/// `cuMemGetInfo`: what the pool lets this GPU show.
pub unsafe fn cuMemGetInfo_v2(
    real: pointers::cuMemGetInfo_v2,
    free: *mut usize,
    total: *mut usize,
) -> CUresult {
    // SAFETY: the program's own call, unchanged.
    let rc = unsafe { real(free, total) };
    if rc == CUDA_SUCCESS
        && let Some(engine) = engine()
        && let Some((_, gpu)) = engine.current()
        && engine.gpus.get(gpu as usize).is_some_and(|gpu| gpu.pooled)
    {
        // SAFETY: the driver has just written what is not NULL.
        unsafe {
            let left = if free.is_null() { None } else { Some(*free as u64) };
            let amount = shown(engine, gpu as usize, left);
            if !free.is_null() {
                *free = amount.free as usize;
            }
            if !total.is_null() {
                *total = amount.total as usize;
            }
        }
    }
    rc
}

/// `cuDeviceTotalMem`: the total that `cuMemGetInfo` shows.
pub unsafe fn cuDeviceTotalMem_v2(
    real: pointers::cuDeviceTotalMem_v2,
    total: *mut usize,
    gpu: CUdevice,
) -> CUresult {
    // SAFETY: the program's own call, unchanged.
    let rc = unsafe { real(total, gpu) };
    if rc == CUDA_SUCCESS
        && !total.is_null()
        && let Some(engine) = engine()
        && engine.gpus.get(gpu as usize).is_some_and(|gpu| gpu.pooled)
    {
        // SAFETY: the driver has just written it.
        unsafe { *total = shown(engine, gpu as usize, None).total as usize };
    }
    rc
}

/// What the driver is asked about an address that is not pooled. One of the arena was freed, and may still be
/// mapped: the driver shall answer as for memory that does not exist.
fn known_to_driver(address: CUdeviceptr) -> CUdeviceptr {
    if engine().is_some_and(|engine| engine.pool.in_arena(address)) { 0 } else { address }
}

/// `cuMemGetAddressRange`: the allocation, not the page.
pub unsafe fn cuMemGetAddressRange_v2(
    real: pointers::cuMemGetAddressRange_v2,
    base: *mut CUdeviceptr,
    bytes: *mut usize,
    address: CUdeviceptr,
) -> CUresult {
    let Some(found) = engine().and_then(|engine| engine.pool.find(address)) else {
        // SAFETY: the program's own call.
        return unsafe { real(base, bytes, known_to_driver(address)) };
    };
    match engine().map_or(CUDA_SUCCESS, |engine| engine.pool.device().health()) {
        CUDA_SUCCESS => {}
        lost => return lost,
    }
    // SAFETY: the driver writes what is not NULL, too.
    unsafe {
        if !base.is_null() {
            *base = found.base;
        }
        if !bytes.is_null() {
            *bytes = found.bytes as usize;
        }
    }
    CUDA_SUCCESS
}

/// `cuMemRetainAllocationHandle`: an invalid value, as for any memory of `cuMemAlloc`.
pub unsafe fn cuMemRetainAllocationHandle(
    real: pointers::cuMemRetainAllocationHandle,
    handle: *mut CUmemHandle,
    address: *mut c_void,
) -> CUresult {
    if engine().is_some_and(|engine| engine.pool.in_arena(address as u64)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    // SAFETY: the program's own call, unchanged.
    unsafe { real(handle, address) }
}

/// The attributes on which pooled memory answers otherwise than the driver would for one page.
enum Answer {
    /// Four bytes.
    Word(u32),
    /// Eight bytes.
    Long(u64),
    /// No such attribute for device memory.
    Invalid,
}

fn answer(attribute: c_int, found: &Found, address: CUdeviceptr) -> Option<Answer> {
    Some(match attribute {
        CU_POINTER_ATTRIBUTE_CONTEXT => Answer::Long(found.context),
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE => Answer::Word(CU_MEMORYTYPE_DEVICE as u32),
        CU_POINTER_ATTRIBUTE_DEVICE_POINTER => Answer::Long(address),
        CU_POINTER_ATTRIBUTE_HOST_POINTER => Answer::Invalid,
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => Answer::Word(u32::from(found.home)),
        // As memory of `cuMemAlloc` says, although no handle can be had yet: NCCL falls back cleanly when asking
        // for one fails, and gives up when neither this nor a physical handle is there.
        CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE => Answer::Word(1),
        CU_POINTER_ATTRIBUTE_BUFFER_ID => Answer::Long(BUFFER_IDS + found.serial),
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR | CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR => {
            Answer::Long(found.base)
        }
        CU_POINTER_ATTRIBUTE_RANGE_SIZE => Answer::Long(found.bytes),
        CU_POINTER_ATTRIBUTE_MAPPING_SIZE => Answer::Long(found.bytes.next_multiple_of(GRANULE)),
        _ => return None,
    })
}

/// Our buffer numbers begin far above those that the driver counts up from 1.
const BUFFER_IDS: u64 = 1 << 48;

/// `cuPointerGetAttribute`.
pub unsafe fn cuPointerGetAttribute(
    real: pointers::cuPointerGetAttribute,
    data: *mut c_void,
    attribute: c_int,
    address: CUdeviceptr,
) -> CUresult {
    let found = if data.is_null() { None } else { engine().and_then(|engine| engine.pool.find(address)) };
    match found.as_ref().and_then(|found| answer(attribute, found, address)) {
        // Pooled, and the driver's answer about the page is right.
        // SAFETY: the program's own call.
        None if found.is_some() => unsafe {
            let _held = Held::of_addresses(&[address]);
            real(data, attribute, address)
        },
        // SAFETY: the program's own call.
        None => unsafe { real(data, attribute, known_to_driver(address)) },
        // SAFETY: not NULL; the driver writes as many bytes for this attribute, here too although it fails.
        Some(Answer::Invalid) => unsafe {
            data.cast::<u64>().write_unaligned(0);
            CUDA_ERROR_INVALID_VALUE
        },
        // SAFETY: as above.
        Some(Answer::Word(word)) => unsafe {
            data.cast::<u32>().write_unaligned(word);
            CUDA_SUCCESS
        },
        // SAFETY: as above.
        Some(Answer::Long(long)) => unsafe {
            data.cast::<u64>().write_unaligned(long);
            CUDA_SUCCESS
        },
    }
}

/// In a list, HOST_POINTER of an address that is no device memory is the address itself.
///
/// # Safety
/// Both arrays hold `count` entries, as the driver has just found.
unsafe fn give_back_address(
    count: c_uint,
    attributes: *mut c_int,
    data: *mut *mut c_void,
    address: CUdeviceptr,
) {
    for index in 0..count as usize {
        // SAFETY: by contract.
        unsafe {
            let target = *data.add(index);
            if *attributes.add(index) == CU_POINTER_ATTRIBUTE_HOST_POINTER && !target.is_null() {
                target.cast::<u64>().write_unaligned(address);
            }
        }
    }
}

/// `cuPointerSetAttribute`: SYNC_MEMOPS is on for mapped memory anyway; nothing else can be set.
pub unsafe fn cuPointerSetAttribute(
    real: pointers::cuPointerSetAttribute,
    value: *const c_void,
    attribute: c_int,
    address: CUdeviceptr,
) -> CUresult {
    if value.is_null() || engine().and_then(|engine| engine.pool.find(address)).is_none() {
        // SAFETY: the program's own call.
        return unsafe { real(value, attribute, known_to_driver(address)) };
    }
    if attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS { CUDA_SUCCESS } else { CUDA_ERROR_INVALID_VALUE }
}

/// `cuPointerGetAttributes`: the driver first, then ours over those that differ.
pub unsafe fn cuPointerGetAttributes(
    real: pointers::cuPointerGetAttributes,
    count: c_uint,
    attributes: *mut c_int,
    data: *mut *mut c_void,
    address: CUdeviceptr,
) -> CUresult {
    let Some(found) = engine().and_then(|engine| engine.pool.find(address)) else {
        let asked = known_to_driver(address);
        // SAFETY: the program's own call.
        let rc = unsafe { real(count, attributes, data, asked) };
        if rc == CUDA_SUCCESS && asked != address {
            // SAFETY: the driver has just used both arrays.
            unsafe { give_back_address(count, attributes, data, address) };
        }
        return rc;
    };
    let _held = Held::of_addresses(&[address]);
    // SAFETY: the program's own call, unchanged.
    let rc = unsafe { real(count, attributes, data, address) };
    if rc != CUDA_SUCCESS {
        return rc;
    }
    for index in 0..count as usize {
        // SAFETY: the driver has just read `count` entries of both arrays, and written to each target as many
        // bytes as its attribute has.
        unsafe {
            let target = *data.add(index);
            match answer(*attributes.add(index), &found, address) {
                _ if target.is_null() => {}
                None => {}
                Some(Answer::Word(word)) => target.cast::<u32>().write_unaligned(word),
                Some(Answer::Long(long)) => target.cast::<u64>().write_unaligned(long),
                Some(Answer::Invalid) => target.cast::<u64>().write_unaligned(0),
            }
        }
    }
    rc
}
