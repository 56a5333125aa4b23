//! Whether a stream is being captured.

use vgmem_abi::*;

use crate::start::Engine;

/// What becomes of work that is given to a stream.
pub enum Capture {
    /// It runs.
    None,
    /// It becomes part of a graph.
    OfThis,
    /// The driver does not say: the legacy stream, while a stream that waits for it is captured.
    Unknown,
}

/// What becomes of work that is given to `stream` now.
pub fn capture_of(engine: &Engine, stream: CUstream) -> Capture {
    if !engine.pool.on_hold() {
        return Capture::None;
    }
    let mut status: c_int = 0;
    // SAFETY: the out-parameter is live.
    match unsafe { (engine.pool.device().call.cuStreamIsCapturing)(stream, &mut status) } {
        CUDA_SUCCESS if status == 0 => Capture::None,
        CUDA_SUCCESS => Capture::OfThis,
        _ => Capture::Unknown,
    }
}
