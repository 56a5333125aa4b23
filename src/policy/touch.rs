//! Which objects launches hardly touch: they are used where they lie.
//!
//! A launch that takes less time than reading an object from the GPU's memory cannot have read it: a lookup in a table
//! touches a few rows. To bring such an object costs all its bytes over the link, to use it in place only what is
//! touched.
//!
//! What that costs is watched: launches that read the same bytes again, or each another part of one buffer, take their
//! time. Once as much was spent as half of what bringing takes, it must have been no more than a tenth of the time that
//! passed, or the object is brought from then on. So in place never costs more than that.

use std::collections::HashMap;

/// An object of less than this part of its GPU's memory is brought in any case.
const PART: u64 = 128;
/// Launches that hardly touch an object, one after another, before it is used in place.
const STREAK: u32 = 8;
/// Launches of a function on an object that are timed before their time is known; later ones that are a power of two.
const SAMPLES: u64 = 3;
/// Launches in place after which their cost is judged, unless it is this many times what bringing takes.
const JUDGED: u32 = 8;
const DEAR: u64 = 4;
/// Of the time, this part may go into uses in place.
const SHARE: u64 = 10;
/// An object that was wanted whole again so often is used in both ways: when it is needed whole can be foretold.
const RETURNS: u32 = 2;

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

impl Speed {
    /// Microseconds that bringing so many bytes takes.
    fn price(&self, bytes: u64) -> u64 {
        (bytes / self.link.max(1)).max(1)
    }
}

/// Launches of one function on one object.
#[derive(Clone, Copy, Debug, Default)]
struct Pair {
    launches: u64,
    /// Times of the last ones that were timed with the object at home, in microseconds.
    times: [u64; SAMPLES as usize],
    timed: u64,
}

impl Pair {
    /// Whether its launches are too short to have read much of so many bytes.
    fn touches_little(&self, bytes: u64, speed: &Speed) -> bool {
        let longest = self.times.iter().max().copied().unwrap_or(0);
        let read = longest.saturating_mul(speed.memory).saturating_add(speed.cache);
        self.timed >= SAMPLES && read <= bytes / 2
    }
}

/// What was spent on uses of an object in place.
#[derive(Clone, Copy, Debug)]
struct Rent {
    /// Since then, in microseconds.
    since: u64,
    spent: u64,
    launches: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Object {
    /// Its launches since one that may have read it.
    streak: u32,
    /// How often one did that came after uses in place.
    returns: u32,
    rent: Option<Rent>,
    /// Launches that used it in place and were not charged yet.
    uncharged: u32,
    /// It is brought whatever launches touch of it.
    brought: bool,
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
    objects: HashMap<u32, Object>,
}

impl Touch {
    /// Whether an object of so many bytes is ever used in place by choice.
    pub fn is_large(bytes: u64, speed: &Speed) -> bool {
        bytes > (speed.bytes / PART).max(2 * speed.cache)
    }

    /// A launch of a function names a large object.
    pub fn named(&mut self, function: u64, object: u32, bytes: u64, speed: &Speed) -> Sight {
        let one = self.objects.entry(object).or_default();
        if one.brought {
            return Sight::default();
        }
        let pair = self.pairs.entry((function, object)).or_default();
        pair.launches += 1;
        let little = pair.touches_little(bytes, speed);
        let was_in_place = one.streak == STREAK;
        one.streak = if little { (one.streak + 1).min(STREAK) } else { 0 };
        if was_in_place && !little {
            // Of a new function nothing is known.
            one.returns += u32::from(pair.timed >= SAMPLES);
            one.brought = one.returns >= RETURNS;
            (one.rent, one.uncharged) = (None, 0);
        }
        let in_place = one.streak == STREAK;
        one.uncharged += u32::from(in_place);
        let timed = in_place || pair.timed < SAMPLES || pair.launches.is_power_of_two();
        Sight { in_place, begins: in_place && !was_in_place, timed }
    }

