//! Moving pages while kernels run: which may go for a launch that waits, and what to fetch before it is asked for.
//!
//! Fetching ahead follows Belady's replacements in their order (a page never goes for one that is needed later than
//! itself), only earlier: as soon as the last use of the page that goes is over. An object that will be used again
//! before the fetched one is not touched, or a cyclic scan would move everything.

use std::cmp::Reverse;

use crate::pager::{Exchange, PageRef, Pager};

/// An object as it stands: pages at home that may go, and pages elsewhere that may come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Its number.
    pub object: u32,
    /// Pages at home, first to last.
    pub home: Vec<PageRef>,
    /// Pages elsewhere, first to last.
    pub away: Vec<PageRef>,
    /// Nothing that was submitted uses it.
    pub idle: bool,
}

impl Pager {
    /// What goes so that `bytes` bytes get free for a launch that waits; `None` where the best to go is still in
    /// use and worth waiting for, if the launch is `patient`.
    ///
    /// Objects in `named` stay. Gives less than `bytes`, and nothing at last, where nothing can go.
    pub fn make_room(
        &self,
        named: &[u32],
        standings: &[Standing],
        bytes: u64,
        patient: bool,
    ) -> Option<Vec<PageRef>> {
        let mut able: Vec<&Standing> =
            standings.iter().filter(|s| !s.home.is_empty() && !named.contains(&s.object)).collect();
        able.sort_by_cached_key(|s| (Reverse(self.next_use(s.object)), self.last_use(s.object), s.object));
        let mut going = Vec::new();
        let mut gathered = 0;
        let distance = |s: &Standing| self.next_use(s.object).saturating_sub(self.now()).min(1 << 40);
        let best = able.first().map_or(0, |best| distance(best));
        for standing in able {
            if !standing.idle {
                continue;
            }
            // One that is in use now but needed much later is the better choice: it will be free soon.
            if patient && going.is_empty() && !is_near(distance(standing), best) {
                return None;
            }
            for page in standing.home.iter().rev() {
                if gathered >= bytes {
                    return Some(going);
                }
                gathered += page.bytes;
                going.push(*page);
            }
        }
        Some(going)
    }

    /// Pages to fetch before they are asked for, soonest use first, and pages that go for them. `room` is what is
    /// free at home; at most `window` bytes are fetched.
    pub fn ahead(&self, standings: &[Standing], mut room: u64, window: u64) -> Exchange {
        let mut plan = Exchange::default();
        let mut coming: Vec<(u64, &Standing)> = standings
            .iter()
            .filter(|s| !s.away.is_empty())
            .map(|s| (self.next_use(s.object), s))
            .filter(|(at, _)| *at != u64::MAX)
            .collect();
        coming.sort_by_key(|(at, s)| (*at, s.object));
        let mut gone: Vec<(u32, usize)> = Vec::new();
        let mut fetched = 0;
        for (at, object) in coming {
            let mut victims = self.victims(standings, object.object, at);
            for page in &object.away {
                if fetched >= window {
                    return plan;
                }
                while room < page.bytes {
                    let Some(victim) = self.victim(&mut victims, &mut gone, at) else { return plan };
                    room += victim.bytes;
                    plan.evict.push(victim);
                }
                room -= page.bytes;
                fetched += page.bytes;
                plan.fetch.push(*page);
            }
        }
        plan
    }

    /// Who could go for an object that is needed at launch `at`: the one needed latest from then on comes last.
    fn victims<'a>(&self, standings: &'a [Standing], for_object: u32, at: u64) -> Vec<&'a Standing> {
        let mut able: Vec<&Standing> =
            standings.iter().filter(|s| s.object != for_object && !s.home.is_empty()).collect();
        able.sort_by_cached_key(|s| {
            (self.next_use_after(s.object, at), Reverse(self.last_use(s.object)), s.object)
        });
        able
    }

    /// The next page that goes for one needed at launch `at`, if a right one can go now: the best of all, or one
    /// that is nearly as good where the best is in use or will be used before.
    fn victim(&self, able: &mut Vec<&Standing>, gone: &mut Vec<(u32, usize)>, at: u64) -> Option<PageRef> {
        let distance = |s: &Standing| self.next_use_after(s.object, at).min(at + (1 << 40)) - at;
        let best = distance(able.last()?);
        loop {
            let next = *able.last()?;
            if !is_near(distance(next), best) {
                return None;
            }
            let taken = gone.iter().position(|(object, _)| *object == next.object);
            let count = taken.map_or(0, |index| gone[index].1);
            if !next.idle || self.next_use(next.object) <= at || count == next.home.len() {
                able.pop();
                continue;
            }
            match taken {
                Some(index) => gone[index].1 += 1,
                None => gone.push((next.object, 1)),
            }
            return Some(next.home[next.home.len() - 1 - count]);
        }
    }
}

/// Whether one distance is nearly as far as another, so that the choice between them hardly costs anything.
fn is_near(distance: u64, best: u64) -> bool {
    distance * 8 >= best * 7
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(object: u32) -> PageRef {
        PageRef { page: object, object, bytes: 1 }
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
                let standings = |home: &[u32], busy: u32| -> Vec<Standing> {
                    let stand = |&object: &u32| {
                        let is_home = home.contains(&object);
                        Standing {
                            object,
                            home: if is_home { vec![page(object)] } else { vec![] },
                            away: if is_home { vec![] } else { vec![page(object)] },
                            idle: object != busy,
                        }
                    };
                    objects.iter().map(stand).collect()
                };
                pager.launch(&[object]);
                if !home.contains(&object) {
                    if home.len() == capacity {
                        let going = pager.make_room(&[object], &standings(&home, 0), 1, true).unwrap();
                        home.retain(|other| going.iter().all(|page| page.object != *other));
                    }
                    home.push(object);
                    waited += usize::from(last);
                    fetched += usize::from(last);
                }
                let room = (capacity - home.len()) as u64;
                let plan = pager.ahead(&standings(&home, object), room, window);
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
        let stand = |object, idle| Standing { object, home: vec![page(object)], away: vec![], idle };
        // 20 was used last: it is needed latest, 2 very soon.
        assert_eq!(pager.make_room(&[1], &[stand(2, true), stand(20, false)], 1, true), None);
        assert_eq!(pager.make_room(&[1], &[stand(2, true), stand(20, false)], 1, false), Some(vec![page(2)]));
        assert_eq!(pager.make_room(&[1], &[stand(2, true), stand(20, true)], 1, true), Some(vec![page(20)]));
        assert_eq!(
            pager.make_room(&[1], &[stand(18, true), stand(20, false)], 1, true),
            Some(vec![page(18)])
        );
        assert_eq!(pager.make_room(&[1, 20], &[stand(20, true)], 1, true), Some(vec![]));
    }
}
