//! The next use of an object from its own uses alone: for where the sequence of launches says nothing.
//!
//! Gaps that repeat say when it comes. Gaps that do not say how long it will stay away, seen how long it has been
//! away already: the mean rest of those that were longer. What is read once a round in an order that nobody knows
//! (shuffled data) is expected latest just after its use; what comes often and rarely without order (experts, parts of
//! a table) about as rarely as ever; what was in use and is no more later and later.

use std::collections::VecDeque;

/// Gaps that are looked at.
const GAPS: usize = 16;
/// Longest pattern of gaps that is looked for: uses of one object in one iteration.
const LONGEST_PATTERN: usize = 8;
/// So many gaps must be like those before: chance makes one or two so.
const LEAST_REPEATED: usize = 3;
/// So many gaps that do not repeat show that none will.
const ENOUGH: usize = 4;

/// When an object is expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    /// The launch.
    pub(crate) at: u64,
    /// Whether it is known, or only how far away it is likely to be.
    pub(crate) is_known: bool,
}

/// Launches between the last uses of an object.
pub(crate) struct Gaps {
    last: u64,
    /// Newest last.
    gaps: [u64; GAPS],
    count: usize,
}

impl Gaps {
    /// From the launches that used it, oldest first, and the last of all: the others may be forgotten.
    pub(crate) fn of(uses: &VecDeque<u64>, last: u64) -> Gaps {
        let mut gaps = Gaps { last, gaps: [0; GAPS], count: 0 };
        let recent = uses.range(uses.len().saturating_sub(GAPS + 1)..);
        for (use_, next) in recent.clone().zip(recent.skip(1)) {
            gaps.gaps[gaps.count] = next - use_;
            gaps.count += 1;
        }
        gaps
    }

    /// The gaps that are expected to repeat, the next one first; the last one where there are few, none where they are
    /// without order.
    fn pattern(&self) -> &[u64] {
        let (gaps, count) = (&self.gaps[..self.count], self.count);
        for length in 1..=LONGEST_PATTERN.min(count / 2) {
            let mut again = length..length + length.max(LEAST_REPEATED);
            if again.end <= count
                && again.all(|back| near(gaps[count - 1 - back], gaps[count - 1 - back + length]))
            {
                return &gaps[count - length..];
            }
        }
        let last = count.saturating_sub(usize::from(count < ENOUGH));
        &gaps[last..]
    }

    /// The mean gap, where gaps are without order.
    pub(crate) fn mean_of_any(&self) -> Option<u64> {
        let sum: u64 = self.gaps[..self.count].iter().sum();
        (self.count > 0 && self.pattern().is_empty()).then(|| (sum / self.count as u64).max(1))
    }

    /// The first expected use after launch `after`, which is `now` or later; `None` where nothing is known. `shape` is
    /// that of gaps without order.
    pub(crate) fn next_use_after(&self, now: u64, after: u64, shape: &Shape) -> Option<Expected> {
        let pattern = self.pattern();
        match pattern.first() {
            Some(first) => self.repeated(pattern, *first, now, after),
            None => {
                let from = after.max(now);
                let rest = shape.rest(from - self.last, self.mean_of_any()?);
                Some(Expected { at: from + rest, is_known: false })
            }
        }
    }

    /// Where the gaps repeat. What is overdue is expected after as long again as it is late: the pattern broke.
    fn repeated(&self, pattern: &[u64], first: u64, now: u64, after: u64) -> Option<Expected> {
        let known = |at| Expected { at, is_known: true };
        if self.last + first <= now {
            let late = (now - self.last).max(1);
            return Some(known(if now + late > after { now + late } else { after + late }));
        }
        let period: u64 = pattern.iter().sum();
        let mut at = self.last + (after.saturating_sub(self.last) / period.max(1)) * period;
        // At most two rounds: `at` is less than a period before `after`.
        for gap in pattern.iter().chain(pattern) {
            at += gap;
            if at > after {
                return Some(known(at));
            }
        }
        None
    }
}

