//! Events of ours with time stamps, as numbers, and what is done with any.

use vgmem_abi::*;

use crate::start::Engine;

/// A new event of the current context, with time stamps; those without are `Functions::new_event`.
pub fn timed(engine: &Engine) -> Option<usize> {
    let mut event: CUevent = std::ptr::null_mut();
    // SAFETY: the out-parameter is live.
    let rc = unsafe { (engine.pool.device().call.cuEventCreate)(&mut event, 0) };
    (rc == CUDA_SUCCESS).then_some(event as usize)
}

/// Records an event of ours on a stream of the program's current context, on which no capture is under way.
pub fn record(engine: &Engine, event: usize, stream: CUstream) -> bool {
    let device = engine.pool.device();
    // SAFETY: as described.
    device.relaxed(|| unsafe { (device.call.cuEventRecord)(event as CUevent, stream) }) == CUDA_SUCCESS
}

/// Milliseconds from the first to the second of two timed events that were recorded, where the driver tells.
pub fn milliseconds(engine: &Engine, [begin, end]: [usize; 2]) -> Option<f64> {
    let mut milliseconds = 0.0f32;
    let elapsed = engine.pool.device().call.cuEventElapsedTime?;
    // SAFETY: the out-parameter is live; both events are ours, and their context has not ended.
    let rc = unsafe { elapsed(&mut milliseconds, begin as CUevent, end as CUevent) };
    (rc == CUDA_SUCCESS).then_some(f64::from(milliseconds))
}

/// Ends an event of ours that nobody asks about any more; the driver keeps it until its work is over.
pub fn destroy(engine: &Engine, event: usize) {
    // SAFETY: nobody else knows of it.
    let _ = engine.pool.device().call.cuEventDestroy_v2.map(|end| unsafe { end(event as CUevent) });
}
