//! Exports for tests: kernels of a test's own, and what reached the driver.

use crate::exports::variants;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::Ordering;
use vgmem_abi::CUDA_ERROR_LAUNCH_FAILED;

/// A kernel of a test: gets pointers to its parameters.
type TestKernel = unsafe extern "C" fn(*mut *mut c_void);

/// Adds a kernel with `count` parameters of the given sizes; gives 1 if that worked.
///
/// # Safety
/// `name` must be a C string, `sizes` point to `count` numbers, and `body` must be callable on any
/// thread until the process ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vgmem_sim_register_kernel(
    name: *const c_char,
    sizes: *const u32,
    count: u32,
    body: Option<TestKernel>,
) -> c_int {
    let Some(body) = body else { return 0 };
    if name.is_null() || sizes.is_null() && count > 0 {
        return 0;
    }
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) }.to_owned();
    let sizes = match count {
        0 => &[],
        // SAFETY: the caller's promise.
        _ => unsafe { std::slice::from_raw_parts(sizes, count as usize) },
    };
    let added = vgmem_sim::register(name, sizes, move |_, args| {
        let mut copies = Vec::with_capacity(args.count());
        for index in 0..args.count() {
            // Eight-byte units, so that every parameter is aligned for the test's C code.
            let bytes = args.bytes(index)?;
            let mut copy = vec![0_u64; bytes.len().div_ceil(8)];
            for (unit, part) in copy.iter_mut().zip(bytes.chunks(8)) {
                let mut full = [0; 8];
                full.get_mut(..part.len()).ok_or(CUDA_ERROR_LAUNCH_FAILED)?.copy_from_slice(part);
                *unit = u64::from_le_bytes(full);
            }
            copies.push(copy);
        }
        let mut pointers: Vec<*mut c_void> = copies.iter_mut().map(|copy| copy.as_mut_ptr().cast()).collect();
        // SAFETY: the caller's promise; the parameters live until the call returns.
        unsafe { body(pointers.as_mut_ptr()) };
        Ok(())
    });
    c_int::from(added)
}

/// Bytes of memory of a GPU that are in use; 0 before `cuInit`. The management library asks.
#[unsafe(no_mangle)]
pub extern "C" fn vgmem_sim_used(gpu: u32) -> u64 {
    let info = vgmem_sim::machine().and_then(|machine| machine.memory_info(gpu));
    info.map_or(0, |(free, total)| total - free)
}

/// How often an exported symbol of the driver was called; 0 for an unknown name.
///
/// # Safety
/// `symbol` must be NULL or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vgmem_sim_calls(symbol: *const c_char) -> u64 {
    if symbol.is_null() {
        return 0;
    }
    // SAFETY: the caller's promise.
    let symbol = unsafe { CStr::from_ptr(symbol) };
    let found = variants().find(|variant| variant.symbol.as_bytes() == symbol.to_bytes());
    found.map_or(0, |variant| variant.calls.load(Ordering::Relaxed))
}
