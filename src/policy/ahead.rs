//! Moving pages while kernels run: which may go for a launch that waits, and what to fetch before it is asked for.
//!
//! Fetching ahead follows Belady's replacements in their order (a page never goes for one that is needed later than
//! itself), only earlier: as soon as the last use of the page that goes is over. An object that will be used again
//! before the fetched one is not touched, or a cyclic scan would move everything.
//!
//! Where launches wait for the link, it must not idle while others run whose pages are all at home. So a little is
//! fetched *eagerly*: in exchange for the best page that can go, though a better one will be free later. What goes so
//! is missing at another place of the next iteration; after a few the missing pages are spread over it, and the link
//! works all the time at hardly more traffic.

use std::cmp::Reverse;

use crate::pager::{Exchange, PageRef, Pager, distance, is_near};
use crate::room::Room;

/// Free memory in frames of other sizes, in pages of the size that comes, above which it is made anew for that.
const FRAMES_THAT_WAIT: u64 = 4;

/// An object as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Standing {
    object: u32,
    /// Nothing that was submitted uses it.
    idle: bool,
    /// Its pages: from where on, and how many at home and elsewhere.
    start: usize,
    home: usize,
    away: usize,
}

/// Objects as they stand: pages at home that may go, and pages elsewhere that may come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standings {
    all: Vec<Standing>,
    pages: Vec<PageRef>,
}

impl Standings {
    /// Adds an object: its pages at home and those elsewhere, each first to last; `idle` where nothing that was
    /// submitted uses it.
    pub fn push(&mut self, object: u32, idle: bool, pages: impl Iterator<Item = (PageRef, bool)> + Clone) {
        let start = self.pages.len();
        self.pages.extend(pages.clone().filter(|(_, home)| *home).map(|(page, _)| page));
        let home = self.pages.len() - start;
        self.pages.extend(pages.filter(|(_, home)| !*home).map(|(page, _)| page));
        let away = self.pages.len() - start - home;
        self.all.push(Standing { object, idle, start, home, away });
    }

    /// Whether an object that is in use has pages at home, but for those named.
    pub fn is_some_in_use(&self, but: &[u32]) -> bool {
        self.all.iter().any(|one| !one.idle && one.home > 0 && !but.contains(&one.object))
    }

    fn home(&self, of: &Standing) -> &[PageRef] {
        &self.pages[of.start..][..of.home]
    }

    fn away(&self, of: &Standing) -> &[PageRef] {
        &self.pages[of.start + of.home..][..of.away]
    }
}

impl Pager {
    /// What goes so that `bytes` bytes get free for a launch that waits; `None` where the best to go is still in
    /// use and worth waiting for, if the launch is `patient`. Of an object pages of the `wanted` sizes go first, and
    /// of the best object as many of these as are wanted, whatever `bytes` says.
    ///
    /// Objects in `named` stay. Gives less than `bytes`, and nothing at last, where nothing can go.
    pub fn make_room(
        &self,
        named: &[u32],
        standings: &Standings,
        wanted: &[u64],
        bytes: u64,
        patient: bool,
    ) -> Option<Vec<PageRef>> {
        let mut able: Vec<&Standing> =
            standings.all.iter().filter(|s| s.home > 0 && !named.contains(&s.object)).collect();
        able.sort_by_cached_key(|s| (Reverse(self.next_use(s.object)), self.last_use(s.object), s.object));
        let best = able.first().map_or(0, |best| self.distance(best.object));
        let is_good = |s: &Standing| is_near(self.distance(s.object), best);
        let mut wanted = wanted.to_vec();
        let good = able.iter().take_while(|s| is_good(s)).filter(|s| s.idle);
        let mut going = clean_pages(good.flat_map(|s| standings.home(s).iter().rev()), &mut wanted);
        let mut gathered: u64 = going.iter().map(|page| page.bytes).sum();
        let clean = going.len();
        for standing in able {
            if !standing.idle {
                continue;
            }
            // One that is in use now but needed much later is the better choice: it will be free soon.
            if patient && going.is_empty() && !is_good(standing) {
                return None;
            }
            let is_first = going.is_empty();
            let (mut just, mut others) = (Vec::new(), Vec::new());
            for page in standings.home(standing).iter().rev() {
                if going[..clean].contains(page) {
                    continue;
                }
                match wanted.iter().position(|size| *size == page.bytes) {
                    Some(index) => {
                        wanted.swap_remove(index);
                        just.push(*page);
                    }
                    None => others.push(*page),
                }
            }
            for page in just {
                if gathered < bytes || is_first {
                    gathered += page.bytes;
                    going.push(page);
                }
            }
            for page in others {
                if gathered >= bytes {
                    return Some(going);
                }
                gathered += page.bytes;
                going.push(page);
            }
            if gathered >= bytes {
                return Some(going);
            }
        }
        Some(going)
    }