    /// Such a launch took `us` microseconds with the object at home.
    pub fn took(&mut self, function: u64, object: u32, us: u64) {
        if let Some(pair) = self.pairs.get_mut(&(function, object)) {
            pair.times[(pair.timed % SAMPLES) as usize] = us;
            pair.timed += 1;
        }
    }

    /// Such a launch took `us` microseconds where it used the object in place. It was made at the first of these times,
    /// in microseconds since any, and the second is now. Those that were not timed are charged as it is.
    pub fn took_in_place(
        &mut self,
        object: u32,
        bytes: u64,
        us: u64,
        (made, now): (u64, u64),
        speed: &Speed,
    ) {
        let Some(one) = self.objects.get_mut(&object).filter(|one| !one.brought) else { return };
        let launches = std::mem::take(&mut one.uncharged).max(1);
        let rent = one.rent.get_or_insert(Rent { since: made, spent: 0, launches: 0 });
        rent.spent = rent.spent.saturating_add(us.saturating_mul(u64::from(launches)));
        rent.launches += launches;
        let price = speed.price(bytes);
        let is_dear = rent.spent >= price.saturating_mul(DEAR);
        if !is_dear && (rent.launches < JUDGED || rent.spent < price / 2) {
            return;
        }
        let passed = now.saturating_sub(rent.since);
        one.brought = rent.spent.saturating_mul(SHARE) > passed;
        one.rent = None;
    }

    /// The object is gone; its number may come back for another.
    pub fn forget(&mut self, object: u32) {
        self.pairs.retain(|(_, other), _| *other != object);
        self.objects.remove(&object);
    }

