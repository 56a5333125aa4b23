//! After `fork` the child has the parent's memory but none of its threads: it gets no driver.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

static FORKED: AtomicBool = AtomicBool::new(false);
static WATCH: Once = Once::new();

extern "C" fn in_child() {
    FORKED.store(true, Ordering::Relaxed);
}

/// Starts to watch for forks of this process.
pub(crate) fn watch() {
    WATCH.call_once(|| {
        // SAFETY: the handler only stores to an atomic, and this library is never unloaded.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

/// Whether this process is a child made by `fork` after the driver was initialised.
pub fn forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}
