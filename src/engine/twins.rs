//! Pages that were not written since they came home need no copy to go.
//!
//! A page that comes home leaves the frame in host RAM behind, with the bytes that it came with: its *twin*. Whether it
//! was written since is seen from its fingerprint, taken by the GPU while the page is hidden and compared with the one
//! that was taken when the twin's bytes were copied. The state machine, from "shown at home" on:
//!
//! ```text
//! with a twin    --hide, take the print--> comparing --the same----------> put away (the twin is its memory)
//!                                                    --another, or none--> moving out, into the twin
//! without        --hide, copy out, take the print--> moving out ---------> put away
//! put away       --copied home--> at home: the frame is its twin, if its print is known and frames are left for others
//! shown elsewhere: the print is forgotten
//! ```
//!
//! Invariants: a twin's bytes are those that have its print, as nothing is mapped there that the program could reach,
//! and copies go there only while its page is on its way out; both prints were taken of hidden pages, under the rules
//! of every copy; a page that nobody can tell about is copied. A twin is charged to its tier, and given up where an
//! allocation or a move needs the memory.

use std::sync::atomic::Ordering;

use crate::device::{Context, Device, Handle, Taken, Taking};
use crate::exchange::For;
use crate::frames::{Frame, Kind};
use crate::overlap::{Motion, Step};
use crate::pool::{Pool, State};

/// Frames of each size that should be spare for pages without a twin.
const LEFT_FOR_OTHERS: usize = 2;
/// Pages that have come home since another one did, at least, before that one counts as old.
const OLD: u64 = 16;

/// The frame in host RAM that a page at home came from.
#[derive(Debug)]
pub(crate) struct Twin {
    pub(crate) frame: Frame,
    /// The fingerprint of its bytes.
    pub(crate) print: u128,
    /// How many pages had come home before this one.
    pub(crate) since: u64,
}

/// The fingerprint of a page that is copied.
#[derive(Debug)]
pub(crate) enum Print {
    Unknown,
    /// To be taken beside the copy.
    Wanted,
    Taking(Taking),
    Known(u128),
}

impl Step {
    /// The fingerprint of the bytes that are in the frame at the end.
    pub(crate) fn print(&self) -> Option<u128> {
        match self {
            Step::Comparing(_, print) | Step::Copying(_, Print::Known(print)) => Some(*print),
            Step::Copying(..) => None,
        }
    }
}

/// What a fingerprint may still read that came too late.
#[derive(Debug)]
pub(crate) struct Late {
    frame: Frame,
    taking: Taking,
    context: Context,
    /// Else only its shadow address, and the memory is a page's.
    is_frame: bool,
}

impl Late {
    /// Bytes of memory that are nobody else's.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> u64 {
        if self.is_frame { self.frame.bytes } else { 0 }
    }

    #[cfg(test)]
    pub(crate) fn shadow_bytes(&self) -> u64 {
        self.frame.bytes
    }
}

/// Whether a page is worth the question, by what came of it before.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Habit {
    /// Times that it was found written, one after another.
    written: u8,
    /// So many times it goes without the question.
    unasked: u8,
}

impl Habit {
    pub(crate) fn asks(self) -> bool {
        self.unasked == 0
    }

    /// It was not found written when it was asked last.
    pub(crate) fn is_clean(self) -> bool {
        self.written == 0
    }

    /// It goes.
    pub(crate) fn goes(&mut self) {
        self.unasked = self.unasked.saturating_sub(1);
    }

    pub(crate) fn found(&mut self, written: bool) {
        self.written = if written { (self.written + 1).min(6) } else { 0 };
        self.unasked = if self.written > 1 { 1 << self.written } else { 0 };
    }
}

impl State {
    /// Frees a page's twin for other uses.
    pub(crate) fn give_up_twin(&mut self, page: u32) {
        if let Some(frame) = self.untie(page) {
            self.add_spare(frame);
        }
    }

    pub(crate) fn give_up_all_twins(&mut self) {
        let with: Vec<u32> =
            self.pages.iter().filter(|(_, page)| page.twin.is_some()).map(|(id, _)| id).collect();
        with.into_iter().for_each(|page| self.give_up_twin(page));
    }

    /// The frame of the oldest twin of a kind.
    pub(crate) fn take_twin_of_any(&mut self, kind: Kind) -> Option<Frame> {
        let (_, page, _) = self.oldest_twin(kind)?;
        self.untie(page)
    }

