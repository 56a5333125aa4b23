//! What `auto` may do to a program that it cannot serve is loud, and says what to do.

use std::sync::atomic::{AtomicBool, Ordering};

use vgmem_abi::*;

use crate::pager;
use crate::start::engine;

static COMPLAINED: AtomicBool = AtomicBool::new(false);

/// The driver answered this to the program. An illegal address may be our doing where pages were hidden: loud, and
/// never silent (rule S5).
#[inline]
pub fn noticed(rc: CUresult) {
    if rc == CUDA_ERROR_ILLEGAL_ADDRESS {
        complain();
    }
}

#[cold]
fn complain() {
    if let Some(engine) = engine()
        && pager::hides(engine)
        && !COMPLAINED.swap(true, Ordering::SeqCst)
    {
        log::error!(
            "a kernel used an address that is not mapped. If the program runs without the library, a kernel reached \
             memory that its launch did not name while that was paged out: set VGMEM_SAFETY=strict"
        );
    }
}
