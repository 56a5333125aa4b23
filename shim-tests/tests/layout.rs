//! Layouts and numbers of `vgmem_abi` against two crates that others generated from the headers:
//! cuda-driver-sys (CUDA 10.2) and cudarc (CUDA 13.0). Nothing here runs a driver.

use cuda_driver_sys as old;
use cudarc::driver::sys as new;
use std::collections::BTreeSet;
use std::mem::{align_of, offset_of, size_of};
use vgmem_abi as abi;

/// One struct: size, alignment, and the offset and size of every field. `path = path` pairs name
/// a field of ours and the same field of theirs where the names differ.
macro_rules! same_layout {
    ($theirs:ty, $ours:ident { $($field:ident $(= $($path:ident).+)?),* $(,)? }) => {{
        assert_eq!(size_of::<abi::$ours>(), size_of::<$theirs>(), "size of {}", stringify!($ours));
        assert_eq!(align_of::<abi::$ours>(), align_of::<$theirs>(), "alignment of {}", stringify!($ours));
        let mut end = 0;
        $(
            let (ours, theirs) = (offset_of!(abi::$ours, $field), their_offset!($theirs, $field $(= $($path).+)?));
            assert_eq!(ours, theirs, "{}.{}", stringify!($ours), stringify!($field));
            assert!(ours >= end, "{} lists its fields in order", stringify!($ours));
            end = ours + field_size(|s: &abi::$ours| &raw const s.$field);
        )*
        let padding = size_of::<abi::$ours>() - end;
        assert!(padding < align_of::<abi::$ours>(), "{}: a field is not listed", stringify!($ours));
    }};
}

macro_rules! their_offset {
    ($theirs:ty, $field:ident) => { offset_of!($theirs, $field) };
    ($theirs:ty, $field:ident = $($path:ident).+) => { offset_of!($theirs, $($path).+) };
}

/// Size of the field that a projection names.
fn field_size<S, F>(_: impl Fn(&S) -> *const F) -> usize {
    size_of::<F>()
}

macro_rules! copies_and_launches {
    ($from:ident) => {{
        same_layout!($from::CUipcMemHandle, CUipcMemHandle { reserved });
        same_layout!($from::CUipcEventHandle, CUipcEventHandle { reserved });
        same_layout!($from::CUuuid, CUuuid { bytes });
        same_layout!($from::CUDA_MEMCPY2D, CUDA_MEMCPY2D {
            srcXInBytes, srcY, srcMemoryType, srcHost, srcDevice, srcArray, srcPitch,
            dstXInBytes, dstY, dstMemoryType, dstHost, dstDevice, dstArray, dstPitch,
            WidthInBytes, Height,
        });
        same_layout!($from::CUDA_MEMCPY3D, CUDA_MEMCPY3D {
            srcXInBytes, srcY, srcZ, srcLOD, srcMemoryType, srcHost, srcDevice, srcArray,
            reserved0, srcPitch, srcHeight,
            dstXInBytes, dstY, dstZ, dstLOD, dstMemoryType, dstHost, dstDevice, dstArray,
            reserved1, dstPitch, dstHeight, WidthInBytes, Height, Depth,
        });
        same_layout!($from::CUDA_MEMCPY3D_PEER, CUDA_MEMCPY3D_PEER {
            srcXInBytes, srcY, srcZ, srcLOD, srcMemoryType, srcHost, srcDevice, srcArray,
            srcContext, srcPitch, srcHeight,
            dstXInBytes, dstY, dstZ, dstLOD, dstMemoryType, dstHost, dstDevice, dstArray,
            dstContext, dstPitch, dstHeight, WidthInBytes, Height, Depth,
        });
        same_layout!($from::CUDA_LAUNCH_PARAMS, CUDA_LAUNCH_PARAMS {
            function, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ,
            sharedMemBytes, hStream, kernelParams,
        });
        same_layout!($from::CUmemAccessDesc, CUmemAccessDesc { location, flags });
        same_layout!($from::CUmemLocation, CUmemLocation { kind = type_, id });
    }};
}

