//! Which part of an allocation a pointer stands for: all up to the next pointer that was ever seen in it.
//!
//! That finds tensors in a buffer that a program allocates once and divides itself. It steers speed only: what a
//! kernel may touch is always the whole allocation.

use std::collections::BTreeMap;
use std::ops::Range;

/// Launches that name the allocation before a pointer of it counts: its neighbours have been seen by then, where a
/// program iterates.
const SETTLED: u64 = 64;
/// A pointer that so many launches did not name is forgotten: what lay there may be gone.
const AGE: u64 = 1 << 14;
/// So many launches without a new pointer show that nothing follows the last one.
const ALL_SEEN: u64 = 256;
/// Pointers that are kept.
const MOST: usize = 1 << 16;

#[derive(Clone, Copy, Debug)]
struct Seen {
    first: u64,
    last: u64,
}

/// The pointers that were seen in one allocation. Offsets and sizes are in bytes, times in launches that named it.
#[derive(Clone, Debug)]
pub struct Extents {
    bytes: u64,
    seen: BTreeMap<u64, Seen>,
    now: u64,
    /// When the newest pointer was seen first.
    newest: u64,
    /// The largest distance between two neighbours; too large until the next tidying, where a new one split it.
    widest: u64,
    /// When old pointers are looked for again.
    tidy: u64,
}

impl Extents {
    /// An allocation of that many bytes, of which nothing is known.
    pub fn new(bytes: u64) -> Extents {
        Extents { bytes, seen: BTreeMap::new(), now: 0, newest: 0, widest: 0, tidy: SETTLED }
    }

    /// A launch names these places in the allocation.
    pub fn note(&mut self, offsets: impl IntoIterator<Item = u64>) {
        self.now += 1;
        let now = self.now;
        for offset in offsets.into_iter().filter(|&offset| offset < self.bytes) {
            let known = self.seen.entry(offset).or_insert(Seen { first: now, last: now });
            known.last = now;
            if known.first == now {
                self.newest = now;
                let before = self.seen.range(..offset).next_back().map_or(offset, |(&before, _)| before);
                self.widest = self.widest.max(offset - before);
            }
        }
        if now >= self.tidy || self.seen.len() > MOST {
            self.tidy_up();
        }
    }

    /// Forgets old pointers, the oldest where they are too many. Rare enough to cost little for each launch.
    fn tidy_up(&mut self) {
        let now = self.now;
        let mut age = AGE;
        self.seen.retain(|_, seen| now - seen.last < age);
        let most = if self.seen.len() > MOST { MOST / 2 } else { MOST };
        while self.seen.len() > most {
            age /= 2;
            self.seen.retain(|_, seen| now - seen.last < age);
        }
        let neighbours = self.seen.keys().zip(self.seen.keys().skip(1));
        self.widest = neighbours.map(|(from, to)| to - from).max().unwrap_or(0);
        self.tidy = now + SETTLED.max(self.seen.len() as u64);
    }

    /// The part that a pointer stands for, not empty; `None` while that cannot be told.
    pub fn part(&self, offset: u64) -> Option<Range<u64>> {
        let known = self.seen.get(&offset)?;
        if self.now - known.first < SETTLED {
            return None;
        }
        let end = match self.seen.range(offset + 1..).next() {
            Some((&next, _)) => next,
            None if self.now - self.newest >= ALL_SEEN => self.bytes,
            // More may follow that nobody has named yet.
            None if self.widest == 0 => return None,
            None => self.bytes.min(offset + self.widest),
        };
        Some(offset..end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Rounds of launches that name one place each.
    fn rounds(extents: &mut Extents, places: &[u64], count: usize) {
        for _ in 0..count {
            places.iter().for_each(|&place| extents.note([place]));
        }
    }

    #[test]
    fn a_pointer_stands_for_all_up_to_the_next() {
        let mut extents = Extents::new(1000);
        rounds(&mut extents, &[0, 700, 100, 400], 20);
        assert_eq!(extents.part(0), Some(0..100));
        assert_eq!(extents.part(100), Some(100..400));
        assert_eq!(extents.part(400), Some(400..700));
        assert_eq!(extents.part(50), None, "never seen");
    }

    #[test]
    fn new_pointers_do_not_count_but_bound_others() {
        let mut extents = Extents::new(1000);
        rounds(&mut extents, &[0, 500], 40);
        extents.note([300]);
        assert_eq!((extents.part(300), extents.part(0)), (None, Some(0..300)));
        rounds(&mut extents, &[0], SETTLED as usize);
        assert_eq!(extents.part(300), Some(300..500));
    }

    #[test]
    fn the_last_pointer_reaches_to_the_end_when_all_is_known() {
        let mut extents = Extents::new(1000);
        rounds(&mut extents, &[0, 100, 300], 30);
        assert_eq!(extents.part(300), Some(300..500), "no more than the widest");
        rounds(&mut extents, &[0, 100, 300], 100);
        assert_eq!(extents.part(300), Some(300..1000));
    }

    #[test]
    fn one_pointer_alone_stands_for_everything_in_the_end() {
        let mut extents = Extents::new(1000);
        rounds(&mut extents, &[0], 100);
        assert_eq!(extents.part(0), None);
        rounds(&mut extents, &[0], 200);
        assert_eq!(extents.part(0), Some(0..1000));
    }

    #[test]
    fn old_pointers_bound_nothing() {
        let mut extents = Extents::new(1000);
        rounds(&mut extents, &[0, 500, 250], 100);
        assert_eq!(extents.part(0), Some(0..250));
        rounds(&mut extents, &[0, 500], AGE as usize);
        assert_eq!(extents.part(0), Some(0..500));
        assert_eq!(extents.part(250), None);
    }

    #[test]
    fn pointers_that_never_come_again_do_not_pile_up() {
        let mut extents = Extents::new(1 << 40);
        for offset in 0..1 << 18 {
            extents.note([offset, 1 << 39]);
        }
        assert!(extents.seen.len() <= MOST, "{}", extents.seen.len());
        assert!(extents.part(1 << 39).is_some(), "the one in use is known");
    }

    #[test]
    fn what_lies_behind_the_allocation_is_nobodys() {
        let mut extents = Extents::new(1000);
        rounds(&mut extents, &[0, 600, 1000, 1500], 100);
        assert_eq!((extents.part(600), extents.part(1000)), (Some(600..1000), None));
    }

    proptest! {
        /// Parts lie within the allocation, are not empty, begin at their pointer, and do not overlap.
        #[test]
        fn parts_do_not_overlap(places in prop::collection::vec(0u64..2000, 1..60), rounds in 1usize..20) {
            let mut extents = Extents::new(1500);
            for place in (0..rounds).flat_map(|_| &places) {
                extents.note([*place]);
            }
            let mut parts: Vec<_> = places.iter().filter_map(|&place| extents.part(place)).collect();
            parts.sort_unstable_by_key(|part| part.start);
            parts.dedup();
            prop_assert!(parts.iter().all(|part| part.start < part.end && part.end <= 1500));
            prop_assert!(parts.windows(2).all(|two| two[0].end <= two[1].start));
        }
    }
}