/// How gaps without order are spread, all objects' together: counted by eighths of the object's mean gap.
#[derive(Clone, Debug)]
pub(crate) struct Shape([u32; EIGHTHS]);

/// Longer gaps, of eight times the mean and more, are counted as the longest.
const EIGHTHS: usize = 64;
/// Gaps after which the older ones count half.
const COUNTED: u32 = 1 << 12;

impl Default for Shape {
    fn default() -> Shape {
        Shape([0; EIGHTHS])
    }
}

impl Shape {
    /// Another gap of an object with such a mean.
    pub(crate) fn add(&mut self, gap: u64, mean: u64) {
        self.0[((gap * 8 / mean) as usize).min(EIGHTHS - 1)] += 1;
        if self.0.iter().sum::<u32>() >= COUNTED {
            self.0.iter_mut().for_each(|count| *count /= 2);
        }
    }

    /// How much longer an object stays away: the mean of what is left of the longer gaps; as long again where none is
    /// longer. At least one launch.
    fn rest(&self, away: u64, mean: u64) -> u64 {
        let first = away * 8 / mean + 1;
        let longer = self.0.iter().zip(0u64..).skip(usize::try_from(first).unwrap_or(EIGHTHS));
        let (count, sum) = longer.fold((0, 0), |(count, sum), (&gaps, eighths)| {
            (count + u64::from(gaps), sum + u64::from(gaps) * (2 * eighths + 1))
        });
        let rest = if count == 0 { away } else { (sum * mean / (16 * count)).saturating_sub(away) };
        rest.max(1)
    }
}

/// Gaps differ a little when programs insert launches (a growing cache, a logged step).
fn near(a: u64, b: u64) -> bool {
    a.abs_diff(b) <= 2 + a.max(b) / 16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_of_three_gaps_is_recognised() {
        let mut uses = VecDeque::from([10]);
        for gap in [3, 20, 7].iter().cycle().take(12) {
            uses.push_back(uses.back().unwrap() + gap);
        }
        let last = *uses.back().unwrap();
        let gaps = Gaps::of(&uses, last);
        let known = |at| Some(Expected { at, is_known: true });
        assert_eq!(gaps.next_use_after(last, last, &Shape::default()), known(last + 3));
        assert_eq!(gaps.next_use_after(last, last + 3, &Shape::default()), known(last + 23));
        assert_eq!(gaps.next_use_after(last, last + 33, &Shape::default()), known(last + 33 + 20));
    }

    #[test]
    fn gaps_without_order_say_how_long_it_stays_away() {
        let uses = VecDeque::from([0, 10, 40, 45, 125, 150]); // a mean of 30
        let gaps = Gaps::of(&uses, 150);
        let mut shape = Shape::default();
        let rest = |shape: &Shape, now| {
            let found = gaps.next_use_after(now, now, shape).unwrap();
            assert!(!found.is_known);
            found.at - now
        };
        assert_eq!((rest(&shape, 150), rest(&shape, 170)), (1, 20), "nothing is known of others");
        // Once a round, in any order: from nothing to two rounds, one on the average.
        (1..=32).for_each(|gap| (0..gap.min(32 - gap)).for_each(|_| shape.add(gap, 16)));
        let rests = [150, 165, 180, 200].map(|now| rest(&shape, now));
        assert!(rests.is_sorted_by(|sooner, later| sooner > later), "{rests:?}");
        assert!((28..=34).contains(&rests[0]) && rests[3] < 10, "{rests:?}");
        assert_eq!(rest(&shape, 230), 80, "later than any");
        // Drawn each time: as long as ever, however long it has been away.
        let mut shape = Shape::default();
        (0..54u64).for_each(|gap| (0..256 >> (gap / 6)).for_each(|_| shape.add(gap, 8)));
        let rests = [150, 165, 180, 200].map(|now| rest(&shape, now));
        assert!(rests.iter().all(|rest| rest.abs_diff(rests[0]) * 4 < rests[0]), "{rests:?}");
    }
}
