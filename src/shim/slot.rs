//! One slot for each exported driver function: ours, the driver's, and whether it was reached.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering};

use vgmem_abi::{
    CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, CUDA_ERROR_NO_DEVICE, CUDA_ERROR_NOT_SUPPORTED,
    CUDA_SUCCESS, CUresult, pointers,
};

use crate::system::{self, Object};

/// An exported driver function.
pub struct Slot {
    /// Exported name.
    pub name: &'static CStr,
    /// Name that `cuGetProcAddress` takes.
    pub base: &'static str,
    /// CUDA version of this ABI.
    version: u32,
    /// Whether it is the twin for per-thread default streams.
    threaded: bool,
    /// Our function.
    ours: *const c_void,
    /// The driver's function, as `dlsym` gives it.
    real: AtomicPtr<c_void>,
    /// The driver's function, as `cuGetProcAddress` gives it, where that differs.
    alternate: AtomicPtr<c_void>,
    reached: AtomicBool,
}

// SAFETY: `ours` is the address of a function and never written; everything else is atomic or constant.
unsafe impl Sync for Slot {}

impl Slot {
    /// An unresolved slot; `name` ends with NUL.
    pub const fn new(
        name: &'static str,
        base: &'static str,
        version: u32,
        threaded: bool,
        ours: *const c_void,
    ) -> Slot {
        let name = match CStr::from_bytes_with_nul(name.as_bytes()) {
            Ok(name) => name,
            Err(_) => c"",
        };
        let null = std::ptr::null_mut();
        let (real, alternate) = (AtomicPtr::new(null), AtomicPtr::new(null));
        Slot { name, base, version, threaded, ours, real, alternate, reached: AtomicBool::new(false) }
    }

    /// The driver's function; loads the driver when a linked program calls before anybody looked it up.
    #[inline]
    pub fn real(&self) -> Option<*mut c_void> {
        if !self.reached.load(Ordering::Relaxed) {
            self.reached.store(true, Ordering::Relaxed);
        }
        let real = self.real.load(Ordering::Acquire);
        if real.is_null() { self.resolve() } else { Some(real) }
    }

    /// Whether `real` is the driver's function of this symbol. Does not count as a call.
    pub fn is_driver_function(&self, real: usize) -> bool {
        self.real.load(Ordering::Acquire) as usize == real
    }

    /// Whether the program ever called it.
    pub fn reached(&self) -> bool {
        self.reached.load(Ordering::Relaxed)
    }

    /// Our function.
    pub fn ours(&self) -> *mut c_void {
        self.ours.cast_mut()
    }

    /// What a call answers when the driver has no such function.
    pub fn missing(&self) -> CUresult {
        if DRIVER.load(Ordering::Acquire).is_null() { CUDA_ERROR_NO_DEVICE } else { CUDA_ERROR_NOT_SUPPORTED }
    }

    fn is_real(&self, address: *mut c_void) -> bool {
        !address.is_null()
            && (self.real.load(Ordering::Acquire) == address
                || self.alternate.load(Ordering::Acquire) == address)
    }

    #[cold]
    fn resolve(&self) -> Option<*mut c_void> {
        if DRIVER.load(Ordering::Acquire).is_null() {
            let handle = system::dlopen(Some(c"libcuda.so.1"), libc::RTLD_LAZY | libc::RTLD_LOCAL);
            if handle.is_null() {
                return None;
            }
            adopt(handle);
        }
        let real = self.real.load(Ordering::Acquire);
        (!real.is_null()).then_some(real)
    }
}

/// The driver's handle, once known. Never closed: addresses given out stay valid.
static DRIVER: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
/// Where the driver is loaded.
static DRIVER_BASE: AtomicUsize = AtomicUsize::new(0);
/// How many of our addresses were given to programs.
static GIVEN: AtomicU64 = AtomicU64::new(0);
/// 0 not asked yet, 1 on, 2 off by `VGMEM_DISABLE`.
static ENABLED: AtomicU8 = AtomicU8::new(0);

/// Whether the library may do anything at all.
pub fn enabled() -> bool {
    match ENABLED.load(Ordering::Relaxed) {
        0 => {
            let off = crate::settings::early(c"VGMEM_DISABLE") == Some(c"1");
            ENABLED.store(if off { 2 } else { 1 }, Ordering::Relaxed);
            !off
        }
        state => state == 1,
    }
}

/// How many of our addresses `dlsym` and `cuGetProcAddress` gave to programs.
pub fn given() -> u64 {
    GIVEN.load(Ordering::Relaxed)
}

/// The slot with this exported name.
pub fn named(name: &CStr) -> Option<&'static Slot> {
    crate::exports::slots().find(|slot| slot.name == name)
}

/// The driver's own function of any name, once the driver is known.
pub fn driver_symbol(name: &CStr) -> *mut c_void {
    match DRIVER.load(Ordering::Acquire) {
        handle if handle.is_null() => handle,
        handle => clean_lookup(handle, name),
    }
}

