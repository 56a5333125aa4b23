//! Allocating and freeing.

use vgmem_abi::*;
use vgmem_engine::{DriverError, Freed, Pool, Request};
use vgmem_policy::{GRANULE, round_up};

use crate::real::Driver;
use crate::start::{Engine, engine};
use crate::{ledger, pager, report, trace};

/// Rows of a pitched allocation begin at multiples of this many bytes, as the driver's do.
const PITCH: u64 = 512;

fn invalid_unless_lost(engine: &Engine) -> CUresult {
    match engine.pool.device().health() {
        CUDA_SUCCESS => CUDA_ERROR_INVALID_VALUE,
        lost => lost,
    }
}

/// `cuMemAlloc`: from the pool; small ones from the driver while it has room.
pub unsafe fn cuMemAlloc_v2(
    real: pointers::cuMemAlloc_v2,
    address: *mut CUdeviceptr,
    bytes: usize,
) -> CUresult {
    // SAFETY: the program's own call, unchanged.
    let forward = || unsafe { real(address, bytes) };
    let Some(engine) = engine() else { return forward() };
    if address.is_null() || bytes == 0 {
        return forward();
    }
    if (bytes as u64) < engine.settings.min_alloc {
        let rc = forward();
        if rc != CUDA_ERROR_OUT_OF_MEMORY {
            return rc;
        }
    }
    // Small ones come here when the driver has no room: they share pages.
    let make = if (bytes as u64) < GRANULE { Pool::allocate_small } else { Pool::allocate };
    match pooled(engine, bytes as u64, make) {
        None => forward(),
        Some(Err(error)) => {
            if error == DriverError::OUT_OF_MEMORY {
                // SAFETY: not NULL, and the driver writes 0 then.
                unsafe { *address = 0 };
            }
            error.code()
        }
        Some(Ok(found)) => {
            // SAFETY: not NULL, and the driver would write it too.
            unsafe { *address = found };
            CUDA_SUCCESS
        }
    }
}

/// `cuMemAllocPitch`: rows padded as the driver pads them, from the pool.
pub unsafe fn cuMemAllocPitch_v2(
    real: pointers::cuMemAllocPitch_v2,
    address: *mut CUdeviceptr,
    pitch: *mut usize,
    width: usize,
    height: usize,
    element: c_uint,
) -> CUresult {
    // SAFETY: the program's own call, unchanged.
    let forward = || unsafe { real(address, pitch, width, height, element) };
    let Some(engine) = engine() else { return forward() };
    if address.is_null() || pitch.is_null() || !matches!(element, 4 | 8 | 16) {
        return forward();
    }
    let row = round_up(width as u64, PITCH).unwrap_or(0);
    let bytes = row.checked_mul(height as u64).unwrap_or(0);
    if bytes == 0 {
        return forward();
    }
    if bytes < engine.settings.min_alloc {
        let rc = forward();
        if rc != CUDA_ERROR_OUT_OF_MEMORY {
            return rc;
        }
    }
    let make = if bytes < GRANULE { Pool::allocate_small } else { Pool::allocate };
    match pooled(engine, bytes, make) {
        None => forward(),
        Some(Err(error)) => error.code(),
        Some(Ok(found)) => {
            // SAFETY: neither is NULL, and the driver would write both too.
            unsafe {
                *address = found;
                *pitch = row as usize;
            }
            CUDA_SUCCESS
        }
    }
}

/// `cuMemFree`: pooled memory after the work that may use it, as the driver does.
pub unsafe fn cuMemFree_v2(real: pointers::cuMemFree_v2, address: CUdeviceptr) -> CUresult {
    // SAFETY: the program's own call, unchanged.
    free_pooled(address).unwrap_or_else(|| unsafe { real(address) })
}

/// Frees what the pool holds; `None` where the driver shall answer: the address is none of the pool's.
fn free_pooled(address: CUdeviceptr) -> Option<CUresult> {
    let engine = engine()?;
    let traced = trace::is_on().then(|| engine.pool.find(address)).flatten();
    let Freed::Done(answer) = engine.pool.free(address) else { return None };
    Some(match answer {
        Ok(()) => {
            if let Some(found) = traced {
                trace::freed(found.serial);
            }
            CUDA_SUCCESS
        }
        // No allocation begins there; a lost context is what the driver would complain of first.
        Err(DriverError::INVALID_VALUE) => invalid_unless_lost(engine),
        Err(error) => error.code(),
    })
}

/// `cuMemFreeAsync`: the driver takes memory of `cuMemAlloc` here too. Pooled memory is freed at once, after all
/// work that may use it; that is later than the stream's order asks for, never earlier.
pub unsafe fn cuMemFreeAsync(
    real: pointers::cuMemFreeAsync,
    address: CUdeviceptr,
    stream: CUstream,
) -> CUresult {
    // SAFETY: the program's own call, unchanged.
    free_pooled(address).unwrap_or_else(|| unsafe { real(address, stream) })
}

/// An allocation from the pool for the current context; `None` where the driver shall answer: no context is
/// current, or its GPU is not in the pool.
fn pooled(
    engine: &'static Engine,
    bytes: u64,
    make: impl Fn(&Pool<Driver>, Request) -> Result<u64, DriverError>,
) -> Option<Result<u64, DriverError>> {
    let (context, home) = engine.current()?;
    let gpu = engine.gpus.get(home as usize)?;
    if !gpu.pooled {
        return None;
    }
    ledger::note_home(gpu.key);
    if let Err(lost) = DriverError::check(engine.pool.device().health()) {
        return Some(Err(lost));
    }
    let answer = make(&engine.pool, Request { home, context, bytes });
    match answer {
        Ok(address) => {
            log::debug!("{bytes} bytes for GPU {home} at {address:#x}");
            trace::allocated(engine, address);
            pager::get_ready(engine, context, home);
        }
        Err(DriverError::OUT_OF_MEMORY) => report::out_of_memory(engine, home, bytes),
        Err(error) => log::warn!("{bytes} bytes for GPU {home}: the driver answered {}", error.code()),
    }
    Some(answer)
}
