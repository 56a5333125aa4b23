//! The replay: the program's thread and, if there is one, a mover, each with a time of its own. Who is behind
//! runs next; what it calls takes its time. One thread at a time moves pages of a GPU, as the engine's lock
//! has it.

use std::collections::HashMap;

use vgmem_engine::{Config, GpuConfig, Place, Pool, Progress, Request, Timing, Using};
use vgmem_policy::Placement;

use crate::device::{HOME, OUT, VirtualDevice};
use crate::losses::{Log, Reason};
use crate::machine::{Machine, Nanos};
use crate::moves::Pinning;
use crate::options::Options;
use crate::parts::Parts;
use crate::steps::{Step, Steps, Streams};
use crate::trace::{Record, Trace, Work};

/// First address of the arena, and its bytes.
const ARENA: (u64, u64) = (0x2000_0000_0000, 8 << 40);
/// The rules of the library's pager (`shim/beside.rs`, `shim/pager.rs`, `shim/quiet.rs`).
pub(crate) const LOOK_AHEAD: Nanos = 500_000;
const DEADLINE: Nanos = 2_000_000_000;
pub(crate) const STILL: Nanos = 20_000_000;
/// Longest time between two looks of a thread that polls.
const POLL: Nanos = 1_000_000;

/// The actors.
pub(crate) const PROGRAM: usize = 0;
pub(crate) const MOVER: usize = 1;

/// Counters at the end of a round.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mark {
    /// All work of the round is over.
    pub(crate) end: Nanos,
    /// Bytes that were copied out and home.
    pub(crate) bytes: [u64; 2],
    /// Pages that came home, and that went.
    pub(crate) pages: [u64; 2],
    /// How long launches have waited.
    pub(crate) waited: Nanos,
    /// Bytes that kernels used in place.
    pub(crate) in_place: u64,
}

/// A launch that waits for its pages.
pub(crate) struct Waiting<'a> {
    using: Using,
    work: &'a Work,
    gpu: u8,
    pub(crate) since: Nanos,
    /// All is done; the program may go on.
    pub(crate) over: bool,
}

/// What the program's thread does.
pub(crate) enum Now<'a> {
    Going,
    Launching(Waiting<'a>),
    /// It waits for the GPU until then; moves began last at that time.
    Resting(Nanos, Nanos),
    Over,
}

pub(crate) struct Replay<'a> {
    pub(crate) pool: Pool<VirtualDevice>,
    pub(crate) machine: Machine,
    pub(crate) options: Options,
    pub(crate) trace: &'a Trace,
    pub(crate) steps: Steps<'a>,
    /// What operands stand for.
    pub(crate) parts: Parts,
    pub(crate) streams: Streams,
    /// Where the allocations lie, by number.
    pub(crate) addresses: HashMap<u64, u64>,
    /// GPUs that were given allocations, one bit each.
    pub(crate) homes: u64,
    pub(crate) clock: [Nanos; 2],
    /// Bytes at home that are kept for the launch that waits.
    pub(crate) reserved: u64,
    /// Until when an actor holds the lock on moves.
    pub(crate) held: [Nanos; 2],
    pub(crate) now: Now<'a>,
    /// All work in flight has marks.
    pub(crate) settled: bool,
    pub(crate) looked: Nanos,
    pub(crate) pinning: Pinning,
    /// The launch that is being made is timed.
    pub(crate) timing: Option<Timing>,
    /// What it uses where it lies.
    pub(crate) aside: Vec<u64>,
    pub(crate) record: usize,
    pub(crate) waited: Nanos,
    pub(crate) in_place: u64,
    pub(crate) log: Log,
    pub(crate) rounds: Vec<Mark>,
}

fn config(machine: &Machine) -> Config {
    let exchange = machine.exchange(machine.memory);
    let host_exchange = machine.exchange(machine.host);
    let gpu = |index: u8| GpuConfig {
        capacity: machine.memory - exchange,
        exchange,
        reserve: 0,
        distances: (0..machine.gpus).map(|other| Some(u32::from(other != index))).collect(),
        speed: machine.speed(),
    };
    Config {
        base: ARENA.0,
        bytes: ARENA.1,
        page_bytes: machine.page,
        placement: Placement::Home,
        gpus: (0..machine.gpus).map(gpu).collect(),
        host_budget: machine.host - host_exchange,
        host_exchange,
        keep_bytes: (machine.memory / 64).min(256 << 20),
        verify: false,
        copies_all: false,
    }
}

