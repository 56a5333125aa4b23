//! The exported runtime functions: each call goes on to the runtime that its caller would have reached.
//!
//! A process can hold several CUDA runtimes, some in local scopes that RTLD_NEXT does not see. The caller is
//! known by the return address: its object's own dependencies are asked first. Pooling itself happens in the
//! driver functions only, which every runtime calls in the end.

use std::arch::naked_asm;
use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::system::{self, Object};

/// What a call answers when no runtime can be found: `cudaErrorSharedObjectSymbolNotFound`.
const NOT_FOUND: c_int = 302;

/// Call sites remembered for each function.
const SITES: usize = 128;
/// Entries that are tried for one call site.
const PROBES: usize = 8;

/// Where the calls of one call site go. Never freed, never changed.
struct Site {
    caller: usize,
    target: *mut c_void,
}

/// One runtime function: its name, and where each call site's calls go.
struct Route {
    name: &'static CStr,
    sites: [AtomicPtr<Site>; SITES],
}

impl Route {
    const fn new(name: &'static str) -> Route {
        let name = match CStr::from_bytes_with_nul(name.as_bytes()) {
            Ok(name) => name,
            Err(_) => c"",
        };
        Route { name, sites: [const { AtomicPtr::new(std::ptr::null_mut()) }; SITES] }
    }

    /// The target for calls that return to `caller`. A call site that finds no free entry is looked up each time.
    fn target(&self, caller: usize) -> *mut c_void {
        let start = caller.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 57;
        for probe in 0..PROBES {
            let entry = &self.sites[(start + probe) % SITES];
            let known = entry.load(Ordering::Acquire);
            if known.is_null() {
                return self.remember(entry, caller);
            }
            // SAFETY: entries point to sites that are never freed.
            let site = unsafe { &*known };
            if site.caller == caller {
                return site.target;
            }
        }
        find(self.name, caller as *const c_void)
    }

    fn remember(&self, entry: &AtomicPtr<Site>, caller: usize) -> *mut c_void {
        let target = find(self.name, caller as *const c_void);
        if target != no_runtime as *mut c_void {
            let site = Box::into_raw(Box::new(Site { caller, target }));
            let free = std::ptr::null_mut();
            if entry.compare_exchange(free, site, Ordering::AcqRel, Ordering::Acquire).is_err() {
                // SAFETY: another thread took the entry; nobody has seen this box.
                drop(unsafe { Box::from_raw(site) });
            }
        }
        target
    }
}

extern "C" fn no_runtime() -> c_int {
    NOT_FOUND
}

extern "C" fn route(index: usize, caller: usize) -> *mut c_void {
    ROUTES.get(index).map_or(no_runtime as *mut c_void, |route| route.target(caller))
}

/// The function that a call from `caller` would reach without us.
fn find(name: &CStr, caller: *const c_void) -> *mut c_void {
    let next = system::next_symbol(name);
    // Another library behind us that wraps the runtime comes first: it would have been reached too.
    if !next.is_null() && !Object::holding(next).is_some_and(|o| o.file_name().starts_with(b"libcudart")) {
        return next;
    }
    let found = of_caller(name, caller).unwrap_or(next);
    if found.is_null() { no_runtime as *mut c_void } else { found }
}

/// The function in the scope of the object that holds `caller`: the object and what it depends on.
fn of_caller(name: &CStr, caller: *const c_void) -> Option<*mut c_void> {
    let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
    let object = Object::holding(caller)?;
    // SAFETY: the loader's name ends with NUL, and the caller is loaded: it is about to be returned to.
    let handle = system::dlopen(Some(unsafe { CStr::from_ptr(object.file) }), flags);
    if handle.is_null() {
        return None;
    }
    let found = system::dlsym(handle, name);
    // SAFETY: the handle was just opened; the object stays loaded, it is the caller's.
    unsafe { libc::dlclose(handle) };
    let runtime = Object::holding(found)?;
    let own = Object::holding(route as *const c_void)?;
    if runtime.base == own.base {
        return None; // the program itself is the caller: its scope begins with us
    }
    // The address is remembered, so the runtime must stay: this reference is never given back.
    // SAFETY: as above.
    system::dlopen(Some(unsafe { CStr::from_ptr(runtime.file) }), flags);
    Some(found)
}

macro_rules! routes {
    (runtime; $($name:ident)*) => {
        #[allow(non_camel_case_types)]
        enum Index { $($name),* }

        static ROUTES: [Route; vgmem_abi::RUNTIME.len()] =
            [$(Route::new(concat!(stringify!($name), "\0"))),*];

        $(
            /// Goes on to the caller's runtime with every argument as it came.
            ///
            /// # Safety
            /// As the runtime's function of this name.
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            #[allow(non_snake_case)]
            pub unsafe extern "C" fn $name() -> c_int {
                naked_asm!(
                    "endbr64",
                    "push rdi",
                    "push rsi",
                    "push rdx",
                    "push rcx",
                    "push r8",
                    "push r9",
                    "sub rsp, 8",
                    "mov edi, {index}",
                    "mov rsi, [rsp + 56]",
                    "call {route}",
                    "add rsp, 8",
                    "pop r9",
                    "pop r8",
                    "pop rcx",
                    "pop rdx",
                    "pop rsi",
                    "pop rdi",
                    "jmp rax",
                    index = const Index::$name as usize,
                    route = sym route,
                )
            }
        )*
    };
}

vgmem_abi::rows_runtime! { routes }
