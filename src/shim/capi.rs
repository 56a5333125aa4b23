//! The C control interface; `include/vgmem.h` describes it.

use std::ffi::{CStr, c_char, c_int, c_ulonglong};

use vgmem_engine::Place;

use crate::start::engine;
use crate::{slot, start};

/// Whether pooling is on in this process: 1 or 0.
#[unsafe(no_mangle)]
pub extern "C" fn vgmem_active() -> c_int {
    c_int::from(start::active())
}

/// How many addresses of ours were given out by `dlsym` and `cuGetProcAddress`.
#[unsafe(no_mangle)]
pub extern "C" fn vgmem_hooks_given() -> c_ulonglong {
    slot::given()
}

/// Whether the exported driver function `symbol` was ever called: 1, 0, or -1 where nothing of that name is
/// exported.
///
/// # Safety
/// `symbol` is NULL or a string that ends with NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vgmem_hook_reached(symbol: *const c_char) -> c_int {
    if symbol.is_null() {
        return -1;
    }
    // SAFETY: by contract.
    let name = unsafe { CStr::from_ptr(symbol) };
    slot::named(name).map_or(-1, |slot| c_int::from(slot.reached()))
}

/// Where the page of a pooled address lies.
#[repr(C)]
pub struct VgmemPage {
    /// First address of the page.
    base: c_ulonglong,
    /// Bytes of the page.
    bytes: c_ulonglong,
    /// Ordinal of the GPU that it lies on, or -1 for host RAM.
    gpu: c_int,
    /// Ordinal of the GPU whose context allocated it.
    home: c_int,
}

/// Writes where the page of `address` lies: 1, or 0 where the address is not pooled.
///
/// # Safety
/// `page` is NULL or points to a `vgmem_page`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vgmem_page_of(address: c_ulonglong, page: *mut VgmemPage) -> c_int {
    let Some(found) = engine().and_then(|engine| engine.pool.find(address)) else { return 0 };
    if !page.is_null() {
        let gpu = match found.place {
            Place::Gpu(gpu) => c_int::from(gpu),
            Place::HostNear(_) => -1,
        };
        // SAFETY: by contract.
        unsafe {
            *page = VgmemPage {
                base: found.page_base,
                bytes: found.page_bytes,
                gpu,
                home: c_int::from(found.home),
            };
        }
    }
    1
}
