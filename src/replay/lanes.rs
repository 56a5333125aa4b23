//! The two ways of a GPU's link: copies of one way follow one another, both ways share what the link can do.

use std::collections::VecDeque;

use crate::machine::{Nanos, Rate, Rates};

/// A copy that was begun and is not over.
#[derive(Clone, Debug)]
struct Copy {
    begun: Nanos,
    left: f64,
    /// Over the host's link, not between GPUs.
    host: bool,
}

/// One way.
#[derive(Clone, Debug, Default)]
struct Lane {
    copies: VecDeque<Copy>,
    /// How many were ever begun, and how many are over.
    begun: u64,
    over: u64,
    /// Bytes that were begun.
    bytes: u64,
}

impl Lane {
    /// The copy that runs at this time.
    fn running(&self, at: Nanos) -> Option<&Copy> {
        self.copies.front().filter(|copy| copy.begun <= at)
    }
}

/// Both ways of one GPU.
#[derive(Debug)]
pub(crate) struct Lanes {
    lanes: [Lane; 2],
    rates: Rates,
    /// Until when everything is known.
    at: Nanos,
    /// When each was busy: begin and end, in order; neighbours are joined.
    busy: [Vec<(Nanos, Nanos)>; 2],
}

impl Lanes {
    pub(crate) fn new(rates: Rates) -> Lanes {
        Lanes { lanes: Default::default(), rates, at: 0, busy: Default::default() }
    }

    /// Begins a copy; its number on the lane, from 1 on.
    pub(crate) fn begin(&mut self, lane: usize, now: Nanos, bytes: u64, host: bool) -> u64 {
        self.settle(now);
        let lane = &mut self.lanes[lane];
        let extra = if host { self.rates.link * self.rates.begin as f64 } else { 0.0 };
        lane.copies.push_back(Copy { begun: now.max(self.at), left: bytes as f64 + extra, host });
        lane.bytes += bytes;
        lane.begun += 1;
        lane.begun
    }

    /// How many copies of a lane are over.
    pub(crate) fn over(&mut self, lane: usize, now: Nanos) -> u64 {
        self.settle(now);
        self.lanes[lane].over
    }

    /// How many copies of a lane were begun.
    pub(crate) fn begun(&self, lane: usize) -> u64 {
        self.lanes[lane].begun
    }

    /// Bytes of all copies of a lane.
    pub(crate) fn bytes(&self, lane: usize) -> u64 {
        self.lanes[lane].bytes
    }

    /// When a lane was busy.
    pub(crate) fn busy(&self, lane: usize) -> &[(Nanos, Nanos)] {
        &self.busy[lane]
    }

    /// When the next copy is over, as far as is known now.
    pub(crate) fn next_end(&self, now: Nanos) -> Option<Nanos> {
        let mut later = Lanes { lanes: self.lanes.clone(), at: self.at, ..Lanes::new(self.rates) };
        later.settle(now);
        let over = later.lanes[0].over + later.lanes[1].over;
        while later.lanes[0].over + later.lanes[1].over == over {
            later.step(None)?;
        }
        Some(later.at)
    }

    /// When all copies are over, as far as is known now.
    pub(crate) fn end(&mut self, now: Nanos) -> Nanos {
        self.settle(now);
        let mut end = now;
        while self.step(None).is_some() {
            end = end.max(self.at);
        }
        end
    }

    /// When the copies of a lane are over, as far as is known now.
    pub(crate) fn end_of(&self, lane: usize, now: Nanos) -> Nanos {
        let mut later = Lanes { lanes: self.lanes.clone(), at: self.at, ..Lanes::new(self.rates) };
        later.settle(now);
        while !later.lanes[lane].copies.is_empty() && later.step(None).is_some() {}
        later.at.max(now)
    }

    fn settle(&mut self, now: Nanos) {
        while self.at < now && self.step(Some(now)).is_some() {}
        self.at = self.at.max(now);
    }

    fn rate(&self, lane: usize) -> Option<Rate> {
        let copy = self.lanes[lane].running(self.at)?;
        let other = self.lanes[1 - lane].running(self.at);
        Some(match (copy.host, other) {
            (false, _) => self.rates.peer,
            (true, Some(other)) if other.host => self.rates.link.min(self.rates.both / 2.0),
            (true, _) => self.rates.link,
        })
    }

    /// Goes on to the next moment at which something changes, at most to `limit`; `None` where nothing would
    /// change.
    fn step(&mut self, limit: Option<Nanos>) -> Option<()> {
        let rates = [self.rate(0), self.rate(1)];
        let mut next = limit;
        let mut sooner = |at: Nanos| next = Some(next.map_or(at, |next| next.min(at)));
        for (lane, rate) in self.lanes.iter().zip(rates) {
            match (lane.copies.front(), rate) {
                (Some(copy), Some(rate)) => sooner(self.at + ((copy.left / rate).ceil() as Nanos).max(1)),
                (Some(copy), None) => sooner(copy.begun),
                (None, _) => {}
            }
        }
        let next = next?;
        for ((lane, busy), rate) in self.lanes.iter_mut().zip(&mut self.busy).zip(rates) {
            let (Some(rate), Some(copy)) = (rate, lane.copies.front_mut()) else { continue };
            copy.left -= rate * (next - self.at) as f64;
            if copy.left <= 0.5 {
                lane.copies.pop_front();
                lane.over += 1;
            }
            match busy.last_mut() {
                Some(last) if last.1 == self.at => last.1 = next,
                _ => busy.push((self.at, next)),
            }
        }
        self.at = next;
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;

    fn lanes() -> Lanes {
        Lanes::new(Machine::h200(1, 1 << 30, 1 << 30).rates)
    }

    #[test]
    fn one_way_runs_at_the_link_and_both_share_it() {
        let mut alone = lanes();
        alone.begin(0, 100, 55_400_000, true);
        assert_eq!(alone.next_end(100), Some(1_008_100), "the rate and what each copy takes besides");
        let mut both = lanes();
        both.begin(0, 0, 50_500_000, true);
        both.begin(1, 0, 50_500_000, true);
        let end = both.next_end(0).unwrap();
        assert!((1_008_000..1_010_000).contains(&end), "{end}");
        assert_eq!((both.over(0, end - 1), both.over(1, end)), (0, 1));
        assert_eq!(both.busy(0), [(0, end)]);
    }

    #[test]
    fn copies_of_one_way_follow_one_another_and_those_of_peers_are_fast() {
        let mut lanes = lanes();
        assert_eq!(lanes.begin(1, 0, 55_400, true), 1);
        assert_eq!(lanes.begin(1, 10, 395_000, false), 2);
        assert_eq!(lanes.next_end(10), Some(9_000));
        assert_eq!(lanes.end(10), 10_000);
        assert_eq!((lanes.over(1, 11_000), lanes.next_end(11_000)), (2, None));
        assert_eq!(lanes.bytes(1), 450_400);
    }
}
