//! Moving a page to another tier under its address.
//!
//! This is the strict form (rule S3): nothing is in flight on any GPU that may reach the page, and nothing is
//! submitted meanwhile; the caller guarantees both. Until the commit the program's address shows the old memory;
//! any failure leaves it so.
//!
//! ```text
//! create new -> map at shadow -> grant home -> copy, wait -> unmap shadow      (a failure: drop new)
//!   -> unmap old -> map new -> grant all                                       (a failure: map old again)
//!   -> release old
//! ```

use crate::device::{Context, Device, DriverError, Handle, Place};
use crate::map::PageId;
use crate::pool::Pool;
use crate::tiers::TierAccount;

/// Times that the wait for a copy is tried.
const WAITS: usize = 3;

/// Waits for copies whose end must be known before their memory is touched: an error is asked about again.
pub(crate) fn wait_firmly(mut wait: impl FnMut() -> Result<(), DriverError>) -> Result<(), DriverError> {
    let mut answer = Ok(());
    for _ in 0..WAITS {
        answer = wait();
        if answer.is_ok() {
            break;
        }
    }
    answer
}

/// A move that is under way. The new tier is charged, the shadow address taken.
struct Move {
    page: u32,
    home: u8,
    context: Context,
    address: u64,
    bytes: u64,
    shadow: u64,
    old: Handle,
    old_tier: usize,
    new_tier: usize,
    /// GPUs with access, one bit each.
    access: u64,
}

/// How a move ended.
enum Outcome {
    /// The page lies on the new tier; `old_lost`: the driver did not take the old memory back.
    Moved { new: Handle, old_lost: bool },
    /// The page lies where it was. `lost`: the new memory or its shadow address could not be given back.
    Stayed { error: DriverError, lost: bool },
    /// The old memory could not be mapped again: the address shows nothing.
    Broken { error: DriverError },
}

impl<D: Device> Pool<D> {
    /// Waits until nothing is in flight in any context that the pool knows. Refuses while a stream is captured.
    pub fn quiesce(&self) -> Result<bool, DriverError> {
        if self.on_hold() {
            return Ok(false);
        }
        let known: Vec<(u8, Context)> = {
            let state = self.lock();
            let each = state.contexts.iter().enumerate();
            each.flat_map(|(gpu, list)| list.iter().map(move |&context| (gpu as u8, context))).collect()
        };
        for (gpu, context) in known {
            if self.on_hold() {
                return Ok(false); // a capture began meanwhile: the wait would end it
            }
            self.device.drain(gpu, context)?;
        }
        Ok(true)
    }

    /// The page with the number `index` among those that exist, counted round.
    pub fn nth_page(&self, index: u64) -> Option<PageId> {
        let state = self.lock();
        let live = |page: &crate::pool::Page| state.allocations.get(page.allocation).is_some();
        let count = state.pages.iter().filter(|(_, page)| live(page)).count() as u64;
        let nth = (index % count.max(1)) as usize;
        state.pages.iter().filter(|(_, page)| live(page)).nth(nth).map(|(id, _)| PageId(id))
    }

    /// Moves a page to `tier` (a GPU by ordinal, or the number of GPUs for host RAM); whether it was moved.
    ///
    /// Nothing may be in flight on the page, and nothing may be submitted, allocated or freed before this
    /// returns. `Ok(false)` where the tier has no room or not every GPU with access could reach it. After an
    /// error the page is where it was, unless the driver refused even to map it again.
    pub fn relocate(&self, page: PageId, tier: usize) -> Result<bool, DriverError> {
        let mut locked = self.lock_all_motions(u64::MAX);
        for motions in &mut locked {
            self.finish_motions(motions, |_| true);
        }
        let Some(job) = self.plan_move(page, tier) else { return Ok(false) };
        let outcome = self.carry_out(&job);
        self.settle(job, outcome)
    }

