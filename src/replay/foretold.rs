//! What a pager could do that knew the future: how long a round takes if whenever the link is free the page that is
//! missing first comes for the one that is used last of all, unless that is needed sooner.
//!
//! In the model of Cao, Felten, Karlin and Li (1995) this "aggressive" order takes at most 1 + F/K times the least time
//! there is: F uses pass while a page is fetched, K pages fit. Here pages have several sizes, so it is a yardstick and
//! no bound. The link is the only cost: calls of the driver, marks and looks take no time.

use std::collections::HashMap;

use vgmem_policy::pieces;

use crate::machine::{Machine, Nanos};
use crate::options::Options;
use crate::parts::Parts;
use crate::steps::Steps;
use crate::trace::{Operand, Record, Trace, Work};

/// Rounds that are played; the last is measured.
const ROUNDS: usize = 4;
const NEVER: usize = usize::MAX;

/// A page: its bytes, the jobs that use it, and how many of these are over.
#[derive(Default)]
struct Page {
    bytes: u64,
    uses: Vec<usize>,
    past: usize,
    /// When it is at home, on its way at the earliest; `None` is elsewhere.
    home: Option<Nanos>,
    /// Until when work uses it.
    busy: Nanos,
    dirty: bool,
}

impl Page {
    /// The first use that is not over.
    fn next(&self) -> usize {
        self.uses.get(self.past).copied().unwrap_or(NEVER)
    }
}

/// A launch, a copy, or a wait.
struct Job {
    gap: Nanos,
    ns: Nanos,
    waits: bool,
    uses: Vec<usize>,
    writes: Vec<usize>,
}

struct Schedule<'a> {
    machine: &'a Machine,
    pages: Vec<Page>,
    jobs: Vec<Job>,
    /// Jobs that are submitted; when the program and the GPU are done with them.
    submitted: usize,
    program: Nanos,
    gpu: Nanos,
    /// When the link is free.
    link: Nanos,
    room: u64,
    fetched: u64,
}

/// A round's time, and bytes that it fetches; `None` where allocations come and go in a round.
pub(crate) fn foretold(trace: &Trace, options: &Options, machine: &Machine) -> Option<(Nanos, u64)> {
    let mut plan = Schedule::new(trace, options, machine)?;
    let round = plan.jobs.len() / ROUNDS;
    let mut ends = Vec::new();
    while plan.submitted < plan.jobs.len() {
        let begun = plan.submit() || plan.fetch();
        if !begun && !plan.rest() {
            return None; // a job that names more than fits
        }
        if plan.submitted / round > ends.len() {
            ends.push((plan.gpu.max(plan.program), plan.fetched));
        }
    }
    let [.., before, last] = ends[..] else { return None };
    Some((last.0 - before.0, last.1 - before.1))
}

