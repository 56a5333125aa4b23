//! Launches.
//!
//! In a program on one GPU a launch passes through. With several, the parameters are read for pooled addresses
//! first, and the GPU that launches gets access to the allocations they name.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use vgmem_abi::*;

use super::access::stream_of;
use crate::exports::execution::slots;
use crate::graphs;
use crate::pager::{self, Launch, Use};
use crate::real::Functions;
use crate::start::{Engine, engine, with_room};
use crate::trace::{self, Started};
use crate::trust;

/// Offset and size of each parameter of a function; empty and `known` false where the driver cannot say.
#[derive(Debug, Default)]
struct Layout {
    known: bool,
    /// Bytes of each parameter, in order.
    sizes: Vec<usize>,
}

/// Room for parameters of a kernel; every one begins where any kind of value may.
#[repr(align(64))]
#[derive(Clone, Copy)]
#[expect(dead_code, reason = "written and read by address")]
pub(crate) struct Block([u8; 64]);

impl Default for Block {
    fn default() -> Block {
        Block([0; 64])
    }
}

/// Grid, threads of a block, and bytes of dynamic shared memory.
pub(crate) type Size = ([c_uint; 3], [c_uint; 3], c_uint);

/// A launch's attribute, as the driver lays it out.
#[repr(C)]
struct Attribute {
    id: c_int,
    pad: c_int,
    value: [c_uint; 16],
}

static LAYOUTS: RwLock<Option<HashMap<usize, Arc<Layout>>>> = RwLock::new(None);

/// Functions are about to be unloaded: their handles may come back for others.
pub(crate) fn forget_functions() {
    let Some(engine) = engine() else { return }; // in a forked child the lock may be held by nobody
    engine.pool.forget_functions();
    *LAYOUTS.write().unwrap_or_else(PoisonError::into_inner) = None;
    trust::forget_functions();
    graphs::forget_functions();
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
    let on = stream_of(stream, real as usize, &slots::cuLaunchKernel);
    // SAFETY: the program's own parameters, about to be read by the driver in the same way.
    let made = unsafe { prepare(function, params, extra, on) };
    // SAFETY: the program's own call, unchanged.
    let rc = with_room(|| unsafe {
        real(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, params, extra)
    });
    made.done(rc, on)
}

