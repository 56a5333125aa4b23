//! The GPU management library over simulated GPUs.
//!
//! Installed as `libnvidia-ml.so.1`, it shows the GPUs that `VGMEM_SIM` describes: the same that the
//! simulated driver of the process shows, under the same numbers. How much memory is used it asks
//! that driver, or the ledger of the machine that processes share.
#![allow(non_snake_case)]
#![allow(clippy::missing_safety_doc)] // the contract of every export is that of the library it stands for

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::Mutex;
use std::sync::PoisonError;

use vgmem_abi::{nvmlDevice_t, nvmlMemory_t, nvmlMemory_v2_t};
use vgmem_sim::{Settings, facts};

/// What functions return.
type Code = c_uint;

const SUCCESS: Code = 0;
const UNINITIALIZED: Code = 1;
const INVALID_ARGUMENT: Code = 2;
const NOT_FOUND: Code = 6;
const INSUFFICIENT_SIZE: Code = 7;
const VERSION_MISMATCH: Code = 25;
const UNKNOWN: Code = 999;

/// Texts of the codes that are used here.
const TEXTS: [(Code, &CStr); 7] = [
    (SUCCESS, c"Success"),
    (UNINITIALIZED, c"Uninitialized"),
    (INVALID_ARGUMENT, c"Invalid Argument"),
    (NOT_FOUND, c"Not Found"),
    (INSUFFICIENT_SIZE, c"Insufficient Size"),
    (VERSION_MISMATCH, c"Argument version mismatch"),
    (UNKNOWN, c"Unknown Error"),
];

/// Version of `nvmlMemory_v2_t`, as the caller states it.
const MEMORY_VERSION: c_uint = size_of::<nvmlMemory_v2_t>() as c_uint | 2 << 24;

/// Handles of GPUs begin here: an address that no program has mapped.
const FIRST: usize = 0x0c0f_0000_0000;
const STEP: usize = 16;

/// The machine, and how often the program has started the library.
static STATE: Mutex<Option<(Settings, u64)>> = Mutex::new(None);

type Answer<T = ()> = Result<T, Code>;

fn code(answer: Answer) -> Code {
    answer.err().unwrap_or(SUCCESS)
}

fn state<T>(act: impl FnOnce(&mut Option<(Settings, u64)>) -> Answer<T>) -> Answer<T> {
    act(&mut STATE.lock().unwrap_or_else(PoisonError::into_inner))
}

fn settings() -> Answer<Settings> {
    state(|state| state.as_ref().map(|(settings, _)| settings.clone()).ok_or(UNINITIALIZED))
}

fn start() -> Answer {
    state(|state| {
        if let Some((_, count)) = state {
            *count += 1;
            return Ok(());
        }
        match Settings::from_environment() {
            Ok(settings) => *state = Some((settings, 1)),
            Err(line) => {
                eprintln!("{line}");
                return Err(UNKNOWN);
            }
        }
        Ok(())
    })
}

/// Room for a result in the program's memory.
///
/// # Safety
/// A pointer that is not NULL must have room for a `T`.
unsafe fn put<T>(to: *mut T, value: T) -> Answer {
    if to.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: not NULL, and the caller's promise.
    unsafe { to.write_unaligned(value) };
    Ok(())
}

/// Writes text and its end into a buffer of `size` bytes.
///
/// # Safety
/// A pointer that is not NULL must have room for `size` bytes.
unsafe fn put_text(to: *mut c_char, size: c_uint, text: &str) -> Answer {
    if to.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    if (size as usize) <= text.len() {
        return Err(INSUFFICIENT_SIZE);
    }
    // SAFETY: the text and its end fit into `size` bytes, which the caller promises.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), to.cast::<u8>(), text.len());
        to.add(text.len()).write(0);
    }
    Ok(())
}

/// # Safety
/// A pointer that is not NULL must be a C string.
unsafe fn text<'a>(from: *const c_char) -> Answer<&'a str> {
    if from.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(from) }.to_str().map_err(|_| INVALID_ARGUMENT)
}

/// The GPU of a handle.
fn gpu(device: nvmlDevice_t) -> Answer<(u32, Settings)> {
    let settings = settings()?;
    let offset = device.addr().wrapping_sub(FIRST);
    let gpu = u32::try_from(offset / STEP).map_err(|_| INVALID_ARGUMENT)?;
    match offset.is_multiple_of(STEP) && gpu < settings.gpus {
        true => Ok((gpu, settings)),
        false => Err(INVALID_ARGUMENT),
    }
}

/// # Safety
/// As `put`.
unsafe fn put_handle(to: *mut nvmlDevice_t, found: impl Fn(u32) -> bool, missing: Code) -> Answer {
    let gpus = settings()?.gpus;
    let gpu = (0..gpus).find(|gpu| found(*gpu)).ok_or(missing)?;
    // SAFETY: the caller's promise.
    unsafe { put(to, std::ptr::without_provenance_mut(FIRST + gpu as usize * STEP)) }
}

