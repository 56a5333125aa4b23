//! Free address ranges of the arena.

use std::collections::BTreeMap;

/// Ranges by start address; neighbours are always joined.
#[derive(Debug)]
pub(crate) struct Spans {
    free: BTreeMap<u64, u64>,
    /// End of the highest range ever taken.
    highest: u64,
}

impl Spans {
    pub(crate) fn new(base: u64, bytes: u64) -> Spans {
        Spans { free: BTreeMap::from([(base, bytes)]), highest: base }
    }

    /// Takes `bytes` at the lowest address with room.
    pub(crate) fn take(&mut self, bytes: u64) -> Option<u64> {
        let (&start, &length) = self.free.iter().find(|&(_, &length)| length >= bytes)?;
        self.free.remove(&start);
        if length > bytes {
            self.free.insert(start + bytes, length - bytes);
        }
        self.highest = self.highest.max(start + bytes);
        Some(start)
    }

    /// End of the highest range ever taken.
    pub(crate) fn highest(&self) -> u64 {
        self.highest
    }

    /// Gives a range back. The caller owns it: it does not overlap a free one.
    pub(crate) fn give(&mut self, mut start: u64, mut bytes: u64) {
        if let Some((&before, &length)) = self.free.range(..start).next_back()
            && before + length == start
        {
            self.free.remove(&before);
            start = before;
            bytes += length;
        }
        if let Some(length) = self.free.remove(&(start + bytes)) {
            bytes += length;
        }
        self.free.insert(start, bytes);
    }

    #[cfg(test)]
    pub(crate) fn ranges(&self) -> Vec<(u64, u64)> {
        self.free.iter().map(|(&start, &length)| (start, length)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn taken_ranges_never_overlap_and_all_come_back(
            steps in prop::collection::vec((any::<bool>(), 1u64..9), 1..200),
        ) {
            let mut spans = Spans::new(100, 64);
            let mut held: Vec<(u64, u64)> = Vec::new();
            for (take, bytes) in steps {
                if take {
                    if let Some(start) = spans.take(bytes) {
                        prop_assert!(start >= 100 && start + bytes <= 164);
                        prop_assert!(held.iter().all(|&(s, b)| start + bytes <= s || s + b <= start));
                        held.push((start, bytes));
                    }
                } else if !held.is_empty() {
                    let (start, bytes) = held.swap_remove(bytes as usize % held.len());
                    spans.give(start, bytes);
                }
            }
            for (start, bytes) in held {
                spans.give(start, bytes);
            }
            prop_assert_eq!(spans.ranges(), vec![(100, 64)]);
        }
    }
}
