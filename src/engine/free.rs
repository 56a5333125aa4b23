//! Freeing: wait for the work that may use the memory, unmap, give everything back.

use std::sync::atomic::Ordering;

use crate::device::{Context, Device, DriverError};
use crate::map::PageId;
use crate::pool::{Allocation, Note, Page, Pool, State};

/// What came of freeing an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freed {
    /// The address is not the pool's: the driver must be asked.
    NotPooled,
    /// It was freed, or failed with this code; it is gone in both cases.
    Done(Result<(), DriverError>),
}

/// What came of waiting.
pub(crate) enum Waited {
    /// Nothing is in flight; the error is that of a lost context.
    Over(Result<(), DriverError>),
    /// The driver would not wait: work may be in flight.
    Refused(DriverError),
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
            let Some((home, _)) = self.home_of(address) else {
                return Freed::Done(Err(DriverError::INVALID_VALUE)); // freed by another thread just now
            };
            let mut motions = self.lock_motions(home);
            let Some(slot) = self.lock().pages.get(id.0).map(|page| page.allocation) else {
                return Freed::Done(Err(DriverError::INVALID_VALUE)); // and now
            };
            // No page of it moves any more, and none begins to until it is withdrawn.
            if !self.device.breaks("free") {
                self.finish_object(&mut motions, slot);
            }
            let mut state = self.lock();
            if state.chunks.contains_key(&slot) {
                drop(state);
                drop(motions);
                let invalid = Freed::Done(Err(DriverError::INVALID_VALUE));
                return self.free_block(slot, address).unwrap_or(invalid);
            }
            match state.allocations.get(slot) {
                Some(allocation) if allocation.base == address => {}
                _ => return Freed::Done(Err(DriverError::INVALID_VALUE)),
            }
            let Some(allocation) = self.withdraw(&mut state, slot) else {
                return Freed::Done(Err(DriverError::INVALID_VALUE));
            };
            if self.on_hold() {
                state.deferred.push(allocation);
                return Freed::Done(Ok(()));
            }
            allocation
        };
        Freed::Done(self.finish(allocation, true))
    }

    /// Frees all allocations of a context: it is about to end, or has ended (`gone`).
    ///
    /// Returns how many there were.
    pub fn free_context(&self, context: Context, gone: bool) -> usize {
        let doomed: Vec<Allocation> = {
            let mut locked = self.lock_all_motions(u64::MAX);
            for motions in &mut locked {
                if gone {
                    self.abandon_motions(motions, context);
                }
                // Copies of other contexts may be of this one's pages.
                self.finish_motions(motions, |_| true);
            }
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
        if gone {
            // Its work is over: nobody shall wait for it, and its handle may come back for another GPU.
            self.device.forget(context);
            self.forget_paths(context);
            self.lock().contexts.iter_mut().for_each(|known| known.retain(|&other| other != context));
        }
        for allocation in doomed {
            // A context in an error cannot be waited for: its memory goes when it is gone.
            let _ = self.finish(allocation, false);
        }
        self.collect();
        {
            let _still = self.lock_all_motions(u64::MAX); // or a context might end that is asked
            self.settle_late();
        }
        self.release_kept(); // the program wants its memory gone
        count
    }

    /// Gives back what was freed while the pool was on hold, or while the driver refused to wait.
    pub fn collect(&self) {
        if self.on_hold() {
            return;
        }
        let (deferred, blocks) = {
            let mut state = self.lock();
            (std::mem::take(&mut state.deferred), !state.dying_blocks.is_empty())
        };
        if blocks {
            self.collect_blocks();
        }
        for allocation in deferred {
            // The program was told that the free went well; a failure shows in its own next call.
            let _ = self.finish(allocation, true);
        }
    }

    /// Gives back all memory that no allocation uses, kept and spare; how many bytes that was.
    pub fn release_unused(&self) -> u64 {
        self.release_kept() + self.release_spare()
    }

    /// Gives back everything that was kept for later allocations; how many bytes that was.
    pub fn release_kept(&self) -> u64 {
        let kept = {
            let mut state = self.lock();
            let kept = std::mem::take(&mut state.kept);
            kept.iter().for_each(|allocation| self.count_kept(&mut state, allocation, false));
            kept
        };
        kept.into_iter()
            .filter_map(|kept| Some((kept.span, self.retire(kept).ok()?)))
            .map(|kept| kept.0)
            .sum()
    }

    /// Waits for the work that may use a withdrawn allocation, then keeps its memory or gives it back.
    ///
    /// Where the driver refuses to wait, work may be in flight: nothing is unmapped. The allocation is deferred,
    /// and the wait is tried again at a later call.
    fn finish(&self, allocation: Allocation, keep: bool) -> Result<(), DriverError> {
        match self.drain(&allocation) {
            Waited::Over(answer) => {
                let rest = if keep && answer.is_ok() { self.keep(allocation) } else { Some(allocation) };
                rest.map_or(Ok(()), |allocation| self.retire(allocation)).and(answer)
            }
            Waited::Refused(error) => {
                self.lock().deferred.push(allocation);
                Err(error)
            }
        }
    }

    /// Keeps an idle allocation if it lies on its home GPU and is small enough; gives it back otherwise.
    /// Older ones make room.
    fn keep(&self, allocation: Allocation) -> Option<Allocation> {
        let home = allocation.home as usize;
        let mut displaced = Vec::new();
        {
            let mut state = self.lock();
            let at_home = |id: &u32| state.pages.get(*id).is_some_and(|page| page.tier == home && page.shown);
            if allocation.span > self.config.keep_bytes || !allocation.pages.iter().all(at_home) {
                return Some(allocation);
            }
            while state.tiers[home].kept + allocation.span > self.config.keep_bytes {
                let Some(oldest) = state.kept.iter().position(|kept| kept.home == allocation.home) else {
                    break;
                };
                let oldest = state.kept.remove(oldest);
                self.count_kept(&mut state, &oldest, false);
                displaced.push(oldest);
            }
            self.count_kept(&mut state, &allocation, true);
            state.kept.push(allocation);
        }
        for allocation in displaced {
            // The program freed it long ago: there is nobody to tell. What is not taken back counts as lost.
            let _ = self.retire(allocation);
        }
        None
    }

    fn count_kept(&self, state: &mut State, allocation: &Allocation, add: bool) {
        let kept = &mut state.tiers[allocation.home as usize].kept;
        *kept = if add { *kept + allocation.span } else { *kept - allocation.span };
    }

    /// The lock on motions is held, and none of its pages moves. From here on no address finds the allocation; its
    /// pages keep their numbers until [`Self::retire`].
    pub(crate) fn withdraw(&self, state: &mut State, slot: u32) -> Option<Allocation> {
        let mut allocation = state.allocations.remove(slot)?;
        state.chunks.remove(&slot);
        self.note(Note::Gone(allocation.objects(slot)));
        self.forget_parts(&mut allocation);
        self.forget_touch(slot, allocation.base);
        state.gone += 1;
        self.map.withdraw(allocation.base, allocation.span);
        for &id in &allocation.pages {
            state.give_up_twin(id);
            if let Some(page) = state.pages.get_mut(id) {
                page.allocation = 0; // nobody's: the slot may become another allocation's
                self.hidden.fetch_sub(u64::from(!page.shown), Ordering::AcqRel);
            }
        }
        Some(allocation)
    }

    /// Waits in every context whose GPU has access to the allocation.
    fn drain(&self, allocation: &Allocation) -> Waited {
        if self.device.breaks("drain") {
            return Waited::Over(Ok(()));
        }
        let waits = self.waits(&self.lock(), allocation);
        self.wait_for(waits, allocation.context)
    }

    /// Contexts whose work may use the allocation.
    pub(crate) fn waits(&self, state: &State, allocation: &Allocation) -> Vec<(u8, Context)> {
        let access = |mask, &id: &u32| mask | self.map.access_of(PageId(id));
        let mask = allocation.pages.iter().fold(1 << allocation.home, access);
        let known = state.contexts.iter().enumerate().filter(|&(gpu, _)| mask >> gpu & 1 == 1);
        known.flat_map(|(gpu, contexts)| contexts.iter().map(move |&context| (gpu as u8, context))).collect()
    }

    /// Waits in all of them, also after an error. That another context is lost is nobody's business here; that `own`
    /// is, the program is told.
    pub(crate) fn wait_for(&self, waits: Vec<(u8, Context)>, own: Context) -> Waited {
        let mut answer = Ok(());
        let mut refused = None;
        for (gpu, context) in waits {
            match self.device.drain(gpu, context) {
                Ok(()) => {}
                Err(error) if self.device.is_lost(error) => {
                    answer = if context == own { Err(error) } else { answer };
                }
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        refused.map_or(Waited::Over(answer), Waited::Refused)
    }

    /// Ends a page's second mapping, if it has one.
    pub(crate) fn hide(&self, page: &Page) -> Result<(), DriverError> {
        if page.shadow != 0 {
            self.device.unmap(page.shadow, page.bytes)?;
            self.lock().forget_shadow(page.shadow, page.bytes);
        }
        Ok(())
    }

    /// Ends the mappings of an allocation's pages; hidden ones have none.
    fn unmap_shown(&self, allocation: &Allocation) -> Result<(), DriverError> {
        let pages: Vec<(u64, u64, bool)> = {
            let state = self.lock();
            let all = allocation.pages.iter().filter_map(|&id| state.pages.get(id));
            all.map(|page| (page.address, page.bytes, page.shown)).collect()
        };
        for run in pages.chunk_by(|page, next| page.2 == next.2).filter(|run| run[0].2) {
            self.device.unmap(run[0].0, run.iter().map(|page| page.1).sum())?;
        }
        Ok(())
    }

    pub(crate) fn retire(&self, allocation: Allocation) -> Result<(), DriverError> {
        self.drop_surplus(self.host_tier()); // of what were twins
        let unmapped = self.unmap_shown(&allocation);
        let pages: Vec<_> = {
            let mut state = self.lock();
            allocation.pages.iter().filter_map(|&id| state.pages.remove(id)).collect()
        };
        if let Err(error) = unmapped {
            self.lock().lost += allocation.span;
            return Err(error);
        }
        let mut first = Ok(());
        let mut released = Vec::new();
        for page in pages {
            let place = self.place(page.tier, allocation.home);
            if let Err(error) = self.hide(&page) {
                self.lock().lost += page.bytes;
                first = first.and(Err(error));
                continue;
            }
            if self.lock().hand_to_late(page.handle) {
                continue;
            }
            match self.device.release(place, page.bytes, page.handle) {
                Ok(()) => released.push((page.tier, page.bytes)),
                // Not taken back: it stays charged.
                Err(error) => {
                    self.lock().lost += page.bytes;
                    first = first.and(Err(error));
                }
            }
        }
        let mut state = self.lock();
        for (tier, bytes) in released {
            state.uncharge(tier, bytes);
        }
        state.spans.give(allocation.base, allocation.span);
        first
    }
}
