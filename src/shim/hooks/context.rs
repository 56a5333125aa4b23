//! Initialisation, symbol discovery, and the end of contexts.

use std::ffi::CStr;

use vgmem_abi::*;

use super::launch;
use crate::leave::{self, Leaving};
use crate::slot;
use crate::start::{self, Engine, engine};

/// `cuInit`: the engine starts after the first that succeeds.
pub unsafe fn cuInit(real: pointers::cuInit, flags: c_uint) -> CUresult {
    // SAFETY: the program's own call, unchanged.
    let rc = unsafe { real(flags) };
    if rc == CUDA_SUCCESS && slot::enabled() { start::start() } else { rc }
}

/// Replaces the driver's address that a `cuGetProcAddress` wrote by ours, where we have one.
///
/// # Safety
/// `symbol` is NULL or ends with NUL; `found` is NULL or what the driver was given to write to.
unsafe fn give_ours(rc: CUresult, symbol: *const c_char, found: *mut *mut c_void, flags: u64) {
    if rc != CUDA_SUCCESS || symbol.is_null() || found.is_null() || !slot::enabled() {
        return;
    }
    // SAFETY: the driver read the name and may have written the address: both are valid. An address that the
    // driver left as it was is nobody's function of this name, or already ours.
    unsafe {
        let address = *found;
        if !address.is_null() {
            *found = slot::translate(CStr::from_ptr(symbol).to_bytes(), flags, address);
        }
    }
}

/// `cuGetProcAddress`, first ABI.
pub unsafe fn cuGetProcAddress(
    real: pointers::cuGetProcAddress,
    symbol: *const c_char,
    found: *mut *mut c_void,
    version: c_int,
    flags: u64,
) -> CUresult {
    // SAFETY: the program's own call, unchanged.
    let rc = unsafe { real(symbol, found, version, flags) };
    // SAFETY: the driver has just used both.
    unsafe { give_ours(rc, symbol, found, flags) };
    rc
}

/// `cuGetProcAddress`, second ABI.
pub unsafe fn cuGetProcAddress_v2(
    real: pointers::cuGetProcAddress_v2,
    symbol: *const c_char,
    found: *mut *mut c_void,
    version: c_int,
    flags: u64,
    status: *mut c_int,
) -> CUresult {
    // SAFETY: the program's own call, unchanged.
    let rc = unsafe { real(symbol, found, version, flags, status) };
    // SAFETY: the driver has just used both.
    unsafe { give_ours(rc, symbol, found, flags) };
    rc
}

/// `cuCtxDestroy`: the context's allocations go with it.
pub unsafe fn cuCtxDestroy_v2(real: pointers::cuCtxDestroy_v2, context: CUcontext) -> CUresult {
    // SAFETY: the program's own call.
    unsafe { destroy(real, context) }
}

/// `cuCtxDestroy`, the older symbol.
pub unsafe fn cuCtxDestroy(real: pointers::cuCtxDestroy, context: CUcontext) -> CUresult {
    // SAFETY: both symbols have one type, and both end the context.
    unsafe { destroy(real, context) }
}

/// Lets the driver destroy the context; if it did, what the context held goes.
///
/// # Safety
/// As the driver's function.
unsafe fn destroy(real: pointers::cuCtxDestroy_v2, context: CUcontext) -> CUresult {
    launch::forget_functions();
    let still = leave::context_leaves(context as u64);
    // SAFETY: the program's own call, unchanged. The driver refuses primary contexts, and goes on with them.
    let rc = unsafe { real(context) };
    left(rc, still);
    if rc == CUDA_SUCCESS && !context.is_null() {
        ended(context as u64, true);
    }
    rc
}

/// `cuDevicePrimaryCtxReset`: everything on this GPU's primary context goes.
pub unsafe fn cuDevicePrimaryCtxReset_v2(
    real: pointers::cuDevicePrimaryCtxReset_v2,
    gpu: CUdevice,
) -> CUresult {
    // SAFETY: the program's own call.
    unsafe { reset(real, gpu) }
}

/// `cuDevicePrimaryCtxReset`, the older symbol of the same function.
pub unsafe fn cuDevicePrimaryCtxReset(real: pointers::cuDevicePrimaryCtxReset, gpu: CUdevice) -> CUresult {
    // SAFETY: both symbols have one type and one meaning.
    unsafe { reset(real, gpu) }
}

