//! Allocations of which a launch brings the parts that its pointers stand for, not the whole: buffers that a program
//! allocates once and divides itself, and that do not fit on their GPU together with what else launches name.
//!
//! Nearly every launch names such a buffer, so it is hardly ever idle: its pages move strictly, while nothing runs
//! (`exchange`), and as long as there is one, everything does. What a launch does not bring it uses where it lies:
//! a part that was taken for too small is slow, never wrong.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use vgmem_policy::Extents;

use crate::device::Device;
use crate::pool::{Allocation, Note, Pool, State};

/// An allocation of less than this part of its GPU's capacity is never divided.
const LARGE: u64 = 4;
/// Set in the policy's name of an object that is one page of a divided allocation.
pub(crate) const PART: u32 = 1 << 31;
/// Launches that are looked back upon, and those that tell something.
const RECENT: u32 = 256;
const ENOUGH: u32 = 64;

/// What is known of an allocation that may be divided.
#[derive(Debug)]
pub(crate) struct Parts {
    extents: Extents,
    /// Launches bring parts of it.
    divided: bool,
    /// Recent launches that named it, and those of which the operands did not fit whole.
    launches: u32,
    over: u32,
}

impl Parts {
    fn note(&mut self, offsets: impl Iterator<Item = u64>, is_over: bool) {
        self.extents.note(offsets);
        self.launches += 1;
        self.over += u32::from(is_over);
        if self.launches >= RECENT {
            (self.launches, self.over) = (self.launches / 2, self.over / 2);
        }
    }

    /// Whether most launches that name it do not fit whole.
    fn is_mostly_over(&self) -> bool {
        self.launches >= ENOUGH && self.over * 2 > self.launches
    }

    fn is_hardly_over(&self) -> bool {
        self.launches >= ENOUGH && self.over * 8 < self.launches
    }
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

    /// The policy's names of its pages as objects.
    fn page_objects(&self) -> impl Iterator<Item = u32> {
        self.pages.iter().map(|page| page | PART)
    }

    /// The policy's names of all that it was or is.
    pub(crate) fn objects(&self, slot: u32) -> Vec<u32> {
        self.page_objects().filter(|_| self.is_divided()).chain([slot]).collect()
    }

    /// Offsets of those of the addresses that lie in it.
    fn offsets(&self, addresses: &[u64]) -> Vec<u64> {
        let within = |at: &u64| at.checked_sub(self.base).filter(|&offset| offset < self.bytes);
        addresses.iter().filter_map(within).collect()
    }
}

impl State {
    /// Whether an allocation is so large that it might have to be divided.
    pub(crate) fn may_be_divided(&self, slot: u32) -> bool {
        let large = |a: &Allocation| {
            self.tiers.get(a.home as usize).is_some_and(|home| a.span > home.capacity / LARGE)
        };
        self.allocations.get(slot).is_some_and(large)
    }

    /// Bytes of the parts that these pointers into an allocation stand for; `None` where that cannot be told of all.
    fn bytes_of_parts(&self, slot: u32, offsets: &[u64]) -> Option<u64> {
        let parts = self.allocations.get(slot)?.parts.as_ref()?;
        let mut named = BTreeMap::new();
        for &offset in offsets {
            let part = parts.extents.part(offset)?;
            named.insert(part.start, part.end - part.start);
        }
        Some(named.into_values().sum())
    }
}

impl<D: Device> Pool<D> {
    /// Whether launches bring parts of some allocation. One load: asked at every launch under pressure.
    #[inline]
    pub fn goes_by_parts(&self) -> bool {
        self.divided.load(Ordering::Relaxed) > 0
    }

