//! What actors do between launches: give work to the GPU, look ahead, rest.

use vgmem_engine::{Ended, Place, Using};

use crate::device::{HOME, OUT};
use crate::losses::Reason;
use crate::machine::Nanos;
use crate::replay::{LOOK_AHEAD, MOVER, Now, PROGRAM, Replay, STILL};
use crate::trace::{Record, Work};

/// Frames that are pinned as soon as they are wanted, and the time between two further ones.
const FIRST_FRAMES: usize = 64;
const BETWEEN_FRAMES: Nanos = 1_000_000_000;

/// Frames that were pinned for twins, and when the next one may be.
#[derive(Debug, Default)]
pub(crate) struct Pinning {
    made: usize,
    next: Nanos,
}

impl<'a> Replay<'a> {
    /// Gives work to the GPU. What lies elsewhere it uses in place.
    pub(crate) fn submit(&mut self, work: &'a Work, gpu: u8, using: Using) {
        let using = self.with_aside(using);
        self.clock[PROGRAM] += self.machine.costs.launch;
        let rates = self.machine.rates;
        let (mut host, mut peer) = (0, 0);
        for (_, bytes, place, home) in self.pages(work) {
            match place {
                Place::Gpu(gpu) if gpu == home => {}
                Place::Gpu(_) => peer += bytes,
                Place::HostNear(_) => host += bytes,
            }
        }
        self.write(work);
        // A kernel reads no more than its time at home allows.
        host = host.min((work.ns as f64 * rates.memory) as u64);
        let slow = host as f64 / rates.in_place + peer as f64 / rates.in_place_peer;
        self.in_place += host + peer;
        let ns = work.ns + (slow * rates.amplification) as Nanos;
        if let Some(timing) = self.timing.take().and_then(|timing| self.pool.settle_timing(timing)) {
            let made = self.clock[PROGRAM];
            self.pool.took(&timing, ns / 1_000 + 1, (made / 1_000, (made + ns) / 1_000));
        }
        let names = work.operands.iter().map(|operand| operand.id).collect();
        let (mark, end) = self.streams.submit(work.stream, self.clock[PROGRAM], ns, names);
        self.pool.device().gave(gpu, end);
        let pressed = self.pool.is_under_pressure();
        if pressed {
            self.clock[PROGRAM] += self.machine.costs.mark;
        }
        self.pool.end_use(using, Ended::Marked(mark));
        if !pressed || self.is_strict() || !self.settled {
            return;
        }
        if self.options.mover {
            self.wake_mover();
        } else if self.clock[PROGRAM] >= self.looked + LOOK_AHEAD {
            self.looked = self.clock[PROGRAM];
            self.poll(PROGRAM);
            self.look(PROGRAM);
        }
    }

    /// What the launch uses where it lies is shown there.
    fn with_aside(&mut self, using: Using) -> Using {
        if self.aside.is_empty() {
            return using;
        }
        let mut rest = self.pool.begin_use(&std::mem::take(&mut self.aside));
        if !self.pool.is_ready(&mut rest) {
            self.lock(PROGRAM);
            self.enter(PROGRAM);
            self.pool.claim(&mut rest);
            self.leave(PROGRAM, true);
        }
        using.and(rest)
    }

    /// The work writes what the options say.
    fn write(&self, work: &Work) {
        let name = match self.trace.records.get(self.record) {
            Some(Record::Launch(function, _)) => self.trace.name(*function),
            _ => "", // a copy, its destination first
        };
        let operands = work.operands[self.options.writes.of(name, work.operands.len())].to_vec();
        for (page, ..) in self.pages(&Work { operands, ..*work }) {
            self.pool.device().write(page);
        }
    }

    /// What a thread beside does whose time is nobody's: as often as the library (`shim/pinning.rs`).
    pub(crate) fn make_frames(&mut self) {
        let now = self.clock[PROGRAM];
        if now >= self.pinning.next && self.pool.wants_frames(0) {
            self.enter(PROGRAM);
            self.pinning.made += self.pool.make_wanted_frames(0, 0, 1);
            self.pinning.next = now + if self.pinning.made < FIRST_FRAMES { 0 } else { BETWEEN_FRAMES };
        }
    }

    /// Looks what to fetch next; whether a copy was begun.
    fn look(&mut self, actor: usize) -> bool {
        if self.is_held(actor) {
            return false;
        }
        let (begun, from) = (self.pool.device().begun(), self.clock[actor]);
        let quiet = !matches!(self.now, Now::Launching(_));
        if quiet {
            self.note(from, Reason::Ahead);
        }
        let homes = self.homes;
        for gpu in (0..self.machine.gpus).filter(|gpu| homes >> gpu & 1 == 1) {
            self.clock[actor] += self.machine.costs.think;
            self.enter(actor);
            self.pool.look_ahead(gpu, u64::from(gpu), self.reserved);
            self.leave(actor, true);
        }
        if quiet {
            let at = self.clock[actor];
            self.note(at, self.why_not_ahead(at));
        }
        self.pool.device().begun() != begun
    }

    /// Why the way home of the first GPU may be idle after a look.
    fn why_not_ahead(&self, at: Nanos) -> Reason {
        let device = self.pool.device();
        if device.is_busy(0, HOME, at) {
            Reason::NotLooking // until the next look nobody sees that it is over
        } else if device.is_busy(0, OUT, at) {
            Reason::AheadNoFrame
        } else if self.pool.snapshot().host.now > 0 || self.machine.gpus > 1 {
            Reason::AheadNoVictim
        } else {
            Reason::AllHome
        }
    }

    /// The program waits for the GPU: without a mover its thread looks ahead meanwhile, as long as something
    /// moves.
    pub(crate) fn rest(&mut self, until: Nanos, moved: Nanos) {
        let now = self.clock[PROGRAM];
        let looks = !self.options.mover && !self.is_strict() && self.settled;
        if now >= until || !looks || now > moved + STILL {
            self.clock[PROGRAM] = now.max(until);
            self.poll(PROGRAM);
            return;
        }
        self.poll(PROGRAM);
        let begun = self.look(PROGRAM);
        self.now = Now::Resting(until, if begun { self.clock[PROGRAM] } else { moved });
        if !begun {
            self.doze(PROGRAM, until);
        }
    }

    /// Something changed for the mover.
    pub(crate) fn wake_mover(&mut self) {
        let wake = self.clock[PROGRAM] + self.machine.costs.wake;
        if self.settled && self.clock[MOVER] > wake {
            self.clock[MOVER] = wake.max(self.held[MOVER]);
        }
    }

    /// One step of the mover.
    pub(crate) fn move_pages(&mut self) {
        let begun = self.pool.device().begun();
        if self.is_strict() || !self.settled {
            return self.doze(MOVER, Nanos::MAX);
        }
        self.poll(MOVER);
        if matches!(&self.now, Now::Launching(waiting) if !waiting.over)
            && let Now::Launching(waiting) = std::mem::replace(&mut self.now, Now::Going)
        {
            // The clock of one that dozed may be behind the launch.
            self.clock[MOVER] = self.clock[MOVER].max(waiting.since);
            if let Some(waiting) = self.advance(MOVER, waiting) {
                self.now = Now::Launching(waiting);
            }
        }
        self.look(MOVER);
        if self.pool.device().begun() == begun {
            self.doze(MOVER, Nanos::MAX);
        }
    }
}
