//! Which work uses which allocations, so that pages of others can move meanwhile.
//!
//! A submission is counted from before it is made until a mark stands behind it on its stream: first as waiting for
//! pages, then, when all of them are there, as busy. Work of a
//! stream is numbered; the shim says how far each stream has come. An allocation is idle when nobody is busy with
//! it and every stream has passed its marks.
//!
//! Architecture invariant: whoever makes an allocation's page leave its address checks that it is idle, in the same
//! critical section of the pool's lock that notes the page as moving; whoever submits counts himself first.

use crate::device::Device;
use crate::pool::{Allocation, Pool, State};

/// A place in the order of one stream's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The stream, by a number that the shim chose.
    pub stream: u32,
    /// Number of the work; what was submitted before has smaller ones.
    pub number: u64,
}

/// How a submission ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Nothing was submitted.
    Nothing,
    /// The work is over when the stream has passed this mark.
    Marked(Mark),
    /// Work is in flight and no mark stands behind it: only [`Pool::nothing_in_flight`] ends it.
    Unmarked,
}

/// Who uses an allocation.
#[derive(Debug, Default)]
pub(crate) struct Uses {
    /// Submissions that wait for pages: none may leave, but some may come.
    waiting: u32,
    /// Submissions that are being made.
    busy: u32,
    marks: Vec<Mark>,
    unmarked: bool,
}

impl Uses {
    /// Work may be in flight of which nothing is known.
    pub(crate) fn unknown() -> Uses {
        Uses { unmarked: true, ..Uses::default() }
    }

    /// Whether nothing uses it; `done` says how far each stream has come.
    pub(crate) fn is_over(&self, done: &[u64]) -> bool {
        self.waiting == 0 && self.are_passed(done)
    }

    /// As [`Self::is_over`], whoever waits for pages.
    pub(crate) fn are_passed(&self, done: &[u64]) -> bool {
        self.busy == 0 && !self.unmarked && self.marks.iter().all(|mark| has_passed(mark, done))
    }

    fn end(&mut self, ready: bool, ended: Ended, done: &[u64]) {
        let counted = if ready { &mut self.busy } else { &mut self.waiting };
        *counted = counted.saturating_sub(1);
        match ended {
            Ended::Nothing => {}
            Ended::Unmarked => self.unmarked = true,
            Ended::Marked(mark) => {
                // Submissions of two threads may end in another order than they were made in.
                let of_stream = self.marks.iter().filter(|old| old.stream == mark.stream);
                let number = of_stream.map(|old| old.number).fold(mark.number, u64::max);
                self.marks.retain(|old| old.stream != mark.stream && !has_passed(old, done));
                self.marks.push(Mark { number, ..mark });
            }
        }
    }

    fn forget(&mut self) {
        self.marks.clear();
        self.unmarked = false;
    }
}

/// Those of a list with one entry for each GPU that a mask names.
fn of_gpus(all: &mut [Uses], gpus: u64) -> impl Iterator<Item = &mut Uses> {
    let named = move |(gpu, uses): (usize, _)| (gpus >> (gpu & 63) & 1 == 1).then_some(uses);
    all.iter_mut().enumerate().filter_map(named)
}

fn has_passed(mark: &Mark, done: &[u64]) -> bool {
    done.get(mark.stream as usize).is_some_and(|&done| done >= mark.number)
}

/// What one submission uses. Must be given to [`Pool::end_use`].
#[must_use]
#[derive(Debug, Default)]
pub struct Using {
    /// Allocations by slot, with their serial numbers: a slot may be another's when the submission ends.
    pub(crate) objects: Vec<(u32, u64)>,
    /// GPUs whose allocations it may use all, one bit each.
    everything: u64,
    ready: bool,
}

impl Using {
    /// Whether it uses nothing of the pool.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.everything == 0
    }

    /// The allocations that it names, by slot.
    pub fn named(&self) -> Vec<u32> {
        self.objects.iter().map(|&(slot, _)| slot).collect()
    }

    /// Both of two that are ready, as one.
    pub fn and(mut self, other: Using) -> Using {
        debug_assert!(self.ready && other.ready);
        self.objects.extend(other.objects);
        self
    }
}

impl State {
    /// A submission that waited for pages is being made.
    fn make_busy(&mut self, using: &mut Using) {
        for (slot, serial) in using.objects.iter().filter(|_| !using.ready) {
            if let Some(allocation) = self.allocations.get_mut(*slot).filter(|a| a.serial == *serial) {
                allocation.uses.waiting = allocation.uses.waiting.saturating_sub(1);
                allocation.uses.busy += 1;
            }
        }
        using.ready = true;
    }
}

impl<D: Device> Pool<D> {
    /// A submission that uses the allocations of these addresses is about to be made.
    pub fn begin_use(&self, addresses: &[u64]) -> Using {
        self.begin_use_in(&mut self.lock(), addresses)
    }

