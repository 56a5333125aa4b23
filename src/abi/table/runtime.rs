//! Functions of the CUDA runtime that the library exports.
//!
//! Pooling happens in the driver functions only. These exports exist so that a program that links
//! the runtime is seen, and each call goes on to the runtime its caller would have reached.

/// Hands the names to the macro `$then`, after the word `runtime`.
#[macro_export]
macro_rules! rows_runtime {
    ($then:ident) => {
        $then! { runtime;
            cudaFree
            cudaFreeAsync cudaFreeAsync_ptsz
            cudaMalloc
            cudaMalloc3D
            cudaMallocAsync cudaMallocAsync_ptsz
            cudaMallocPitch
            cudaMemGetInfo
            cudaMemcpy cudaMemcpy_ptds
            cudaMemcpy2D cudaMemcpy2D_ptds
            cudaMemcpy2DAsync cudaMemcpy2DAsync_ptsz
            cudaMemcpy3D cudaMemcpy3D_ptds
            cudaMemcpy3DAsync cudaMemcpy3DAsync_ptsz
            cudaMemcpy3DPeer cudaMemcpy3DPeer_ptds
            cudaMemcpy3DPeerAsync cudaMemcpy3DPeerAsync_ptsz
            cudaMemcpyAsync cudaMemcpyAsync_ptsz
            cudaMemcpyPeer
            cudaMemcpyPeerAsync
            cudaMemset cudaMemset_ptds
            cudaMemsetAsync cudaMemsetAsync_ptsz
        }
    };
}
