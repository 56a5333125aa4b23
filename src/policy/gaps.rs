//! The next use of an object from its own uses alone: for where the sequence of launches says nothing.

use std::collections::VecDeque;

/// Gaps that are looked at.
const GAPS: usize = 16;
/// Longest pattern of gaps that is looked for: uses of one object in one iteration.
const LONGEST_PATTERN: usize = 8;

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

    /// The gaps that are expected to repeat, the next one first; empty where nothing is known.
    fn pattern(&self) -> &[u64] {
        let (gaps, count) = (&self.gaps[..self.count], self.count);
        for length in 1..=LONGEST_PATTERN.min(count / 2) {
            let repeats = (length..2 * length)
                .all(|back| near(gaps[count - 1 - back], gaps[count - 1 - back + length]));
            if repeats {
                return &gaps[count - length..];
            }
        }
        &gaps[count.saturating_sub(1)..]
    }

    /// The first expected use after launch `after`, which is `now` or later. What is overdue is expected
    /// after as long again as it is late: the pattern broke.
    pub(crate) fn next_use_after(&self, now: u64, after: u64) -> Option<u64> {
        let pattern = self.pattern();
        let first = *pattern.first()?;
        if self.last + first <= now {
            let late = (now - self.last).max(1);
            return Some(if now + late > after { now + late } else { after + late });
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
        assert_eq!(gaps.next_use_after(last, last), Some(last + 3));
        assert_eq!(gaps.next_use_after(last, last + 3), Some(last + 23));
        assert_eq!(gaps.next_use_after(last, last + 33), Some(last + 33 + 20));
    }
}