/// `cuDevicePrimaryCtxRelease`: the last release ends the context.
pub unsafe fn cuDevicePrimaryCtxRelease_v2(
    real: pointers::cuDevicePrimaryCtxRelease_v2,
    gpu: CUdevice,
) -> CUresult {
    // SAFETY: the program's own call.
    unsafe { release(real, gpu) }
}

/// `cuDevicePrimaryCtxRelease`, the older symbol of the same function.
pub unsafe fn cuDevicePrimaryCtxRelease(
    real: pointers::cuDevicePrimaryCtxRelease,
    gpu: CUdevice,
) -> CUresult {
    // SAFETY: both symbols have one type and one meaning.
    unsafe { release(real, gpu) }
}

/// After the driver's answer: pages may move again, and a context that did not end is looked at with care.
fn left(rc: CUresult, still: Option<impl Sized>) {
    if still.is_some() && rc != CUDA_SUCCESS {
        leave::context_stays();
    }
}

/// Lets the driver reset the primary context; if it did, what the context held goes.
///
/// # Safety
/// As the driver's function.
unsafe fn reset(real: pointers::cuDevicePrimaryCtxReset_v2, gpu: CUdevice) -> CUresult {
    let context = engine().and_then(|engine| engine.pool.device().primary(gpu));
    launch::forget_functions();
    let still = context.and_then(leave::context_leaves);
    // SAFETY: the program's own call, unchanged.
    let rc = unsafe { real(gpu) };
    left(rc, still);
    if rc == CUDA_SUCCESS
        && let Some(context) = context
    {
        ended(context, false);
    }
    rc
}

/// Lets the driver release the primary context; when that was the last reference, its allocations go.
///
/// # Safety
/// As the driver's function.
unsafe fn release(real: pointers::cuDevicePrimaryCtxRelease_v2, gpu: CUdevice) -> CUresult {
    let before = engine().and_then(|engine| Some((engine, engine.pool.device().primary(gpu)?)));
    // It may be the last reference: the pager calls nobody in the context meanwhile, nor asks for its events.
    let still = before.and_then(|(_, context)| leave::context_may_leave(context));
    // SAFETY: the program's own call, unchanged.
    let rc = unsafe { real(gpu) };
    if let Some((engine, context)) = before
        && engine.pool.device().primary(gpu).is_none()
    {
        drop(still.map(Leaving::without_marks));
        launch::forget_functions();
        ended_with(engine, context, false);
    }
    rc
}

/// A context is gone: what still belongs to it goes, and its handle may come back for another GPU.
fn ended(context: u64, destroyed: bool) {
    if let Some(engine) = engine() {
        ended_with(engine, context, destroyed);
    }
}

fn ended_with(engine: &Engine, context: u64, destroyed: bool) {
    engine.pool.free_context(context, true);
    start::context_ended(context, destroyed);
}

/// `cuCtxCreate`, second ABI.
pub unsafe fn cuCtxCreate_v2(
    real: pointers::cuCtxCreate_v2,
    context: *mut CUcontext,
    flags: c_uint,
    gpu: CUdevice,
) -> CUresult {
    // SAFETY: the program's own call, unchanged.
    created(start::with_room(|| unsafe { real(context, flags, gpu) }), context)
}

/// `cuCtxCreate`, third ABI.
pub unsafe fn cuCtxCreate_v3(
    real: pointers::cuCtxCreate_v3,
    context: *mut CUcontext,
    affinity: *mut c_void,
    count: c_int,
    flags: c_uint,
    gpu: CUdevice,
) -> CUresult {
    // SAFETY: the program's own call, unchanged.
    created(start::with_room(|| unsafe { real(context, affinity, count, flags, gpu) }), context)
}

/// `cuCtxCreate`, fourth ABI.
pub unsafe fn cuCtxCreate_v4(
    real: pointers::cuCtxCreate_v4,
    context: *mut CUcontext,
    params: *mut c_void,
    flags: c_uint,
    gpu: CUdevice,
) -> CUresult {
    // SAFETY: the program's own call, unchanged.
    created(start::with_room(|| unsafe { real(context, params, flags, gpu) }), context)
}

/// Notes a new context: its handle may be one that was destroyed.
fn created(rc: CUresult, context: *mut CUcontext) -> CUresult {
    if rc == CUDA_SUCCESS && !context.is_null() {
        // SAFETY: the driver has just written it.
        start::context_created(unsafe { *context } as u64);
    }
    rc
}
