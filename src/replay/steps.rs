//! A trace played several times over, and the streams that its work runs on.

use std::collections::{BTreeMap, HashSet, VecDeque};

use vgmem_engine::Mark;

use crate::machine::{Machine, Nanos};
use crate::trace::{Record, Trace};

/// One record when its turn comes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step<'a> {
    pub(crate) round: usize,
    /// How long the program computes before it.
    pub(crate) gap: Nanos,
    /// Its place in the trace.
    pub(crate) index: usize,
    pub(crate) record: &'a Record,
}

/// The records of a trace, those from `skip` on as often as there are rounds. What is alive is not allocated
/// again, and what was allocated before `skip` is not freed.
#[derive(Clone)]
pub(crate) struct Steps<'a> {
    trace: &'a Trace,
    skip: usize,
    rounds: usize,
    round: usize,
    index: usize,
    /// When the last record was over, in microseconds of the trace.
    previous: Option<u64>,
    alive: HashSet<u64>,
    kept: HashSet<u64>,
}

impl<'a> Steps<'a> {
    pub(crate) fn new(trace: &'a Trace, skip: usize, rounds: usize) -> Steps<'a> {
        let (alive, kept) = (HashSet::new(), HashSet::new());
        Steps { trace, skip, rounds, round: 0, index: 0, previous: None, alive, kept }
    }

    fn gap(&mut self, from: u64, to: u64) -> Nanos {
        let gap = self.previous.map_or(0, |previous| from.saturating_sub(previous));
        self.previous = Some(to);
        gap * 1_000
    }
}

impl<'a> Iterator for Steps<'a> {
    type Item = Step<'a>;

    fn next(&mut self) -> Option<Step<'a>> {
        loop {
            let index = self.index;
            let Some(record) = self.trace.records.get(index) else {
                if self.round + 1 >= self.rounds || self.skip >= self.trace.records.len() {
                    return None;
                }
                (self.round, self.index, self.previous) = (self.round + 1, self.skip, None);
                continue;
            };
            if self.round == 0 && index == self.skip {
                self.kept = self.alive.clone();
            }
            self.index += 1;
            let gap = match record {
                Record::Allocate { id, .. } if !self.alive.insert(*id) => continue,
                Record::Free(id) if self.kept.contains(id) || !self.alive.remove(id) => continue,
                Record::Allocate { .. } | Record::Free(_) => 0,
                Record::Launch(_, work) | Record::Copy(_, work) => self.gap(work.at, work.at),
                Record::Wait(from, to) => self.gap(*from, *to),
            };
            return Some(Step { round: self.round, gap, index, record });
        }
    }
}

#[derive(Debug, Default)]
struct Stream {
    index: u32,
    end: Nanos,
    /// How much work it was ever given.
    count: u64,
    /// Number and end of the work that is not known to be over, and the allocations that it names.
    pending: VecDeque<(u64, Nanos, Vec<u64>)>,
}

/// Streams of the program: the work of one follows one another, that of several runs side by side.
#[derive(Debug, Default)]
pub(crate) struct Streams(BTreeMap<u32, Stream>);

impl Streams {
    /// Gives a stream work that lasts `ns`: what stands behind it, and when it is over.
    pub(crate) fn submit(&mut self, stream: u32, now: Nanos, ns: Nanos, names: Vec<u64>) -> (Mark, Nanos) {
        let index = self.0.len() as u32;
        let stream = self.0.entry(stream).or_insert(Stream { index, ..Stream::default() });
        stream.end = stream.end.max(now) + ns;
        stream.count += 1;
        stream.pending.push_back((stream.count, stream.end, names));
        (Mark { stream: stream.index, number: stream.count }, stream.end)
    }

    /// How far streams have come that have come further.
    pub(crate) fn passed(&mut self, now: Nanos) -> Vec<Mark> {
        let mut passed = Vec::new();
        for stream in self.0.values_mut() {
            let mut last = None;
            while let Some((number, ..)) = stream.pending.front().filter(|work| work.1 <= now) {
                last = Some(Mark { stream: stream.index, number: *number });
                stream.pending.pop_front();
            }
            passed.extend(last);
        }
        passed
    }

    /// When everything is over.
    pub(crate) fn end(&self) -> Nanos {
        self.0.values().map(|stream| stream.end).max().unwrap_or(0)
    }

    /// The allocations that work names which is not known to be over.
    pub(crate) fn in_flight(&self) -> HashSet<u64> {
        self.0.values().flat_map(|stream| &stream.pending).flat_map(|work| &work.2).copied().collect()
    }

    /// When some work is over next.
    pub(crate) fn next_end(&self, now: Nanos) -> Option<Nanos> {
        let next = |stream: &Stream| stream.pending.iter().map(|work| work.1).find(|end| *end > now);
        self.0.values().filter_map(next).min()
    }

    /// When the driver takes work again of which it holds `most` at a time.
    pub(crate) fn takes(&self, now: Nanos, most: usize) -> Nanos {
        let full = |stream: &Stream| {
            let at = stream.pending.len().checked_sub(most)?;
            stream.pending.get(at).map(|work| work.1)
        };
        self.0.values().filter_map(full).max().map_or(now, |end| end.max(now))
    }
}

/// When each round is over on a machine where everything fits.
pub(crate) fn native(trace: &Trace, skip: usize, rounds: usize, machine: &Machine) -> Vec<Nanos> {
    let mut streams = Streams::default();
    let mut ends = vec![0; rounds];
    let mut now = 0;
    for step in Steps::new(trace, skip, rounds) {
        now += step.gap;
        match step.record {
            Record::Launch(_, work) | Record::Copy(_, work) => {
                streams.passed(now);
                now = streams.takes(now, machine.queue) + machine.costs.launch;
                streams.submit(work.stream, now, work.ns, Vec::new());
            }
            Record::Wait(..) => now = now.max(streams.end()),
            Record::Allocate { .. } | Record::Free(_) => {}
        }
        ends[step.round] = now.max(streams.end());
    }
    ends
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_repeat_what_comes_after_the_beginning() {
        let text = "vgmem-trace 1\na 1 0 8\nk 5 0 1 10 1+0\na 2 0 8\nw 9 12\nf 1\nf 2\nk 20 0 1 5 1+0\n";
        let trace: Trace = text.parse().unwrap();
        let steps: Vec<_> = Steps::new(&trace, 2, 2).map(|step| (step.round, step.index, step.gap)).collect();
        let expected = [
            (0, 0, 0),
            (0, 1, 0),
            (0, 2, 0),
            (0, 3, 4_000),
            (0, 5, 0),
            (0, 6, 8_000),
            (1, 2, 0),
            (1, 3, 0),
            (1, 5, 0),
            (1, 6, 8_000),
        ];
        assert_eq!(steps, expected);
    }

    #[test]
    fn streams_run_side_by_side() {
        let mut streams = Streams::default();
        assert_eq!(streams.submit(7, 10, 5, vec![]), (Mark { stream: 0, number: 1 }, 15));
        assert_eq!(streams.submit(7, 11, 5, vec![]), (Mark { stream: 0, number: 2 }, 20));
        assert_eq!(streams.submit(3, 11, 1, vec![]), (Mark { stream: 1, number: 1 }, 12));
        assert_eq!((streams.end(), streams.next_end(12)), (20, Some(15)));
        assert_eq!((streams.takes(11, 2), streams.takes(11, 3)), (15, 11));
        assert_eq!(streams.passed(15), [Mark { stream: 1, number: 1 }, Mark { stream: 0, number: 1 }]);
        assert_eq!(streams.passed(15), []);
    }
}