impl<'a> Replay<'a> {
    pub(crate) fn new(trace: &'a Trace, machine: Machine, options: Options) -> Replay<'a> {
        Replay {
            pool: Pool::new(VirtualDevice::new(machine), config(&machine)),
            machine,
            options,
            trace,
            steps: Steps::new(trace, options.skip, options.rounds),
            parts: Parts::new(trace),
            streams: Streams::default(),
            addresses: HashMap::new(),
            homes: 0,
            clock: [0; 2],
            reserved: 0,
            held: [0; 2],
            now: Now::Going,
            settled: false,
            looked: 0,
            pinning: Pinning::default(),
            timing: None,
            aside: Vec::new(),
            record: 0,
            waited: 0,
            in_place: 0,
            log: Log::default(),
            rounds: vec![Mark::default(); options.rounds],
        }
    }

    /// Plays everything.
    ///
    /// # Errors
    /// One line where the program does not fit into the machine.
    pub(crate) fn run(&mut self) -> Result<(), String> {
        loop {
            let blocked = match &self.now {
                Now::Over => return Ok(()),
                Now::Launching(waiting) => self.options.mover && !waiting.over,
                _ => false,
            };
            if self.options.mover && (blocked || self.clock[MOVER] < self.clock[PROGRAM]) {
                self.move_pages();
            } else {
                self.go_on()?;
            }
        }
    }

    /// The actor's calls begin: its time is the device's.
    pub(crate) fn enter(&self, actor: usize) {
        self.pool.device().set_now(self.clock[actor]);
    }

    /// They are over.
    pub(crate) fn leave(&mut self, actor: usize, moved: bool) {
        self.clock[actor] = self.pool.device().now();
        if moved {
            self.held[actor] = self.clock[actor];
        }
    }

    /// Waits until no other actor moves pages.
    pub(crate) fn lock(&mut self, actor: usize) {
        self.clock[actor] = self.clock[actor].max(self.held[1 - actor]);
    }

    pub(crate) fn is_held(&self, actor: usize) -> bool {
        self.held[1 - actor] > self.clock[actor]
    }

    pub(crate) fn note(&mut self, at: Nanos, reason: Reason) {
        self.log.note(at, reason, self.record);
    }

    /// Tells the pool what is over.
    pub(crate) fn poll(&mut self, actor: usize) {
        for mark in self.streams.passed(self.clock[actor]) {
            self.clock[actor] += self.machine.costs.query;
            self.pool.completed(mark);
        }
    }

    /// An actor that has nothing to do looks again when something happens.
    pub(crate) fn doze(&mut self, actor: usize, until: Nanos) {
        let now = self.clock[actor];
        let events = [self.pool.device().next_end(now), self.streams.next_end(now), Some(now + POLL)];
        let next = events.into_iter().flatten().min().unwrap_or(now);
        self.clock[actor] = next.min(until).max(now) + self.machine.costs.notice;
    }

    /// One step of the program's thread.
    fn go_on(&mut self) -> Result<(), String> {
        match std::mem::replace(&mut self.now, Now::Going) {
            Now::Over => self.now = Now::Over,
            Now::Launching(waiting) if waiting.over => self.submit(waiting.work, waiting.gpu, waiting.using),
            Now::Launching(waiting) => {
                if let Some(waiting) = self.advance(PROGRAM, waiting) {
                    self.now = Now::Launching(waiting);
                }
            }
            Now::Resting(until, moved) => self.rest(until, moved),
            Now::Going => {
                let Some(step) = self.steps.next() else {
                    self.now = Now::Over;
                    return Ok(());
                };
                self.clock[PROGRAM] += step.gap;
                self.record = step.index;
                self.take(step)?;
            }
        }
        Ok(())
    }

    /// The program's next record.
    fn take(&mut self, step: Step<'a>) -> Result<(), String> {
        match step.record {
            Record::Allocate { id, gpu, bytes } => {
                self.lock(PROGRAM);
                self.enter(PROGRAM);
                let home = *gpu % self.machine.gpus;
                let request = Request { home, context: u64::from(home), bytes: *bytes };
                let made = self.pool.allocate(request);
                self.leave(PROGRAM, true);
                self.homes |= 1 << home;
                let address = made.map_err(|error| {
                    format!("record {}: {bytes} bytes do not fit (code {})", step.index + 1, error.code())
                })?;
                self.addresses.insert(*id, address);
            }
            Record::Free(id) => {
                if let Some(address) = self.addresses.remove(id) {
                    self.lock(PROGRAM);
                    self.enter(PROGRAM);
                    self.pool.free(address);
                    self.leave(PROGRAM, true);
                }
            }
            Record::Launch(function, work) => self.launch(u64::from(*function) + 1, work),
            Record::Copy(_, work) => self.copy(work),
            Record::Wait(..) => {
                let until = self.streams.end().max(self.clock[PROGRAM]);
                self.now = Now::Resting(until, self.clock[PROGRAM]);
            }
        }
        self.make_frames();
        self.count(step.round);
        Ok(())
    }

    /// Everything that was submitted is over.
    pub(crate) fn settle_all(&mut self) {
        let end = self.streams.end().max(self.clock[PROGRAM]).max(self.clock[MOVER]);
        self.clock = [end; 2];
        self.poll(PROGRAM);
        self.enter(PROGRAM);
    }

    fn count(&mut self, round: usize) {
        let snapshot = self.pool.snapshot();
        self.rounds[round] = Mark {
            end: self.streams.end().max(self.clock[PROGRAM]),
            bytes: self.pool.device().bytes(),
            pages: [snapshot.evicted, snapshot.fetched],
            waited: self.waited,
            in_place: self.in_place,
        };
    }

    /// The addresses that work names, and the GPU that they are of.
    fn named(&self, work: &Work) -> (Vec<u64>, u8) {
        let address = |id| self.addresses.get(id).copied();
        let all = work.operands.iter().filter_map(|o| Some(address(&o.id)? + o.offset));
        let named: Vec<u64> = all.collect();
        let gpu = named.first().and_then(|&address| self.pool.find(address)).map_or(0, |found| found.home);
        (named, gpu)
    }

    fn launch(&mut self, function: u64, work: &'a Work) {
        self.clock[PROGRAM] = self.streams.takes(self.clock[PROGRAM], self.machine.queue);
        let (named, gpu) = self.named(work);
        if !self.pool.is_under_pressure() {
            return self.submit(work, gpu, Using::default());
        }
        self.pool.note_pointers(gpu, &named);
        let mut wish = self.pool.wish(gpu, function, &named);
        self.timing = wish.timing();
        let (wanted, aside) = self.pool.split(&wish, &named);
        if self.is_strict() || !self.settled {
            return self.launch_strictly(function, work, gpu, (&named, &wanted));
        }
        self.aside = aside;
        let mut using = self.pool.begin_use(&wanted);
        self.pool.note_use(function, &using);
        let since = self.clock[PROGRAM];
        let home = self.pool.are_at_home(gpu, &using);
        if self.options.mover && home && self.pool.is_ready(&mut using) {
            self.await_shown(work);
            return self.submit(work, gpu, using);
        }
        self.note(since, Reason::Landing);
        let waiting = Waiting { using, work, gpu, since, over: false };
        if self.options.mover {
            self.now = Now::Launching(waiting);
            return self.wake_mover();
        }
        self.now = match self.advance(PROGRAM, waiting) {
            Some(waiting) => Now::Launching(waiting),
            None => return,
        };
    }

    /// The mover's calls that showed the launch's pages may not be over yet.
    fn await_shown(&mut self, work: &Work) {
        let pages = self.pages(work);
        let shown = pages.iter().map(|page| self.pool.device().shown_at(page.0)).max().unwrap_or(0);
        self.clock[PROGRAM] = self.clock[PROGRAM].max(shown);
    }

    /// First address, bytes, place and home of the part of each page that work uses.
    pub(crate) fn pages(&self, work: &Work) -> Vec<(u64, u64, Place, u8)> {
        let mut pages = Vec::new();
        for part in self.parts.of(work) {
            let Some(base) = self.addresses.get(&part.id) else { continue };
            let (mut at, end) = (base + part.offset, base + part.offset + part.bytes);
            while at < end {
                let Some(page) = self.pool.find(at) else { break };
                let next = (page.page_base + page.page_bytes).min(end);
                pages.push((page.page_base, next - at, page.place, page.home));
                at = next;
            }
        }
        pages
    }

    fn launch_strictly(&mut self, function: u64, work: &'a Work, gpu: u8, (named, wanted): (&[u64], &[u64])) {
        let since = self.clock[PROGRAM];
        self.lock(PROGRAM);
        let mut using = self.pool.begin_use(named);
        let away = self.pool.note_launch(gpu, function, wanted);
        self.enter(PROGRAM);
        self.pool.claim(&mut using);
        self.leave(PROGRAM, true);
        if away || !self.settled {
            self.note(since, Reason::Strict);
            self.clock[PROGRAM] = self.clock[PROGRAM].max(self.streams.end());
            self.poll(PROGRAM);
            self.pool.nothing_in_flight();
            self.settled = true;
            self.enter(PROGRAM);
            // The virtual driver refuses nothing.
            let _ = self.pool.bring(gpu, u64::from(gpu), wanted);
            self.leave(PROGRAM, true);
            self.waited += self.clock[PROGRAM] - since;
        }
        self.submit(work, gpu, using);
    }

    fn copy(&mut self, work: &'a Work) {
        self.clock[PROGRAM] = self.streams.takes(self.clock[PROGRAM], self.machine.queue);
        let (named, gpu) = self.named(work);
        if !self.pool.is_under_pressure() {
            return self.submit(work, gpu, Using::default());
        }
        self.lock(PROGRAM);
        let mut using = self.pool.begin_use(&named);
        if !using.is_empty() {
            self.pool.note_use(0, &using);
        }
        self.enter(PROGRAM);
        self.pool.claim(&mut using);
        self.leave(PROGRAM, true);
        self.submit(work, gpu, using);
    }

    /// Whether pages move only while nothing runs.
    pub(crate) fn is_strict(&self) -> bool {
        self.options.strict || self.pool.goes_by_parts()
    }

    /// What a launch that waits does, whoever does it for it; the launch, if it still waits.
    pub(crate) fn advance(&mut self, actor: usize, mut waiting: Waiting<'a>) -> Option<Waiting<'a>> {
        if self.is_held(actor) {
            self.note(self.clock[actor], Reason::Contended);
            self.lock(actor);
            return Some(waiting);
        }
        let (begun, from) = (self.pool.device().begun(), self.clock[actor]);
        self.note(from, Reason::Calls);
        self.clock[actor] += self.machine.costs.think;
        self.enter(actor);
        let patient = from < waiting.since + self.options.patience;
        let context = u64::from(waiting.gpu);
        let progress = self.pool.advance(waiting.gpu, context, &waiting.using.named(), patient);
        self.reserved = match progress {
            Progress::Waiting(bytes) => bytes,
            _ => 0,
        };
        let ready = progress == Progress::Ready && self.pool.is_ready(&mut waiting.using);
        if !ready && (progress == Progress::Stuck || from > waiting.since + DEADLINE) {
            self.pool.claim(&mut waiting.using);
            waiting.over = true;
        }
        waiting.over |= ready;
        self.leave(actor, true);
        if waiting.over {
            return self.ready(actor, waiting);
        }
        self.poll(actor);
        let at = self.clock[actor];
        self.note(at, self.why(&waiting, at));
        if actor == PROGRAM && self.pool.device().begun() == begun {
            self.doze(actor, Nanos::MAX);
        }
        Some(waiting)
    }

    /// The launch that waited can be made.
    fn ready(&mut self, actor: usize, waiting: Waiting<'a>) -> Option<Waiting<'a>> {
        self.note(self.clock[actor], Reason::NotLooking);
        let wake = if actor == PROGRAM { 0 } else { self.machine.costs.wake };
        self.clock[PROGRAM] = self.clock[PROGRAM].max(self.clock[actor] + wake);
        self.waited += self.clock[PROGRAM] - waiting.since;
        if actor == PROGRAM {
            self.submit(waiting.work, waiting.gpu, waiting.using);
            return None;
        }
        Some(waiting)
    }

    /// Why the way home may be idle while a launch waits.
    fn why(&self, waiting: &Waiting, at: Nanos) -> Reason {
        let device = self.pool.device();
        if device.is_busy(waiting.gpu, HOME, at) {
            Reason::Landing
        } else if device.is_busy(waiting.gpu, OUT, at) {
            Reason::NoFrame
        } else if self.is_something_idle(waiting) {
            Reason::HeldBack
        } else {
            Reason::InUse
        }
    }

    /// Whether pages at home could go that no work names.
    fn is_something_idle(&self, waiting: &Waiting) -> bool {
        let named: Vec<u64> = waiting.work.operands.iter().map(|operand| operand.id).collect();
        let at_home = |address: &u64| {
            self.pool.find(*address).is_some_and(|found| found.place == Place::Gpu(found.home))
        };
        let busy = self.streams.in_flight();
        let others = self.addresses.iter().filter(|(id, _)| !named.contains(id) && !busy.contains(id));
        others.into_iter().any(|(_, address)| at_home(address))
    }
}
