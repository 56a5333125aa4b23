//! A kernel of ours in a context of the program, and pinned memory for what it stores.

use std::ffi::CStr;

use vgmem_abi::*;

use crate::real::Functions;

/// Host memory flag: GPUs can reach it.
const DEVICEMAP: c_uint = 2;

/// What a context needs to run a kernel of ours. It all goes with the context. Handles and addresses as numbers.
#[derive(Clone, Copy)]
pub struct Kernel {
    /// The function in this context, and the driver's function that launches it.
    function: usize,
    launch: pointers::cuLaunchKernel,
    /// The pinned memory, as the host and as the GPU know it.
    pub host: usize,
    /// See above.
    pub device: u64,
}

impl Kernel {
    /// Loads a kernel into the current context, with `bytes` of pinned memory. Whatever was made before a failure is
    /// left to the end of the context: the driver waits for the GPU before it takes anything back.
    pub fn load(call: &Functions, text: &CStr, entry: &CStr, bytes: u64) -> Result<Kernel, CUresult> {
        let (Some(allocate), Some(pointer), Some(load), Some(get), Some(launch)) = (
            call.cuMemHostAlloc,
            call.cuMemHostGetDevicePointer_v2,
            call.cuModuleLoadData,
            call.cuModuleGetFunction,
            call.cuLaunchKernel,
        ) else {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        };
        let (mut module, mut function) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the text ends with NUL; the out-parameter is live.
        check(unsafe { load(&mut module, text.as_ptr().cast()) })?;
        // SAFETY: the module just loaded, a name that ends with NUL, and a live out-parameter.
        check(unsafe { get(&mut function, module, entry.as_ptr()) })?;
        if let Some(load) = call.cuFuncLoad {
            // Else the first launch would load it, and wait for the program's work, also in a stream that waits for a
            // value.
            // SAFETY: the function of the module just loaded.
            check(unsafe { load(function) })?;
        }
        let (mut host, mut device) = (std::ptr::null_mut(), 0);
        // SAFETY: the out-parameter is live.
        check(unsafe { allocate(&mut host, bytes as usize, DEVICEMAP) })?;
        // SAFETY: the memory just allocated, and a live out-parameter.
        check(unsafe { pointer(&mut device, host, 0) })?;
        Ok(Kernel { function: function as usize, launch, host: host as usize, device })
    }

    /// Launches it on a stream.
    ///
    /// # Safety
    /// The kernel is the current context's, and `values` are its parameters: what they name it may use.
    pub unsafe fn launch<const N: usize>(
        &self,
        blocks: u64,
        threads: u64,
        stream: CUstream,
        mut values: [u64; N],
    ) -> CUresult {
        let mut params = values.each_mut().map(|value| std::ptr::from_mut(value).cast::<c_void>());
        let (function, params) = (self.function as CUfunction, params.as_mut_ptr());
        let (blocks, threads, extra) = (blocks as c_uint, threads as c_uint, std::ptr::null_mut());
        // SAFETY: the caller's promise; the driver copies the parameters before it comes back.
        unsafe { (self.launch)(function, blocks, 1, 1, threads, 1, 1, 0, stream, params, extra) }
    }
}

/// An error of the driver, if it is one.
pub fn check(rc: CUresult) -> Result<(), CUresult> {
    if rc == CUDA_SUCCESS { Ok(()) } else { Err(rc) }
}

/// How far an event of ours is, whose context has not ended.
pub fn query(call: &Functions, event: usize) -> CUresult {
    // SAFETY: the caller says so.
    unsafe { (call.cuEventQuery)(event as CUevent) }
}
