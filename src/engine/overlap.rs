//! Moving pages while other work runs (rule S4).
//!
//! A page may move while work is in flight that neither names its allocation nor may use any. It leaves its address
//! first: whatever uses it nevertheless gets an illegal address, loudly, and no write is lost. What is put away stays
//! unmapped until somebody needs it: mapping host memory takes longer than copying it.
//!
//! ```text
//! shown at home  --hide, copy out-->  moving out  --copy over-->  put away (hidden, in host RAM or on a peer)
//!                --not written since it came (twins.rs)----------> put away
//! put away       --copy home------->  moving home --copy over, map--> shown at home
//! put away       --map------------->  shown elsewhere (used in place, or by work that may use anything)
//! shown elsewhere --hide, copy home-> moving home
//! ```
//!
//! Invariants: the bytes of a page are always in its own memory (`Page::handle`), which changes only when a copy is
//! over; a page that is hidden or moving is named by no work in flight; [`Pool::claim`] before a submission shows
//! what it names. A failed copy or mapping leaves the page hidden where it was, and showing it is tried again.

use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};

use vgmem_policy::{PageRef, Room};

use crate::ahead::{bytes_on, with_going};

use crate::device::{Context, Copies, Device, Taking};
use crate::exchange::For;
use crate::frames::Frame;
use crate::map::PageId;
use crate::paths::{firsts, needs};
use crate::pool::{Allocation, Note, Pool};
use crate::twins::{Print, Twin};
use crate::uses::Using;

/// Copies from home to elsewhere, and the other way.
pub(crate) const OUT: usize = 0;
pub(crate) const HOME: usize = 1;

/// A page on its way into a frame.
#[derive(Debug)]
pub(crate) struct Motion {
    pub(crate) page: PageRef,
    pub(crate) address: u64,
    /// Where its memory is mapped besides.
    pub(crate) from: u64,
    pub(crate) frame: Frame,
    pub(crate) lane: usize,
    pub(crate) step: Step,
    pub(crate) context: Context,
    /// The context that copies: this one, or one of a GPU that helps.
    pub(crate) copier: Context,
    /// A fingerprint that came too late: its kernel may still read the memory that the page leaves.
    pub(crate) late: Option<Taking>,
}

/// How far a motion is.
#[derive(Debug)]
pub(crate) enum Step {
    /// The frame holds what the page held when it had the second number. If it has it still there is nothing to copy.
    Comparing(Taking, u128),
    /// Up to the marker, which is not asked again once the copy is over.
    Copying(Option<Copies>, Print),
}

impl Motion {
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> u64 {
        self.frame.bytes
    }

    pub(crate) fn is_copied(&self, lane: usize) -> bool {
        self.lane == lane && matches!(self.step, Step::Copying(..))
    }
}

/// Whether copies of a lane are under way.
pub(crate) fn is_copying(lane: usize, motions: &[Motion]) -> bool {
    motions.iter().any(|motion| motion.is_copied(lane))
}

/// Sizes of pages that come, up to so many bytes, for which no frame is on its way out.
fn unmet(missing: &[PageRef], motions: &[Motion], most: u64) -> Vec<u64> {
    let mut coming = with_going(Room::default(), motions);
    let (mut sizes, mut all) = (Vec::new(), 0);
    for page in missing.iter().filter(|page| !coming.take_frame(page.bytes)) {
        if all >= most {
            break;
        }
        all += page.bytes;
        sizes.push(page.bytes);
    }
    sizes
}

/// No page begins to move beside work while this lives.
#[derive(Debug)]
pub struct Still<'a>(#[allow(dead_code)] Vec<MutexGuard<'a, Vec<Motion>>>);

/// What a launch still wants.
#[derive(Default)]
struct Wants {
    /// Pages elsewhere that may come home.
    missing: Vec<PageRef>,
    /// Pages that wait to be shown where they lie.
    hidden: Vec<u32>,
    /// Some are on their way.
    coming: bool,
    /// Bytes elsewhere that work in flight uses there.
    in_use: u64,
}

/// How far a launch's pages are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// All are at home.
    Ready,
    /// Some are on their way, or wait for work that is in flight; for so many bytes no copy home has begun.
    Waiting(u64),
    /// What is not at home cannot come.
    Stuck,
}

