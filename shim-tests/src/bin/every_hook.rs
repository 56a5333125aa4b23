//! Calls every function that the library hooks or observes, with zeros for arguments, through the
//! addresses that a program would get, and prints which hooks the library says were reached and which
//! functions of the simulated driver were called.
//!
//! `every_hook bare` calls before `cuInit`, on a thread without a context; `every_hook ready` after.

use std::ffi::{CString, c_char, c_int, c_void};
use vgmem_abi::CUresult;

/// Name and a call with zeros at an address.
type Call = (&'static str, unsafe fn(*mut c_void) -> CUresult);

/// A value of any type of the interface with all bits zero.
///
/// # Safety
/// `T` must be an integer, a pointer or a plain struct of them.
unsafe fn zero<T>() -> T {
    // SAFETY: the caller promises that zeros are a value of `T`.
    unsafe { std::mem::zeroed() }
}

/// Adds the calls of one row: the plain symbol, then its twin.
macro_rules! row {
    (forward $($rest:tt)*) => {};
    ($action:ident $out:ident [] ($($arg:ident: $type:ty),*)) => {};
    ($action:ident $out:ident [$symbol:ident $($more:ident)?] ($($arg:ident: $type:ty),*)) => {
        $out.push((stringify!($symbol), {
            /// # Safety
            /// `address` must be the function of this row.
            unsafe fn call(address: *mut c_void) -> CUresult {
                // SAFETY: the address was found under the name of this row, which states the types.
                let f: unsafe extern "C" fn($($type),*) -> CUresult = unsafe { std::mem::transmute(address) };
                // SAFETY: integers, pointers and plain structs; the interface answers to NULL.
                unsafe { f($(zero::<$type>()),*) }
            }
            call as unsafe fn(*mut c_void) -> CUresult
        }));
        row!($action $out [$($more)?] ($($arg: $type),*));
    };
}

macro_rules! group {
    ($group:ident; $($action:ident $sim:ident $base:ident: $symbol:ident @ $version:literal
        $(/ $twin:ident @ $twin_version:literal)? ($($params:tt)*);)*) => {
        mod $group {
            #[allow(unused_imports)] // a group may have no hooks
            use super::{c_void, zero};
            #[allow(unused_imports)]
            use vgmem_abi::*;
            #[allow(unused_variables, clippy::ptr_arg)]
            pub fn add(out: &mut Vec<super::Call>) {
                $( row!($action out [$symbol $($twin)?] ($($params)*)); )*
            }
        }
    };
}

mod groups {
    use super::*;
    vgmem_abi::for_each_driver_group! { group }

    pub fn all() -> Vec<Call> {
        let mut out = Vec::new();
        for add in [context::add, copy::add, execution::add, graph::add, memory::add, object::add] {
            add(&mut out);
        }
        out
    }
}

fn find(handle: *mut c_void, name: &str) -> *mut c_void {
    let name = CString::new(name).expect("names have no NUL");
    // SAFETY: the handle is open or the default one, and the name ends with a NUL.
    unsafe { libc::dlsym(handle, name.as_ptr()) }
}

type Calls = unsafe extern "C" fn(*const c_char) -> u64;

/// How often the simulated driver was called under each of the table's names.
fn driver_calls(driver: *mut c_void) -> Vec<(&'static str, u64)> {
    // SAFETY: the simulated driver exports it with this type.
    let ask: Calls = unsafe { std::mem::transmute(find(driver, "vgmem_sim_calls")) };
    let hooked = vgmem_abi::functions().filter(|f| f.action != vgmem_abi::Action::Forward);
    let count = |name: &'static str| {
        let text = CString::new(name).expect("names have no NUL");
        // SAFETY: the name ends with a NUL.
        (name, unsafe { ask(text.as_ptr()) })
    };
    hooked.flat_map(|f| f.symbols()).map(count).collect()
}

type Reached = unsafe extern "C" fn(*const c_char) -> c_int;

fn reached(name: &str) -> c_int {
    let address = find(libc::RTLD_DEFAULT, "vgmem_hook_reached");
    assert!(!address.is_null(), "the library is not preloaded");
    let name = CString::new(name).expect("names have no NUL");
    // SAFETY: the library declares it so in include/vgmem.h.
    let ask: Reached = unsafe { std::mem::transmute(address) };
    // SAFETY: the name ends with a NUL.
    unsafe { ask(name.as_ptr()) }
}

/// Makes the primary context of GPU 0 current.
fn ready(driver: *mut c_void) {
    let mut context: *mut c_void = std::ptr::null_mut();
    // SAFETY: the three functions have these types in every driver.
    unsafe {
        let init: unsafe extern "C" fn(u32) -> u32 = std::mem::transmute(find(driver, "cuInit"));
        let retain: unsafe extern "C" fn(*mut *mut c_void, c_int) -> u32 =
            std::mem::transmute(find(driver, "cuDevicePrimaryCtxRetain"));
        let current: unsafe extern "C" fn(*mut c_void) -> u32 =
            std::mem::transmute(find(driver, "cuCtxSetCurrent"));
        assert_eq!((init(0), retain(&mut context, 0), current(context)), (0, 0, 0));
    }
}

fn main() {
    let mode = std::env::args().nth(1).unwrap_or_default();
    // SAFETY: the name ends with a NUL.
    let driver = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
    assert!(!driver.is_null(), "there is no driver");
    if mode == "ready" {
        ready(driver);
    }
    for (name, call) in groups::all() {
        let address = find(driver, name);
        assert!(!address.is_null(), "{name} is missing");
        let before = reached(name);
        let calls = driver_calls(driver);
        // SAFETY: the address was looked up under the name that belongs to the call.
        let rc = unsafe { call(address) };
        let after = driver_calls(driver);
        let grown = calls.iter().zip(&after).filter(|(b, a)| a.1 > b.1).map(|(b, _)| b.0);
        println!("{name} {before} {} {rc} {}", reached(name), grown.collect::<Vec<_>>().join(","));
    }
    println!("unknown {}", reached("cuNoSuchFunction"));
}
