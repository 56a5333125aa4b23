//! Numbers of the driver interface: result codes, attributes, flags.
//!
//! Only those that this project uses. Each is checked against another crate's bindings in
//! `shim-tests`.

/// Result of a driver function: 0 or an error code.
///
/// An integer and no enum: a newer driver may answer with codes that are unknown here.
pub type CUresult = u32;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $value:literal,)*) => {
        $($(#[$doc])* pub const $name: CUresult = $value;)*

        /// Name of a result code as the driver spells it, if it is known here.
        pub fn code_name(code: CUresult) -> Option<&'static str> {
            match code {
                $($value => Some(stringify!($name)),)*
                _ => None,
            }
        }
    };
}

codes! {
    /// The call did what it should.
    CUDA_SUCCESS = 0,
    /// An argument is out of range.
    CUDA_ERROR_INVALID_VALUE = 1,
    /// No memory.
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    /// `cuInit` was not called, or failed.
    CUDA_ERROR_NOT_INITIALIZED = 3,
    /// The driver is shutting down.
    CUDA_ERROR_DEINITIALIZED = 4,
    /// There is no GPU.
    CUDA_ERROR_NO_DEVICE = 100,
    /// The ordinal names no GPU.
    CUDA_ERROR_INVALID_DEVICE = 101,
    /// The module image cannot be loaded.
    CUDA_ERROR_INVALID_IMAGE = 200,
    /// No context is current, or the handle is none.
    CUDA_ERROR_INVALID_CONTEXT = 201,
    /// Peer access is not possible between the two GPUs.
    CUDA_ERROR_PEER_ACCESS_UNSUPPORTED = 217,
    /// A file was not found.
    CUDA_ERROR_FILE_NOT_FOUND = 301,
    /// A library was not found.
    CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND = 302,
    /// A handle is not valid.
    CUDA_ERROR_INVALID_HANDLE = 400,
    /// The object is in a state in which the call is not possible.
    CUDA_ERROR_ILLEGAL_STATE = 401,
    /// A name was not found.
    CUDA_ERROR_NOT_FOUND = 500,
    /// Work is still going on.
    CUDA_ERROR_NOT_READY = 600,
    /// A kernel touched memory that it may not; the context is lost.
    CUDA_ERROR_ILLEGAL_ADDRESS = 700,
    /// A launch asks for more than the GPU has.
    CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES = 701,
    /// Peer access is on already.
    CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED = 704,
    /// Peer access is not on.
    CUDA_ERROR_PEER_ACCESS_NOT_ENABLED = 705,
    /// The primary context is in use already.
    CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE = 708,
    /// The context was destroyed.
    CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
    /// The host memory is registered already.
    CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
    /// The host memory is not registered.
    CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713,
    /// A kernel failed; the context is lost.
    CUDA_ERROR_LAUNCH_FAILED = 719,
    /// Not permitted.
    CUDA_ERROR_NOT_PERMITTED = 800,
    /// Not supported by this driver or GPU.
    CUDA_ERROR_NOT_SUPPORTED = 801,
    /// The stream is being captured, where the call is not possible.
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
    /// The capture was made invalid by an earlier error.
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
    /// The capture was not begun on this stream.
    CUDA_ERROR_STREAM_CAPTURE_UNMATCHED = 903,
    /// The capture was begun by another thread.
    CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD = 908,
    /// The call would wait for a captured stream.
    CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
    /// Nobody knows.
    CUDA_ERROR_UNKNOWN = 999,
}