    /// When the page that has had a twin of this kind for the longest time came home, that page, and how many have one.
    fn oldest_twin(&self, kind: Kind) -> Option<(u64, u32, u64)> {
        let fits = |twin: &&Twin| twin.frame.kind() == kind;
        let all =
            self.pages.iter().filter_map(|(id, page)| Some((page.twin.as_ref().filter(fits)?.since, id)));
        let (count, oldest) = all.fold((0, None), |(count, oldest), one| {
            (count + 1, Some(oldest.map_or(one, |other: (u64, u32)| other.min(one))))
        });
        oldest.map(|(since, page)| (since, page, count))
    }

    /// The frame of some twin on a tier, where the memory is needed for another size or for others.
    pub(crate) fn take_twin_on(&mut self, tier: usize) -> Option<Frame> {
        let on = |twin: &Twin| twin.frame.tier == tier;
        let found = self.pages.iter().find(|(_, page)| page.twin.as_ref().is_some_and(on));
        let page = found.map(|(id, _)| id)?;
        self.untie(page)
    }

    /// Frees the twin of a page that came home so long ago that it may stay for good: all others came four times since.
    fn give_up_an_old_twin(&mut self, kind: Kind) -> bool {
        let oldest = self.oldest_twin(kind);
        let old = oldest.filter(|(since, _, count)| self.fetched - since > 4 * count + OLD);
        if let Some((_, page, _)) = old {
            self.give_up_twin(page);
        }
        old.is_some()
    }

    fn spare_of(&self, kind: Kind) -> usize {
        self.spare.iter().filter(|frame| frame.kind() == kind).count()
    }

    /// Memory is about to be given back that a late fingerprint may still read: it is the fingerprint's from here on.
    pub(crate) fn hand_to_late(&mut self, handle: Handle) -> bool {
        let reads = self.late.iter_mut().find(|late| late.frame.handle == handle);
        reads.map(|late| late.is_frame = true).is_some()
    }

    /// The frame is charged to its tier, and the caller's.
    fn untie(&mut self, page: u32) -> Option<Frame> {
        let frame = self.pages.get_mut(page)?.twin.take()?.frame;
        self.tiers[frame.tier].twins -= frame.bytes;
        Some(frame)
    }
}

impl<D: Device> Pool<D> {
    /// Whether it is worth while to ask if a page that goes was written, and its twin.
    pub(crate) fn take_twin(&self, page: u32) -> (bool, Option<Twin>) {
        let mut state = self.lock();
        let Some(one) = state.pages.get_mut(page) else { return (false, None) };
        let asks = one.habit.asks();
        let twin = one.twin.as_ref().map(|twin| (twin.print, twin.since));
        let twin = twin.and_then(|(print, since)| Some(Twin { frame: state.untie(page)?, print, since }));
        (asks && !self.config.copies_all, twin)
    }

    /// Gives a page a twin.
    pub(crate) fn keep_twin(&self, page: u32, twin: Twin) {
        let mut state = self.lock();
        let Twin { frame, .. } = &twin;
        let (tier, bytes) = (frame.tier, frame.bytes);
        match state.pages.get_mut(page) {
            Some(one) if one.twin.is_none() => {
                one.twin = Some(twin);
                state.tiers[tier].twins += bytes;
            }
            _ => state.add_spare(twin.frame),
        }
    }

    /// A page has come home from this frame.
    pub(crate) fn leave_behind(&self, page: u32, twin: Twin) {
        let left = {
            let mut state = self.lock();
            let kind = twin.frame.kind();
            let left = state.spare_of(kind);
            let more = left < LEFT_FOR_OTHERS && state.give_up_an_old_twin(kind);
            left + usize::from(more)
        };
        if left < LEFT_FOR_OTHERS {
            self.wanted_frames[twin.frame.home as usize].store(twin.frame.bytes, Ordering::Release);
        }
        if left == 0 {
            return self.spare(twin.frame);
        }
        self.keep_twin(page, twin);
    }

    /// Ends comparisons whose answer is there: with a copy where the page was written, or nobody knows.
    pub(crate) fn compare(&self, motions: &mut Vec<Motion>) {
        loop {
            let comparing = |motion: &Motion| matches!(motion.step, Step::Comparing(..));
            let Some(index) = motions.iter().position(comparing) else { return };
            let Step::Comparing(taking, before) = motions[index].step else { return };
            let (mut print, mut late) = (Print::Taking(taking), None);
            if !self.is_taken(&mut print, &mut late, motions[index].context) {
                return; // one follows the other
            }
            let mut motion = motions.remove(index);
            motion.late = late;
            let known = matches!(print, Print::Known(_));
            let same = matches!(print, Print::Known(now) if now == before) || self.device.breaks("unwritten");
            {
                let mut state = self.lock();
                state.unwritten += u64::from(same);
                if let Some(one) = state.pages.get_mut(motion.page.page).filter(|_| known) {
                    one.habit.found(!same);
                }
            }
            if same {
                self.landed(motion);
                continue;
            }
            motion.step = Step::Copying(None, print);
            self.begin_to_copy(motion.frame.home, motions, motion);
        }
    }

