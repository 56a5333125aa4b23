//! `dlsym` and `dlopen`.
//!
//! Both are naked: they end in a jump into the C library with the caller's return address in place, because
//! the C library reads it: RTLD_NEXT and RTLD_DEFAULT mean "seen from the caller", and so does RUNPATH.

use std::arch::naked_asm;
use std::ffi::{CStr, c_char, c_int, c_long, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{nvml, slot, system};

/// What to do with a lookup: jump to `to`, or, where that is NULL, answer `answer`.
#[repr(C)]
struct Verdict {
    to: *mut c_void,
    answer: *mut c_void,
}

/// `dlsym`: gives our function where the real lookup answers the driver's.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    naked_asm!(
        "endbr64",
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {judge}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jz 2f",
        "jmp rax",
        "2:",
        "mov rax, rdx",
        "ret",
        judge = sym judge,
    )
}

/// `dlopen`: clears RTLD_DEEPBIND, under which a library would bind to the driver past us.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void {
    naked_asm!(
        "endbr64",
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "mov edi, esi",
        "call {prepare}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "mov esi, edx",
        "test rax, rax",
        "jz 2f",
        "jmp rax",
        "2:",
        "ret",
        prepare = sym prepare_open,
    )
}

/// `dlmopen`: passed on. A library in a namespace of its own has a driver of its own, which we cannot see: the
/// exit report says so.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn dlmopen(namespace: c_long, file: *const c_char, flags: c_int) -> *mut c_void {
    naked_asm!(
        "endbr64",
        "push rdi",
        "push rsi",
        "push rdx",
        "call {note}",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jz 2f",
        "jmp rax",
        "2:",
        "ret",
        note = sym note_namespace,
    )
}

static NAMESPACES: AtomicBool = AtomicBool::new(false);

/// Whether the program loaded something into a namespace of its own.
pub fn namespaces_used() -> bool {
    NAMESPACES.load(Ordering::Relaxed)
}

extern "C" fn note_namespace(namespace: c_long) -> *mut c_void {
    const BASE: c_long = 0; // LM_ID_BASE: the program's own namespace
    if namespace != BASE {
        NAMESPACES.store(true, Ordering::Relaxed);
    }
    system::dlmopen_address()
}

/// Where `dlopen` jumps to (rax) and with which flags (rdx).
#[repr(C)]
struct Open {
    to: *mut c_void,
    flags: usize,
}

extern "C" fn prepare_open(flags: c_int) -> Open {
    let flags = if slot::enabled() { flags & !libc::RTLD_DEEPBIND } else { flags };
    Open { to: system::dlopen_address(), flags: flags as u32 as usize }
}

/// Decides on one lookup. Runs before anything is initialised: takes no lock, allocates nothing, starts nothing.
extern "C" fn judge(handle: *mut c_void, name: *const c_char) -> Verdict {
    let pass = Verdict { to: system::dlsym_address(), answer: std::ptr::null_mut() };
    // For the pseudo handles the caller matters. RTLD_DEFAULT finds our export by itself where it is first;
    // RTLD_NEXT from behind us asks for what is behind the asker, which is the driver itself.
    if name.is_null() || handle == libc::RTLD_DEFAULT || handle == libc::RTLD_NEXT {
        return pass;
    }
    // SAFETY: `dlsym` takes a string that ends with NUL.
    let name = unsafe { CStr::from_ptr(name) };
    if name == c"dlsym" || name == c"dlopen" {
        return own_lookup(handle, name);
    }
    if name.to_bytes().starts_with(b"nvml") && nvml::is_ours(name) && slot::enabled() {
        let found = system::dlsym(handle, name);
        let answer = if found.is_null() { found } else { nvml::substitute(name, found) };
        return Verdict { to: std::ptr::null_mut(), answer };
    }
    if !name.to_bytes().starts_with(b"cu") || !slot::enabled() {
        return pass;
    }
    match slot::named(name) {
        None => pass,
        Some(slot) => {
            let found = system::dlsym(handle, name);
            let answer = if found.is_null() { found } else { slot::substitute(slot, found) };
            Verdict { to: std::ptr::null_mut(), answer }
        }
    }
}

/// A program that looks up the C library's `dlsym` or `dlopen` gets ours, or it would see past us.
fn own_lookup(handle: *mut c_void, name: &CStr) -> Verdict {
    let found = system::dlsym(handle, name);
    let answer = if found.is_null() || !slot::enabled() {
        found
    } else if found == system::dlsym_address() {
        dlsym as *mut c_void
    } else if found == system::dlopen_address() {
        dlopen as *mut c_void
    } else {
        found
    };
    Verdict { to: std::ptr::null_mut(), answer }
}