impl<D: Device> Pool<D> {
    pub(crate) fn lock_motions(&self, home: u8) -> MutexGuard<'_, Vec<Motion>> {
        self.motions[home as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The motions of some GPUs (one bit each), the lower first.
    pub(crate) fn lock_all_motions(&self, gpus: u64) -> Vec<MutexGuard<'_, Vec<Motion>>> {
        let all = (0..self.motions.len() as u8).filter(|gpu| gpus >> (gpu & 63) & 1 == 1);
        all.map(|gpu| self.lock_motions(gpu)).collect()
    }

    /// Home and slot of the allocation that holds an address.
    pub(crate) fn home_of(&self, address: u64) -> Option<(u8, u32)> {
        let state = self.lock();
        let slot = self.slot_of(&state, address)?;
        state.allocations.get(slot).map(|allocation| (allocation.home, slot))
    }

    /// Notes a launch of a function, by a number of the caller's, that uses these allocations.
    pub fn note_use(&self, function: u64, using: &Using) {
        self.note(Note::Launch(function, using.named()));
    }

    /// Whether all pages of a launch that may come home are there. Takes no lock on motions.
    pub fn are_at_home(&self, home: u8, using: &Using) -> bool {
        let Wants { missing, hidden, coming, in_use } =
            self.wanting(For { home, context: 0 }, &using.named());
        missing.is_empty() && hidden.is_empty() && !coming && in_use == 0
    }

    /// Does what can be done now so that the named allocations' pages get home, without waiting for anything. A
    /// `patient` launch rather waits for the best page to go than lets a worse one go that is idle.
    pub fn advance(&self, home: u8, context: Context, named: &[u32], patient: bool) -> Progress {
        let Ok(mut motions) = self.motions[home as usize].try_lock() else { return Progress::Waiting(0) };
        self.land_motions(&mut motions);
        let held = self.show_waiting(home, &motions);
        let whom = For { home, context };
        let Wants { missing, hidden, coming, in_use } = self.wanting(whom, named);
        if missing.is_empty() && in_use > 0 {
            return Progress::Waiting(in_use); // somebody uses them where they lie
        }
        if missing.is_empty() && !coming && !hidden.is_empty() {
            if is_copying(OUT, &motions) {
                self.show_later(home, named);
                return Progress::Waiting(0);
            }
            self.show_pages(&hidden); // tried again; what stays hidden in the end is loud
        }
        if missing.is_empty() && !coming {
            return Progress::Ready;
        }
        self.note(Note::Waits); // for the link, also where all is on its way
        if missing.is_empty() {
            return Progress::Waiting(0);
        }
        if self.must_rest(home) {
            return Progress::Waiting(0);
        }
        let missing = self.set_out_home(whom, &mut motions, missing);
        let left: u64 = missing.iter().map(|page| page.bytes).sum();
        if left == 0 {
            return Progress::Waiting(0);
        }
        let out = bytes_on(OUT, &motions);
        let window = self.window(whom);
        let wanted = left.min(window).saturating_sub(out);
        let sizes = unmet(&missing, &motions, window.saturating_sub(out));
        let (room, others) = self.room_for(whom, named, &sizes, wanted, patient);
        for page in room.into_iter().take_while(|_| !held) {
            if !self.begin_out(whom, &mut motions, page) {
                break;
            }
        }
        if motions.is_empty() && !others && in_use == 0 {
            Progress::Stuck
        } else {
            Progress::Waiting(left + in_use)
        }
    }

    /// Shows all pages of the named allocations where they lie, after the copies that are under way. They stay so until
    /// the end of the use.
    pub fn claim(&self, using: &mut Using) {
        let slots = using.named();
        let homes = {
            let state = self.lock();
            let all = slots.iter().filter_map(|&slot| state.allocations.get(slot));
            all.fold(0, |homes, allocation| homes | 1u64 << (allocation.home & 63))
        };
        let mut locked = self.lock_all_motions(homes);
        for motions in &mut locked {
            self.finish_motions(motions, |motion| slots.contains(&motion.page.object));
        }
        self.show_hidden(|page| slots.contains(&page.object));
        self.make_ready(using);
    }