/// Ours for `slot` when `address`, which a lookup of that name answered, is the driver's; else `address`.
pub fn substitute(slot: &'static Slot, address: *mut c_void) -> *mut c_void {
    if slot.is_real(address) || (is_driver(address) && slot.is_real(address)) {
        GIVEN.fetch_add(1, Ordering::Relaxed);
        return slot.ours();
    }
    address
}

/// Ours for an address that the driver's `cuGetProcAddress` answered to (`base`, `flags`); else `address`.
pub fn translate(base: &[u8], flags: u64, address: *mut c_void) -> *mut c_void {
    let threaded = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM != 0;
    let matching =
        || crate::exports::slots().filter(|slot| slot.base.as_bytes() == base && slot.is_real(address));
    // Where the driver has one function for both variants, the flags say which one was meant.
    match matching().find(|slot| slot.threaded == threaded).or_else(|| matching().next()) {
        Some(slot) => {
            GIVEN.fetch_add(1, Ordering::Relaxed);
            slot.ours()
        }
        None => address,
    }
}

/// Whether `address` lies in the driver. Adopts the driver when it is seen for the first time.
fn is_driver(address: *mut c_void) -> bool {
    let Some(object) = Object::holding(address) else { return false };
    match DRIVER_BASE.load(Ordering::Acquire) {
        0 => adopt_object(object),
        base => base == object.base,
    }
}

fn adopt_object(object: Object) -> bool {
    let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
    // The loader compares with the names that loaded libraries give themselves, whatever path was opened.
    let by_name = system::dlopen(Some(c"libcuda.so.1"), flags);
    if !by_name.is_null() {
        let inside = Object::holding(system::dlsym(by_name, c"cuInit"));
        if inside.is_some_and(|inside| inside.base == object.base) {
            adopt(by_name);
            return true;
        }
        return false;
    }
    if !object.file_name().starts_with(b"libcuda.so") {
        return false;
    }
    // SAFETY: the loader's name ends with NUL, and the object is loaded: its symbol was just looked up.
    let handle = system::dlopen(Some(unsafe { CStr::from_ptr(object.file) }), flags);
    if handle.is_null() {
        return false;
    }
    adopt(handle);
    true
}

/// Fills every slot from the driver. Two threads may do it at once: they write the same.
fn adopt(handle: *mut c_void) {
    for slot in crate::exports::slots() {
        slot.real.store(clean_lookup(handle, slot.name), Ordering::Release);
    }
    if let Some(object) = Object::holding(system::dlsym(handle, c"cuInit")) {
        DRIVER_BASE.store(object.base, Ordering::Release);
    }
    DRIVER.store(handle, Ordering::Release);
    let ask = clean_lookup(handle, c"cuGetProcAddress_v2");
    if !ask.is_null() {
        // SAFETY: the driver's symbol of this name has this type.
        note_alternates(handle, unsafe {
            std::mem::transmute::<*mut c_void, pointers::cuGetProcAddress_v2>(ask)
        });
    }
}

/// A driver may give another address through `cuGetProcAddress` than through `dlsym`: note it.
fn note_alternates(handle: *mut c_void, ask: pointers::cuGetProcAddress_v2) {
    for slot in crate::exports::slots() {
        let real = slot.real.load(Ordering::Acquire);
        let mut name = [0u8; 64];
        if real.is_null() || slot.base.len() >= name.len() {
            continue;
        }
        name[..slot.base.len()].copy_from_slice(slot.base.as_bytes());
        let flags = if slot.threaded { CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM } else { 0 };
        let (mut found, mut status) = (std::ptr::null_mut(), 0);
        // SAFETY: the name ends with NUL, both out-parameters are live.
        let rc = unsafe { ask(name.as_ptr().cast(), &mut found, slot.version as i32, flags, &mut status) };
        if rc == CUDA_SUCCESS && !found.is_null() && found != real && !is_exported(handle, slot.base, found) {
            slot.alternate.store(found, Ordering::Release);
        }
    }
}

/// Whether `address` is an exported function of this base name: then it is another ABI, no alternate.
fn is_exported(handle: *mut c_void, base: &str, address: *mut c_void) -> bool {
    let rows = vgmem_abi::functions().filter(|row| row.base == base);
    rows.flat_map(|row| row.symbols()).any(|symbol| {
        let mut name = [0u8; 64];
        if symbol.len() >= name.len() {
            return false;
        }
        name[..symbol.len()].copy_from_slice(symbol.as_bytes());
        CStr::from_bytes_until_nul(&name).is_ok_and(|name| clean_lookup(handle, name) == address)
    })
}

/// A lookup that leaves no error behind for the program to find.
fn clean_lookup(handle: *mut c_void, name: &CStr) -> *mut c_void {
    let found = system::dlsym(handle, name);
    if found.is_null() {
        // SAFETY: takes no arguments; the answer is not used.
        unsafe { libc::dlerror() };
    }
    found
}
