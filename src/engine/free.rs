//! Freeing: wait for the work that may use the memory, unmap, give everything back.

use std::sync::atomic::Ordering;

use crate::device::{Context, Device, DriverError};
use crate::pool::{Allocation, Pool, State};

/// What came of freeing an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freed {
    /// The address is not the pool's: the driver must be asked.
    NotPooled,
    /// It was freed, or failed with this code; it is gone in both cases.
    Done(Result<(), DriverError>),
}

impl<D: Device> Pool<D> {
    /// Frees the allocation that begins at `address`, after all work that may use it, as the driver does.
    ///
    /// An address inside an allocation is an invalid value.
    pub fn free(&self, address: u64) -> Freed {
        self.collect();
        let Some(id) = self.map.lookup(address) else {
            return if self.map.contains(address) {
                Freed::Done(Err(DriverError::INVALID_VALUE))
            } else {
                Freed::NotPooled
            };
        };
        let allocation = {
            let mut state = self.lock();
            let Some(slot) = state.pages.get(id.0).map(|page| page.allocation) else {
                return Freed::Done(Err(DriverError::INVALID_VALUE)); // freed by another thread just now
            };
            match state.allocations.get(slot) {
                Some(allocation) if allocation.base == address => {}
                _ => return Freed::Done(Err(DriverError::INVALID_VALUE)),
            }
            let Some(allocation) = self.withdraw(&mut state, slot) else {
                return Freed::Done(Err(DriverError::INVALID_VALUE));
            };
            if self.holding.load(Ordering::SeqCst) {
                state.deferred.push(allocation);
                return Freed::Done(Ok(()));
            }
            allocation
        };
        let drained = self.drain(&allocation);
        Freed::Done(self.retire(allocation).and(drained))
    }

    /// Frees all allocations of a context: it is about to end, or has ended (`gone`).
    ///
    /// Returns how many there were.
    pub fn free_context(&self, context: Context, gone: bool) -> usize {
        let doomed: Vec<Allocation> = {
            let mut state = self.lock();
            let slots: Vec<u32> = state
                .allocations
                .iter()
                .filter(|(_, allocation)| allocation.context == context)
                .map(|(slot, _)| slot)
                .collect();
            slots.into_iter().filter_map(|slot| self.withdraw(&mut state, slot)).collect()
        };
        let count = doomed.len();
        for mut allocation in doomed {
            if gone {
                allocation.users.retain(|&(_, user)| user != context);
            }
            // The context is lost in any case; what cannot be given back is counted as lost.
            let _ = self.drain(&allocation);
            let _ = self.retire(allocation);
        }
        if gone {
            self.forget(context);
        }
        count
    }

    /// Gives back what was freed while the pool was on hold.
    pub fn collect(&self) {
        if self.holding.load(Ordering::SeqCst) {
            return;
        }
        let deferred = {
            let mut state = self.lock();
            if state.deferred.is_empty() {
                return;
            }
            std::mem::take(&mut state.deferred)
        };
        for allocation in deferred {
            // The program was told that the free went well; a failure shows in its own next call.
            let _ = self.drain(&allocation);
            let _ = self.retire(allocation);
        }
    }

    /// Work of a context that has ended is over: nobody shall wait for it.
    fn forget(&self, context: Context) {
        let mut state = self.lock();
        let slots: Vec<u32> = state.allocations.iter().map(|(slot, _)| slot).collect();
        for slot in slots {
            if let Some(allocation) = state.allocations.get_mut(slot) {
                allocation.users.retain(|&(_, user)| user != context);
            }
        }
        for allocation in &mut state.deferred {
            allocation.users.retain(|&(_, user)| user != context);
        }
    }

    /// From here on no address finds the allocation; its pages keep their numbers until [`Self::retire`].
    fn withdraw(&self, state: &mut State, slot: u32) -> Option<Allocation> {
        let allocation = state.allocations.remove(slot)?;
        self.map.withdraw(allocation.base, allocation.span);
        Some(allocation)
    }

    fn drain(&self, allocation: &Allocation) -> Result<(), DriverError> {
        let mut first = Ok(());
        for &(gpu, context) in &allocation.users {
            first = first.and(self.device.drain(gpu, context));
        }
        first
    }

    fn retire(&self, allocation: Allocation) -> Result<(), DriverError> {
        let unmapped = self.device.unmap(allocation.base, allocation.span);
        let pages: Vec<_> = {
            let mut state = self.lock();
            allocation.pages.iter().filter_map(|&id| state.pages.remove(id)).collect()
        };
        if let Err(error) = unmapped {
            self.lock().lost += allocation.span;
            return Err(error);
        }
        let mut first = Ok(());
        let mut lost = 0;
        for page in &pages {
            let place = self.place(page.tier, allocation.home);
            let released = self.device.release(place, page.bytes, page.handle);
            lost += if released.is_err() { page.bytes } else { 0 };
            first = first.and(released);
        }
        let mut state = self.lock();
        state.lost += lost;
        for page in &pages {
            state.uncharge(page.tier, page.bytes);
        }
        state.spans.give(allocation.base, allocation.span);
        first
    }
}