    /// Shows every page of these GPUs (one bit each); how many were hidden. They stay so while work that may use
    /// anything there is noted. Only the home GPU has access to a hidden page: work of others cannot use it.
    pub fn expose_all(&self, gpus: u64) -> u64 {
        let mut locked = self.lock_all_motions(gpus);
        for motions in &mut locked {
            self.finish_motions(motions, |_| true);
        }
        let homes: Vec<u32> = {
            let state = self.lock();
            let all = state.allocations.iter().filter(|(_, a)| gpus >> (a.home & 63) & 1 == 1);
            all.map(|(slot, _)| slot).collect()
        };
        self.show_hidden(|page| homes.binary_search(&page.object).is_ok())
    }

    /// Waits for the copies of some motions, and ends them.
    pub(crate) fn finish_motions(&self, motions: &mut Vec<Motion>, which: impl Fn(&Motion) -> bool) {
        while motions.iter().any(&which) {
            self.land_motions(motions);
            std::thread::yield_now();
        }
    }

    /// As [`Self::finish`] for one allocation.
    pub(crate) fn finish_object(&self, motions: &mut Vec<Motion>, slot: u32) {
        self.finish_motions(motions, |motion| motion.page.object == slot);
    }

    /// A context is about to end: its copies are waited for, and none begins until this is dropped.
    pub fn hold_still(&self, context: Context) -> Still<'_> {
        let mut locked = self.lock_all_motions(u64::MAX);
        for motions in &mut locked {
            self.finish_motions(motions, |motion| needs(motion, context));
        }
        Still(locked)
    }

    /// A context is gone, and its copies with it: their pages stay where they were.
    pub(crate) fn abandon_motions(&self, motions: &mut Vec<Motion>, context: Context) {
        let (gone, stay) = std::mem::take(motions).into_iter().partition(|motion| needs(motion, context));
        *motions = stay;
        let gone: Vec<Motion> = gone;
        for motion in gone {
            if motion.context != context {
                self.leave_to_late(&motion); // else its fingerprints are gone, too
            }
            self.stayed(motion.page.page);
            if motion.copier == context || !motion.is_copied(motion.lane) {
                self.spare(motion.frame);
            } else {
                self.lock().lost += motion.frame.bytes; // a helper may still write there
            }
        }
    }

    /// Nothing may move now: work that may use anything is in flight, or a capture is under way.
    pub(crate) fn must_rest(&self, home: u8) -> bool {
        let state = self.lock();
        self.on_hold() || !state.everything[home as usize].is_over(&state.done)
    }

    /// Pages of the named allocations: elsewhere, hidden at home, and whether some are on their way.
    fn wanting(&self, whom: For, named: &[u32]) -> Wants {
        let state = self.lock();
        let mut wants = Wants::default();
        let Wants { missing, hidden, coming, in_use } = &mut wants;
        // Those of other GPUs are moved and shown under another lock.
        let own = named.iter().filter_map(|&slot| Some((slot, state.allocations.get(slot)?)));
        for (slot, allocation) in own.filter(|(_, allocation)| allocation.home == whom.home) {
            let busy = !allocation.uses.are_passed(&state.done);
            for &id in &allocation.pages {
                let Some(page) = state.pages.get(id) else { continue };
                let at_home = page.tier == whom.home as usize;
                if page.moving {
                    *coming = true;
                } else if !page.shown && (at_home || !self.may_move(id, allocation, whom.home)) {
                    hidden.push(id);
                } else if !at_home && busy && self.may_move(id, allocation, whom.home) {
                    *in_use += page.bytes;
                } else if !at_home && self.may_move(id, allocation, whom.home) {
                    missing.push(page.of(id, slot));
                }
            }
        }
        wants
    }

    /// Only pages that no other GPU has access to move.
    pub(crate) fn may_move(&self, page: u32, of: &Allocation, home: u8) -> bool {
        of.home == home && !of.pinned && self.map.access_of(PageId(page)) == 1 << home
    }

    /// Begins to copy pages home for which there are frames; those that are left. Memory of another size is made anew
    /// only where no frame of the right one is on its way.
    fn set_out_home(&self, whom: For, motions: &mut Vec<Motion>, missing: Vec<PageRef>) -> Vec<PageRef> {
        let mut free = self.room_at_home(&self.lock(), whom.home);
        let mut coming = with_going(Room::default(), motions);
        let mut left = Vec::new();
        let mut stuck = false;
        for page in missing {
            let waits = !free.fits(page.bytes) && coming.take_frame(page.bytes);
            if !stuck && !waits && self.begin_home(whom, motions, page) {
                free.take(page.bytes);
                continue;
            }
            stuck |= !waits;
            left.push(page);
        }
        left
    }

    /// Pages that go for a launch, and whether some that could are in use.
    fn room_for(
        &self,
        whom: For,
        named: &[u32],
        sizes: &[u64],
        bytes: u64,
        patient: bool,
    ) -> (Vec<PageRef>, bool) {
        let standings = self.standings(&self.lock(), whom);
        let in_use = standings.is_some_in_use(named);
        if bytes == 0 && sizes.is_empty() {
            return (Vec::new(), in_use);
        }
        match self.pager().make_room(named, &standings, sizes, bytes, patient) {
            Some(pages) => (pages, in_use),
            None => (Vec::new(), true),
        }
    }

    /// Ends motions that are over: those out, and one home. Mapping a page can take as long as a copy while
    /// others are under way (docs/DRIVER_FACTS.md), and new copies should begin meanwhile.
    pub(crate) fn land_motions(&self, motions: &mut Vec<Motion>) {
        self.settle_late();
        self.compare(motions);
        while self.land_first(OUT, motions) {}
        self.land_first(HOME, motions);
    }

    /// Ends a copy of a lane that is over; whether there was one.
    fn land_first(&self, lane: usize, motions: &mut Vec<Motion>) -> bool {
        firsts(lane, motions).into_iter().any(|index| self.land_one(index, motions))
    }

    fn land_one(&self, index: usize, motions: &mut Vec<Motion>) -> bool {
        let motion = &mut motions[index];
        let Step::Copying(marker, print) = &mut motion.step else { return false };
        match marker.map_or(Ok(true), |copies| self.device.are_over(copies, motion.copier)) {
            Ok(false) if !self.device.breaks("landing") => return false,
            Ok(_) => {
                *marker = None;
                if !self.is_taken(print, &mut motion.late, motion.context) {
                    return false;
                }
                self.landed(motions.remove(index));
            }
            Err(_) => {
                // The context is lost. Whether the copy ran is not known: its frame is left alone.
                let motion = motions.remove(index);
                self.lock().lost += motion.frame.bytes;
                self.leave_to_late(&motion);
                self.stayed(motion.page.page);
                if motion.copier != motion.context {
                    self.forget_paths(motion.copier);
                }
            }
        }
        true
    }

    /// The frame holds the page's bytes: it is the page's memory now, and the old memory a spare frame, or a twin.
    pub(crate) fn landed(&self, motion: Motion) {
        self.stir();
        self.landings[motion.frame.home as usize].fetch_add(1, Ordering::Release);
        let Motion { page, address, frame, lane, context, step, late, .. } = motion;
        let Some(from) = self.lock().pages.get(page.page).map(|page| page.shadow) else {
            return self.spare(frame);
        };
        let sum = self.verify(address, page.bytes, [from, frame.shadow], context);
        let home = frame.home;
        let print = step.print().filter(|_| frame.tier == self.host_tier());
        let old = {
            let mut state = self.lock();
            match lane {
                HOME => state.fetched += 1,
                _ => state.evicted += 1,
            }
            let since = state.fetched;
            state.pages.get_mut(page.page).map(|one| {
                let old = (one.handle, one.tier, one.shadow, one.print, since);
                (one.handle, one.tier, one.shadow) = (frame.handle, frame.tier, frame.shadow);
                (one.moving, one.sum, one.print) = (false, sum, print);
                old
            })
        };
        let Some((handle, tier, shadow, print, since)) = old else { return self.spare(frame) };
        let old = Frame { handle, tier, bytes: page.bytes, shadow, home };
        match print {
            _ if late.is_some() => self.keep_for_late(old, late, context),
            Some(print) if lane == HOME => self.leave_behind(page.page, Twin { frame: old, print, since }),
            _ => self.spare(old),
        }
        if lane == HOME {
            self.show_later(home, &[page.object]);
        }
    }

    pub(crate) fn stayed(&self, page: u32) {
        self.stir();
        if let Some(one) = self.lock().pages.get_mut(page) {
            one.moving = false;
        }
    }
}
