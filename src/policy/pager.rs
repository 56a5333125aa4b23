//! Which pages to bring to the GPU before a launch, and which to send away for them.
//!
//! Objects are allocations, known by number. Time is the number of launches. Programs iterate: the next use
//! of an object is where the past that the present repeats used it (`sequence.rs`), or, where there is none,
//! after gaps like those between its last uses (`gaps.rs`). What is used latest goes first (Belady's rule on
//! the prediction). On a cyclic scan that keeps a fixed part where it is, where least-recently-used would
//! move everything.

use std::cmp::Reverse;
use std::collections::HashSet;

use crate::sequence::Sequence;

/// A page that the policy may decide about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRef {
    /// Number of the page.
    pub page: u32,
    /// Number of the object that it is part of.
    pub object: u32,
    /// Its size.
    pub bytes: u64,
    /// It is expected to leave without a copy, as it does not change while it is at home.
    pub clean: bool,
}

/// What to do before a launch, in this order within each list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exchange {
    /// Pages to bring home.
    pub fetch: Vec<PageRef>,
    /// Pages to send away.
    pub evict: Vec<PageRef>,
}

/// The memory of the policy: the recent launches.
#[derive(Clone, Debug, Default)]
pub struct Pager {
    sequence: Sequence,
    /// The newest launch that had to wait for pages; 0 is none.
    waited: u64,
}

impl Pager {
    /// A launch of an unknown function names these objects.
    pub fn launch(&mut self, objects: &[u32]) {
        self.launch_of(0, objects);
    }

    /// A launch of this function (0 is unknown) names these objects.
    pub fn launch_of(&mut self, function: u64, objects: &[u32]) {
        self.sequence.record(function, objects);
    }

    /// The object is gone; its number may come back for another.
    pub fn forget(&mut self, object: u32) {
        self.sequence.forget(object);
    }

    /// The newest launch has to wait for pages.
    pub fn waits(&mut self) {
        self.waited = self.now();
    }

    /// Whether some launch of the last two iterations had to wait: the link is what the program waits for. Two, as the
    /// place where it waits moves: it may be a little later than in the last one.
    pub fn is_behind(&self) -> bool {
        let period = self.sequence.period().unwrap_or(0);
        self.waited > 0 && self.now() - self.waited <= 2 * period
    }

    /// Launches so far.
    pub(crate) fn now(&self) -> u64 {
        self.sequence.now
    }

    /// The launch at which the object is expected next; unknown is never.
    pub(crate) fn next_use(&self, object: u32) -> u64 {
        self.next_use_after(object, self.now())
    }

    /// The first expected use after launch `after`; unknown is never.
    pub(crate) fn next_use_after(&self, object: u32, after: u64) -> u64 {
        self.sequence.next_use_after(object, after).map_or(u64::MAX, |expected| expected.at)
    }

    /// The same after the newest launch, and whether it is known well enough to fetch for it.
    pub(crate) fn expected(&self, object: u32) -> (u64, bool) {
        let expected = self.sequence.next_use_after(object, self.now());
        expected.map_or((u64::MAX, false), |expected| (expected.at, expected.is_known))
    }

    /// Launches until the object's next use; never is far away.
    pub(crate) fn distance(&self, object: u32) -> u64 {
        distance(self.next_use(object), self.now())
    }

    /// The launch that used the object last; 0 is none.
    pub(crate) fn last_use(&self, object: u32) -> u64 {
        self.sequence.last_use(object)
    }

    /// What to move so that the launch finds `missing` at home, with `room` bytes free there.
    ///
    /// `resident` are the pages at home that may go; pages of objects in `named` stay. What does not fit even
    /// so is left where it is, in the order of `missing`.
    pub fn exchange(&self, named: &[u32], missing: &[PageRef], resident: &[PageRef], room: u64) -> Exchange {
        let named: HashSet<u32> = named.iter().copied().collect();
        let mut victims: Vec<&PageRef> =
            resident.iter().filter(|page| !named.contains(&page.object)).collect();
        // Latest use first, and of those that are used nearly as late the clean ones. Of one object the last
        // page first, so that a fixed front part stays. Among objects without a prediction the one that was
        // used longest ago.
        let best = victims.iter().map(|page| self.distance(page.object)).max().unwrap_or(0);
        victims.sort_by_cached_key(|page| {
            let first = page.clean && is_near(self.distance(page.object), best);
            let last = self.last_use(page.object);
            (!first, Reverse(self.next_use(page.object)), last, page.object, Reverse(page.page))
        });
        let mut plan = Exchange::default();
        let mut room = room;
        let mut next = victims.into_iter();
        for page in missing {
            let mut gathered = Vec::new();
            let mut would_be = room;
            while would_be < page.bytes {
                let Some(victim) = next.next() else { return plan };
                would_be += victim.bytes;
                gathered.push(*victim);
            }
            room = would_be - page.bytes;
            plan.evict.extend(gathered);
            plan.fetch.push(*page);
        }
        plan
    }
}

