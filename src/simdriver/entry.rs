//! The way into every call: counting, faults, the driver's result.

use std::sync::atomic::{AtomicU64, Ordering};
use vgmem_abi::{CUDA_SUCCESS, CUresult};
use vgmem_sim::Answer;

/// Calls that look things up: they are never made to fail and have no number.
const LOOKUPS: [&str; 6] = [
    "cuGetProcAddress",
    "cuGetProcAddress_v2",
    "cuGetExportTable",
    "cuDriverGetVersion",
    "cuGetErrorName",
    "cuGetErrorString",
];

/// Makes one call of `symbol`.
pub(crate) fn enter(symbol: &str, calls: &AtomicU64, call: impl FnOnce() -> Answer) -> CUresult {
    let nth = calls.fetch_add(1, Ordering::Relaxed) + 1;
    let allowed = match vgmem_sim::machine() {
        Ok(machine) if !LOOKUPS.contains(&symbol) => machine.enter(symbol, nth),
        _ => Ok(()),
    };
    match allowed.and_then(|()| call()) {
        Ok(()) => CUDA_SUCCESS,
        Err(code) => code,
    }
}