/// `GPU-` and the number in the usual groups.
fn uuid(gpu: u32) -> String {
    let mut text = String::from("GPU");
    for (index, byte) in facts::uuid(gpu).iter().enumerate() {
        if matches!(index, 0 | 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

/// Bytes in use on a GPU: by everybody if processes share the machine, else by this process.
fn used(gpu: u32, settings: &Settings) -> u64 {
    if let Some(name) = &settings.machine {
        return vgmem_sim::shared_use(name, gpu).unwrap_or(0);
    }
    type Used = unsafe extern "C" fn(u32) -> u64;
    // SAFETY: only asks whether the driver is loaded already, and for one of its functions.
    let found = unsafe {
        let driver = libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if driver.is_null() {
            return 0;
        }
        let found = libc::dlsym(driver, c"vgmem_sim_used".as_ptr());
        libc::dlclose(driver);
        found
    };
    if found.is_null() {
        return 0;
    }
    // SAFETY: the simulated driver's function of this name has this type, and it is never unloaded.
    unsafe { std::mem::transmute::<*mut c_void, Used>(found)(gpu) }
}

/// The exported functions: name, arguments, what is done.
macro_rules! exports {
    ($($name:ident($($arg:ident: $type:ty),*) $body:expr;)*) => { $(
        #[doc = concat!("`", stringify!($name), "`.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> Code {
            // SAFETY: the program's promise to the library.
            #[allow(unused_unsafe)]
            code(unsafe { $body })
        }
    )* };
}

exports! {
    nvmlInit() start();
    nvmlInit_v2() start();
    nvmlInitWithFlags(_flags: c_uint) start();
    nvmlShutdown() state(|state| match state {
        Some((_, count)) if *count > 1 => {
            *count -= 1;
            Ok(())
        }
        Some(_) => {
            *state = None;
            Ok(())
        }
        None => Err(UNINITIALIZED),
    });
    nvmlSystemGetDriverVersion(to: *mut c_char, size: c_uint)
        settings().and_then(|_| put_text(to, size, facts::DRIVER));
    nvmlSystemGetNVMLVersion(to: *mut c_char, size: c_uint)
        settings().and_then(|_| put_text(to, size, &format!("13.{}", facts::DRIVER)));
    nvmlSystemGetCudaDriverVersion(to: *mut c_int) settings().and_then(|s| put(to, s.driver as c_int));
    nvmlSystemGetCudaDriverVersion_v2(to: *mut c_int) settings().and_then(|s| put(to, s.driver as c_int));
    nvmlDeviceGetCount(to: *mut c_uint) settings().and_then(|s| put(to, s.gpus));
    nvmlDeviceGetCount_v2(to: *mut c_uint) settings().and_then(|s| put(to, s.gpus));
    nvmlDeviceGetHandleByIndex(index: c_uint, to: *mut nvmlDevice_t)
        put_handle(to, |gpu| gpu == index, INVALID_ARGUMENT);
    nvmlDeviceGetHandleByIndex_v2(index: c_uint, to: *mut nvmlDevice_t)
        put_handle(to, |gpu| gpu == index, INVALID_ARGUMENT);
    nvmlDeviceGetHandleByUUID(id: *const c_char, to: *mut nvmlDevice_t)
        text(id).and_then(|id| put_handle(to, |gpu| uuid(gpu) == id, NOT_FOUND));
    nvmlDeviceGetHandleByPciBusId(id: *const c_char, to: *mut nvmlDevice_t)
        text(id).and_then(|id| put_handle(to, |gpu| facts::by_pci(id) == Some(gpu), NOT_FOUND));
    nvmlDeviceGetHandleByPciBusId_v2(id: *const c_char, to: *mut nvmlDevice_t)
        text(id).and_then(|id| put_handle(to, |gpu| facts::by_pci(id) == Some(gpu), NOT_FOUND));
    nvmlDeviceGetIndex(device: nvmlDevice_t, to: *mut c_uint) gpu(device).and_then(|(gpu, _)| put(to, gpu));
    nvmlDeviceGetUUID(device: nvmlDevice_t, to: *mut c_char, size: c_uint)
        gpu(device).and_then(|(gpu, _)| put_text(to, size, &uuid(gpu)));
    nvmlDeviceGetName(device: nvmlDevice_t, to: *mut c_char, size: c_uint)
        gpu(device).and_then(|_| put_text(to, size, facts::NAME));
    nvmlDeviceGetMemoryInfo(device: nvmlDevice_t, to: *mut nvmlMemory_t) gpu(device).and_then(|(gpu, s)| {
        let total = s.gpu_memory();
        let used = used(gpu, &s).min(total);
        put(to, nvmlMemory_t { total, free: total - used, used })
    });
    nvmlDeviceGetMemoryInfo_v2(device: nvmlDevice_t, to: *mut nvmlMemory_v2_t)
        gpu(device).and_then(|(gpu, s)| {
            if to.is_null() {
                return Err(INVALID_ARGUMENT);
            }
            if (&raw const (*to).version).read_unaligned() != MEMORY_VERSION {
                return Err(VERSION_MISMATCH);
            }
            let total = s.gpu_memory();
            let used = used(gpu, &s).min(total);
            let version = MEMORY_VERSION;
            put(to, nvmlMemory_v2_t { version, total, reserved: 0, free: total - used, used })
        });
}

/// `nvmlErrorString`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(result: Code) -> *const c_char {
    let found = TEXTS.iter().find(|(code, _)| *code == result);
    found.map_or(c"Unknown Error", |(_, text)| text).as_ptr()
}