    /// Functions are gone; their numbers may come back for others.
    pub fn forget_functions(&mut self) {
        self.pairs.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
    /// 4 TB/s, 50 GB/s: a GiB is read in 268 us, and brought in 21 ms.
    const SPEED: Speed = Speed { memory: 4_000_000, link: 50_000, cache: 64 << 20, bytes: 8 * GIB };

    /// A program that runs launches on an object of a GiB, and what time it is.
    #[derive(Default)]
    struct Program(Touch, u64);

    impl Program {
        /// So many launches of a function with a pause behind each, in microseconds; how many used it in place.
        fn run(&mut self, function: u64, count: u32, (home, away, pause): (u64, u64, u64)) -> u32 {
            let Program(touch, now) = self;
            let mut in_place = 0;
            for _ in 0..count {
                let sight = touch.named(function, 1, GIB, &SPEED);
                in_place += u32::from(sight.in_place);
                let us = if sight.in_place { away } else { home };
                let made = *now;
                *now += us;
                if sight.in_place {
                    assert!(sight.timed);
                    touch.took_in_place(1, GIB, us, (made, *now), &SPEED);
                } else if sight.timed {
                    touch.took(function, 1, us);
                }
                *now += pause;
            }
            in_place
        }
    }

    const LOOKUP: (u64, u64, u64) = (15, 400, 20_000);
    const READS_ALL: (u64, u64, u64) = (270, 30_000, 20_000);

    #[test]
    fn a_lookup_uses_its_table_in_place() {
        let mut program = Program::default();
        assert_eq!(program.run(1, 20, LOOKUP), 20 - 3 - 7);
        assert_eq!(program.run(1, 1_000, LOOKUP), 1_000);
        // Another function has yet to be known.
        assert_eq!(program.run(2, 10, LOOKUP), 0);
        assert_eq!(program.run(2, 10, LOOKUP), 10);
    }

    #[test]
    fn what_is_read_is_brought() {
        let mut program = Program::default();
        assert_eq!(program.run(1, 100, READS_ALL), 0);
        assert_eq!(program.run(2, 20, LOOKUP), 10);
        // One that reads it all comes between, again and again: from the second time on it is as any other.
        let rounds: Vec<u32> =
            (0..20).map(|_| program.run(1, 1, READS_ALL) + program.run(2, 20, LOOKUP)).collect();
        assert_eq!((rounds[0], rounds[1..].iter().sum::<u32>()), (13, 0));
    }

    #[test]
    fn what_is_read_again_and_again_is_brought_once_that_shows() {
        let mut program = Program::default();
        // Ninety milliseconds instead of 15 microseconds: four times what bringing takes.
        assert_eq!(program.run(1, 1_000, (15, 90_000, 20_000)), 1);
        let mut program = Program::default();
        assert_eq!(program.run(1, 1_000, (15, 10_000, 20_000)), 8);
        // Every third launch is a long one.
        let mut program = Program::default();
        program.run(1, 20, LOOKUP);
        let all = (0..100).map(|_| program.run(1, 2, LOOKUP) + program.run(1, 1, (15, 40_000, 20_000)));
        assert!(all.sum::<u32>() < 12);
    }

    #[test]
    fn a_buffer_of_which_each_launch_reads_another_part_is_brought() {
        let mut program = Program::default();
        // One part after another, without a pause: half of the price is spent after 25 launches.
        assert_eq!(program.run(1, 1_000, (15, 420, 5)), 26);
    }

    #[test]
    fn new_functions_do_not_make_it_brought_for_good() {
        let mut program = Program::default();
        program.run(1, 20, LOOKUP);
        for function in 2..6 {
            assert_eq!(program.run(function, 3, LOOKUP), 0);
            assert_eq!(program.run(function, 20, LOOKUP), 13);
        }
        for _ in 0..3 {
            program.0.forget_functions();
            assert_eq!(program.run(1, 20, LOOKUP), 10);
        }
    }

    #[test]
    fn what_is_not_timed_is_charged_and_what_was_made_long_ago_has_taken_long() {
        // Each launch reads another part, and one of ten is timed.
        let mut program = Program::default();
        program.run(1, 10, LOOKUP);
        let Program(touch, now) = &mut program;
        let mut in_place = 0;
        for launch in 0..1_000u64 {
            let sight = touch.named(1, 1, GIB, &SPEED);
            in_place += u32::from(sight.in_place);
            *now += 420;
            if sight.in_place && launch % 10 == 9 {
                touch.took_in_place(1, GIB, 420, (*now - 420, *now), &SPEED);
            }
        }
        assert!(in_place < 60, "{in_place}");
        // Forty lookups are made at once, and are over a second later, when their times are asked for.
        let mut program = Program::default();
        program.run(1, 10, LOOKUP);
        let Program(touch, now) = &mut program;
        for _ in 0..20 {
            let made = *now;
            assert!((0..40).all(|_| touch.named(1, 1, GIB, &SPEED).in_place));
            *now += 1_000_000;
            (0..40).for_each(|_| touch.took_in_place(1, GIB, 400, (made, *now), &SPEED));
        }
    }

    #[test]
    fn one_launch_that_was_held_up_decides_nothing() {
        let mut program = Program::default();
        program.run(1, 20, LOOKUP);
        program.run(1, 1, (15, 15_000, 20_000));
        assert_eq!(program.run(1, 100, LOOKUP), 100);
    }

    #[test]
    fn what_is_gone_is_forgotten() {
        let mut program = Program::default();
        program.run(1, 20, LOOKUP);
        program.0.forget_functions();
        assert_eq!(program.run(1, 10, LOOKUP), 0);
        program.run(1, 10, LOOKUP);
        program.0.forget(1);
        assert_eq!(program.run(1, 10, LOOKUP), 0);
    }

    #[test]
    fn small_objects_are_brought() {
        assert!(Touch::is_large(GIB, &SPEED));
        assert!(!Touch::is_large(128 << 20, &SPEED));
        assert!(!Touch::is_large(GIB, &Speed::default()));
    }
}