macro_rules! numbers {
    ($type:ty; $($(#[$doc:meta])* $name:ident = $value:literal,)*) => {
        $($(#[$doc])* pub const $name: $type = $value;)*
    };
}

numbers! { i32;
    /// `cuPointerGetAttribute`: context of the allocation.
    CU_POINTER_ATTRIBUTE_CONTEXT = 1,
    /// `cuPointerGetAttribute`: host, device, array or unified.
    CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
    /// `cuPointerGetAttribute`: address for the GPU.
    CU_POINTER_ATTRIBUTE_DEVICE_POINTER = 3,
    /// `cuPointerGetAttribute`: address for the CPU.
    CU_POINTER_ATTRIBUTE_HOST_POINTER = 4,
    /// `cuPointerGetAttribute`: tokens for third-party devices.
    CU_POINTER_ATTRIBUTE_P2P_TOKENS = 5,
    /// `cuPointerGetAttribute`: synchronous memory operations.
    CU_POINTER_ATTRIBUTE_SYNC_MEMOPS = 6,
    /// `cuPointerGetAttribute`: number that no other allocation of the process has.
    CU_POINTER_ATTRIBUTE_BUFFER_ID = 7,
    /// `cuPointerGetAttribute`: managed memory.
    CU_POINTER_ATTRIBUTE_IS_MANAGED = 8,
    /// `cuPointerGetAttribute`: GPU of the allocation.
    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
    /// `cuPointerGetAttribute`: legacy IPC possible.
    CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE = 10,
    /// `cuPointerGetAttribute`: first address of the allocation.
    CU_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11,
    /// `cuPointerGetAttribute`: bytes of the allocation.
    CU_POINTER_ATTRIBUTE_RANGE_SIZE = 12,
    /// `cuPointerGetAttribute`: the address is backed by memory.
    CU_POINTER_ATTRIBUTE_MAPPED = 13,
    /// `cuPointerGetAttribute`: handle types that can be exported.
    CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES = 14,
    /// `cuPointerGetAttribute`: GPUDirect RDMA possible.
    CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE = 15,
    /// `cuPointerGetAttribute`: access of the current GPU.
    CU_POINTER_ATTRIBUTE_ACCESS_FLAGS = 16,
    /// `cuPointerGetAttribute`: pool that the allocation came from.
    CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE = 17,
    /// `cuPointerGetAttribute`: bytes of the mapping.
    CU_POINTER_ATTRIBUTE_MAPPING_SIZE = 18,
    /// `cuPointerGetAttribute`: first address of the mapping.
    CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR = 19,
    /// `cuPointerGetAttribute`: number of the physical block.
    CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID = 20,

    /// Memory type: host.
    CU_MEMORYTYPE_HOST = 1,
    /// Memory type: device.
    CU_MEMORYTYPE_DEVICE = 2,
    /// Memory type: array.
    CU_MEMORYTYPE_ARRAY = 3,
    /// Memory type: found out from the address.
    CU_MEMORYTYPE_UNIFIED = 4,

    /// Location: nowhere.
    CU_MEM_LOCATION_TYPE_INVALID = 0,
    /// Location: the GPU with the ordinal `id`.
    CU_MEM_LOCATION_TYPE_DEVICE = 1,
    /// Location: host RAM (CUDA 13.0 and later for `cuMemCreate`).
    CU_MEM_LOCATION_TYPE_HOST = 2,
    /// Location: the host NUMA node `id` (CUDA 12.2 and later).
    CU_MEM_LOCATION_TYPE_HOST_NUMA = 3,
    /// Location: the NUMA node of the calling thread; never valid for `cuMemCreate`.
    CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT = 4,

    /// `cuMemCreate`: pinned memory.
    CU_MEM_ALLOCATION_TYPE_PINNED = 1,
    /// Handle type: none.
    CU_MEM_HANDLE_TYPE_NONE = 0,
    /// Handle type: POSIX file descriptor.
    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1,
    /// `cuMemSetAccess`: no access.
    CU_MEM_ACCESS_FLAGS_PROT_NONE = 0,
    /// `cuMemSetAccess`: read only.
    CU_MEM_ACCESS_FLAGS_PROT_READ = 1,
    /// `cuMemSetAccess`: read and write.
    CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3,
    /// `cuMemGetAllocationGranularity`: the least that is possible.
    CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0,
    /// `cuMemGetAllocationGranularity`: what is fastest.
    CU_MEM_ALLOC_GRANULARITY_RECOMMENDED = 1,

    /// `cuDeviceGetAttribute`: alignment of the rows of a pitched allocation.
    CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT = 51,
    /// `cuDeviceGetAttribute`: PCI bus.
    CU_DEVICE_ATTRIBUTE_PCI_BUS_ID = 33,
    /// `cuDeviceGetAttribute`: PCI device.
    CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID = 34,
    /// `cuDeviceGetAttribute`: PCI domain.
    CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID = 50,
    /// `cuDeviceGetAttribute`: virtual memory management.
    CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102,
    /// `cuDeviceGetAttribute`: the process is a client of the multi-process service.
    CU_DEVICE_ATTRIBUTE_MPS_ENABLED = 133,
    /// `cuDeviceGetAttribute`: host NUMA node next to the GPU.
    CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID = 134,

    /// `cuDeviceGetP2PAttribute`: how good the link is; lower is better.
    CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK = 1,
    /// Attribute of a launch: all its blocks run at once.
    CU_LAUNCH_ATTRIBUTE_COOPERATIVE = 2,
    /// Attribute of a launch: blocks of a cluster, in three directions.
    CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION = 4,
    /// Attribute of a node: kernels may change it.
    CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE = 13,
}

numbers! { usize;
    /// `extra` of a launch: end of the list.
    CU_LAUNCH_PARAM_END = 0,
    /// `extra` of a launch: the next entry is the buffer of parameters.
    CU_LAUNCH_PARAM_BUFFER_POINTER = 1,
    /// `extra` of a launch: the next entry points to the buffer's size.
    CU_LAUNCH_PARAM_BUFFER_SIZE = 2,
}

/// `cuGetProcAddress` flag: per-thread default stream variants are wanted.
pub const CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM: u64 = 2;
/// `symbolStatus` of `cuGetProcAddress_v2`: found.
pub const CU_GET_PROC_ADDRESS_SUCCESS: i32 = 0;
/// `symbolStatus` of `cuGetProcAddress_v2`: no such name.
pub const CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND: i32 = 1;
/// `symbolStatus` of `cuGetProcAddress_v2`: the name exists, but not in the version asked for.
pub const CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT: i32 = 2;