/// `cuLaunchKernelEx`.
pub unsafe fn cuLaunchKernelEx(
    real: pointers::cuLaunchKernelEx,
    config: *const CUlaunchConfig,
    function: CUfunction,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CUresult {
    // SAFETY: NULL, or what the driver is about to read.
    let stream = unsafe { config.as_ref() }.map_or(std::ptr::null_mut(), |config| config.hStream);
    let on = stream_of(stream, real as usize, &slots::cuLaunchKernelEx);
    // SAFETY: the program's own parameters, about to be read by the driver in the same way.
    let made = unsafe { prepare(function, params, extra, on) };
    // SAFETY: the program's own call, unchanged.
    let rc = with_room(|| unsafe { real(config, function, params, extra) });
    made.done(rc, on)
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
    let on = stream_of(stream, real as usize, &slots::cuLaunchCooperativeKernel);
    // SAFETY: the program's own parameters, about to be read by the driver in the same way.
    let made = unsafe { prepare(function, params, std::ptr::null_mut(), on) };
    // SAFETY: the program's own call, unchanged.
    let rc = with_room(|| unsafe {
        real(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, params)
    });
    made.done(rc, on)
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

/// Launches a kernel as the program would, on a stream that is never NULL. `cluster`: blocks of a cluster.
///
/// # Safety
/// `params` and `extra` are what a launch of the function takes; a cooperative one takes no `extra`.
pub(crate) unsafe fn launch_plain(
    engine: &Engine,
    function: CUfunction,
    ([x, y, z], [a, b, c], shared): Size,
    cooperative: bool,
    cluster: Option<[c_uint; 3]>,
    stream: CUstream,
    (params, extra): (*mut *mut c_void, *mut *mut c_void),
) -> CUresult {
    // SAFETY: by contract.
    let made = unsafe { prepare(function, params, extra, stream) };
    let call = &engine.pool.device().call;
    // SAFETY: by contract; the attribute outlives the call.
    let launch = || unsafe {
        Some(match cluster {
            _ if cooperative => {
                (call.cuLaunchCooperativeKernel?)(function, x, y, z, a, b, c, shared, stream, params)
            }
            None => (call.cuLaunchKernel?)(function, x, y, z, a, b, c, shared, stream, params, extra),
            Some(cluster) => {
                let mut value = [0; 16];
                value[..3].copy_from_slice(&cluster);
                let mut attribute = Attribute { id: CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, pad: 0, value };
                let config = CUlaunchConfig {
                    gridDimX: x,
                    gridDimY: y,
                    gridDimZ: z,
                    blockDimX: a,
                    blockDimY: b,
                    blockDimZ: c,
                    sharedMemBytes: shared,
                    hStream: stream,
                    attrs: (&raw mut attribute).cast(),
                    numAttrs: 1,
                };
                (call.cuLaunchKernelEx?)(&config, function, params, extra)
            }
        })
    };
    let rc = with_room(|| launch().unwrap_or(CUDA_ERROR_NOT_SUPPORTED));
    made.done(rc, stream)
}

/// Bytes of each parameter of a function, in order; `None` where the driver cannot say.
pub(crate) fn layout_of(call: &Functions, function: CUfunction) -> Option<Vec<usize>> {
    let layout = layout(call, function);
    layout.known.then(|| layout.sizes.clone())
}

/// Before a launch: brings the pages of the allocations that the parameters name home where the pager is on, and
/// gives the current GPU access to them.
///
/// # Safety
/// `params` and `extra` are what the program hands to a launch of `function`.
#[inline]
unsafe fn prepare(
    function: CUfunction,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
    stream: CUstream,
) -> Prepared {
    let Some(engine) = engine() else { return Prepared::plain(Use::default()) };
    let (several, paged) = (engine.current_of_several(), pager::is_needed(engine));
    if several.is_none() && !paged && !trace::is_on() {
        return Prepared::plain(Use::noted());
    }
    // SAFETY: handed on.
    let words = unsafe { scan(engine, function, params, extra) };
    let words = words.as_deref();
    if let Some(gpu) = several {
        match words {
            Some(words) => words.iter().for_each(|&word| engine.pool.use_allocation(gpu, word)),
            None => engine.pool.use_everything(gpu),
        }
    }
    let made = if paged { Use::of_launch(engine, &Launch { function, words, stream }) } else { Use::noted() };
    Prepared { made, traced: trace::launch(engine, function, words.unwrap_or(&[]), stream) }
}

/// A launch that is about to be made.
struct Prepared {
    made: Use,
    traced: Option<Started>,
}

impl Prepared {
    #[inline]
    fn plain(made: Use) -> Prepared {
        Prepared { made, traced: None }
    }

    /// After the driver's call.
    #[inline]
    fn done(self, rc: CUresult, stream: CUstream) -> CUresult {
        trace::done(self.traced, rc);
        self.made.done(rc, stream)
    }
}

/// The pooled addresses among a graph node's parameters.
///
/// # Safety
/// The structure is as the driver has written it.
pub(crate) unsafe fn pooled_words(engine: &Engine, node: &CUDA_KERNEL_NODE_PARAMS) -> Vec<u64> {
    let function = if node.func.is_null() { node.kern } else { node.func };
    // SAFETY: by contract.
    let words = unsafe { scan(engine, function, node.kernelParams, node.extra) };
    words.unwrap_or_default().into_iter().filter(|&word| engine.pool.lookup(word).is_some()).collect()
}

/// The words among the parameters that may be addresses; `None` where the driver cannot say what the parameters are.
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
    let mut name = |word: u64| {
        if word >> 16 != 0 {
            named.push(word);
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
pub(crate) unsafe fn packed(extra: *mut *mut c_void) -> (*const c_void, usize) {
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

/// The list for a launch whose parameters are in one piece, of `size` bytes.
pub(crate) fn list_of(buffer: *mut c_void, size: &mut usize) -> Vec<*mut c_void> {
    let key = std::ptr::without_provenance_mut;
    let size = (&raw mut *size).cast();
    let [pointer, bytes, end] =
        [CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE, CU_LAUNCH_PARAM_END].map(key);
    vec![pointer, buffer, bytes, size, end]
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
