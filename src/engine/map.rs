//! From an address to its page: a subtraction, a shift and one atomic load.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// log2 of the granule (2 MiB).
const SHIFT: u32 = 21;

/// Number of a page, never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageId(pub(crate) u32);

/// The flat map of the arena. Its memory is committed as it is used.
pub struct PageMap {
    base: u64,
    /// Page number of each granule, 0 where nothing is pooled.
    granules: Box<[AtomicU32]>,
    /// For each page the GPUs that may access it, one bit each.
    access: Box<[AtomicU64]>,
}

fn zeroed32(count: usize) -> Box<[AtomicU32]> {
    let plain = vec![0u32; count].into_boxed_slice(); // allocated zeroed: no page is touched
    // SAFETY: AtomicU32 has the size, alignment and validity of u32, and the box is the only owner.
    unsafe { Box::from_raw(Box::into_raw(plain) as *mut [AtomicU32]) }
}

fn zeroed64(count: usize) -> Box<[AtomicU64]> {
    let plain = vec![0u64; count].into_boxed_slice();
    // SAFETY: AtomicU64 has the size, alignment and validity of u64, and the box is the only owner.
    unsafe { Box::from_raw(Box::into_raw(plain) as *mut [AtomicU64]) }
}

impl PageMap {
    /// A map of the `bytes` bytes from `base` on; both are multiples of 2 MiB.
    pub fn new(base: u64, bytes: u64) -> PageMap {
        let count = (bytes >> SHIFT) as usize;
        PageMap { base, granules: zeroed32(count), access: zeroed64(count + 1) }
    }

    /// The page that holds `address`, or `None` where nothing is pooled. Takes no lock.
    #[inline]
    pub fn lookup(&self, address: u64) -> Option<PageId> {
        let granule = (address.wrapping_sub(self.base) >> SHIFT) as usize;
        match self.granules.get(granule)?.load(Ordering::Acquire) {
            0 => None,
            page => Some(PageId(page)),
        }
    }

    /// Whether `address` lies in the arena, pooled or not.
    #[inline]
    pub fn contains(&self, address: u64) -> bool {
        ((address.wrapping_sub(self.base) >> SHIFT) as usize) < self.granules.len()
    }

    /// Whether the GPU may access the page.
    #[inline]
    pub fn may_access(&self, page: PageId, gpu: u8) -> bool {
        self.access[page.0 as usize].load(Ordering::Acquire) >> gpu & 1 == 1
    }

    pub(crate) fn publish(&self, page: PageId, address: u64, bytes: u64, access: u64) {
        self.access[page.0 as usize].store(access, Ordering::Release);
        self.set(page.0, address, bytes);
    }

    pub(crate) fn withdraw(&self, address: u64, bytes: u64) {
        self.set(0, address, bytes);
    }

    pub(crate) fn add_access(&self, page: PageId, gpu: u8) {
        self.access[page.0 as usize].fetch_or(1 << gpu, Ordering::AcqRel);
    }

    pub(crate) fn access_of(&self, page: PageId) -> u64 {
        self.access[page.0 as usize].load(Ordering::Acquire)
    }

    fn set(&self, value: u32, address: u64, bytes: u64) {
        let first = ((address - self.base) >> SHIFT) as usize;
        let count = (bytes >> SHIFT) as usize;
        for granule in &self.granules[first..first + count] {
            granule.store(value, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 0x2000_0000_0000;
    const G: u64 = 1 << SHIFT;

    #[test]
    fn every_byte_of_a_page_finds_it_and_no_other_does() {
        let map = PageMap::new(BASE, 64 * G);
        map.publish(PageId(7), BASE + 4 * G, 2 * G, 0b1);
        assert_eq!(map.lookup(BASE + 4 * G - 1), None);
        assert_eq!(map.lookup(BASE + 4 * G), Some(PageId(7)));
        assert_eq!(map.lookup(BASE + 6 * G - 1), Some(PageId(7)));
        assert_eq!(map.lookup(BASE + 6 * G), None);
        map.withdraw(BASE + 4 * G, 2 * G);
        assert_eq!(map.lookup(BASE + 5 * G), None);
    }

    #[test]
    fn addresses_outside_the_arena_are_not_ours() {
        let map = PageMap::new(BASE, 64 * G);
        for address in [0, 1, BASE - 1, BASE + 64 * G, u64::MAX] {
            assert_eq!(map.lookup(address), None);
            assert!(!map.contains(address));
        }
        assert!(map.contains(BASE) && map.contains(BASE + 64 * G - 1));
    }

    #[test]
    fn access_is_per_gpu() {
        let map = PageMap::new(BASE, 64 * G);
        map.publish(PageId(1), BASE, G, 0b10);
        assert!(!map.may_access(PageId(1), 0) && map.may_access(PageId(1), 1));
        map.add_access(PageId(1), 63);
        assert!(map.may_access(PageId(1), 63));
    }
}
