//! Launches.
//!
//! In a program on one GPU a launch passes through. With several, the parameters are read for pooled addresses
//! first, and the GPU that launches gets access to the allocations they name.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use vgmem_abi::*;

use super::access::submitted;
use crate::exports::execution::slots;
use crate::pager;
use crate::real::Functions;
use crate::start::{Engine, engine, with_room};

/// Offset and size of each parameter of a function; empty and `known` false where the driver cannot say.
#[derive(Debug, Default)]
struct Layout {
    known: bool,
    /// Bytes of each parameter, in order.
    sizes: Vec<usize>,
}

static LAYOUTS: RwLock<Option<HashMap<usize, Arc<Layout>>>> = RwLock::new(None);

/// Functions are about to be unloaded: their handles may come back for others.
pub(crate) fn forget_functions() {
    if engine().is_none() {
        return; // in a forked child the lock may be held by nobody
    }
    *LAYOUTS.write().unwrap_or_else(PoisonError::into_inner) = None;
}

/// `cuLaunchKernel`.
#[allow(clippy::too_many_arguments)]
pub unsafe fn cuLaunchKernel(
    real: pointers::cuLaunchKernel,
    function: CUfunction,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared: c_uint,
    stream: CUstream,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CUresult {
    // SAFETY: the program's own parameters, about to be read by the driver in the same way.
    unsafe { prepare(function, params, extra) };
    // SAFETY: the program's own call, unchanged.
    let rc = with_room(|| unsafe {
        real(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, params, extra)
    });
    submitted(rc, stream, real as usize, &slots::cuLaunchKernel)
}

/// `cuLaunchKernelEx`.
pub unsafe fn cuLaunchKernelEx(
    real: pointers::cuLaunchKernelEx,
    config: *const CUlaunchConfig,
    function: CUfunction,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CUresult {
    // SAFETY: the program's own parameters, about to be read by the driver in the same way.
    unsafe { prepare(function, params, extra) };
    // SAFETY: the program's own call, unchanged.
    let rc = with_room(|| unsafe { real(config, function, params, extra) });
    // SAFETY: the driver has just read it.
    let stream = unsafe { config.as_ref() }.map_or(std::ptr::null_mut(), |config| config.hStream);
    submitted(rc, stream, real as usize, &slots::cuLaunchKernelEx)
}

/// `cuLaunchCooperativeKernel`.
#[allow(clippy::too_many_arguments)]
pub unsafe fn cuLaunchCooperativeKernel(
    real: pointers::cuLaunchCooperativeKernel,
    function: CUfunction,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared: c_uint,
    stream: CUstream,
    params: *mut *mut c_void,
) -> CUresult {
    // SAFETY: the program's own parameters, about to be read by the driver in the same way.
    unsafe { prepare(function, params, std::ptr::null_mut()) };
    // SAFETY: the program's own call, unchanged.
    let rc = with_room(|| unsafe {
        real(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, params)
    });
    submitted(rc, stream, real as usize, &slots::cuLaunchCooperativeKernel)
}

/// `cuModuleUnload`: its functions' handles may come back.
pub unsafe fn cuModuleUnload(real: pointers::cuModuleUnload, module: CUmodule) -> CUresult {
    forget_functions();
    // SAFETY: the program's own call, unchanged.
    unsafe { real(module) }
}

/// `cuLibraryUnload`: its kernels' handles may come back.
pub unsafe fn cuLibraryUnload(real: pointers::cuLibraryUnload, library: CUlibrary) -> CUresult {
    forget_functions();
    // SAFETY: the program's own call, unchanged.
    unsafe { real(library) }
}

/// Before a launch: gives the current GPU access to the allocations that the parameters name, and brings their
/// pages home where the pager is on.
///
/// # Safety
/// `params` and `extra` are what the program hands to a launch of `function`.
#[inline]
unsafe fn prepare(function: CUfunction, params: *mut *mut c_void, extra: *mut *mut c_void) {
    let Some(engine) = engine() else { return };
    let (several, paged) = (engine.current_of_several(), pager::is_needed(engine));
    if several.is_some() || paged {
        // SAFETY: handed on.
        let named = unsafe { scan(engine, function, params, extra) };
        if let Some(gpu) = several {
            match &named {
                Some(addresses) => addresses.iter().for_each(|&a| engine.pool.use_allocation(gpu, a)),
                None => engine.pool.use_everything(gpu),
            }
        }
        if paged {
            pager::before_launch(engine, named.as_deref().unwrap_or(&[]));
        }
    }
}

/// The pooled addresses among the parameters; `None` where the driver cannot say what the parameters are.
///
/// # Safety
/// As for [`prepare`].
unsafe fn scan(
    engine: &Engine,
    function: CUfunction,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Option<Vec<u64>> {
    let mut named = Vec::new();
    let mut name = |address: u64| {
        if engine.pool.lookup(address).is_some() {
            named.push(address);
        }
    };
    if !params.is_null() {
        let layout = layout(&engine.pool.device().call, function);
        if !layout.known {
            return None;
        }
        for (index, &size) in layout.sizes.iter().enumerate() {
            // SAFETY: a launch of this function has one pointer for each parameter, to as many bytes.
            unsafe { words(*params.add(index), size, &mut name) };
        }
    } else if !extra.is_null() {
        // SAFETY: `extra` is the list that the driver is about to read.
        let (buffer, size) = unsafe { packed(extra) };
        // SAFETY: the list says that the buffer has this size.
        unsafe { words(buffer, size, &mut name) };
    }
    Some(named)
}

/// Calls `name` with every aligned 8-byte word of a value: structures by value hold pointers too.
///
/// # Safety
/// `value` is NULL or points to `size` bytes.
unsafe fn words(value: *const c_void, size: usize, name: &mut impl FnMut(u64)) {
    if value.is_null() {
        return;
    }
    for at in (0..(size & !7)).step_by(8) {
        // SAFETY: `at + 8` is at most `size`.
        name(unsafe { value.cast::<u8>().add(at).cast::<u64>().read_unaligned() });
    }
}

/// Buffer and size of packed parameters.
///
/// # Safety
/// `extra` is a list as the driver's launch functions take it.
unsafe fn packed(extra: *mut *mut c_void) -> (*const c_void, usize) {
    let (mut buffer, mut size) = (std::ptr::null(), 0);
    let mut at = 0;
    // SAFETY: the list is made of pairs and ends with CU_LAUNCH_PARAM_END; the size's entry points to it.
    unsafe {
        loop {
            match *extra.add(at) as usize {
                CU_LAUNCH_PARAM_BUFFER_POINTER => buffer = (*extra.add(at + 1)).cast_const(),
                CU_LAUNCH_PARAM_BUFFER_SIZE => size = *(*extra.add(at + 1)).cast::<usize>(),
                _ => return (buffer, size),
            }
            at += 2;
        }
    }
}

fn layout(call: &Functions, function: CUfunction) -> Arc<Layout> {
    let key = function as usize;
    let known = LAYOUTS.read().unwrap_or_else(PoisonError::into_inner);
    if let Some(found) = known.as_ref().and_then(|layouts| layouts.get(&key)) {
        return found.clone();
    }
    drop(known);
    let asked = Arc::new(ask_layout(call, function));
    let mut layouts = LAYOUTS.write().unwrap_or_else(PoisonError::into_inner);
    layouts.get_or_insert_default().insert(key, asked.clone());
    asked
}

/// Asks the driver for the parameters. A launch takes a CUkernel in place of a CUfunction, and the two have
/// functions of their own.
fn ask_layout(call: &Functions, function: CUfunction) -> Layout {
    for ask in [call.cuFuncGetParamInfo, call.cuKernelGetParamInfo].into_iter().flatten() {
        let mut layout = Layout::default();
        loop {
            let (mut offset, mut size) = (0, 0);
            // SAFETY: both out-parameters are live; a handle of the other kind is refused.
            match unsafe { ask(function, layout.sizes.len(), &mut offset, &mut size) } {
                CUDA_SUCCESS => layout.sizes.push(size),
                // Past the last parameter; also the answer for a function that has none.
                CUDA_ERROR_INVALID_VALUE => {
                    layout.known = true;
                    return layout;
                }
                _ => break,
            }
        }
    }
    Layout::default()
}