#[test]
fn structs_agree_with_cuda_driver_sys() {
    copies_and_launches!(old);
}

#[test]
fn structs_agree_with_cudarc() {
    copies_and_launches!(new);
    same_layout!(new::CUmemAllocationProp, CUmemAllocationProp {
        kind = type_, requestedHandleTypes, location, win32HandleMetaData,
        compressionType = allocFlags.compressionType,
        gpuDirectRDMACapable = allocFlags.gpuDirectRDMACapable,
        usage = allocFlags.usage,
        reserved = allocFlags.reserved,
    });
    same_layout!(
        new::CUlaunchConfig,
        CUlaunchConfig {
            gridDimX,
            gridDimY,
            gridDimZ,
            blockDimX,
            blockDimY,
            blockDimZ,
            sharedMemBytes,
            hStream,
            attrs,
            numAttrs,
        }
    );
    same_layout!(
        new::CUDA_KERNEL_NODE_PARAMS_v2,
        CUDA_KERNEL_NODE_PARAMS {
            func,
            gridDimX,
            gridDimY,
            gridDimZ,
            blockDimX,
            blockDimY,
            blockDimZ,
            sharedMemBytes,
            kernelParams,
            extra,
            kern,
            ctx,
        }
    );
}

#[test]
fn scalars_agree() {
    assert_eq!(size_of::<abi::CUdeviceptr>(), size_of::<new::CUdeviceptr>());
    assert_eq!(size_of::<abi::CUdevice>(), size_of::<new::CUdevice>());
    assert_eq!(size_of::<abi::CUmemHandle>(), size_of::<new::CUmemGenericAllocationHandle>());
    assert_eq!(size_of::<abi::CUresult>(), size_of::<new::CUresult>());
    assert_eq!(size_of::<abi::CUstream>(), size_of::<new::CUstream>());
}

/// `(name, ours, theirs)` for every constant named.
macro_rules! pairs {
    ($($from:ident::$theirs:ident { $($name:ident)* })*) => {
        vec![$($( (stringify!($name), abi::$name as i64, $from::$theirs::$name as i64), )*)*]
    };
}

/// Numbers that CUDA 10.2 had already.
fn old_numbers() -> Vec<(&'static str, i64, i64)> {
    pairs! {
        old::cudaError_enum {
            CUDA_SUCCESS CUDA_ERROR_INVALID_VALUE CUDA_ERROR_OUT_OF_MEMORY CUDA_ERROR_NOT_INITIALIZED
            CUDA_ERROR_DEINITIALIZED CUDA_ERROR_NO_DEVICE CUDA_ERROR_INVALID_DEVICE CUDA_ERROR_INVALID_IMAGE
            CUDA_ERROR_INVALID_CONTEXT CUDA_ERROR_PEER_ACCESS_UNSUPPORTED CUDA_ERROR_FILE_NOT_FOUND
            CUDA_ERROR_INVALID_HANDLE CUDA_ERROR_NOT_FOUND CUDA_ERROR_NOT_READY CUDA_ERROR_ILLEGAL_ADDRESS
            CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED CUDA_ERROR_PEER_ACCESS_NOT_ENABLED CUDA_ERROR_LAUNCH_FAILED
            CUDA_ERROR_NOT_PERMITTED CUDA_ERROR_NOT_SUPPORTED CUDA_ERROR_STREAM_CAPTURE_IMPLICIT CUDA_ERROR_UNKNOWN
        }
        old::CUpointer_attribute_enum {
            CU_POINTER_ATTRIBUTE_CONTEXT CU_POINTER_ATTRIBUTE_MEMORY_TYPE CU_POINTER_ATTRIBUTE_DEVICE_POINTER
            CU_POINTER_ATTRIBUTE_HOST_POINTER CU_POINTER_ATTRIBUTE_BUFFER_ID CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        }
        old::CUmemorytype_enum { CU_MEMORYTYPE_HOST CU_MEMORYTYPE_DEVICE CU_MEMORYTYPE_UNIFIED }
        old::CUmemAccess_flags_enum { CU_MEM_ACCESS_FLAGS_PROT_READ CU_MEM_ACCESS_FLAGS_PROT_READWRITE }
        old::CUmemLocationType_enum { CU_MEM_LOCATION_TYPE_DEVICE }
        old::CUdevice_attribute_enum { CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT CU_DEVICE_ATTRIBUTE_PCI_BUS_ID }
    }
}