/// Launches from `at` to a use; never is far away.
pub(crate) fn distance(next: u64, at: u64) -> u64 {
    next.saturating_sub(at).min(1 << 40)
}

/// Whether one distance is nearly as far as another, so that the choice between them hardly costs anything.
pub(crate) fn is_near(distance: u64, best: u64) -> bool {
    distance * 16 >= best * 15
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(object: u32) -> PageRef {
        PageRef { page: object, object, bytes: 1, clean: false }
    }

    /// Runs a sequence of launches, one object of one page each, on a GPU of `capacity` pages; pages fetched
    /// in the last `count` launches.
    fn run(sequence: &[u32], capacity: usize, count: usize) -> usize {
        let mut pager = Pager::default();
        let mut home: Vec<u32> = Vec::new();
        let mut fetched = Vec::new();
        for &object in sequence {
            pager.launch(&[object]);
            let missing: Vec<PageRef> = if home.contains(&object) { Vec::new() } else { vec![page(object)] };
            let resident: Vec<PageRef> = home.iter().map(|&object| page(object)).collect();
            let plan = pager.exchange(&[object], &missing, &resident, (capacity - home.len()) as u64);
            home.retain(|object| plan.evict.iter().all(|victim| victim.object != *object));
            home.extend(plan.fetch.iter().map(|page| page.object));
            assert!(home.len() <= capacity && home.contains(&object));
            fetched.push(plan.fetch.len());
        }
        fetched[fetched.len() - count..].iter().sum()
    }

    #[test]
    fn a_cyclic_scan_keeps_a_fixed_part() {
        let scan: Vec<u32> = (0..24).cycle().take(24 * 10).collect();
        // 24 objects, room for 16: Belady moves 24 - 16 + 1 a round (the one in use needs a place too).
        assert!(run(&scan, 16, 24) <= 9, "{}", run(&scan, 16, 24));
    }

    #[test]
    fn forward_and_backward_come_near_the_optimum() {
        let step: Vec<u32> = (0..24).chain((0..24).rev()).collect();
        let train: Vec<u32> = step.iter().copied().cycle().take(step.len() * 10).collect();
        // Optimal: at each turn the nearest 16 are there: 8 fetches a direction.
        assert!(run(&train, 16, step.len()) <= 20, "{}", run(&train, 16, step.len()));
    }

    #[test]
    fn what_is_never_used_again_goes_first() {
        let mut pager = Pager::default();
        for _ in 0..5 {
            pager.launch(&[1]);
            pager.launch(&[2]);
        }
        pager.launch(&[3]);
        let resident = [page(1), page(2), page(9)];
        let plan = pager.exchange(&[3], &[page(3)], &resident, 0);
        assert_eq!((plan.fetch, plan.evict), (vec![page(3)], vec![page(9)]));
    }

    #[test]
    fn behind_is_who_waited_within_two_iterations() {
        let mut pager = Pager::default();
        let launches = |pager: &mut Pager, count: usize| {
            let now = pager.now() as usize;
            (now..now + count).for_each(|at| pager.launch(&[at as u32 % 24]));
        };
        launches(&mut pager, 24 * 4);
        assert!(!pager.is_behind());
        pager.waits();
        launches(&mut pager, 48);
        assert!(pager.is_behind(), "it may wait a little later than it did an iteration ago");
        launches(&mut pager, 1);
        assert!(!pager.is_behind());
    }

    #[test]
    fn of_those_used_nearly_as_late_clean_pages_go_first() {
        let mut pager = Pager::default();
        (0..8).for_each(|_| (1..=64).for_each(|object| pager.launch(&[object])));
        let clean = |object| PageRef { clean: true, ..page(object) };
        // 63 was used just before 64, which is used latest of all; 32 is needed much sooner.
        let going = |resident: &[PageRef]| pager.exchange(&[64], &[page(64)], resident, 0).evict;
        assert_eq!(going(&[page(62), clean(61), page(63), clean(32)]), [clean(61)]);
        assert_eq!(going(&[page(62), page(63), clean(32)]), [page(63)]);
        assert_eq!(going(&[clean(62), clean(63)]), [clean(63)]);
    }

    #[test]
    fn named_objects_stay_and_what_does_not_fit_is_left() {
        let mut pager = Pager::default();
        pager.launch(&[1, 2, 3]);
        let plan = pager.exchange(&[1, 2, 3], &[page(2), page(3)], &[page(1), page(7)], 0);
        assert_eq!((plan.fetch, plan.evict), (vec![page(2)], vec![page(7)]));
        let plan = pager.exchange(&[1, 2, 3], &[page(2), page(3)], &[page(1)], 1);
        assert_eq!((plan.fetch, plan.evict), (vec![page(2)], vec![]));
    }
}
