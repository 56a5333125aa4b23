//! The management library's memory numbers, made to agree with what the driver's functions show.

use std::ffi::{CStr, c_char, c_uint, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use vgmem_abi::{nvmlDevice_t, nvmlMemory_t, nvmlMemory_v2_t};
use vgmem_policy::Amount;

use crate::hooks::shown;
use crate::settings::{PerGpu, Settings};
use crate::start::engine;
use crate::system::{self, Object};

/// What its functions return: 0 is success.
type Code = c_uint;
/// `NVML_ERROR_FUNCTION_NOT_FOUND`.
const NOT_FOUND: Code = 13;
/// Length that every UUID fits in.
const UUID_LENGTH: usize = 96;

type Uuid = unsafe extern "C" fn(nvmlDevice_t, *mut c_char, c_uint) -> Code;

/// One function of the management library.
pub struct Entry {
    name: &'static CStr,
    ours: *const c_void,
    real: AtomicPtr<c_void>,
}

// SAFETY: `ours` is the address of a function; the rest is constant or atomic.
unsafe impl Sync for Entry {}

impl Entry {
    /// The library's own function; loads it for a program that links it.
    fn real(&self) -> Option<*mut c_void> {
        let mut real = self.real.load(Ordering::Acquire);
        if real.is_null() {
            let handle = system::dlopen(Some(c"libnvidia-ml.so.1"), libc::RTLD_LAZY | libc::RTLD_LOCAL);
            if handle.is_null() {
                return None;
            }
            real = system::dlsym(handle, self.name);
            self.real.store(real, Ordering::Release);
        }
        (!real.is_null()).then_some(real)
    }
}

macro_rules! entries {
    (nvml; $($name:ident ($($arg:ident: $type:ty),*);)*) => {
        static ENTRIES: [Entry; vgmem_abi::NVML.len()] = [$(Entry {
            name: match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => c"",
            },
            ours: $name as *const c_void,
            real: AtomicPtr::new(std::ptr::null_mut()),
        }),*];
    };
}

vgmem_abi::rows_nvml! { entries }

fn entry(name: &CStr) -> Option<&'static Entry> {
    ENTRIES.iter().find(|entry| entry.name == name)
}

/// Whether a lookup of `name` may have to be answered with ours.
pub fn is_ours(name: &CStr) -> bool {
    entry(name).is_some()
}

/// Ours for `name` when `address`, which the lookup answered, lies in the management library; else `address`.
pub fn substitute(name: &CStr, address: *mut c_void) -> *mut c_void {
    let in_library = |object: Object| object.file_name().starts_with(b"libnvidia-ml.so");
    match entry(name) {
        Some(entry) if Object::holding(address).is_some_and(in_library) => {
            entry.real.store(address, Ordering::Release);
            entry.ours.cast_mut()
        }
        _ => address,
    }
}

/// `nvmlDeviceGetMemoryInfo`.
///
/// # Safety
/// As the library's.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo(device: nvmlDevice_t, memory: *mut nvmlMemory_t) -> Code {
    type Real = unsafe extern "C" fn(nvmlDevice_t, *mut nvmlMemory_t) -> Code;
    let Some(real) = entry(c"nvmlDeviceGetMemoryInfo").and_then(Entry::real) else { return NOT_FOUND };
    // SAFETY: the library's function of this name has this type.
    let rc = unsafe { std::mem::transmute::<*mut c_void, Real>(real)(device, memory) };
    // SAFETY: the library has just written it.
    if let (0, Some(memory)) = (rc, unsafe { memory.as_mut() })
        && let Some(amount) = amount(device, Amount { free: memory.free, total: memory.total })
    {
        *memory = nvmlMemory_t { total: amount.total, free: amount.free, used: amount.total - amount.free };
    }
    rc
}

/// `nvmlDeviceGetMemoryInfo_v2`.
///
/// # Safety
/// As the library's.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(
    device: nvmlDevice_t,
    memory: *mut nvmlMemory_v2_t,
) -> Code {
    type Real = unsafe extern "C" fn(nvmlDevice_t, *mut nvmlMemory_v2_t) -> Code;
    let Some(real) = entry(c"nvmlDeviceGetMemoryInfo_v2").and_then(Entry::real) else { return NOT_FOUND };
    // SAFETY: the library's function of this name has this type.
    let rc = unsafe { std::mem::transmute::<*mut c_void, Real>(real)(device, memory) };
    // SAFETY: the library has just written it.
    if let (0, Some(memory)) = (rc, unsafe { memory.as_mut() })
        && let Some(amount) = amount(device, Amount { free: memory.free, total: memory.total })
    {
        // What the driver keeps for itself is outside of what programs can have, and of our total.
        memory.total = amount.total;
        memory.free = amount.free;
        memory.reserved = 0;
        memory.used = amount.total - amount.free;
    }
    rc
}

/// What the program shall see of this GPU; `None` where the library's numbers stand.
fn amount(device: nvmlDevice_t, real: Amount) -> Option<Amount> {
    match engine() {
        Some(engine) => {
            let uuid = uuid(device)?;
            let gpu = engine.gpus.iter().position(|gpu| gpu.pooled && gpu.uuid == uuid)?;
            Some(shown(engine, gpu, Some(real.free)))
        }
        // Before CUDA starts there is no pool; a limit for all GPUs is known even so.
        None if crate::slot::enabled() && !crate::fork::forked() => {
            match Settings::read().ok()?.device_limit? {
                PerGpu::All(limit) => {
                    let total = real.total.min(limit);
                    Some(Amount { free: real.free.min(total), total })
                }
                PerGpu::Each(_) => None,
            }
        }
        None => None,
    }
}

/// The GPU's unique number, as 32 hexadecimal digits.
fn uuid(device: nvmlDevice_t) -> Option<String> {
    let any = entry(c"nvmlDeviceGetMemoryInfo")?.real()?;
    let object = Object::holding(any)?;
    // SAFETY: the loader's name ends with NUL, and the library is loaded: one of its functions was just called.
    let file = unsafe { CStr::from_ptr(object.file) };
    let handle = system::dlopen(Some(file), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
    let ask = system::dlsym(handle, c"nvmlDeviceGetUUID");
    if !handle.is_null() {
        // SAFETY: the handle was just opened; the library stays loaded, the program is calling it.
        unsafe { libc::dlclose(handle) };
    }
    if ask.is_null() {
        return None;
    }
    let mut text = [0 as c_char; UUID_LENGTH];
    // SAFETY: the library's function of this name has this type; the buffer's length is given.
    let rc = unsafe {
        std::mem::transmute::<*mut c_void, Uuid>(ask)(device, text.as_mut_ptr(), UUID_LENGTH as c_uint)
    };
    // SAFETY: the library wrote a string that ends within the buffer.
    let text = unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy();
    (rc == 0).then(|| text.trim_start_matches("GPU-").chars().filter(|c| *c != '-').collect())
}
