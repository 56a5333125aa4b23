//! Which objects launches hardly touch: they are used where they lie.
//!
//! A launch that takes less time than reading an object from the GPU's memory cannot have read it: a lookup in a table
//! touches a few rows. To bring such an object costs all its bytes over the link, to use it in place only what is
//! touched. A launch that reads the same bytes again and again does so over the link, too; that shows in its time, and
//! its object is brought from then on.

use std::collections::HashMap;

/// An object of less than this part of its GPU's memory is brought in any case.
const PART: u64 = 128;
/// Launches that hardly touch an object, one after another, before it is used in place.
const STREAK: u32 = 8;
/// Launches of a function on an object that are timed before their time is known; later ones that are a power of two.
const SAMPLES: u64 = 3;

/// What a GPU and its link carry, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speed {
    /// From its memory, a microsecond.
    pub memory: u64,
    /// Over the link, a microsecond.
    pub link: u64,
    /// What its cache holds.
    pub cache: u64,
    /// What its memory holds.
    pub bytes: u64,
}

impl Default for Speed {
    /// More than any GPU has, so that nothing is thought to be untouched that is not.
    fn default() -> Speed {
        Speed { memory: 8_000_000, link: 55_000, cache: 128 << 20, bytes: u64::MAX }
    }
}

/// Launches of one function on one object.
#[derive(Clone, Copy, Debug, Default)]
struct Pair {
    launches: u64,
    /// Times of the last ones that were timed with the object at home, in microseconds, rounded up; 0 is none.
    times: [u64; SAMPLES as usize],
    timed: u64,
    /// In place it took long.
    rereads: bool,
}

impl Pair {
    /// Whether its launches are too short to have read much of so many bytes.
    fn touches_little(&self, bytes: u64, speed: &Speed) -> bool {
        let longest = self.times.iter().max().copied().unwrap_or(0);
        let read = longest.saturating_mul(speed.memory).saturating_add(speed.cache);
        self.timed >= SAMPLES && !self.rereads && read <= bytes / 2
    }
}

/// What is to be done about an object that a launch names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sight {
    /// It is used where it lies.
    pub in_place: bool,
    /// From this launch on: when it was used before says nothing any more.
    pub begins: bool,
    /// The launch is to be timed.
    pub timed: bool,
}

/// What launches were seen to touch.
#[derive(Clone, Debug, Default)]
pub struct Touch {
    pairs: HashMap<(u64, u32), Pair>,
    /// For each object its launches since one that may have read it.
    streaks: HashMap<u32, u32>,
}

impl Touch {
    /// Whether an object of so many bytes is ever used in place by choice.
    pub fn is_large(bytes: u64, speed: &Speed) -> bool {
        bytes > (speed.bytes / PART).max(2 * speed.cache)
    }

    /// A launch of a function names a large object.
    pub fn named(&mut self, function: u64, object: u32, bytes: u64, speed: &Speed) -> Sight {
        let pair = self.pairs.entry((function, object)).or_default();
        pair.launches += 1;
        let timed = pair.timed < SAMPLES || pair.launches.is_power_of_two();
        let streak = self.streaks.entry(object).or_default();
        let before = *streak;
        *streak = if pair.touches_little(bytes, speed) { (before + 1).min(STREAK) } else { 0 };
        let in_place = *streak == STREAK;
        Sight { in_place, begins: in_place && before < STREAK, timed }
    }

    /// How long such a launch took.
    pub fn took(&mut self, function: u64, object: u32, bytes: u64, us: u64, in_place: bool, speed: &Speed) {
        let Some(pair) = self.pairs.get_mut(&(function, object)) else { return };
        if in_place {
            // Half of what it takes to bring it is too much: others may use it, too.
            pair.rereads |= us.saturating_mul(speed.link) > bytes / 2;
            return;
        }
        pair.times[(pair.timed % SAMPLES) as usize] = us.max(1);
        pair.timed += 1;
    }

    /// The object is gone; its number may come back for another.
    pub fn forget(&mut self, object: u32) {
        self.pairs.retain(|(_, other), _| *other != object);
        self.streaks.remove(&object);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
    /// 4 TB/s, 50 GB/s: a GiB is read in 268 us, and brought in 21 ms.
    const SPEED: Speed = Speed { memory: 4_000_000, link: 50_000, cache: 64 << 20, bytes: 8 * GIB };

    /// So many launches of a function on an object of a GiB; how many of them used it in place.
    fn launches(touch: &mut Touch, function: u64, count: u32, (home, away): (u64, u64)) -> u32 {
        let mut in_place = 0;
        for _ in 0..count {
            let sight = touch.named(function, 1, GIB, &SPEED);
            in_place += u32::from(sight.in_place);
            if sight.timed {
                let us = if sight.in_place { away } else { home };
                touch.took(function, 1, GIB, us, sight.in_place, &SPEED);
            }
        }
        in_place
    }

    #[test]
    fn a_lookup_uses_its_table_in_place() {
        let mut touch = Touch::default();
        assert_eq!(launches(&mut touch, 1, 20, (15, 400)), 20 - 3 - 7);
        assert_eq!(launches(&mut touch, 1, 100, (15, 400)), 100);
        // Another function has yet to be known.
        assert_eq!(launches(&mut touch, 2, 10, (15, 400)), 0);
        assert_eq!(launches(&mut touch, 2, 10, (15, 400)), 10);
    }

    #[test]
    fn what_is_read_is_brought() {
        let mut touch = Touch::default();
        assert_eq!(launches(&mut touch, 1, 100, (270, 0)), 0);
        assert_eq!(launches(&mut touch, 2, 20, (15, 400)), 10);
        // One that reads it all comes between: it is brought again, and stays so.
        for _ in 0..50 {
            assert_eq!(launches(&mut touch, 1, 1, (270, 0)), 0);
            assert_eq!(launches(&mut touch, 2, 7, (15, 400)), 0);
        }
    }

    #[test]
    fn what_is_read_again_and_again_is_brought_once_that_shows() {
        let mut touch = Touch::default();
        // In place up to the next launch that is timed, the sixteenth.
        assert_eq!(launches(&mut touch, 1, 1_000, (15, 15_000)), 6);
    }

    #[test]
    fn a_launch_that_was_long_once_is_looked_at_three_times_again() {
        let mut touch = Touch::default();
        launches(&mut touch, 1, 3, (15, 400));
        touch.took(1, 1, GIB, 5_000, false, &SPEED);
        assert_eq!(launches(&mut touch, 1, 14, (15, 400)), 0);
        touch.forget(1);
        assert_eq!(launches(&mut touch, 1, 20, (15, 400)), 10);
    }

    #[test]
    fn small_objects_are_brought() {
        assert!(Touch::is_large(GIB, &SPEED));
        assert!(!Touch::is_large(128 << 20, &SPEED));
        assert!(!Touch::is_large(GIB, &Speed::default()));
    }
}
