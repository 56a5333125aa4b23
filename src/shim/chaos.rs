//! `VGMEM_CHAOS`: moves random pages at every idle point, to show that moving is right.
//!
//! For tests. It waits for all work of the process before it moves, so a program whose kernels wait for the host
//! may hang under it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::gate;
use crate::start::Engine;

/// Pages moved at one idle point, at most.
const MOVES: u64 = 3;

static ON: AtomicBool = AtomicBool::new(false);
static STATE: AtomicU64 = AtomicU64::new(0);

/// Seeds the choice of pages and turns moving on.
pub fn start(seed: u64) {
    STATE.store(seed, Ordering::Relaxed);
    ON.store(true, Ordering::SeqCst);
    gate::turn_on();
}

/// Whether pages move at idle points.
#[inline]
pub fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// The next number of a splitmix64 sequence. Only the thread that closed the gate draws.
fn random() -> u64 {
    let state = STATE.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed).wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

/// Moves up to [`MOVES`] random pages to random tiers. The gate is closed.
pub fn move_pages(engine: &Engine) {
    let tiers = engine.gpus.len() as u64 + 1;
    let wanted = random() % (MOVES + 1);
    if wanted == 0 || !gate::quiet(engine) {
        return;
    }
    for _ in 0..wanted {
        let Some(page) = engine.pool.nth_page(random()) else { return };
        let tier = (random() % tiers) as usize;
        match engine.pool.relocate(page, tier) {
            Ok(moved) => log::trace!("chaos: {page:?} to tier {tier}: {moved}"),
            Err(error) => log::debug!("chaos: {page:?} to tier {tier}: the driver answered {}", error.code()),
        }
    }
}