/// Attributes of launches.
fn attribute_numbers() -> Vec<(&'static str, i64, i64)> {
    pairs! {
        new::CUlaunchAttributeID_enum {
            CU_LAUNCH_ATTRIBUTE_COOPERATIVE CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE
        }
    }
}

/// Every number of the interface that is not a pointer constant.
fn new_numbers() -> Vec<(&'static str, i64, i64)> {
    let mut out = pairs! {
        new::cudaError_enum {
            CUDA_SUCCESS CUDA_ERROR_INVALID_VALUE CUDA_ERROR_OUT_OF_MEMORY CUDA_ERROR_NOT_INITIALIZED
            CUDA_ERROR_DEINITIALIZED CUDA_ERROR_NO_DEVICE CUDA_ERROR_INVALID_DEVICE CUDA_ERROR_INVALID_IMAGE
            CUDA_ERROR_INVALID_CONTEXT CUDA_ERROR_PEER_ACCESS_UNSUPPORTED CUDA_ERROR_FILE_NOT_FOUND
            CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND CUDA_ERROR_INVALID_HANDLE CUDA_ERROR_ILLEGAL_STATE
            CUDA_ERROR_NOT_FOUND CUDA_ERROR_NOT_READY CUDA_ERROR_ILLEGAL_ADDRESS
            CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
            CUDA_ERROR_PEER_ACCESS_NOT_ENABLED CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE
            CUDA_ERROR_CONTEXT_IS_DESTROYED CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
            CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED CUDA_ERROR_LAUNCH_FAILED CUDA_ERROR_NOT_PERMITTED
            CUDA_ERROR_NOT_SUPPORTED CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
            CUDA_ERROR_STREAM_CAPTURE_INVALIDATED CUDA_ERROR_STREAM_CAPTURE_UNMATCHED
            CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD CUDA_ERROR_STREAM_CAPTURE_IMPLICIT CUDA_ERROR_UNKNOWN
        }
        new::CUpointer_attribute_enum {
            CU_POINTER_ATTRIBUTE_CONTEXT CU_POINTER_ATTRIBUTE_MEMORY_TYPE CU_POINTER_ATTRIBUTE_DEVICE_POINTER
            CU_POINTER_ATTRIBUTE_HOST_POINTER CU_POINTER_ATTRIBUTE_P2P_TOKENS CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
            CU_POINTER_ATTRIBUTE_BUFFER_ID CU_POINTER_ATTRIBUTE_IS_MANAGED CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
            CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE CU_POINTER_ATTRIBUTE_RANGE_START_ADDR
            CU_POINTER_ATTRIBUTE_RANGE_SIZE CU_POINTER_ATTRIBUTE_MAPPED CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES
            CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE CU_POINTER_ATTRIBUTE_ACCESS_FLAGS
            CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE CU_POINTER_ATTRIBUTE_MAPPING_SIZE
            CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID
        }
        new::CUmemorytype_enum {
            CU_MEMORYTYPE_HOST CU_MEMORYTYPE_DEVICE CU_MEMORYTYPE_ARRAY CU_MEMORYTYPE_UNIFIED
        }
        new::CUmemLocationType_enum {
            CU_MEM_LOCATION_TYPE_INVALID CU_MEM_LOCATION_TYPE_DEVICE CU_MEM_LOCATION_TYPE_HOST
            CU_MEM_LOCATION_TYPE_HOST_NUMA CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT
        }
        new::CUmemAllocationType_enum { CU_MEM_ALLOCATION_TYPE_PINNED }
        new::CUmemAccess_flags_enum {
            CU_MEM_ACCESS_FLAGS_PROT_NONE CU_MEM_ACCESS_FLAGS_PROT_READ CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        }
        new::CUmemAllocationGranularity_flags_enum {
            CU_MEM_ALLOC_GRANULARITY_MINIMUM CU_MEM_ALLOC_GRANULARITY_RECOMMENDED
        }
        new::CUdevice_attribute_enum {
            CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT CU_DEVICE_ATTRIBUTE_PCI_BUS_ID
            CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID
            CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID
            CU_DEVICE_ATTRIBUTE_MPS_ENABLED
        }
        new::CUdevice_P2PAttribute_enum { CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK }
        new::CUdriverProcAddress_flags_enum { CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM }
        new::CUdriverProcAddressQueryResult_enum {
            CU_GET_PROC_ADDRESS_SUCCESS CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
        }
    };
    out.extend(attribute_numbers());
    for (name, ours, theirs) in [
        (
            "CU_MEM_HANDLE_TYPE_NONE",
            abi::CU_MEM_HANDLE_TYPE_NONE,
            new::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
        ),
        (
            "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR",
            abi::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
            new::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        ),
    ] {
        out.push((name, i64::from(ours), i64::from(theirs.0)));
    }
    out
}

