//! The library as programs use it: opened, and asked by name.
#![allow(clippy::unwrap_used)] // helpers of tests are tests too

use std::ffi::{CStr, CString, c_char, c_void};
use vgmem_abi::{nvmlMemory_t, nvmlMemory_v2_t};
use vgmem_sim::facts;

/// The library as it is installed, which is built if that is needed.
fn library() -> *mut c_void {
    static BUILT: std::sync::Once = std::sync::Once::new();
    BUILT.call_once(|| {
        let build = ["build", "--release", "--locked", "-p", "vgmem-simnvml"];
        let done = std::process::Command::new(env!("CARGO")).args(build).status().unwrap();
        assert!(done.success());
    });
    let test = std::env::current_exe().unwrap();
    let path = test.ancestors().nth(3).unwrap().join("release/libvgmem_simnvml.so");
    let path = CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: the library has no constructors of its own.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    assert!(!handle.is_null(), "{path:?}");
    handle
}

/// Calls a function of the library with arguments that fit into registers.
fn call(name: &CStr, a: usize, b: usize, c: usize) -> u32 {
    // SAFETY: looks up a name in the library, which stays open.
    let found = unsafe { libc::dlsym(library(), name.as_ptr()) };
    assert!(!found.is_null(), "{name:?}");
    // SAFETY: every function that is asked for takes at most three arguments of this size.
    unsafe { std::mem::transmute::<*mut c_void, extern "C" fn(usize, usize, usize) -> u32>(found)(a, b, c) }
}

fn at<T>(value: &mut T) -> usize {
    std::ptr::from_mut(value).expose_provenance()
}

fn text(name: &CStr, device: usize) -> String {
    let mut buffer = [0 as c_char; 96];
    assert_eq!(call(name, device, at(&mut buffer), 96), 0);
    // SAFETY: the library ended the text within the buffer.
    unsafe { CStr::from_ptr(buffer.as_ptr()) }.to_str().unwrap().to_string()
}

/// One test: the library's state and the environment belong to the process.
#[test]
fn the_library_shows_the_gpus_that_the_driver_shows() {
    // SAFETY: no other thread reads the environment: this process runs one test.
    unsafe { std::env::set_var("VGMEM_SIM", "gpus=3,mem=100M") };
    let (mut count, mut device) = (0_u32, 0_usize);
    assert_eq!(call(c"nvmlDeviceGetCount_v2", at(&mut count), 0, 0), 1, "not started yet");
    assert_eq!(call(c"nvmlInit_v2", 0, 0, 0), 0);
    assert_eq!(call(c"nvmlDeviceGetCount_v2", at(&mut count), 0, 0), 0);
    assert_eq!(count, 3);
    assert_eq!(call(c"nvmlDeviceGetHandleByIndex_v2", 3, at(&mut device), 0), 2);
    for gpu in 0..3 {
        assert_eq!(call(c"nvmlDeviceGetHandleByIndex_v2", gpu, at(&mut device), 0), 0);
        let id = text(c"nvmlDeviceGetUUID", device);
        let plain: String = facts::uuid(gpu as u32).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(id.replace("GPU-", "").replace('-', ""), plain);
        assert_eq!(id.len(), 40);
        assert_eq!(text(c"nvmlDeviceGetName", device), facts::NAME);
        let mut same = 0_usize;
        let id = CString::new(id).unwrap();
        let by_uuid = c"nvmlDeviceGetHandleByUUID";
        assert_eq!(call(by_uuid, id.as_ptr().expose_provenance(), at(&mut same), 0), 0);
        assert_eq!(same, device);
        let pci = CString::new(format!("00000000:{:02X}:00.0", gpu + 1)).unwrap();
        let by_pci = c"nvmlDeviceGetHandleByPciBusId_v2";
        assert_eq!(call(by_pci, pci.as_ptr().expose_provenance(), at(&mut same), 0), 0);
        assert_eq!(same, device);
    }
    let mut memory = nvmlMemory_t { total: 1, free: 1, used: 1 };
    assert_eq!(call(c"nvmlDeviceGetMemoryInfo", device, at(&mut memory), 0), 0);
    assert_eq!((memory.total, memory.free, memory.used), (100 << 20, 100 << 20, 0));
    let mut newer = nvmlMemory_v2_t { version: 0, total: 1, reserved: 1, free: 1, used: 1 };
    assert_eq!(call(c"nvmlDeviceGetMemoryInfo_v2", device, at(&mut newer), 0), 25);
    newer.version = 40 | 2 << 24;
    assert_eq!(call(c"nvmlDeviceGetMemoryInfo_v2", device, at(&mut newer), 0), 0);
    assert_eq!((newer.total, newer.free, newer.reserved), (100 << 20, 100 << 20, 0));
    assert_eq!(call(c"nvmlDeviceGetMemoryInfo", device + 1, at(&mut memory), 0), 2);
    assert_eq!(call(c"nvmlShutdown", 0, 0, 0), 0);
    assert_eq!(call(c"nvmlShutdown", 0, 0, 0), 1);
}
