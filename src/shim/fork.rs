//! Forked children: CUDA does not work there, and the library is inert.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

static FORKED: AtomicBool = AtomicBool::new(false);
static OWNER: AtomicI32 = AtomicI32::new(0);

extern "C" fn in_child() {
    FORKED.store(true, Ordering::Relaxed);
}

/// Notes the process in which the engine starts.
pub fn watch() {
    OWNER.store(process(), Ordering::Relaxed);
    // SAFETY: the handler stores one flag; it may run in a child of a process with threads.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
}

/// Whether this is a forked child of the process in which the engine started.
#[inline]
pub fn forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// Whether this is the process in which the engine started. Asks the kernel: true also for children that were
/// made past the C library (`vfork`, `clone`).
pub fn owner() -> bool {
    !forked() && OWNER.load(Ordering::Relaxed) == process()
}

/// This process's number.
pub fn process() -> i32 {
    // SAFETY: takes no arguments.
    unsafe { libc::getpid() }
}