    fn plan_move(&self, id: PageId, tier: usize) -> Option<Move> {
        let host_free = self.device.host_available();
        let mut state = self.lock();
        let page = state.pages.get(id.0)?;
        let (slot, address, bytes, old_tier, old) =
            (page.allocation, page.address, page.bytes, page.tier, page.handle);
        let (page_shadow, shown) = (page.shadow, page.shown);
        let allocation = state.allocations.get(slot)?;
        let (home, context, pinned) = (allocation.home, allocation.context, allocation.pinned);
        let access = self.map.access_of(id);
        let reach = |gpu: usize| self.config.gpus[gpu].distances.get(tier).copied().flatten().is_some();
        let to_host = tier == self.host_tier();
        let all_reach = (0..self.config.gpus.len()).filter(|gpu| access >> gpu & 1 == 1).all(reach);
        // Atomics of several GPUs on one host page lose updates (FACTS).
        let allowed = if to_host { access.count_ones() == 1 && host_free >= bytes } else { all_reach };
        let has_room = |t: &TierAccount| t.room() >= bytes;
        let room = state.tiers.get(tier).is_some_and(has_room);
        // A page in one of the pager's frames has a second mapping, which this simple form does not handle.
        if tier == old_tier || !allowed || !room || page_shadow != 0 || !shown || pinned {
            return None;
        }
        let shadow = state.spans.take(bytes)?;
        state.charge(tier, bytes);
        Some(Move {
            page: id.0,
            home,
            context,
            address,
            bytes,
            shadow,
            old,
            old_tier,
            new_tier: tier,
            access,
        })
    }

    fn carry_out(&self, job: &Move) -> Outcome {
        let (device, bytes) = (&self.device, job.bytes);
        let place = self.place(job.new_tier, job.home);
        let new = match device.create(place, bytes) {
            Ok(new) => new,
            Err(error) => return Outcome::Stayed { error, lost: false },
        };
        let drop_new = |error| Outcome::Stayed { error, lost: device.release(place, bytes, new).is_err() };
        if let Err(error) = device.map(job.shadow, bytes, new) {
            return drop_new(error);
        }
        let copied = device
            .grant(job.shadow, bytes, job.home)
            .and_then(|()| device.copy(job.shadow, job.address, bytes, job.home, job.context));
        // A refused wait says nothing about the copy: while it may be in flight, nothing is unmapped.
        if copied.is_ok()
            && let Err(error) = wait_firmly(|| self.device.drain(job.home, job.context))
        {
            return Outcome::Stayed { error, lost: true };
        }
        if copied.is_ok() {
            self.verify(job.address, bytes, [job.address, job.shadow], job.context);
        }
        if let Err(error) = device.unmap(job.shadow, bytes) {
            return Outcome::Stayed { error, lost: true };
        }
        if let Err(error) = copied.and_then(|()| device.unmap(job.address, bytes)) {
            return drop_new(error);
        }
        match self.show(job, new) {
            Ok(()) => {
                let old_place = self.place(job.old_tier, job.home);
                Outcome::Moved { new, old_lost: device.release(old_place, bytes, job.old).is_err() }
            }
            Err(error) => match self.show(job, job.old) {
                Ok(()) => drop_new(error),
                Err(error) => Outcome::Broken { error },
            },
        }
    }

    fn show(&self, job: &Move, handle: Handle) -> Result<(), DriverError> {
        self.show_at(job.address, job.bytes, job.access, handle)
    }

    /// Maps memory at a page's address with the page's access; leaves nothing mapped on failure.
    pub(crate) fn show_at(
        &self,
        address: u64,
        bytes: u64,
        access: u64,
        handle: Handle,
    ) -> Result<(), DriverError> {
        self.device.map(address, bytes, handle)?;
        for gpu in (0..64u8).filter(|&gpu| access >> gpu & 1 == 1) {
            if let Err(error) = self.device.grant(address, bytes, gpu) {
                self.device.unmap(address, bytes)?;
                return Err(error);
            }
        }
        Ok(())
    }

    fn settle(&self, job: Move, outcome: Outcome) -> Result<bool, DriverError> {
        let mut state = self.lock();
        match outcome {
            Outcome::Moved { new, old_lost } => {
                state.spans.give(job.shadow, job.bytes);
                if let Some(page) = state.pages.get_mut(job.page) {
                    page.tier = job.new_tier;
                    page.handle = new;
                }
                if old_lost {
                    state.lost += job.bytes;
                } else {
                    state.uncharge(job.old_tier, job.bytes);
                }
                if job.new_tier != job.home as usize {
                    self.displaced.store(true, std::sync::atomic::Ordering::Relaxed);
                }
                state.moved += 1;
                state.note_peak();
                Ok(true)
            }
            Outcome::Stayed { error, lost: false } => {
                state.spans.give(job.shadow, job.bytes);
                state.uncharge(job.new_tier, job.bytes);
                Err(error)
            }
            // What could not be given back stays charged; its shadow address is not used again.
            Outcome::Stayed { error, lost: true } | Outcome::Broken { error } => {
                state.lost += job.bytes;
                Err(error)
            }
        }
    }

    /// Where a page lies.
    pub fn place_of(&self, page: PageId) -> Option<Place> {
        let state = self.lock();
        let page = state.pages.get(page.0)?;
        let home = state.allocations.get(page.allocation)?.home;
        Some(self.place(page.tier, home))
    }
}
