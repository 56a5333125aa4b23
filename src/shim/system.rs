//! The C library's own `dlsym`, `dlopen` and `dlmopen`, under ours.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// Type of `dlsym`.
pub type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
/// Type of `dlopen`.
pub type Dlopen = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;

static DLSYM: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static DLMOPEN: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static DLOPEN: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Versions under which the C library exports them on x86-64, newest first.
const VERSIONS: [&CStr; 3] = [c"GLIBC_2.34", c"GLIBC_2.3.4", c"GLIBC_2.2.5"];

fn next(cache: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let known = cache.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    for version in VERSIONS {
        // SAFETY: both strings end with NUL. RTLD_NEXT counts from this library: we are the caller.
        let found = unsafe { libc::dlvsym(libc::RTLD_NEXT, name.as_ptr(), version.as_ptr()) };
        if !found.is_null() {
            cache.store(found, Ordering::Relaxed);
            return found;
        }
    }
    std::ptr::null_mut()
}

/// Address of the `dlsym` behind ours.
pub fn dlsym_address() -> *mut c_void {
    next(&DLSYM, c"dlsym")
}

/// Address of the `dlopen` behind ours.
pub fn dlopen_address() -> *mut c_void {
    next(&DLOPEN, c"dlopen")
}

/// Address of the `dlmopen` behind ours.
pub fn dlmopen_address() -> *mut c_void {
    next(&DLMOPEN, c"dlmopen")
}

/// Looks up `name` in `handle`, which is a real handle: for the pseudo handles the caller would matter.
pub fn dlsym(handle: *mut c_void, name: &CStr) -> *mut c_void {
    let address = dlsym_address();
    if address.is_null() {
        return address;
    }
    // SAFETY: the address is that of the C library's `dlsym`, which has this type.
    let function: Dlsym = unsafe { std::mem::transmute(address) };
    // SAFETY: `name` ends with NUL; a stale handle is answered with NULL.
    unsafe { function(handle, name.as_ptr()) }
}

/// Opens a library without our flags' rewriting.
pub fn dlopen(name: Option<&CStr>, flags: c_int) -> *mut c_void {
    let address = dlopen_address();
    if address.is_null() {
        return address;
    }
    // SAFETY: the address is that of the C library's `dlopen`, which has this type.
    let function: Dlopen = unsafe { std::mem::transmute(address) };
    // SAFETY: `name` is NULL or ends with NUL.
    unsafe { function(name.map_or(std::ptr::null(), CStr::as_ptr), flags) }
}

/// The next definition of `name` behind this library in the global scope.
pub fn next_symbol(name: &CStr) -> *mut c_void {
    let address = dlsym_address();
    if address.is_null() {
        return address;
    }
    // SAFETY: as in `dlsym`; the call comes from this library, so RTLD_NEXT counts from it.
    unsafe { std::mem::transmute::<*mut c_void, Dlsym>(address)(libc::RTLD_NEXT, name.as_ptr()) }
}

/// The loaded object that holds an address.
#[derive(Clone, Copy)]
pub struct Object {
    /// Where it is loaded.
    pub base: usize,
    /// Its file, as the loader knows it.
    pub file: *const c_char,
}

impl Object {
    /// The object that holds `address`, if any.
    pub fn holding(address: *const c_void) -> Option<Object> {
        // SAFETY: all zero is a valid Dl_info.
        let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
        // SAFETY: `dladdr` accepts any address and writes `info` when it answers non-zero.
        let found = unsafe { libc::dladdr(address, &mut info) };
        (found != 0 && !info.dli_fbase.is_null())
            .then_some(Object { base: info.dli_fbase as usize, file: info.dli_fname })
    }

    /// The file's name without folders.
    pub fn file_name(&self) -> &[u8] {
        if self.file.is_null() {
            return b"";
        }
        // SAFETY: the loader's name ends with NUL and lives as long as the object; callers use it at once.
        let path = unsafe { CStr::from_ptr(self.file) }.to_bytes();
        path.rsplit(|&byte| byte == b'/').next().unwrap_or(path)
    }
}
