//! Following the past: which earlier place of the sequence the present repeats.
//!
//! A cursor stands on the item that the newest launch repeats and moves on as long as that is right. Launches
//! that were inserted, dropped or replaced, now or then, are stepped over. Where the past differs, the
//! longest exact repetition is looked for; it decides between places that look alike. Two phases of a program
//! are both remembered: when it goes back to one, the search finds it.

use crate::rolling::GRAMS;
use crate::sequence::{Fresh, Sequence};

/// Items that must have been foretold before the past is trusted, unless a whole period was.
const TRUST: u64 = 16;
/// The fewest items that are evidence at all.
const LEAST: u64 = 4;
/// More matches than this make no difference.
const MOST: u64 = 64;
/// What a launch that was not foretold costs.
const PENALTY: u64 = 2;
/// How far around the cursor is looked for the launch, and for how many launches.
const REACH: u64 = 8;
/// Earlier places that a search looks at.
const EXACT_PLACES: usize = 16;
const NEAR_PLACES: usize = 6;
/// Items that are compared at each where they need not be the same.
const NEAR_ITEMS: u64 = 32;
/// Launches between vain searches, at most.
const LONGEST_REST: u32 = 8;

/// A place in the past.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor {
    /// The item that the newest launch repeats.
    pub(crate) at: u64,
    /// Launches foretold, less what was not.
    score: u64,
    /// Launches since one was foretold.
    strayed: u64,
}

impl Sequence {
    /// The place in the past, if it has foretold enough.
    pub(crate) fn trusted(&self) -> Option<Cursor> {
        let cursor = self.cursor?;
        let enough = TRUST.min(LEAST.max(self.now - cursor.at));
        (cursor.score >= enough).then_some(cursor)
    }

    /// The item that a launch repeats, if the cursor leads to it, and whether that says something.
    pub(crate) fn expected(&self, fresh: &Fresh) -> Option<(u64, bool)> {
        let Cursor { at, strayed, .. } = self.cursor?;
        let like = |position| self.is_like(fresh, position).map(|telling| (position, telling));
        if let Some(found) = like(at + 1) {
            return Some(found);
        }
        if strayed == 0 {
            return None;
        }
        if strayed == 1
            && let Some(found) = like(at + 2)
        {
            return Some(found); // the last launch was in the place of another
        }
        // Dropped, or repeated: two in a row must fit.
        let around = (2..=REACH).flat_map(|far| [Some(at + far), (at + 2).checked_sub(far)]).flatten();
        let mut around = around.filter(|position| *position < self.now);
        around.find_map(|position| {
            let found = like(position)?;
            self.are_alike(self.now, position - 1).map(|_| found)
        })
    }

    /// The newest item was foretold or not: moves the cursor, or looks for another place.
    pub(crate) fn step(&mut self, found: Option<(u64, bool)>) {
        if let (Some((at, telling)), Some(cursor)) = (found, &mut self.cursor) {
            let score = (cursor.score + u64::from(telling)).min(MOST);
            *cursor = Cursor { at, score, strayed: 0 };
            return;
        }
        if let Some((at, length)) = self.search_exact() {
            self.cursor = Some(Cursor { at, score: length.min(MOST), strayed: 0 });
            self.rest = (0, 0);
            return;
        }
        if let Some(cursor) = &mut self.cursor {
            cursor.score = cursor.score.saturating_sub(PENALTY);
            cursor.strayed += 1;
            if cursor.score > 0 && cursor.strayed < REACH {
                return;
            }
            self.cursor = None;
        }
        if self.rest.0 > 0 {
            self.rest.0 -= 1;
            return;
        }
        self.cursor = self.search_near();
        let next = (2 * self.rest.1 + 1).min(LONGEST_REST);
        self.rest = if self.cursor.is_some() { (0, 0) } else { (next, next) };
    }

    /// The place with the longest past in common, the most recent of several, if that is long enough to
    /// trust.
    fn search_exact(&self) -> Option<(u64, u64)> {
        (0..GRAMS.len()).rev().find_map(|which| {
            let gram = self.gram(self.now, GRAMS[which])?;
            let places = self.chains.before(which, self.now, self.first()).take(EXACT_PLACES);
            let same = places.filter(|at| self.gram(*at, GRAMS[which]) == Some(gram));
            same.map(|at| (at, self.common(self.now, at))).max_by_key(|(at, length)| (*length, *at))
        })
    }

    /// The place whose past is most like ours, among the last uses of the newest item's rarest object.
    fn search_near(&self) -> Option<Cursor> {
        let places = self.rarest()?.iter().rev().skip(1).take(NEAR_PLACES);
        let best = places.map(|at| (self.likeness(*at), *at)).max()?;
        (best.0 >= LEAST).then_some(Cursor { at: best.1, score: best.0, strayed: 0 })
    }

    /// How many items up to the newest are like those up to an earlier place, less what is inserted in
    /// either.
    fn likeness(&self, place: u64) -> u64 {
        let (mut now, mut then) = (self.now, place);
        let (mut alike, mut odd) = (0, 0);
        while alike + odd < NEAR_ITEMS {
            match self.are_alike(now, then) {
                Some(telling) => alike += u64::from(telling),
                None => {
                    odd += 1;
                    let detours = [(1, 0), (0, 1), (1, 1), (2, 0), (0, 2)];
                    let around = detours.into_iter().find(|(a, b)| {
                        let ends = (now.checked_sub(*a), then.checked_sub(*b));
                        matches!(ends, (Some(a), Some(b)) if self.are_alike(a, b).is_some())
                    });
                    let Some((a, b)) = around.filter(|_| 3 * odd <= alike + 3) else { break };
                    (now, then) = (now - a, then - b);
                    continue;
                }
            }
            (now, then) = (now - 1, then.saturating_sub(1));
        }
        alike.saturating_sub(odd)
    }
}
