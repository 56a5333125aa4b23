//! Mapping hidden pages at their addresses (see `overlap`).
//!
//! Giving a GPU access waits for all copies to the host that are under way (docs/DRIVER_FACTS.md), and nothing else can
//! be mapped meanwhile. So pages that came home stay hidden until all of their allocation are there. They are shown
//! between two bursts of pages that go, neighbours by one call. Where somebody must have them at once, he waits.

use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};

use vgmem_policy::PageRef;

use crate::device::{Device, DriverError, Handle};
use crate::map::PageId;
use crate::overlap::{Motion, OUT, is_copying};
use crate::pool::Pool;

/// Bytes of an allocation that are mapped together while others of it still come.
const PART: u64 = 128 << 20;
/// Times that a page is tried to be shown.
const TRIES: usize = 3;

/// A hidden page.
#[derive(Clone, Copy)]
struct Hidden {
    page: u32,
    address: u64,
    bytes: u64,
    handle: Handle,
    /// GPUs with access, one bit each.
    access: u64,
}

impl<D: Device> Pool<D> {
    /// Maps hidden pages at their addresses. Those of allocations that are being freed are nobody's. The lock on
    /// motions is held.
    pub(crate) fn show_hidden(&self, which: impl Fn(&PageRef) -> bool) -> u64 {
        if self.hidden.load(Ordering::Acquire) == 0 {
            return 0;
        }
        let hidden: Vec<u32> = {
            let state = self.lock();
            let live = state.pages.iter().filter(|(_, page)| !page.shown && page.allocation != 0);
            let refs = live.map(|(id, page)| page.of(id, page.allocation));
            refs.filter(which).map(|page| page.page).collect()
        };
        for page in self.show_pages(&hidden) {
            if (0..TRIES).all(|_| self.show_page(page).is_err()) {
                self.device.complain("a page could not be mapped again");
            }
        }
        hidden.len() as u64
    }

    /// Maps hidden pages that do not move, neighbours together; gives those that could not be mapped.
    pub(crate) fn show_pages(&self, pages: &[u32]) -> Vec<u32> {
        let mut hidden: Vec<Hidden> = {
            let state = self.lock();
            let find = |&page: &u32| {
                let one = state.pages.get(page).filter(|one| !one.shown && !one.moving)?;
                let access = self.map.access_of(PageId(page));
                Some(Hidden { page, address: one.address, bytes: one.bytes, handle: one.handle, access })
            };
            pages.iter().filter_map(find).collect()
        };
        hidden.sort_unstable_by_key(|page| page.address);
        let together = |page: &Hidden, next: &Hidden| {
            page.address + page.bytes == next.address
                && page.access == next.access
                && page.access.count_ones() == 1
        };
        let mut left = Vec::new();
        for run in hidden.chunk_by(together) {
            if run.len() > 1 && !self.device.breaks("hide") && self.show_run(run) {
                continue;
            }
            left.extend(run.iter().map(|page| page.page).filter(|&page| self.show_page(page).is_err()));
        }
        left
    }

    fn lock_unshown(&self, home: u8) -> MutexGuard<'_, Vec<u32>> {
        self.unshown[home as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pages of these allocations shall be mapped as soon as all of them are at home and nothing is on its way out.
    pub(crate) fn show_later(&self, home: u8, slots: &[u32]) {
        let mut unshown = self.lock_unshown(home);
        let new: Vec<u32> = slots.iter().copied().filter(|slot| !unshown.contains(slot)).collect();
        unshown.extend(new);
    }

    /// Maps what waits for it, if nothing is copied out; whether allocations that are whole still wait: nothing should
    /// set out then. Where nothing is copied out, parts of large ones are mapped while the others come.
    pub(crate) fn show_waiting(&self, home: u8, motions: &[Motion]) -> bool {
        let copying = is_copying(OUT, motions);
        let pages: Vec<u32> = {
            let mut unshown = self.lock_unshown(home);
            let state = self.lock();
            let tier = home as usize;
            let own = |slot: &u32| state.allocations.get(*slot).filter(|of| of.home == home);
            let is_whole = |slot: &u32| {
                let is_there = |id: &u32| {
                    let at_home = state.pages.get(*id).is_some_and(|p| p.tier == tier && !p.moving);
                    at_home || self.map.access_of(PageId(*id)) != 1 << home // others never come
                };
                own(slot).is_some_and(|of| of.pages.iter().all(is_there))
            };
            unshown.retain(|slot| own(slot).is_some());
            if copying {
                unshown.retain(is_whole); // of others the rest is awaited
                return !unshown.is_empty();
            }
            let at_home =
                |id: &u32| state.pages.get(*id).is_some_and(|p| !p.shown && p.tier == tier && !p.moving);
            let of = |slot: &u32| {
                own(slot).map_or(Vec::new(), |of| of.pages.iter().copied().filter(at_home).collect())
            };
            let is_large = |pages: &Vec<u32>| {
                pages.iter().filter_map(|id| state.pages.get(*id)).map(|p| p.bytes).sum::<u64>() >= PART
            };
            let parts = unshown.iter().map(|slot| (is_whole(slot), of(slot)));
            let pages =
                parts.filter(|(whole, pages)| *whole || is_large(pages)).flat_map(|part| part.1).collect();
            unshown.retain(|slot| !is_whole(slot));
            pages
        };
        self.show_pages(&pages); // tried again before its next use
        false
    }

    /// Maps neighbours that one GPU has access to; where that fails none of them.
    fn show_run(&self, run: &[Hidden]) -> bool {
        let mapped =
            run.iter().take_while(|page| self.device.map(page.address, page.bytes, page.handle).is_ok());
        let mapped = mapped.count();
        let (first, last) = (run[0], run[run.len() - 1]);
        let bytes = last.address + last.bytes - first.address;
        let gpu = first.access.trailing_zeros() as u8;
        if mapped == run.len() && self.device.grant(first.address, bytes, gpu).is_ok() {
            run.iter().for_each(|page| self.is_shown(page.page));
            return true;
        }
        for page in &run[..mapped] {
            if self.device.unmap(page.address, page.bytes).is_err() {
                // It is there, perhaps without access, and must not move under whoever uses it.
                self.device.complain("a page could not be mapped again");
                self.is_shown(page.page);
                let mut state = self.lock();
                let slot = state.pages.get(page.page).map_or(0, |one| one.allocation);
                if let Some(allocation) = state.allocations.get_mut(slot) {
                    allocation.pinned = true;
                }
            }
        }
        false
    }

    /// Maps a hidden page at its address.
    pub(crate) fn show_page(&self, page: u32) -> Result<(), DriverError> {
        let hidden = {
            let state = self.lock();
            state
                .pages
                .get(page)
                .filter(|one| !one.shown && !one.moving)
                .map(|one| (one.address, one.bytes, one.handle))
        };
        let Some((address, bytes, handle)) = hidden else { return Ok(()) };
        if self.device.breaks("hide") {
            let _ = self.device.unmap(address, bytes);
        }
        self.show_at(address, bytes, self.map.access_of(PageId(page)), handle)?;
        self.is_shown(page);
        Ok(())
    }

    /// A page is mapped at its address.
    fn is_shown(&self, page: u32) {
        if let Some(one) = self.lock().pages.get_mut(page) {
            (one.shown, one.sum, one.print) = (true, None, None); // it may be written from here on
            self.hidden.fetch_sub(1, Ordering::AcqRel);
        }
    }
}