    /// Pages to fetch before they are asked for, soonest use first, and pages that go for them. `room` is what is
    /// free at home; at most `window` bytes are fetched, and for the first `eager` of them any page may go that is
    /// needed later.
    pub fn ahead(&self, standings: &Standings, mut room: Room, window: u64, eager: u64) -> Exchange {
        let mut plan = Exchange::default();
        let (mut coming, mut able): (Vec<(u64, &Standing)>, Vec<Known>) = (Vec::new(), Vec::new());
        for of in &standings.all {
            let (next, is_known) = self.expected(of.object);
            if of.away > 0 && is_known {
                coming.push((next, of));
            }
            if of.home > 0 {
                able.push(Known { next, last: self.last_use(of.object), of, gone: Vec::new() });
            }
        }
        coming.sort_unstable_by_key(|(next, of)| (*next, of.object));
        able.sort_unstable_by_key(|one| (one.next, Reverse(one.last), one.of.object));
        let mut fetched = 0;
        for (at, of) in coming {
            let best = self.farthest(&able, of.object, at);
            for page in standings.away(of) {
                if fetched >= window {
                    return plan;
                }
                while !room.fits(page.bytes) {
                    // Frames of other sizes would do, but a few may rather wait for pages of theirs.
                    let just = room.total() >= page.bytes;
                    if just && room.total() >= FRAMES_THAT_WAIT * page.bytes {
                        break;
                    }
                    let far = if fetched + page.bytes <= eager { 0 } else { best };
                    let found = victim(standings, &mut able, of.object, at, far, (page.bytes, just));
                    let Some(victim) = found else { break };
                    room.add(victim.bytes);
                    plan.evict.push(victim);
                }
                if !room.take(page.bytes) {
                    return plan;
                }
                fetched += page.bytes;
                plan.fetch.push(*page);
            }
        }
        plan
    }

    /// Launches from `at` to the use of the object that is needed latest after it, whether it can go now or not;
    /// but for the one that is fetched.
    fn farthest(&self, able: &[Known], but: u32, at: u64) -> u64 {
        let sooner = able.iter().take_while(|one| one.next <= at).filter(|one| one.of.object != but);
        let again = sooner.map(|one| distance(self.next_use_after(one.of.object, at), at));
        let latest = able.iter().rev().find(|one| one.of.object != but).map(|one| distance(one.next, at));
        again.chain(latest).max().unwrap_or(0)
    }
}

/// Of these pages the clean ones of the wanted sizes, which are then wanted no more.
fn clean_pages<'a>(pages: impl Iterator<Item = &'a PageRef>, wanted: &mut Vec<u64>) -> Vec<PageRef> {
    let take = |page: &&PageRef| {
        let index = wanted.iter().position(|size| page.clean && *size == page.bytes);
        index.map(|index| wanted.swap_remove(index)).is_some()
    };
    pages.filter(take).copied().collect()
}

/// An object, its next and its last use, and which of its pages at home go, by place.
struct Known<'a> {
    next: u64,
    last: u64,
    of: &'a Standing,
    gone: Vec<usize>,
}

/// The next page that goes for an object needed at launch `at`, if a right one can go now: nearly as good as one
/// whose next use is `best` launches from then. `able` is sorted by next use; those that cannot go are dropped. One of
/// the wanted size goes before others of its object, and if it is said so only such a one; a clean one before others
/// that are nearly as good.
fn victim(
    standings: &Standings,
    able: &mut Vec<Known>,
    for_object: u32,
    at: u64,
    best: u64,
    (wanted, only): (u64, bool),
) -> Option<PageRef> {
    loop {
        let next = able.last()?;
        if next.next <= at || !is_near(distance(next.next, at), best) {
            return None; // needed sooner, or better ones are in use, or will be used before
        }
        if next.of.object == for_object || !next.of.idle || next.gone.len() == next.of.home {
            able.pop();
            continue;
        }
        let best = best.max(distance(next.next, at));
        let good = |one: &&mut Known| one.next > at && is_near(distance(one.next, at), best);
        let others = able.iter_mut().rev().take_while(good);
        let mut others = others.filter(|one| one.of.idle && one.of.object != for_object);
        let clean = others.find_map(|one| one.take(standings, |page| page.clean && page.bytes == wanted));
        let last = clean.is_none().then(|| able.last_mut()).flatten();
        return clean.or_else(|| {
            let last = last?;
            let just = last.take(standings, |page| page.bytes == wanted);
            just.or_else(|| last.take(standings, |_| !only))
        });
    }
}

