//! Which pages to bring to the GPU before a launch, and which to send away for them.
//!
//! Objects are allocations, known by number. Time is the number of launches. A program that iterates uses each
//! object at gaps that repeat: once an iteration, or in a short pattern (forward, backward, optimizer). The next
//! use of an object is predicted from its own gaps; what is used latest goes first (Belady's rule on the
//! prediction). On a cyclic scan that keeps a fixed part where it is, where least-recently-used would move
//! everything.

use std::cmp::Reverse;
use std::collections::HashMap;

/// Gaps remembered of each object.
const GAPS: usize = 16;
/// Longest pattern of gaps that is looked for: uses of one object in one iteration.
const LONGEST_PATTERN: usize = 8;

/// When an object was used, in launches.
#[derive(Clone, Debug, Default)]
struct History {
    last: u64,
    /// Launches between uses, newest last.
    gaps: Vec<u64>,
}

impl History {
    fn used(&mut self, now: u64) {
        if self.last != 0 && now > self.last {
            if self.gaps.len() == GAPS {
                self.gaps.remove(0);
            }
            self.gaps.push(now - self.last);
        }
        self.last = now;
    }

    /// The gaps that are expected to repeat, the next one first; empty where nothing is known.
    fn pattern(&self) -> &[u64] {
        let count = self.gaps.len();
        for length in 1..=LONGEST_PATTERN.min(count / 2) {
            let repeats = (length..count.min(2 * length))
                .all(|back| near(self.gaps[count - 1 - back], self.gaps[count - 1 - back + length]));
            if repeats && (count >= 2 * length) {
                return &self.gaps[count - length..];
            }
        }
        &self.gaps[count.saturating_sub(1)..]
    }

    /// Launches from the last use to the next, if the past lets that be guessed.
    #[cfg(test)]
    fn next_gap(&self) -> Option<u64> {
        self.pattern().first().copied()
    }

    /// The first expected use after launch `after`, which is `now` or later. What is overdue is expected after as
    /// long again as it is late: the pattern broke.
    fn next_use_after(&self, now: u64, after: u64) -> Option<u64> {
        let pattern = self.pattern();
        let first = *pattern.first()?;
        if self.last + first <= now {
            let late = now + (now - self.last).max(1);
            return Some(if late > after { late } else { after + (now - self.last).max(1) });
        }
        let period: u64 = pattern.iter().sum();
        let mut at = self.last + (after.saturating_sub(self.last) / period.max(1)) * period;
        // At most two rounds: `at` is less than a period before `after`.
        for gap in pattern.iter().chain(pattern) {
            at += gap;
            if at > after {
                return Some(at);
            }
        }
        None
    }
}

/// Gaps differ a little when programs insert launches (a growing cache, a logged step).
fn near(a: u64, b: u64) -> bool {
    a.abs_diff(b) <= 2 + a.max(b) / 16
}

/// A page that the policy may decide about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRef {
    /// Number of the page.
    pub page: u32,
    /// Number of the object that it is part of.
    pub object: u32,
    /// Its size.
    pub bytes: u64,
}

/// What to do before a launch, in this order within each list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exchange {
    /// Pages to bring home.
    pub fetch: Vec<PageRef>,
    /// Pages to send away.
    pub evict: Vec<PageRef>,
}

/// The memory of the policy: uses of each object.
#[derive(Clone, Debug, Default)]
pub struct Pager {
    objects: HashMap<u32, History>,
    pub(crate) now: u64,
}

impl Pager {
    /// A launch names these objects.
    pub fn launch(&mut self, objects: &[u32]) {
        self.now += 1;
        for object in objects {
            self.objects.entry(*object).or_default().used(self.now);
        }
    }

    /// The object is gone; its number may come back for another.
    pub fn forget(&mut self, object: u32) {
        self.objects.remove(&object);
    }

    /// The launch at which the object is expected next; unknown is never.
    pub(crate) fn next_use(&self, object: u32) -> u64 {
        self.next_use_after(object, self.now)
    }

    /// The first expected use after launch `after`; unknown is never.
    pub(crate) fn next_use_after(&self, object: u32, after: u64) -> u64 {
        let history = self.objects.get(&object);
        history.and_then(|history| history.next_use_after(self.now, after)).unwrap_or(u64::MAX)
    }

    /// The launch that used the object last; 0 is none.
    pub(crate) fn last_use(&self, object: u32) -> u64 {
        self.objects.get(&object).map_or(0, |history| history.last)
    }

    /// What to move so that the launch finds `missing` at home, with `room` bytes free there.
    ///
    /// `resident` are the pages at home that may go; pages of objects in `named` stay. What does not fit even
    /// so is left where it is, in the order of `missing`.
    pub fn exchange(&self, named: &[u32], missing: &[PageRef], resident: &[PageRef], room: u64) -> Exchange {
        let mut victims: Vec<&PageRef> =
            resident.iter().filter(|page| !named.contains(&page.object)).collect();
        // Latest use first. Of one object the last page first, so that a fixed front part stays. Among objects
        // without a prediction the one that was used longest ago.
        victims.sort_by_cached_key(|page| {
            let last = self.last_use(page.object);
            (Reverse(self.next_use(page.object)), last, page.object, Reverse(page.page))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn page(object: u32) -> PageRef {
        PageRef { page: object, object, bytes: 1 }
    }

    /// Runs a sequence of launches, one object of one page each, on a GPU of `capacity` pages; pages fetched in
    /// the last `count` launches.
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
    fn named_objects_stay_and_what_does_not_fit_is_left() {
        let mut pager = Pager::default();
        pager.launch(&[1, 2, 3]);
        let plan = pager.exchange(&[1, 2, 3], &[page(2), page(3)], &[page(1), page(7)], 0);
        assert_eq!((plan.fetch, plan.evict), (vec![page(2)], vec![page(7)]));
        let plan = pager.exchange(&[1, 2, 3], &[page(2), page(3)], &[page(1)], 1);
        assert_eq!((plan.fetch, plan.evict), (vec![page(2)], vec![]));
    }

    #[test]
    fn a_pattern_of_three_gaps_is_recognised() {
        let mut history = History::default();
        let mut now = 10;
        for gap in [3, 20, 7].iter().cycle().take(12) {
            history.used(now);
            now += gap;
        }
        history.used(now);
        assert_eq!(history.next_gap(), Some(3));
    }
}