    /// Whether the fingerprint beside a copy is there, or will never be.
    pub(crate) fn is_taken(&self, print: &mut Print, late: &mut Option<Taking>, context: Context) -> bool {
        let Print::Taking(taking) = *print else { return true };
        let now = self.device.print(taking, context);
        *late = (now == Taken::Late).then_some(taking);
        *print = match now {
            Taken::Pending => return false,
            Taken::Print(now) => Print::Known(now),
            Taken::Late | Taken::Never => Print::Unknown,
        };
        true
    }

    /// Keeps memory that a late fingerprint may read, mapped and charged, until it is over.
    pub(crate) fn keep_for_late(&self, frame: Frame, late: Option<Taking>, context: Context) {
        match late {
            Some(taking) => self.lock().late.push(Late { frame, taking, context, is_frame: true }),
            None => self.spare(frame),
        }
    }

    /// A page stays where it was: the mapping that a fingerprint may still read is the page's no more.
    pub(crate) fn leave_to_late(&self, motion: &Motion) {
        let under_way = match motion.step {
            Step::Copying(_, Print::Taking(taking)) => Some(taking),
            _ => None,
        };
        let Some(taking) = motion.late.or(under_way) else { return };
        let whom = For { home: motion.frame.home, context: motion.context };
        self.leave_shadow_to_late(motion.page.page, taking, whom);
    }

    /// As above for the page itself, where it is mapped besides.
    pub(crate) fn leave_shadow_to_late(&self, page: u32, taking: Taking, whom: For) {
        let mut state = self.lock();
        let Some(page) = state.pages.get_mut(page) else { return };
        let (handle, tier, bytes, shadow) =
            (page.handle, page.tier, page.bytes, std::mem::take(&mut page.shadow));
        let frame = Frame { handle, tier, bytes, shadow, home: whom.home };
        state.late.push(Late { frame, taking, context: whom.context, is_frame: false });
    }

    /// Frees what late fingerprints have read. A lock on motions is held: no context ends meanwhile.
    pub(crate) fn settle_late(&self) {
        if self.lock().late.is_empty() {
            return;
        }
        let late = std::mem::take(&mut self.lock().late);
        let (over, still): (Vec<Late>, Vec<Late>) =
            late.into_iter().partition(|late| self.device.print_is_over(late.taking, late.context));
        self.lock().late.extend(still);
        for Late { frame, is_frame, .. } in over {
            if is_frame {
                self.spare(frame);
            } else if self.device.unmap(frame.shadow, frame.bytes).is_ok() {
                self.lock().forget_shadow(frame.shadow, frame.bytes);
            }
        }
    }

    /// Whether more frames in host RAM would save copies. One load.
    pub fn wants_frames(&self, home: u8) -> bool {
        self.wanted_frames[home as usize].load(Ordering::Acquire) > 0
    }

    /// Makes frames in host RAM until enough are spare for pages without a twin, unless somebody else needs the memory.
    /// Pinning takes longer than a copy: not for the thread that moves pages. How many were made, of `most`.
    pub fn make_wanted_frames(&self, home: u8, context: Context, most: usize) -> usize {
        let (whom, host) = (For { home, context }, self.host_tier());
        let bytes = self.wanted_frames[home as usize].swap(0, Ordering::AcqRel);
        let is_wanted = || {
            let state = self.lock();
            let tier = &state.tiers[host];
            let spare = state.spare_of((host, bytes, home));
            bytes > 0 && spare < LEFT_FOR_OTHERS && tier.used + bytes <= tier.capacity
        };
        let mut made = 0;
        while made < most && is_wanted() && self.device.host_is_plenty(bytes) {
            let Some(frame) = self.make_frame(whom, host, bytes) else { break };
            self.spare(frame);
            made += 1;
        }
        made
    }

    /// Bytes of all twins.
    pub fn twins(&self) -> u64 {
        self.lock().tiers.iter().map(|tier| tier.twins).sum()
    }

    /// Gives the memory of a few twins back, as others need it; how many bytes that was.
    pub fn release_twins(&self, most: usize) -> u64 {
        let mut bytes = 0;
        for _ in 0..most {
            let frame = self.lock().take_twin_on(self.host_tier());
            let Some(frame) = frame else { break };
            bytes += frame.bytes;
            self.drop_frame(frame.home, frame);
        }
        bytes
    }
}