    fn begin_use_in(&self, state: &mut State, addresses: &[u64]) -> Using {
        let mut using = Using::default();
        for slot in self.named(state, addresses) {
            if let Some(allocation) = state.allocations.get_mut(slot) {
                allocation.uses.waiting += 1;
                using.objects.push((slot, allocation.serial));
            }
        }
        using
    }

    /// As [`Self::begin_use`] for a launch on GPU `home`; ready, and true, if all is at home. Takes the lock that plans
    /// hold once, where asking for each takes it three times.
    pub fn begin_use_at(&self, home: u8, addresses: &[u64]) -> (Using, bool) {
        let mut state = self.lock();
        let mut using = self.begin_use_in(&mut state, addresses);
        let is_there = |allocation: &Allocation, id: &u32| {
            let page = state.pages.get(*id);
            let at_home = |tier| allocation.home != home || tier == home as usize;
            page.is_none_or(|page| page.shown && !page.moving && at_home(page.tier))
        };
        let mut all = using.objects.iter().filter_map(|(slot, _)| state.allocations.get(*slot));
        if all.all(|allocation| allocation.pages.iter().all(|id| is_there(allocation, id))) {
            state.make_busy(&mut using);
        }
        let ready = using.ready;
        (using, ready)
    }

    /// A submission that may use any allocation of these GPUs (one bit each) is about to be made.
    pub fn begin_use_of_everything(&self, gpus: u64) -> Using {
        for uses in of_gpus(&mut self.lock().everything, gpus) {
            uses.busy += 1;
        }
        Using { everything: gpus, ready: true, ..Using::default() }
    }

    /// Whether all that the submission uses is where its addresses say; from then on it stays there until the end
    /// of the use.
    pub fn is_ready(&self, using: &mut Using) -> bool {
        if using.ready {
            return true;
        }
        let mut state = self.lock();
        let State { allocations, pages, .. } = &*state;
        let shown = |id: &u32| pages.get(*id).is_none_or(|page| page.shown && !page.moving);
        let own = |(slot, serial): &(u32, u64)| allocations.get(*slot).filter(|a| a.serial == *serial);
        let all = using.objects.iter().filter_map(own);
        if !all.flat_map(|allocation| &allocation.pages).all(shown) {
            return false;
        }
        state.make_busy(using);
        true
    }

    /// Counts the submission as being made, wherever its pages are. For those who have shown them, under the lock on
    /// motions.
    pub(crate) fn make_ready(&self, using: &mut Using) {
        self.lock().make_busy(using);
    }

    /// Work was submitted of which no mark tells.
    pub fn lose_track(&self) {
        self.lock().everything.iter_mut().for_each(|uses| uses.unmarked = true);
    }

    /// The submission was made, or not.
    pub fn end_use(&self, using: Using, ended: Ended) {
        if using.is_empty() {
            return;
        }
        let mut state = self.lock();
        let State { allocations, everything, done, .. } = &mut *state;
        for uses in of_gpus(everything, using.everything) {
            uses.end(true, ended, done);
        }
        let ended = if self.device.breaks("names") { Ended::Nothing } else { ended };
        for (slot, serial) in using.objects {
            if let Some(allocation) = allocations.get_mut(slot).filter(|a| a.serial == serial) {
                allocation.uses.end(using.ready, ended, done);
            }
        }
        drop(state);
        self.stir();
    }

    /// A stream has passed all work up to this mark.
    pub fn completed(&self, mark: Mark) {
        let mut state = self.lock();
        let index = mark.stream as usize;
        if state.done.len() <= index {
            state.done.resize(index + 1, 0);
        }
        state.done[index] = state.done[index].max(mark.number);
        self.stir();
    }

    /// Whether the streams have passed all these marks.
    pub fn have_passed(&self, marks: &[Mark]) -> bool {
        let state = self.lock();
        marks.iter().all(|mark| has_passed(mark, &state.done))
    }

    /// The pages of the allocation that holds an address never move again: something outside knows where they lie.
    pub fn pin(&self, address: u64) {
        let Some((home, slot)) = self.home_of(address) else { return };
        let mut motions = self.lock_motions(home);
        self.finish_object(&mut motions, slot);
        self.show_hidden(|page| page.object == slot);
        if let Some(allocation) = self.lock().allocations.get_mut(slot) {
            allocation.pinned = true;
        }
    }

    /// All work that was submitted is over, and nobody submits now.
    pub fn nothing_in_flight(&self) {
        let mut state = self.lock();
        state.everything.iter_mut().for_each(Uses::forget);
        state.allocations.iter_mut().for_each(|(_, allocation)| allocation.uses.forget());
    }
}
