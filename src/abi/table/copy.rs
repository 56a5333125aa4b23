//! Driver functions: copies and memsets.
//!
//! Columns and how they are made: `scripts/driver_table.py`.

/// Hands the rows of this group to the macro `$then`, after the word `copy`.
#[macro_export]
macro_rules! rows_copy {
    ($then:ident) => { $then! { copy;
        submit none cuFabricCpyBatchAsync: cuFabricCpyBatchAsync@13050 / cuFabricCpyBatchAsync_ptsz@13050 (a: usize, b: *mut c_void, c: u64, d: CUstream);
        submit none cuMemBatchDecompressAsync: cuMemBatchDecompressAsync@12060 / cuMemBatchDecompressAsync_ptsz@12060 (a: *mut c_void, b: usize, c: c_uint, d: *mut usize, e: CUstream);
        hook sim cuMemcpy: cuMemcpy@4000 / cuMemcpy_ptds@7000 (a: CUdeviceptr, b: CUdeviceptr, c: usize);
        forward none cuMemcpy2D: cuMemcpy2D@2000 (a: *const c_void);
        forward none cuMemcpy2DAsync: cuMemcpy2DAsync@2000 (a: *const c_void, b: CUstream);
        hook sim cuMemcpy2DAsync: cuMemcpy2DAsync_v2@3020 / cuMemcpy2DAsync_v2_ptsz@7000 (a: *const CUDA_MEMCPY2D, b: CUstream);
        forward none cuMemcpy2DUnaligned: cuMemcpy2DUnaligned@2000 (a: *const c_void);
        hook sim cuMemcpy2DUnaligned: cuMemcpy2DUnaligned_v2@3020 / cuMemcpy2DUnaligned_v2_ptds@7000 (a: *const CUDA_MEMCPY2D);
        hook sim cuMemcpy2D: cuMemcpy2D_v2@3020 / cuMemcpy2D_v2_ptds@7000 (a: *const CUDA_MEMCPY2D);
        forward none cuMemcpy3D: cuMemcpy3D@2000 (a: *const c_void);
        forward none cuMemcpy3DAsync: cuMemcpy3DAsync@2000 (a: *const c_void, b: CUstream);
        hook sim cuMemcpy3DAsync: cuMemcpy3DAsync_v2@3020 / cuMemcpy3DAsync_v2_ptsz@7000 (a: *const CUDA_MEMCPY3D, b: CUstream);
        hook sim cuMemcpy3DBatchAsync: cuMemcpy3DBatchAsync@12080 / cuMemcpy3DBatchAsync_ptsz@12080 (a: usize, b: *mut c_void, c: *mut usize, d: u64, e: CUstream);
        hook sim cuMemcpy3DBatchAsync: cuMemcpy3DBatchAsync_v2@13000 / cuMemcpy3DBatchAsync_v2_ptsz@13000 (a: usize, b: *mut c_void, c: u64, d: CUstream);
        hook sim cuMemcpy3DPeer: cuMemcpy3DPeer@4000 / cuMemcpy3DPeer_ptds@7000 (a: *const CUDA_MEMCPY3D_PEER);
        hook sim cuMemcpy3DPeerAsync: cuMemcpy3DPeerAsync@4000 / cuMemcpy3DPeerAsync_ptsz@7000 (a: *const CUDA_MEMCPY3D_PEER, b: CUstream);
        hook none cuMemcpy3DWithAttributesAsync: cuMemcpy3DWithAttributesAsync@13020 / cuMemcpy3DWithAttributesAsync_ptsz@13020 (a: *mut c_void, b: u64, c: CUstream);
        hook sim cuMemcpy3D: cuMemcpy3D_v2@3020 / cuMemcpy3D_v2_ptds@7000 (a: *const CUDA_MEMCPY3D);
        hook sim cuMemcpyAsync: cuMemcpyAsync@4000 / cuMemcpyAsync_ptsz@7000 (a: CUdeviceptr, b: CUdeviceptr, c: usize, d: CUstream);
        forward none cuMemcpyAtoA: cuMemcpyAtoA@2000 (a: CUarray, b: c_uint, c: CUarray, d: c_uint, e: c_uint);
        submit none cuMemcpyAtoA: cuMemcpyAtoA_v2@3020 / cuMemcpyAtoA_v2_ptds@7000 (a: CUarray, b: usize, c: CUarray, d: usize, e: usize);
        forward none cuMemcpyAtoD: cuMemcpyAtoD@2000 (a: u32, b: CUarray, c: c_uint, d: c_uint);
        hook none cuMemcpyAtoD: cuMemcpyAtoD_v2@3020 / cuMemcpyAtoD_v2_ptds@7000 (a: CUdeviceptr, b: CUarray, c: usize, d: usize);
        forward none cuMemcpyAtoH: cuMemcpyAtoH@2000 (a: *mut c_void, b: CUarray, c: c_uint, d: c_uint);
        forward none cuMemcpyAtoHAsync: cuMemcpyAtoHAsync@2000 (a: *mut c_void, b: CUarray, c: c_uint, d: c_uint, e: CUstream);
        submit none cuMemcpyAtoHAsync: cuMemcpyAtoHAsync_v2@3020 / cuMemcpyAtoHAsync_v2_ptsz@7000 (a: *mut c_void, b: CUarray, c: usize, d: usize, e: CUstream);
        submit none cuMemcpyAtoH: cuMemcpyAtoH_v2@3020 / cuMemcpyAtoH_v2_ptds@7000 (a: *mut c_void, b: CUarray, c: usize, d: usize);
        hook sim cuMemcpyBatchAsync: cuMemcpyBatchAsync@12080 / cuMemcpyBatchAsync_ptsz@12080 (a: *mut CUdeviceptr, b: *mut CUdeviceptr, c: *mut usize, d: usize, e: *mut c_void, f: *mut usize, g: usize, h: *mut usize, i: CUstream);
        hook sim cuMemcpyBatchAsync: cuMemcpyBatchAsync_v2@13000 / cuMemcpyBatchAsync_v2_ptsz@13000 (a: *mut CUdeviceptr, b: *mut CUdeviceptr, c: *mut usize, d: usize, e: *mut c_void, f: *mut usize, g: usize, h: CUstream);
        forward none cuMemcpyDtoA: cuMemcpyDtoA@2000 (a: CUarray, b: c_uint, c: u32, d: c_uint);
        hook none cuMemcpyDtoA: cuMemcpyDtoA_v2@3020 / cuMemcpyDtoA_v2_ptds@7000 (a: CUarray, b: usize, c: CUdeviceptr, d: usize);
        forward none cuMemcpyDtoD: cuMemcpyDtoD@2000 (a: u32, b: u32, c: c_uint);
        forward none cuMemcpyDtoDAsync: cuMemcpyDtoDAsync@3000 (a: u32, b: u32, c: c_uint, d: CUstream);
        hook sim cuMemcpyDtoDAsync: cuMemcpyDtoDAsync_v2@3020 / cuMemcpyDtoDAsync_v2_ptsz@7000 (a: CUdeviceptr, b: CUdeviceptr, c: usize, d: CUstream);
        hook sim cuMemcpyDtoD: cuMemcpyDtoD_v2@3020 / cuMemcpyDtoD_v2_ptds@7000 (a: CUdeviceptr, b: CUdeviceptr, c: usize);
        forward none cuMemcpyDtoH: cuMemcpyDtoH@2000 (a: *mut c_void, b: u32, c: c_uint);
        forward none cuMemcpyDtoHAsync: cuMemcpyDtoHAsync@2000 (a: *mut c_void, b: u32, c: c_uint, d: CUstream);
        hook sim cuMemcpyDtoHAsync: cuMemcpyDtoHAsync_v2@3020 / cuMemcpyDtoHAsync_v2_ptsz@7000 (a: *mut c_void, b: CUdeviceptr, c: usize, d: CUstream);
        hook sim cuMemcpyDtoH: cuMemcpyDtoH_v2@3020 / cuMemcpyDtoH_v2_ptds@7000 (a: *mut c_void, b: CUdeviceptr, c: usize);
        forward none cuMemcpyHtoA: cuMemcpyHtoA@2000 (a: CUarray, b: c_uint, c: *const c_void, d: c_uint);
        forward none cuMemcpyHtoAAsync: cuMemcpyHtoAAsync@2000 (a: CUarray, b: c_uint, c: *const c_void, d: c_uint, e: CUstream);
        submit none cuMemcpyHtoAAsync: cuMemcpyHtoAAsync_v2@3020 / cuMemcpyHtoAAsync_v2_ptsz@7000 (a: CUarray, b: usize, c: *const c_void, d: usize, e: CUstream);
        submit none cuMemcpyHtoA: cuMemcpyHtoA_v2@3020 / cuMemcpyHtoA_v2_ptds@7000 (a: CUarray, b: usize, c: *const c_void, d: usize);
        forward none cuMemcpyHtoD: cuMemcpyHtoD@2000 (a: u32, b: *const c_void, c: c_uint);
        forward none cuMemcpyHtoDAsync: cuMemcpyHtoDAsync@2000 (a: u32, b: *const c_void, c: c_uint, d: CUstream);
        hook sim cuMemcpyHtoDAsync: cuMemcpyHtoDAsync_v2@3020 / cuMemcpyHtoDAsync_v2_ptsz@7000 (a: CUdeviceptr, b: *const c_void, c: usize, d: CUstream);
        hook sim cuMemcpyHtoD: cuMemcpyHtoD_v2@3020 / cuMemcpyHtoD_v2_ptds@7000 (a: CUdeviceptr, b: *const c_void, c: usize);
        hook sim cuMemcpyPeer: cuMemcpyPeer@4000 / cuMemcpyPeer_ptds@7000 (a: CUdeviceptr, b: CUcontext, c: CUdeviceptr, d: CUcontext, e: usize);
        hook sim cuMemcpyPeerAsync: cuMemcpyPeerAsync@4000 / cuMemcpyPeerAsync_ptsz@7000 (a: CUdeviceptr, b: CUcontext, c: CUdeviceptr, d: CUcontext, e: usize, f: CUstream);
        hook none cuMemcpyWithAttributesAsync: cuMemcpyWithAttributesAsync@13020 / cuMemcpyWithAttributesAsync_ptsz@13020 (a: CUdeviceptr, b: CUdeviceptr, c: usize, d: *mut c_void, e: CUstream);
        forward none cuMemsetD16: cuMemsetD16@2000 (a: u32, b: u16, c: c_uint);
        hook sim cuMemsetD16Async: cuMemsetD16Async@3020 / cuMemsetD16Async_ptsz@7000 (a: CUdeviceptr, b: u16, c: usize, d: CUstream);
        hook sim cuMemsetD16: cuMemsetD16_v2@3020 / cuMemsetD16_v2_ptds@7000 (a: CUdeviceptr, b: u16, c: usize);
        forward none cuMemsetD2D16: cuMemsetD2D16@2000 (a: u32, b: c_uint, c: u16, d: c_uint, e: c_uint);
        hook sim cuMemsetD2D16Async: cuMemsetD2D16Async@3020 / cuMemsetD2D16Async_ptsz@7000 (a: CUdeviceptr, b: usize, c: u16, d: usize, e: usize, f: CUstream);
        hook sim cuMemsetD2D16: cuMemsetD2D16_v2@3020 / cuMemsetD2D16_v2_ptds@7000 (a: CUdeviceptr, b: usize, c: u16, d: usize, e: usize);
        forward none cuMemsetD2D32: cuMemsetD2D32@2000 (a: u32, b: c_uint, c: c_uint, d: c_uint, e: c_uint);
        hook sim cuMemsetD2D32Async: cuMemsetD2D32Async@3020 / cuMemsetD2D32Async_ptsz@7000 (a: CUdeviceptr, b: usize, c: c_uint, d: usize, e: usize, f: CUstream);
        hook sim cuMemsetD2D32: cuMemsetD2D32_v2@3020 / cuMemsetD2D32_v2_ptds@7000 (a: CUdeviceptr, b: usize, c: c_uint, d: usize, e: usize);
        forward none cuMemsetD2D8: cuMemsetD2D8@2000 (a: u32, b: c_uint, c: u8, d: c_uint, e: c_uint);
        hook sim cuMemsetD2D8Async: cuMemsetD2D8Async@3020 / cuMemsetD2D8Async_ptsz@7000 (a: CUdeviceptr, b: usize, c: u8, d: usize, e: usize, f: CUstream);
        hook sim cuMemsetD2D8: cuMemsetD2D8_v2@3020 / cuMemsetD2D8_v2_ptds@7000 (a: CUdeviceptr, b: usize, c: u8, d: usize, e: usize);
        forward none cuMemsetD32: cuMemsetD32@2000 (a: u32, b: c_uint, c: c_uint);
        hook sim cuMemsetD32Async: cuMemsetD32Async@3020 / cuMemsetD32Async_ptsz@7000 (a: CUdeviceptr, b: c_uint, c: usize, d: CUstream);
        hook sim cuMemsetD32: cuMemsetD32_v2@3020 / cuMemsetD32_v2_ptds@7000 (a: CUdeviceptr, b: c_uint, c: usize);
        forward none cuMemsetD8: cuMemsetD8@2000 (a: u32, b: u8, c: c_uint);
        hook sim cuMemsetD8Async: cuMemsetD8Async@3020 / cuMemsetD8Async_ptsz@7000 (a: CUdeviceptr, b: u8, c: usize, d: CUstream);
        hook sim cuMemsetD8: cuMemsetD8_v2@3020 / cuMemsetD8_v2_ptds@7000 (a: CUdeviceptr, b: u8, c: usize);
    }};
}
