//! Allocations of which a launch brings the parts that its pointers stand for, not the whole: buffers that a program
//! allocates once and divides itself, and that do not fit on their GPU together with what else a launch names.
//!
//! Nearly every launch names such a buffer, so it is hardly ever idle: its pages move strictly, while nothing runs
//! (`exchange`), and as long as there is one, everything does. What a launch does not bring it uses where it lies:
//! a part that was taken for too small is slow, never wrong.

use std::sync::atomic::Ordering;

use vgmem_policy::Extents;

use crate::device::Device;
use crate::pool::{Allocation, Pool, State};

/// An allocation of less than this part of its GPU's capacity is never divided.
const LARGE: u64 = 4;
/// Set in the policy's name of an object that is one page of a divided allocation.
const PART: u32 = 1 << 31;

/// What is known of an allocation that may be divided.
#[derive(Debug)]
pub(crate) struct Parts {
    extents: Extents,
    /// Launches bring parts of it.
    divided: bool,
}

impl Allocation {
    /// Whether launches bring parts of it.
    pub(crate) fn is_divided(&self) -> bool {
        self.parts.as_ref().is_some_and(|parts| parts.divided)
    }

    /// The policy's name of the object that a page is, or is part of.
    pub(crate) fn object(&self, slot: u32, page: u32) -> u32 {
        if self.is_divided() { page | PART } else { slot }
    }

    /// The policy's names of all that it was or is.
    pub(crate) fn objects(&self, slot: u32) -> Vec<u32> {
        let pages = self.pages.iter().filter(|_| self.is_divided()).map(|page| page | PART);
        pages.chain([slot]).collect()
    }
}

impl State {
    /// Whether a GPU's capacity is so small that an allocation of that size might have to be divided.
    fn is_large(&self, home: u8, span: u64) -> bool {
        self.tiers.get(home as usize).is_some_and(|tier| span > tier.capacity / LARGE)
    }

    /// An allocation was made; whether it might have to be divided.
    pub(crate) fn may_be_divided(&self, slot: u32) -> bool {
        self.allocations.get(slot).is_some_and(|a| self.is_large(a.home, a.span))
    }
}

impl<D: Device> Pool<D> {
    /// Whether launches bring parts of some allocation. One load: asked at every launch under pressure.
    #[inline]
    pub fn goes_by_parts(&self) -> bool {
        self.divided.load(Ordering::Relaxed) > 0
    }

    /// A launch on GPU `home` names these addresses: where allocations are too large to be brought whole, the pointers
    /// into them are noted. Whether an allocation is divided now that was not before.
    pub fn note_pointers(&self, home: u8, addresses: &[u64]) -> bool {
        if !self.large.load(Ordering::Relaxed) {
            return false;
        }
        let mut state = self.lock();
        let mut named = self.named(&state, addresses);
        named.retain(|&slot| state.allocations.get(slot).is_some_and(|a| a.home == home));
        let whole: u64 = named.iter().filter_map(|&slot| state.allocations.get(slot)).map(|a| a.span).sum();
        let capacity = state.tiers.get(home as usize).map_or(0, |tier| tier.capacity);
        let mut found = 0;
        for slot in named {
            let large = state.may_be_divided(slot);
            let Some(allocation) = state.allocations.get_mut(slot).filter(|_| large) else { continue };
            if whole <= capacity && !allocation.is_divided() {
                continue;
            }
            let (base, bytes, span) = (allocation.base, allocation.bytes, allocation.span);
            let parts = allocation
                .parts
                .get_or_insert_with(|| Box::new(Parts { extents: Extents::new(bytes), divided: false }));
            let offsets =
                || addresses.iter().filter_map(|at| at.checked_sub(base).filter(|&offset| offset < span));
            parts.extents.note(offsets());
            let small =
                |offset| parts.extents.part(offset).is_some_and(|part| part.end - part.start < span / 2);
            if !parts.divided && offsets().any(small) {
                parts.divided = true;
                found += 1;
            }
        }
        drop(state);
        self.divided.fetch_add(found, Ordering::Relaxed);
        found > 0
    }

    /// The policy's names of what a launch that names these addresses wants at home, in order. Of a divided
    /// allocation these are the pages of its pointers' parts.
    pub(crate) fn objects_named(&self, state: &State, addresses: &[u64]) -> Vec<u32> {
        let mut objects = Vec::new();
        for &address in addresses {
            let Some(slot) = self.slot_of(state, address) else { continue };
            let Some(allocation) = state.allocations.get(slot) else { continue };
            match allocation.parts.as_ref().filter(|parts| parts.divided) {
                None => objects.push(slot),
                Some(parts) => {
                    let part = parts.extents.part(address - allocation.base).unwrap_or(0..0);
                    let (start, end) = (allocation.base + part.start, allocation.base + part.end);
                    let first = allocation.pages.partition_point(|&page| ends_before(state, page, start));
                    let within = allocation.pages[first..].iter();
                    let pages = within.take_while(|&&page| begins_before(state, page, end));
                    objects.extend(pages.map(|page| page | PART));
                }
            }
        }
        objects.sort_unstable();
        objects.dedup();
        objects
    }

    /// An allocation is gone, or begins anew.
    pub(crate) fn forget_parts(&self, allocation: &mut Allocation) {
        if allocation.parts.take().is_some_and(|parts| parts.divided) {
            self.divided.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn begins_before(state: &State, page: u32, address: u64) -> bool {
    state.pages.get(page).is_some_and(|page| page.address < address)
}

/// Whether a page ends at or before an address.
fn ends_before(state: &State, page: u32, address: u64) -> bool {
    state.pages.get(page).is_some_and(|page| page.address + page.bytes <= address)
}
