//! Launches that hardly touch what they name: which of their allocations are used where they lie.
//!
//! The policy (`vgmem_policy::Touch`) tells from the times of launches. An allocation that is used so is neither
//! brought nor noted as used, so that others have its memory; its pages are shown where they lie, and stay so.

use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};

use vgmem_policy::Touch;

use crate::device::Device;
use crate::pool::{Note, Pool, State};

/// What a launch wants at home, and what is wanted to be known of it.
#[derive(Debug, Default)]
pub struct Wish {
    /// Allocations that it uses where they lie, by slot.
    aside: Vec<u32>,
    /// Large ones of which it is to be told how long the launch took.
    timed: Vec<Timed>,
}

/// A large allocation that a launch names.
#[derive(Clone, Copy, Debug)]
struct Timed {
    slot: u32,
    serial: u64,
    function: u64,
    home: u8,
    bytes: u64,
    /// A part of it lay elsewhere.
    in_place: bool,
}

/// A launch that is timed.
#[derive(Debug)]
pub struct Timing(Vec<Timed>);

impl Wish {
    /// Whether some are used where they lie.
    pub fn leaves_some(&self) -> bool {
        !self.aside.is_empty()
    }

    /// The launch has to be timed, and where its time is to be told.
    pub fn timing(&mut self) -> Option<Timing> {
        let timed = std::mem::take(&mut self.timed);
        (!timed.is_empty()).then_some(Timing(timed))
    }
}

impl<D: Device> Pool<D> {
    fn touch(&self) -> MutexGuard<'_, Touch> {
        self.touch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the large allocations that a launch of a function on GPU `home` names.
    pub fn wish(&self, home: u8, function: u64, addresses: &[u64]) -> Wish {
        let mut wish = Wish::default();
        if !self.tables.load(Ordering::Relaxed) {
            return wish;
        }
        let speed = &self.config.gpus[home as usize].speed;
        let large = {
            let state = self.lock();
            let named = self.named(&state, addresses);
            let timed = named.into_iter().filter_map(|slot| self.large_one(&state, slot, home, function));
            timed.collect::<Vec<Timed>>()
        };
        if large.is_empty() {
            return wish;
        }
        let mut touch = self.touch();
        for mut one in large {
            let sight = touch.named(function, one.slot, one.bytes, speed);
            one.in_place &= sight.in_place;
            if sight.begins {
                self.note(Note::Gone(vec![one.slot]));
            }
            wish.aside.extend(sight.in_place.then_some(one.slot));
            wish.timed.extend(sight.timed.then_some(one));
        }
        wish
    }

    /// An allocation that might be used where it lies.
    fn large_one(&self, state: &State, slot: u32, home: u8, function: u64) -> Option<Timed> {
        let allocation = state.allocations.get(slot)?;
        let (bytes, serial) = (allocation.span, allocation.serial);
        let is_large = Touch::is_large(bytes, &self.config.gpus[home as usize].speed);
        if !is_large || allocation.home != home || allocation.is_divided() {
            return None;
        }
        let away = |id: &u32| state.pages.get(*id).is_some_and(|page| page.tier != home as usize);
        let in_place = allocation.pages.iter().any(away);
        Some(Timed { slot, serial, function, home, bytes, in_place })
    }

    /// A timed launch took so many microseconds; it is `now`, in microseconds since any time.
    pub fn took(&self, Timing(all): &Timing, us: u64, now: u64) {
        for one in all {
            let lives = self.lock().allocations.get(one.slot).is_some_and(|a| a.serial == one.serial);
            let mut touch = self.touch();
            match one.in_place {
                _ if !lives => {}
                true => {
                    let speed = &self.config.gpus[one.home as usize].speed;
                    touch.took_in_place(one.slot, one.bytes, us, now, speed);
                }
                false => touch.took(one.function, one.slot, us),
            }
        }
    }

    /// Of the addresses that a launch names those in what it wants at home, and those in what it uses where it lies.
    pub fn split(&self, wish: &Wish, addresses: &[u64]) -> (Vec<u64>, Vec<u64>) {
        let state = self.lock();
        let is_aside = |at: u64| self.slot_of(&state, at).is_some_and(|slot| wish.aside.contains(&slot));
        addresses.iter().partition(|&&at| !is_aside(at))
    }

    /// Functions are gone: their numbers may come back for others.
    pub fn forget_functions(&self) {
        self.touch().forget_functions();
    }

    /// An allocation was made: whether launches have to be looked at.
    pub(crate) fn note_large(&self, state: &State, slot: u32) {
        if let Some(one) = state.allocations.get(slot) {
            let speed = &self.config.gpus[one.home as usize].speed;
            self.tables.fetch_or(Touch::is_large(one.span, speed), Ordering::Relaxed);
        }
    }

    /// An allocation is gone.
    pub(crate) fn forget_touch(&self, slot: u32) {
        if self.tables.load(Ordering::Relaxed) {
            self.touch().forget(slot);
        }
    }
}
