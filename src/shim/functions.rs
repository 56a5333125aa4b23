//! The driver's functions that the library itself calls.

use std::ffi::{CStr, c_void};

use vgmem_abi::*;

use crate::slot;

/// Event flag: no time stamps.
const DISABLE_TIMING: c_uint = 2;

macro_rules! functions {
    (needed: $($name:ident)*; optional: $($maybe:ident)*;) => {
        /// The driver's functions that the library itself calls.
        #[allow(non_snake_case)]
        #[derive(Clone, Copy)]
        pub struct Functions {
            $(pub $name: pointers::$name,)*
            $(pub $maybe: Option<pointers::$maybe>,)*
        }

        impl Functions {
            /// Looks all of them up; the name of the first that the driver lacks otherwise.
            pub fn find() -> Result<Functions, &'static str> {
                Ok(Functions {
                    $($name: match address(concat!(stringify!($name), "\0")) {
                        // SAFETY: the driver's function of this name has the type that the table states.
                        Some(found) => unsafe { std::mem::transmute::<*mut c_void, pointers::$name>(found) },
                        None => return Err(stringify!($name)),
                    },)*
                    $($maybe: address(concat!(stringify!($maybe), "\0")).map(
                        // SAFETY: as above.
                        |found| unsafe { std::mem::transmute::<*mut c_void, pointers::$maybe>(found) },
                    ),)*
                })
            }
        }
    };
}

functions! {
    needed: cuCtxGetCurrent cuCtxGetDevice cuCtxPopCurrent_v2 cuCtxPushCurrent_v2 cuCtxSynchronize
        cuDeviceCanAccessPeer cuDeviceGetAttribute cuDeviceGetCount cuDeviceGetName cuDeviceGetUuid
        cuDevicePrimaryCtxGetState cuDevicePrimaryCtxRelease_v2 cuDevicePrimaryCtxRetain
        cuDeviceTotalMem_v2 cuMemAddressReserve cuMemcpyDtoD_v2
        cuMemcpyDtoDAsync_v2 cuMemCreate cuMemGetInfo_v2 cuPointerGetAttribute cuMemMap cuMemRelease
        cuMemSetAccess cuMemUnmap cuEventCreate cuEventQuery cuEventRecord cuMemcpyDtoHAsync_v2 cuStreamCreate
        cuStreamIsCapturing cuStreamQuery cuStreamSynchronize
        cuThreadExchangeStreamCaptureMode;
    optional: cuCtxCreate_v2 cuDeviceGetP2PAttribute cuEventDestroy_v2 cuEventElapsedTime cuFuncGetAttribute
        cuFuncGetName cuFuncGetParamInfo cuFuncLoad cuGraphChildGraphNodeGetGraph cuGraphExecGetFlags
        cuGraphGetEdges cuGraphGetEdges_v2 cuGraphGetNodes cuGraphKernelNodeGetAttribute
        cuGraphKernelNodeGetParams_v2 cuGraphMemcpyNodeGetParams cuGraphMemsetNodeGetParams
        cuGraphNodeGetType cuKernelGetAttribute cuKernelGetName cuKernelGetParamInfo
        cuLaunchCooperativeKernel cuLaunchKernel cuLaunchKernelEx cuMemHostAlloc
        cuMemHostGetDevicePointer_v2 cuMemsetD16Async cuMemsetD2D16Async cuMemsetD2D32Async
        cuMemsetD2D8Async cuMemsetD32Async cuMemsetD8Async cuModuleGetFunction cuModuleLoadData
        cuStreamCreateWithPriority cuStreamWaitEvent;
}

impl Functions {
    /// A new event of the current context, without time stamps.
    pub fn new_event(&self) -> Result<CUevent, CUresult> {
        let mut event: CUevent = std::ptr::null_mut();
        // SAFETY: the out-parameter is live; the driver answers an error where no context is current.
        match unsafe { (self.cuEventCreate)(&mut event, DISABLE_TIMING) } {
            CUDA_SUCCESS => Ok(event),
            rc => Err(rc),
        }
    }
}

fn address(name: &'static str) -> Option<*mut c_void> {
    let found = slot::driver_symbol(CStr::from_bytes_with_nul(name.as_bytes()).ok()?);
    (!found.is_null()).then_some(found)
}