    /// A launch on GPU `home` names these addresses: pointers into allocations that might be too large to be brought
    /// whole are noted. Whether one is divided now that was not before.
    ///
    /// Divided are those of which most launches do not fit whole while their parts do; whole again are those of which
    /// hardly any launch is too large any more.
    pub fn note_pointers(&self, home: u8, addresses: &[u64]) -> bool {
        if !self.large.load(Ordering::Relaxed) {
            return false;
        }
        let mut state = self.lock();
        let mut named = self.named(&state, addresses);
        named.retain(|&slot| state.allocations.get(slot).is_some_and(|a| a.home == home));
        let span = |slot: &u32| state.allocations.get(*slot).map_or(0, |a| a.span);
        let whole: u64 = named.iter().map(span).sum();
        let (large, small): (Vec<u32>, Vec<u32>) =
            named.into_iter().partition(|&slot| state.may_be_divided(slot) && self.moves(&state, slot));
        let mut wanted: Option<u64> = Some(small.iter().map(span).sum());
        let capacity = state.tiers.get(home as usize).map_or(0, |tier| tier.capacity);
        for &slot in &large {
            let Some(allocation) = state.allocations.get_mut(slot) else { continue };
            let (offsets, bytes) = (allocation.offsets(addresses), allocation.bytes);
            let new =
                || Box::new(Parts { extents: Extents::new(bytes), divided: false, launches: 0, over: 0 });
            allocation.parts.get_or_insert_with(new).note(offsets.iter().copied(), whole > capacity);
            wanted = wanted.and_then(|sum| Some(sum + state.bytes_of_parts(slot, &offsets)?));
        }
        let fits = whole > capacity && wanted.is_some_and(|bytes| bytes <= capacity);
        let mut found = false;
        for slot in large {
            found |= fits && self.divide(&mut state, slot);
            self.join(&mut state, slot, false);
        }
        small.into_iter().for_each(|slot| self.join(&mut state, slot, true));
        found
    }

    /// Whether pages of an allocation may move at all.
    fn moves(&self, state: &State, slot: u32) -> bool {
        let Some(allocation) = state.allocations.get(slot) else { return false };
        allocation.pages.first().is_some_and(|&page| self.may_move(page, allocation, allocation.home))
    }

    /// Divides an allocation, where most launches are too large for it to be whole; whether it was whole before.
    fn divide(&self, state: &mut State, slot: u32) -> bool {
        let parts = state.allocations.get_mut(slot).and_then(|a| a.parts.as_mut());
        let Some(parts) = parts.filter(|parts| !parts.divided && parts.is_mostly_over()) else {
            return false;
        };
        parts.divided = true;
        self.divided.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Makes a divided allocation whole again, where launches fit, or in any case.
    fn join(&self, state: &mut State, slot: u32, in_any_case: bool) {
        let Some(allocation) = state.allocations.get_mut(slot).filter(|a| a.is_divided()) else { return };
        let objects: Vec<u32> = allocation.page_objects().collect();
        let parts = allocation.parts.as_mut().filter(|parts| in_any_case || parts.is_hardly_over());
        if let Some(parts) = parts {
            parts.divided = false;
            self.divided.fetch_sub(1, Ordering::Relaxed);
            self.note(Note::Gone(objects));
        }
    }

    /// The policy's names of what work that names these addresses wants at home, in order. Of a divided allocation
    /// these are the pages of its pointers' parts, or their own pages where that cannot be told.
    pub(crate) fn objects_named(&self, state: &State, addresses: &[u64]) -> Vec<u32> {
        let mut objects = Vec::new();
        for &address in addresses {
            let Some(slot) = self.slot_of(state, address) else { continue };
            let Some(allocation) = state.allocations.get(slot) else { continue };
            match allocation.parts.as_ref().filter(|parts| parts.divided) {
                None => objects.push(slot),
                Some(parts) => {
                    let offset = address - allocation.base;
                    let part = parts.extents.part(offset).unwrap_or(offset..offset + 1);
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

    /// Work that is no launch names these addresses.
    pub fn note_names(&self, addresses: &[u64]) {
        let objects = self.objects_named(&self.lock(), addresses);
        self.note(Note::Launch(0, objects));
    }

    /// An allocation is gone.
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
