//! After `fork` the child has the parent's memory but none of its threads: it gets no driver.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

static FORKED: AtomicBool = AtomicBool::new(false);
static WATCH: Once = Once::new();
/// Descriptor that a child must not keep open; -1: none.
static CLOSE: AtomicI32 = AtomicI32::new(-1);

extern "C" fn in_child() {
    FORKED.store(true, Ordering::Relaxed);
    let fd = CLOSE.load(Ordering::Relaxed);
    if fd >= 0 {
        // SAFETY: the child's copy of a descriptor that only the driver uses, which is over here.
        unsafe { libc::close(fd) };
    }
}

/// Starts to watch for forks of this process.
pub(crate) fn watch() {
    WATCH.call_once(|| {
        // SAFETY: the handler only stores to an atomic and closes a descriptor, and this library is
        // never unloaded.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

/// A child closes this descriptor: locks on it shall end with the parent.
pub(crate) fn close_in_child(fd: i32) {
    CLOSE.store(fd, Ordering::Relaxed);
}

/// Whether this process is a child made by `fork` after the driver was initialised.
pub fn forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}
