//! Launches that hardly touch what they name: which of their allocations are used where they lie.
//!
//! The policy (`vgmem_policy::Touch`) tells from the times of launches. An allocation that is used so is neither
//! brought nor noted as used, so that others have its memory; its pages are shown where they lie, and stay so.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};

use vgmem_policy::Touch;

use crate::device::Device;
use crate::pool::{Note, Pool, State};

/// A large allocation.
#[derive(Clone, Copy, Debug)]
struct Table {
    base: u64,
    slot: u32,
    serial: u64,
    home: u8,
    bytes: u64,
}

/// The large allocations by their first addresses, and what launches touch of them. With a lock of its own: launches
/// meet enough of others.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    all: BTreeMap<u64, Table>,
    touch: Touch,
}

impl Tables {
    /// Those of a GPU that these addresses lie in.
    fn named(&self, home: u8, addresses: &[u64]) -> Vec<Table> {
        let mut found: Vec<Table> = Vec::new();
        for &address in addresses {
            let before = self.all.range(..=address).next_back();
            let Some((_, table)) = before else { continue };
            let is_new = found.iter().all(|other| other.slot != table.slot);
            if address - table.base < table.bytes && table.home == home && is_new {
                found.push(*table);
            }
        }
        found
    }
}

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
    table: Table,
    function: u64,
    /// It is used where it lies; once settled: a part of it lies elsewhere.
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
    fn large_ones(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the large allocations that a launch of a function on GPU `home` names.
    pub fn wish(&self, home: u8, function: u64, addresses: &[u64]) -> Wish {
        let mut wish = Wish::default();
        if !self.has_tables.load(Ordering::Relaxed) {
            return wish;
        }
        let speed = &self.config.gpus[home as usize].speed;
        {
            let mut tables = self.large_ones();
            for table in tables.named(home, addresses) {
                let sight = tables.touch.named(function, table.slot, table.bytes, speed);
                if sight.begins {
                    self.note(Note::Gone(vec![table.slot]));
                }
                wish.aside.extend(sight.in_place.then_some(table.slot));
                let timed = Timed { table, function, in_place: sight.in_place };
                wish.timed.extend(sight.timed.then_some(timed));
            }
        }
        if wish.leaves_some() {
            // Parts of a divided allocation are brought in any case.
            let state = self.lock();
            let whole = |slot: &u32| state.allocations.get(*slot).is_some_and(|one| !one.is_divided());
            wish.aside.retain(whole);
        }
        wish
    }

    /// What a launch uses is where it will be: whether it is timed at home or in place. Nothing is told where neither
    /// is so, or of a divided allocation.
    pub fn settle_timing(&self, Timing(mut all): Timing) -> Option<Timing> {
        let state = self.lock();
        all.retain_mut(|one| {
            let home = one.table.home as usize;
            let Some(whole) = state.allocations.get(one.table.slot).filter(|whole| !whole.is_divided())
            else {
                return false;
            };
            let away = |id: &u32| state.pages.get(*id).is_some_and(|page| page.tier != home);
            let is_away = whole.pages.iter().any(away);
            let tells = one.in_place || !is_away;
            one.in_place &= is_away;
            tells
        });
        (!all.is_empty()).then_some(Timing(all))
    }

    /// A timed launch took so many microseconds. It was made at the first of these times, in microseconds since any,
    /// and the second is now.
    pub fn took(&self, Timing(all): &Timing, us: u64, times: (u64, u64)) {
        let Tables { all: tables, touch } = &mut *self.large_ones();
        for Timed { table, function, in_place } in all {
            let lives = tables.get(&table.base).is_some_and(|other| other.serial == table.serial);
            match in_place {
                _ if !lives => {}
                true => {
                    let speed = &self.config.gpus[table.home as usize].speed;
                    touch.took_in_place(table.slot, table.bytes, us, times, speed);
                }
                false => touch.took(*function, table.slot, us),
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
        self.large_ones().touch.forget_functions();
    }

    /// An allocation was made: a large one is looked at from here on.
    pub(crate) fn note_large(&self, state: &State, slot: u32) {
        let Some(one) = state.allocations.get(slot) else { return };
        if Touch::is_large(one.span, &self.config.gpus[one.home as usize].speed) {
            let table = Table { base: one.base, slot, serial: one.serial, home: one.home, bytes: one.span };
            self.large_ones().all.insert(one.base, table);
            self.has_tables.store(true, Ordering::Relaxed);
        }
    }

    /// An allocation is gone.
    pub(crate) fn forget_touch(&self, slot: u32, base: u64) {
        if self.has_tables.load(Ordering::Relaxed) {
            let mut tables = self.large_ones();
            if tables.all.remove(&base).is_some() {
                tables.touch.forget(slot);
            }
        }
    }
}
