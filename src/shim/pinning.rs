//! Host RAM that is pinned beside the program's work: pinning a page takes longer than copying it.
//!
//! Frames for moves are made when a GPU is nearly full, and further ones while they save copies (twins). What is kept
//! merely for speed goes back when other processes need the memory. The threads end when there is nothing to do.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use vgmem_engine::Context;

use crate::mover;
use crate::start::Engine;

/// Between two looks whether more frames are wanted, and how often in vain before the thread ends.
const NAP: Duration = Duration::from_millis(2);
const LOOKS: u32 = 50;
/// A frame keeps the driver busy for 8 to 30 ms, in which no page can be mapped (docs/DRIVER_FACTS.md): behind the
/// first ones, which are made while the program begins to page, nothing is made for so many times as long.
const PARTS: u32 = 49;
const FIRST: usize = 64;
/// Not begun again so soon where no frames could be had.
const REST: Duration = Duration::from_secs(1);
/// Between two looks whether others need the memory.
pub const LOOK: Duration = Duration::from_millis(250);

/// Frames that are given back at a time.
const AT_ONCE: usize = 16;

/// GPUs for which frames were made ahead, one bit each.
static AHEAD: AtomicU64 = AtomicU64::new(0);
/// GPUs for which a thread makes frames for twins, or rests afterwards, one bit each.
static MAKING: AtomicU64 = AtomicU64::new(0);
/// Frames that were made for twins.
static MADE: AtomicUsize = AtomicUsize::new(0);
/// Held while such a thread calls the driver.
static CALLING: Mutex<()> = Mutex::new(());

/// Makes the frames that moves of a GPU need, once, when it is nearly full.
pub fn make_ahead(engine: &'static Engine, context: Context, home: u8) {
    let bit = 1u64 << (home & 63);
    if engine.pool.is_nearly_full(home) && AHEAD.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
        mover::watch_the_end();
        let make = move || engine.pool.make_frames_ahead(home, context);
        let work = move || log::debug!("{:?} frames ahead", before_the_end(make));
        // Without the thread they are made at their first use.
        let _ = std::thread::Builder::new().name("vgmem-pin".into()).spawn(work);
    }
}

/// Lets a thread make frames while they are wanted. One load where they are not.
pub fn look(engine: &'static Engine, context: Context, home: u8) {
    let bit = 1u64 << (home & 63);
    if !engine.pool.wants_frames(home) || MAKING.fetch_or(bit, Ordering::AcqRel) & bit != 0 {
        return;
    }
    mover::watch_the_end();
    let work = move || {
        make(engine, context, home);
        MAKING.fetch_and(!bit, Ordering::Release);
    };
    if std::thread::Builder::new().name("vgmem-pin".into()).spawn(work).is_err() {
        MAKING.fetch_and(!bit, Ordering::Release); // pages are copied as without
    }
}

fn make(engine: &Engine, context: Context, home: u8) {
    let mut vain = 0;
    let mut all = 0;
    while vain < LOOKS {
        let begin = Instant::now();
        let Some(made) = before_the_end(|| engine.pool.make_wanted_frames(home, context, 1)) else { return };
        all += made;
        vain = if made > 0 { 0 } else { vain + 1 };
        let first = MADE.fetch_add(made, Ordering::Relaxed) < FIRST;
        std::thread::sleep(if first { NAP } else { NAP.max(PARTS * begin.elapsed()) });
    }
    log::debug!("{all} frames for pages that may be unwritten");
    // Where no thread moves pages, this one looks whether others need what it has made.
    while !mover::is_there(home) && engine.pool.twins() > 0 {
        std::thread::sleep(LOOK);
        if before_the_end(|| look_at_others(engine)).is_none() || engine.pool.wants_frames(home) {
            return;
        }
    }
    if engine.pool.wants_frames(home) {
        std::thread::sleep(REST);
    }
}

/// Calls the driver on a thread beside the program's, unless the process has begun to end; that waits for it.
pub fn before_the_end<T>(work: impl FnOnce() -> T) -> Option<T> {
    let _calling = CALLING.lock().unwrap_or_else(PoisonError::into_inner);
    (!mover::is_over()).then(work)
}

/// Gives a part of what is kept merely for speed back where others need it. Called during a mover's step, or where the
/// end of the process waits for it.
pub fn look_at_others(engine: &Engine) {
    if engine.pool.twins() > 0 && !engine.pool.on_hold() && engine.pool.device().host_is_short() {
        let bytes = engine.pool.release_twins(AT_ONCE);
        log::debug!("{} MiB of host RAM given back for others", bytes >> 20);
    }
}

/// The process ends: waits until no frame is being made, at most until `end`.
pub fn wait_until_idle(end: Instant) {
    while matches!(CALLING.try_lock(), Err(TryLockError::WouldBlock)) && Instant::now() < end {
        std::thread::sleep(NAP);
    }
}