impl<'a> Schedule<'a> {
    fn new(trace: &Trace, options: &Options, machine: &'a Machine) -> Option<Schedule<'a>> {
        let parts = Parts::new(trace);
        let (mut pages, mut of) = (Vec::new(), HashMap::new());
        let mut jobs = Vec::new();
        for step in Steps::new(trace, options.skip, ROUNDS) {
            let before = step.index < options.skip;
            let (work, name) = match step.record {
                Record::Launch(function, work) => (work, trace.name(*function)),
                Record::Copy(_, work) => (work, ""),
                Record::Wait(..) if !before => {
                    jobs.push(Job {
                        gap: step.gap,
                        ns: 0,
                        waits: true,
                        uses: Vec::new(),
                        writes: Vec::new(),
                    });
                    continue;
                }
                Record::Allocate { id, bytes, .. } => {
                    of.insert(*id, cut(&mut pages, *bytes, machine.page));
                    continue;
                }
                Record::Free(_) if !before => return None,
                _ => continue,
            };
            if before {
                continue;
            }
            let uses = named(&of, &parts, work);
            let operands = work.operands[options.writes.of(name, work.operands.len())].to_vec();
            let writes = named(&of, &parts, &Work { operands, ..*work });
            uses.iter().for_each(|&page: &usize| pages[page].uses.push(jobs.len()));
            jobs.push(Job { gap: step.gap, ns: work.ns, waits: false, uses, writes });
        }
        let mut plan = Schedule {
            machine,
            pages,
            jobs,
            submitted: 0,
            program: 0,
            gpu: 0,
            link: 0,
            room: machine.memory,
            fetched: 0,
        };
        plan.fill();
        Some(plan)
    }

    /// What is used first is at home from the start.
    fn fill(&mut self) {
        let mut order: Vec<usize> = (0..self.pages.len()).collect();
        order.sort_by_key(|&page| self.pages[page].next());
        for page in order {
            let page = &mut self.pages[page];
            if page.next() != NEVER && page.bytes <= self.room {
                (page.home, page.dirty) = (Some(0), true);
                self.room -= page.bytes;
            }
        }
    }

    /// When the next job can be submitted; `None` where a page of it is not even on its way.
    fn ready(&self) -> Option<Nanos> {
        let job = &self.jobs[self.submitted];
        let home = |&page: &usize| self.pages[page].home;
        let homes: Option<Nanos> = job.uses.iter().try_fold(0, |last, page| Some(home(page)?.max(last)));
        Some(homes?.max(self.program + job.gap + self.machine.costs.launch))
    }

    /// Submits the next job if its time has come.
    fn submit(&mut self) -> bool {
        let Some(at) = self.ready().filter(|at| *at <= self.link) else { return false };
        let job = &self.jobs[self.submitted];
        self.program = if job.waits { at.max(self.gpu) } else { at };
        self.gpu = self.gpu.max(self.program) + job.ns;
        for &page in &job.uses {
            (self.pages[page].busy, self.pages[page].past) = (self.gpu, self.pages[page].past + 1);
        }
        job.writes.iter().for_each(|&page| self.pages[page].dirty = true);
        self.submitted += 1;
        true
    }

    /// Begins to fetch the page that is missing first, if others can go for it.
    fn fetch(&mut self) -> bool {
        let missing = self.pages.iter().enumerate().filter(|(_, page)| page.home.is_none());
        let Some((next, coming)) = missing.map(|(index, page)| (page.next(), index)).min() else {
            return false;
        };
        let bytes = self.pages[coming].bytes;
        if next == NEVER {
            return false;
        }
        let idle = |page: &Page| page.busy <= self.link && page.home.is_some_and(|at| at <= self.link);
        let able = self.pages.iter().enumerate().filter(|(_, page)| page.next() > next && idle(page));
        let mut able: Vec<(usize, usize)> = able.map(|(index, page)| (page.next(), index)).collect();
        able.sort_unstable();
        let (mut going, mut room) = (Vec::new(), self.room);
        while room < bytes {
            let Some((_, page)) = able.pop() else { return false };
            room += self.pages[page].bytes;
            going.push(page);
        }
        let mut out = 0;
        for page in going {
            let page = &mut self.pages[page];
            page.home = None;
            out += if page.dirty { page.bytes } else { 0 };
        }
        let rates = &self.machine.rates;
        let times = [bytes as f64 / rates.link, out as f64 / rates.link, (bytes + out) as f64 / rates.both];
        self.link += rates.begin + times.into_iter().fold(0.0, f64::max) as Nanos;
        (self.pages[coming].home, self.pages[coming].dirty) = (Some(self.link), false);
        (self.room, self.fetched) = (room - bytes, self.fetched + bytes);
        true
    }

    /// Nothing can be done now: the link waits for what is over next.
    fn rest(&mut self) -> bool {
        let times = self.pages.iter().flat_map(|page| [page.home.unwrap_or(0), page.busy]);
        let next = times.chain(self.ready()).filter(|time| *time > self.link).min();
        self.link = next.unwrap_or(self.link);
        next.is_some()
    }
}

/// Cuts an allocation into pages: the first of each in it, and its number.
fn cut(pages: &mut Vec<Page>, bytes: u64, page: u64) -> Vec<(u64, usize)> {
    let span = vgmem_policy::round_up(bytes, vgmem_policy::GRANULE).unwrap_or(bytes);
    let mut at = 0;
    let mut one = |bytes| {
        pages.push(Page { bytes, ..Page::default() });
        at += bytes;
        (at - bytes, pages.len() - 1)
    };
    pieces(span, page).map(&mut one).collect()
}

/// The pages of the parts that work names, each once.
fn named(of: &HashMap<u64, Vec<(u64, usize)>>, parts: &Parts, work: &Work) -> Vec<usize> {
    let mut found = Vec::new();
    for Operand { id, offset, bytes } in parts.of(work) {
        let Some(pages) = of.get(&id) else { continue };
        let first = pages.partition_point(|(at, _)| *at <= offset).saturating_sub(1);
        let last = pages.partition_point(|(at, _)| *at < offset + bytes);
        found.extend(pages[first..last].iter().map(|(_, page)| *page));
    }
    found.sort_unstable();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Writes;

    /// Eight pages that a scan uses in turn, each for as many microseconds, with room for some of them.
    fn scan(us: u64, room: u64) -> (Nanos, u64) {
        let page = 32 << 20;
        let mut text = "vgmem-trace 1\n".to_string();
        (0..8).for_each(|id| text += &format!("a {id} 0 {page}\n"));
        (0..8).for_each(|id| text += &format!("k {} 0 1 {} {id}+0\n", us * id, us * 1_000));
        let trace: Trace = text.parse().unwrap();
        let machine = Machine { page, ..Machine::h200(1, room * page, 1 << 30) };
        let options = Options { skip: 8, writes: Writes::Nothing, ..Options::default() };
        foretold(&trace, &options, &machine).unwrap()
    }

    #[test]
    fn what_fits_moves_nothing() {
        let (time, fetched) = scan(1_000, 8);
        assert_eq!(fetched, 0);
        assert!(time.abs_diff(8_000_000) < 100_000, "{time}");
    }

    #[test]
    fn a_scan_hides_its_fetches_behind_its_work_or_takes_as_long_as_they_do() {
        let page = 32u64 << 20;
        let (time, fetched) = scan(2_000, 5);
        assert!(time < 16_500_000 && fetched >= 3 * page, "{time} {fetched}");
        // A fetch takes 0.6 ms: all but the pages that stay come in each round.
        let (time, fetched) = scan(10, 5);
        assert!((3..=5).contains(&(fetched / page)), "{fetched}");
        assert!((1_800_000..3_500_000).contains(&time), "{time}");
    }
}
