//! From pointers of the program to values, and back.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::NonNull;
use vgmem_abi::{CUDA_ERROR_INVALID_VALUE, CUstream};
use vgmem_sim::{Answer, StreamRef};

/// Room for a result in the program's memory.
pub(crate) struct Room<T>(NonNull<T>);

impl<T> Room<T> {
    /// Writes the result. The program promised room for it by passing the pointer.
    pub fn put(&self, value: T) {
        // SAFETY: the pointer is not null, and by the driver's contract has room for a `T`; it
        // need not be aligned.
        unsafe { self.0.as_ptr().write_unaligned(value) };
    }
}

/// The program's room for a result; NULL is an invalid value.
pub(crate) fn room<T>(pointer: *mut T) -> Answer<Room<T>> {
    NonNull::new(pointer).map(Room).ok_or(CUDA_ERROR_INVALID_VALUE)
}

/// Reads what the program points to.
///
/// # Safety
/// A pointer that is not null must point to a `T`.
pub(crate) unsafe fn read<T: Copy>(pointer: *const T) -> Answer<T> {
    if pointer.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: not null, and the caller's promise.
    Ok(unsafe { pointer.read_unaligned() })
}

/// A name that the program passes.
///
/// # Safety
/// A pointer that is not null must point to a C string that outlives the call.
pub(crate) unsafe fn name<'a>(pointer: *const c_char) -> Answer<&'a CStr> {
    if pointer.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: not null, and the caller's promise.
    Ok(unsafe { CStr::from_ptr(pointer) })
}

/// Handle in a pointer's clothes.
pub(crate) fn handle(pointer: *mut c_void) -> u64 {
    pointer.addr() as u64
}

/// Pointer's clothes for a handle or an address.
pub(crate) fn pointer(handle: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(handle as usize)
}

/// A stream as the program names it.
pub(crate) fn stream(per_thread: bool, stream: CUstream) -> StreamRef {
    StreamRef { handle: handle(stream), per_thread }
}

/// Writes text and its end into the program's buffer, cut to what fits.
///
/// # Safety
/// `size` bytes must be writable at `to`.
pub(crate) unsafe fn text(to: *mut c_char, size: i32, text: &str) -> Answer {
    let size = usize::try_from(size).ok().filter(|size| *size > 0 && !to.is_null());
    let count = text.len().min(size.ok_or(CUDA_ERROR_INVALID_VALUE)? - 1);
    // SAFETY: `count` bytes and the end fit into `size`, the caller's promise.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), to.cast::<u8>(), count);
        to.add(count).write(0);
    }
    Ok(())
}

/// Reads `count` things that the program points to; none need not be anywhere.
///
/// # Safety
/// A pointer that is not null must point to `count` of them.
pub(crate) unsafe fn list<T: Copy>(pointer: *const T, count: usize) -> Answer<Vec<T>> {
    if count > 0 && pointer.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: the caller's promise; every index is below `count`.
    Ok((0..count).map(|index| unsafe { pointer.add(index).read_unaligned() }).collect())
}

/// Handles that the program points to, as numbers.
///
/// # Safety
/// As `list`.
pub(crate) unsafe fn handles(pointer: *const *mut c_void, count: usize) -> Answer<Vec<u64>> {
    // SAFETY: the caller's promise.
    Ok(unsafe { list(pointer, count) }?.into_iter().map(handle).collect())
}

/// Answers a question for a list: its length if the program brings no array; else what fits into
/// the array, whose rest is cleared, and how many that were.
///
/// # Safety
/// Arrays that are not null must have room for `*count` entries.
pub(crate) unsafe fn put_list<const N: usize>(
    arrays: [*mut *mut c_void; N],
    count: *mut usize,
    found: &[[u64; N]],
) -> Answer {
    let out = room(count)?;
    if arrays.iter().any(|array| array.is_null()) {
        out.put(found.len());
        return Ok(());
    }
    // SAFETY: not null, as `room` found.
    let have = unsafe { read(count) }?;
    for (column, array) in arrays.into_iter().enumerate() {
        for index in 0..have {
            let value = found.get(index).map_or(0, |row| row[column]);
            // SAFETY: the caller's promise.
            unsafe { array.add(index).write_unaligned(pointer(value)) };
        }
    }
    out.put(have.min(found.len()));
    Ok(())
}
