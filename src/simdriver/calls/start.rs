//! Start, version, errors, discovery of functions.

use crate::decode::{name, pointer, room};
use crate::lookup::{driver_version, lookup};
use std::collections::HashMap;
use std::ffi::CString;
use std::sync::OnceLock;
use vgmem_abi::*;
use vgmem_sim::Answer;
use vgmem_sim::lookup::Found;

pub(crate) unsafe fn cuInit(flags: c_uint) -> Answer {
    if vgmem_sim::forked() {
        return Err(CUDA_ERROR_NOT_INITIALIZED);
    }
    let known = vgmem_sim::machine().is_ok();
    let machine = vgmem_sim::init(flags)?;
    // The first call finds no machine to count it.
    if known { Ok(()) } else { machine.enter("cuInit", 1) }
}

pub(crate) unsafe fn cuDriverGetVersion(version: *mut c_int) -> Answer {
    room(version)?.put(driver_version() as c_int);
    Ok(())
}

/// The simulated driver has none of the real one's private tables.
pub(crate) unsafe fn cuGetExportTable(table: *mut *const c_void, id: *const CUuuid) -> Answer {
    room(table)?;
    if id.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    Err(CUDA_ERROR_INVALID_VALUE)
}

pub(crate) unsafe fn cuGetProcAddress(
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: u64,
) -> Answer {
    let out = room(function)?;
    // SAFETY: a C string, by the driver's contract.
    match lookup(unsafe { name(symbol) }?, version, flags)? {
        Ok(variant) => {
            out.put(variant.address.0.cast_mut().cast());
            Ok(())
        }
        Err(_) => Err(CUDA_ERROR_NOT_FOUND),
    }
}

pub(crate) unsafe fn cuGetProcAddress_v2(
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: u64,
    status: *mut c_int,
) -> Answer {
    let out = room(function)?;
    // SAFETY: a C string, by the driver's contract.
    let found = lookup(unsafe { name(symbol) }?, version, flags)?;
    let (code, address) = match found {
        Ok(variant) => (CU_GET_PROC_ADDRESS_SUCCESS, variant.address.0.cast_mut().cast()),
        Err(Found::TooOld) => (CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT, pointer(0)),
        Err(_) => (CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND, pointer(0)),
    };
    if code == CU_GET_PROC_ADDRESS_SUCCESS || !status.is_null() {
        out.put(address);
    }
    if let Ok(status) = room(status) {
        status.put(code);
    }
    Ok(())
}

/// Name and description of every code that is known: made once, so that nothing locks afterwards
/// and the strings live as long as the process.
fn descriptions() -> &'static HashMap<CUresult, [CString; 2]> {
    static MADE: OnceLock<HashMap<CUresult, [CString; 2]>> = OnceLock::new();
    MADE.get_or_init(|| {
        let describe = |code| {
            let name = code_name(code).or_else(|| vgmem_sim::extra_code_name(code))?;
            let text = match code {
                CUDA_SUCCESS => "no error".to_string(),
                CUDA_ERROR_INVALID_VALUE => "invalid argument".to_string(),
                _ => name.trim_start_matches("CUDA_ERROR_").to_ascii_lowercase().replace('_', " "),
            };
            Some((code, [CString::new(name).ok()?, CString::new(text).ok()?]))
        };
        (CUDA_SUCCESS..=CUDA_ERROR_UNKNOWN).filter_map(describe).collect()
    })
}

fn describe(code: CUresult, out: *mut *const c_char, which: usize) -> Answer {
    let out = room(out)?;
    let text = descriptions().get(&code).and_then(|both| both.get(which));
    out.put(text.map_or(std::ptr::null(), |text| text.as_ptr()));
    text.map(|_| ()).ok_or(CUDA_ERROR_INVALID_VALUE)
}

pub(crate) unsafe fn cuGetErrorName(code: CUresult, out: *mut *const c_char) -> Answer {
    describe(code, out, 0)
}

pub(crate) unsafe fn cuGetErrorString(code: CUresult, out: *mut *const c_char) -> Answer {
    describe(code, out, 1)
}