/// Casts of pointers in the headers, which no binding carries.
const POINTERS: &[(&str, u64, u64)] = &[
    ("CU_LAUNCH_PARAM_END", abi::CU_LAUNCH_PARAM_END as u64, 0),
    ("CU_LAUNCH_PARAM_BUFFER_POINTER", abi::CU_LAUNCH_PARAM_BUFFER_POINTER as u64, 1),
    ("CU_LAUNCH_PARAM_BUFFER_SIZE", abi::CU_LAUNCH_PARAM_BUFFER_SIZE as u64, 2),
];

#[test]
fn numbers_agree() {
    for (name, ours, theirs) in old_numbers().into_iter().chain(new_numbers()) {
        assert_eq!(ours, theirs, "{name}");
    }
    for (name, ours, theirs) in POINTERS {
        assert_eq!(ours, theirs, "{name}");
    }
}

/// A number that is added to the interface has to be added here too.
#[test]
fn every_number_is_checked() {
    let text =
        std::fs::read_to_string(shim_tests::workspace().join("src/abi/codes.rs")).expect("codes.rs is there");
    let stated: BTreeSet<&str> = text
        .lines()
        .filter_map(|l| {
            let name = l.trim().trim_start_matches("pub const ").split([' ', ':']).next()?;
            (name.starts_with("CU_") || name.starts_with("CUDA_")).then_some(name)
        })
        .collect();
    let checked: BTreeSet<&str> =
        new_numbers().iter().map(|n| n.0).chain(POINTERS.iter().map(|p| p.0)).collect();
    let missing: Vec<_> = stated.difference(&checked).collect();
    assert!(stated.len() > 60, "codes.rs was not understood: {stated:?}");
    assert!(missing.is_empty(), "add to shim-tests/tests/layout.rs: {missing:?}");
}

/// `code_name` spells the codes as the headers do.
#[test]
fn names_of_codes() {
    assert_eq!(abi::code_name(2), Some("CUDA_ERROR_OUT_OF_MEMORY"));
    assert_eq!(abi::code_name(700), Some("CUDA_ERROR_ILLEGAL_ADDRESS"));
    assert_eq!(abi::code_name(123_456), None);
    for (name, ours, _) in new_numbers().iter().filter(|n| n.0.starts_with("CUDA_")) {
        let code = u32::try_from(*ours).expect("codes are small");
        assert_eq!(abi::code_name(code), Some(*name));
    }
}
