//! Types of the driver interface. Layouts are checked against other crates' in `shim-tests`.
#![allow(non_camel_case_types, non_snake_case)]

pub use core::ffi::{c_char, c_int, c_uint, c_void};

/// Ordinal of a GPU.
pub type CUdevice = c_int;
/// Address in device memory (64 bits; the ABIs before CUDA 3.2 had 32).
pub type CUdeviceptr = u64;
/// Physical memory made by `cuMemCreate`.
pub type CUmemHandle = u64;

macro_rules! handles {
    ($($name:ident)*) => { $(
        #[doc = concat!("Opaque handle `", stringify!($name), "` of the driver.")]
        pub type $name = *mut c_void;
    )* };
}

handles! {
    CUarray CUasyncCallback CUasyncCallbackHandle CUcheckpointOperationHandle CUcontext
    CUcoredumpCallbackHandle CUcoredumpStatusCallback CUdevResourceDesc CUevent CUexternalMemory
    CUexternalSemaphore CUfunction CUgraph CUgraphExec CUgraphNode CUgraphRecaptureCallback
    CUgraphicsResource CUgreenCtx CUhostFn CUkernel CUlibrary CUlinkState CUlogsCallback
    CUlogsCallbackHandle CUmemoryPool CUmipmappedArray CUmodule CUoccupancyB2DSize CUstream
    CUstreamCallback CUsurfref CUtexref CUuserObject nvmlDevice_t
}

/// The legacy default stream, by name.
pub const CU_STREAM_LEGACY: CUstream = 1 as CUstream;
/// The default stream of the calling thread, by name.
pub const CU_STREAM_PER_THREAD: CUstream = 2 as CUstream;

macro_rules! layouts {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty,)* })*) => { $(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        #[allow(missing_docs)] // the fields are the driver's, under the driver's names
        pub struct $name { $(pub $field: $type,)* }
    )* };
}

layouts! {
    /// Where memory lies: `kind` is a `CU_MEM_LOCATION_TYPE_*`.
    CUmemLocation { kind: c_int, id: c_int, }
    /// What `cuMemCreate` shall make.
    CUmemAllocationProp {
        kind: c_int,
        requestedHandleTypes: c_int,
        location: CUmemLocation,
        win32HandleMetaData: *mut c_void,
        compressionType: u8,
        gpuDirectRDMACapable: u8,
        usage: u16,
        reserved: [u8; 4],
    }
    /// Who may access a mapping, and how.
    CUmemAccessDesc { location: CUmemLocation, flags: c_int, }
    /// Legacy IPC handle of an allocation.
    CUipcMemHandle { reserved: [c_char; 64], }
    /// Legacy IPC handle of an event.
    CUipcEventHandle { reserved: [c_char; 64], }
    /// Unique number of a GPU.
    CUuuid { bytes: [u8; 16], }
    /// Memory of a GPU as the management library shows it.
    nvmlMemory_t { total: u64, free: u64, used: u64, }
    /// The same, second version: the caller sets `version`; `used` leaves out what is `reserved`.
    nvmlMemory_v2_t { version: c_uint, total: u64, reserved: u64, free: u64, used: u64, }
    /// A copy of a rectangle.
    CUDA_MEMCPY2D {
        srcXInBytes: usize, srcY: usize,
        srcMemoryType: c_int, srcHost: *const c_void, srcDevice: CUdeviceptr, srcArray: CUarray,
        srcPitch: usize,
        dstXInBytes: usize, dstY: usize,
        dstMemoryType: c_int, dstHost: *mut c_void, dstDevice: CUdeviceptr, dstArray: CUarray,
        dstPitch: usize,
        WidthInBytes: usize, Height: usize,
    }
    /// A copy of a box.
    CUDA_MEMCPY3D {
        srcXInBytes: usize, srcY: usize, srcZ: usize, srcLOD: usize,
        srcMemoryType: c_int, srcHost: *const c_void, srcDevice: CUdeviceptr, srcArray: CUarray,
        reserved0: *mut c_void, srcPitch: usize, srcHeight: usize,
        dstXInBytes: usize, dstY: usize, dstZ: usize, dstLOD: usize,
        dstMemoryType: c_int, dstHost: *mut c_void, dstDevice: CUdeviceptr, dstArray: CUarray,
        reserved1: *mut c_void, dstPitch: usize, dstHeight: usize,
        WidthInBytes: usize, Height: usize, Depth: usize,
    }
    /// A copy of a box between the memories of two contexts.
    CUDA_MEMCPY3D_PEER {
        srcXInBytes: usize, srcY: usize, srcZ: usize, srcLOD: usize,
        srcMemoryType: c_int, srcHost: *const c_void, srcDevice: CUdeviceptr, srcArray: CUarray,
        srcContext: CUcontext, srcPitch: usize, srcHeight: usize,
        dstXInBytes: usize, dstY: usize, dstZ: usize, dstLOD: usize,
        dstMemoryType: c_int, dstHost: *mut c_void, dstDevice: CUdeviceptr, dstArray: CUarray,
        dstContext: CUcontext, dstPitch: usize, dstHeight: usize,
        WidthInBytes: usize, Height: usize, Depth: usize,
    }
    /// Grid, stream and attributes of `cuLaunchKernelEx`.
    CUlaunchConfig {
        gridDimX: c_uint, gridDimY: c_uint, gridDimZ: c_uint,
        blockDimX: c_uint, blockDimY: c_uint, blockDimZ: c_uint,
        sharedMemBytes: c_uint,
        hStream: CUstream,
        attrs: *mut c_void,
        numAttrs: c_uint,
    }
    /// One launch of `cuLaunchCooperativeKernelMultiDevice`.
    CUDA_LAUNCH_PARAMS {
        function: CUfunction,
        gridDimX: c_uint, gridDimY: c_uint, gridDimZ: c_uint,
        blockDimX: c_uint, blockDimY: c_uint, blockDimZ: c_uint,
        sharedMemBytes: c_uint,
        hStream: CUstream,
        kernelParams: *mut *mut c_void,
    }
    /// A kernel node of a graph (second ABI).
    CUDA_KERNEL_NODE_PARAMS {
        func: CUfunction,
        gridDimX: c_uint, gridDimY: c_uint, gridDimZ: c_uint,
        blockDimX: c_uint, blockDimY: c_uint, blockDimZ: c_uint,
        sharedMemBytes: c_uint,
        kernelParams: *mut *mut c_void,
        extra: *mut *mut c_void,
        kern: CUkernel,
        ctx: CUcontext,
    }
}
