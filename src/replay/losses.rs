//! Why the way home was idle: what the thread that drives moves was doing meanwhile.

use std::collections::BTreeMap;

use crate::machine::Nanos;

/// What stands between a page and the way home.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// A launch waits: the thread is in calls of the driver.
    Calls,
    /// A launch waits for its copies, or their end has not been noticed.
    Landing,
    /// A launch waits: there is no frame at home, and pages are on their way out.
    NoFrame,
    /// A launch waits: all that could go is in use.
    InUse,
    /// A launch waits: something idle could go, but better is waited for.
    HeldBack,
    /// A launch waits: another thread moves pages.
    Contended,
    /// Strict: everything that was submitted has to be over first.
    Strict,
    /// No launch waits, and nobody looks what to fetch.
    NotLooking,
    /// No launch waits: looking ahead, in calls of the driver.
    Ahead,
    /// No launch waits: there is no frame at home, and pages are on their way out.
    AheadNoFrame,
    /// No launch waits: pages are elsewhere, but none may come: none may go for them that is needed later.
    AheadNoVictim,
    /// No launch waits, and everything is at home.
    AllHome,
}

impl Reason {
    /// A few words.
    pub fn words(self) -> &'static str {
        match self {
            Reason::Calls => "a launch waits: calls of the driver",
            Reason::Landing => "a launch waits: its copies' end was not noticed yet",
            Reason::NoFrame => "a launch waits: no frame at home, pages still on their way out",
            Reason::InUse => "a launch waits: all that could go is in use",
            Reason::HeldBack => "a launch waits: idle pages are held back for better ones that are in use",
            Reason::Contended => "a launch waits: another thread moves pages",
            Reason::Strict => "a launch waits for all work, and the pages are exchanged",
            Reason::NotLooking => "no launch waits: nobody looks ahead",
            Reason::Ahead => "no launch waits: looking ahead, calls of the driver",
            Reason::AheadNoFrame => "no launch waits: no frame at home, pages still on their way out",
            Reason::AheadNoVictim => "no launch waits: looking ahead finds no page that may go",
            Reason::AllHome => "no launch waits: everything is at home",
        }
    }
}

/// A time in which the way home was idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// When it began, in nanoseconds.
    pub from: Nanos,
    /// How long it was, in nanoseconds.
    pub ns: Nanos,
    /// Why.
    pub reason: Reason,
    /// The record of the trace that came last, or that waits.
    pub record: usize,
}

/// A look of a thread that polls takes less. It may lie between two parts of one loss.
pub(crate) const LOOK: Nanos = 50_000;

impl Loss {
    /// Whether `next` is of the same reason, and only a look lies between.
    pub(crate) fn joins(&self, next: &Loss) -> bool {
        (self.reason, self.record) == (next.reason, next.record) && next.from - self.from - self.ns < LOOK
    }
}

/// What was done from when on.
#[derive(Debug, Default)]
pub(crate) struct Log(Vec<(Nanos, Reason, usize)>);

impl Log {
    pub(crate) fn note(&mut self, at: Nanos, reason: Reason, record: usize) {
        if self.0.last().is_none_or(|last| (last.1, last.2) != (reason, record)) {
            self.0.push((at, reason, record));
        }
    }

    /// The idle times between `from` and `to`, given when the way was busy.
    pub(crate) fn idle(mut self, busy: &[(Nanos, Nanos)], from: Nanos, to: Nanos) -> Vec<Loss> {
        self.0.sort_by_key(|note| note.0); // two actors note, each in the order of its own time
        let mut gaps = Vec::new();
        let mut at = from;
        for &(begin, end) in busy.iter().filter(|(begin, end)| *end > from && *begin < to) {
            gaps.extend((begin > at).then_some((at, begin)));
            at = at.max(end);
        }
        gaps.extend((to > at).then_some((at, to)));
        let mut losses = Vec::new();
        let mut first = 0;
        for (begin, end) in gaps {
            while self.0.get(first + 1).is_some_and(|next| next.0 <= begin) {
                first += 1;
            }
            for (index, &(at, reason, record)) in self.0.iter().enumerate().skip(first) {
                let until = self.0.get(index + 1).map_or(end, |next| next.0.min(end));
                let since = at.max(begin);
                if since >= end {
                    break;
                }
                if until > since {
                    losses.push(Loss { from: since, ns: until - since, reason, record });
                }
            }
        }
        losses
    }
}

/// The time lost for each reason, the most first.
pub fn by_reason(losses: &[Loss]) -> Vec<(Reason, Nanos)> {
    let mut sums: BTreeMap<Reason, Nanos> = BTreeMap::new();
    losses.iter().for_each(|loss| *sums.entry(loss.reason).or_default() += loss.ns);
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by_key(|(reason, ns)| (std::cmp::Reverse(*ns), *reason));
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_times_are_cut_by_what_was_done() {
        let mut log = Log::default();
        log.note(0, Reason::NotLooking, 1);
        log.note(50, Reason::Calls, 2);
        log.note(70, Reason::InUse, 2);
        let losses = log.idle(&[(0, 10), (40, 60), (90, 200)], 5, 100);
        let found: Vec<_> = losses.iter().map(|loss| (loss.from, loss.ns, loss.reason)).collect();
        let expected = [(10, 30, Reason::NotLooking), (60, 10, Reason::Calls), (70, 20, Reason::InUse)];
        assert_eq!(found, expected);
        assert_eq!(by_reason(&losses)[0], (Reason::NotLooking, 30));
    }
}