impl Known<'_> {
    /// The last of its pages at home that is like this and does not go yet: it goes.
    fn take(&mut self, standings: &Standings, like: impl Fn(&PageRef) -> bool) -> Option<PageRef> {
        let home = standings.home(self.of);
        let index = (0..home.len()).rev().find(|index| like(&home[*index]) && !self.gone.contains(index))?;
        self.gone.push(index);
        Some(home[index])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(object: u32) -> PageRef {
        PageRef { page: object, object, bytes: 1, clean: false }
    }

    /// A machine that moves one page each way while one launch runs, and as many as wanted while a launch waits.
    /// Gives the pages that launches of the last round had to wait for, and all pages fetched in it.
    fn run(sequence: &[u32], rounds: usize, capacity: usize, window: u64) -> (usize, usize) {
        let mut pager = Pager::default();
        let mut home: Vec<u32> = Vec::new();
        let objects: Vec<u32> = {
            let mut all = sequence.to_vec();
            all.sort_unstable();
            all.dedup();
            all
        };
        let (mut waited, mut fetched) = (0, 0);
        for round in 0..rounds {
            let last = round + 1 == rounds;
            for &object in sequence {
                let standings = |home: &[u32], busy: u32| {
                    let mut all = Standings::default();
                    for &object in &objects {
                        let at_home = home.contains(&object);
                        all.push(object, object != busy, std::iter::once((page(object), at_home)));
                    }
                    all
                };
                pager.launch(&[object]);
                if !home.contains(&object) {
                    if home.len() == capacity {
                        let going = pager.make_room(&[object], &standings(&home, 0), &[], 1, true).unwrap();
                        home.retain(|other| going.iter().all(|page| page.object != *other));
                    }
                    home.push(object);
                    waited += usize::from(last);
                    fetched += usize::from(last);
                }
                let room = (capacity - home.len()) as u64;
                let plan = pager.ahead(&standings(&home, object), Room::of_loose(room), window, 0);
                home.retain(|other| plan.evict.iter().all(|page| page.object != *other));
                home.extend(plan.fetch.iter().map(|page| page.object));
                fetched += if last { plan.fetch.len() } else { 0 };
                assert!(home.len() <= capacity && home.contains(&object));
            }
        }
        (waited, fetched)
    }

    #[test]
    fn a_cyclic_scan_is_fetched_ahead_without_more_traffic() {
        let scan: Vec<u32> = (1..=24).collect();
        let (waited, fetched) = run(&scan, 8, 16, 1);
        // The optimum is 8 or 9 fetches a round; all but those at the seams come before they are asked for.
        assert!(fetched <= 11, "{fetched}");
        assert!(waited <= 3, "{waited}");
    }

    #[test]
    fn forward_and_backward_are_fetched_ahead() {
        let step: Vec<u32> = (1..=24).chain((1..=24).rev()).collect();
        let (waited, fetched) = run(&step, 8, 16, 1);
        assert!(fetched <= 24, "{fetched}");
        assert!(waited <= 8, "{waited}");
    }

    #[test]
    fn what_fits_is_left_alone() {
        let scan: Vec<u32> = (1..=12).collect();
        assert_eq!(run(&scan, 5, 12, 4), (0, 0));
    }

    #[test]
    fn one_in_use_is_waited_for_where_the_others_are_needed_sooner() {
        let mut pager = Pager::default();
        for _ in 0..4 {
            (1..=20).for_each(|object| pager.launch(&[object]));
        }
        let stand = |objects: &[(u32, bool)]| {
            let mut all = Standings::default();
            objects.iter().for_each(|&(of, idle)| all.push(of, idle, std::iter::once((page(of), true))));
            all
        };
        // 20 was used last: it is needed latest, 2 very soon.
        assert_eq!(pager.make_room(&[1], &stand(&[(2, true), (20, false)]), &[], 1, true), None);
        assert_eq!(
            pager.make_room(&[1], &stand(&[(2, true), (20, false)]), &[], 1, false),
            Some(vec![page(2)])
        );
        assert_eq!(
            pager.make_room(&[1], &stand(&[(2, true), (20, true)]), &[], 1, true),
            Some(vec![page(20)])
        );
        assert_eq!(
            pager.make_room(&[1], &stand(&[(19, true), (20, false)]), &[], 1, true),
            Some(vec![page(19)])
        );
        assert_eq!(pager.make_room(&[1, 20], &stand(&[(20, true)]), &[], 1, true), Some(vec![]));
    }

    /// Object 1 of pages of 4 and 8 at home, object 2 of the same elsewhere; 1 is used long after 2.
    fn of_two_sizes() -> (Pager, Standings) {
        let mut pager = Pager::default();
        for _ in 0..4 {
            [1, 2, 3, 4, 5, 6].into_iter().for_each(|object| pager.launch(&[object]));
        }
        pager.launch(&[1]);
        let pages = |object: u32| {
            [(0, 8), (1, 8), (2, 4)].map(|(page, bytes)| PageRef {
                page: 10 * object + page,
                object,
                bytes,
                clean: false,
            })
        };
        let mut all = Standings::default();
        all.push(1, true, pages(1).into_iter().map(|page| (page, true)));
        all.push(2, true, pages(2).into_iter().map(|page| (page, false)));
        (pager, all)
    }

    #[test]
    fn pages_go_that_are_of_the_size_of_those_that_come() {
        let (pager, all) = of_two_sizes();
        let sizes = |pages: &[PageRef]| pages.iter().map(|page| page.bytes).collect::<Vec<u64>>();
        let plan = pager.ahead(&all, Room::default(), 16, 0);
        assert_eq!((sizes(&plan.fetch), sizes(&plan.evict)), (vec![8, 8], vec![8, 8]));
        // A frame of 4 is left alone for a page of 4, and no second one is made for it.
        let mut room = Room::default();
        room.add(4);
        let plan = pager.ahead(&all, room, 99, 0);
        assert_eq!((sizes(&plan.fetch), sizes(&plan.evict)), (vec![8, 8, 4], vec![8, 8]));
        let going = pager.make_room(&[2], &all, &[8], 8, true).unwrap();
        assert_eq!(sizes(&going), [8]);
        let going = pager.make_room(&[2], &all, &[4, 8], 0, true).unwrap();
        assert_eq!(sizes(&going), [4, 8], "wanted sizes of the best object, though bytes are on their way");
        let going = pager.make_room(&[2], &all, &[], 0, true).unwrap();
        assert!(going.is_empty());
        // None of that size: others do.
        let going = pager.make_room(&[2], &all, &[2], 2, true).unwrap();
        assert_eq!(sizes(&going), [4]);
    }

    /// Objects of one page each, used in turn by 64 launches: some at home, some of these clean; 1 comes.
    fn standing(home: &[(u32, bool)]) -> (Pager, Standings) {
        let mut pager = Pager::default();
        (0..8).for_each(|_| (1..=64).for_each(|object| pager.launch(&[object])));
        let mut all = Standings::default();
        all.push(1, true, std::iter::once((page(1), false)));
        for &(object, clean) in home {
            all.push(object, true, std::iter::once((PageRef { clean, ..page(object) }, true)));
        }
        (pager, all)
    }

    #[test]
    fn of_those_needed_nearly_as_late_clean_pages_go_first() {
        let going = |home: &[(u32, bool)]| {
            let (pager, all) = standing(home);
            let waits = pager.make_room(&[1], &all, &[1], 1, true).unwrap();
            let ahead = pager.ahead(&all, Room::default(), 1, 0).evict;
            let objects = |pages: Vec<PageRef>| pages.iter().map(|page| page.object).collect::<Vec<u32>>();
            (objects(waits), objects(ahead))
        };
        // 64 was used last: it is needed latest. 62 hardly sooner, 40 much sooner.
        assert_eq!(going(&[(62, true), (40, true), (64, false)]), (vec![62], vec![62]));
        assert_eq!(going(&[(62, false), (40, true), (64, false)]), (vec![64], vec![64]));
        assert_eq!(going(&[(62, true), (64, true)]), (vec![64], vec![64]));
    }
}
