//! Pages leave their address beside running work, and their copies begin (see `overlap`).

use std::sync::atomic::Ordering;

use vgmem_policy::PageRef;

use crate::device::Device;
use crate::exchange::For;
use crate::frames::Frame;
use crate::overlap::{HOME, Motion, OUT, Step};
use crate::pool::{Pool, State};
use crate::twins::{Print, Twin};

impl<D: Device> Pool<D> {
    /// Begins to copy a page home; false where there is no frame or the driver refuses.
    pub(crate) fn begin_home(&self, whom: For, motions: &mut Vec<Motion>, page: PageRef) -> bool {
        let Some(frame) = self.take_frame(whom, whom.home as usize, page.bytes) else { return false };
        self.set_out(whom, motions, page, frame, HOME, false)
    }

    /// Sends a page away: into its twin, if it has one, and without a copy if it was not written since it came.
    pub(crate) fn begin_out(&self, whom: For, motions: &mut Vec<Motion>, page: PageRef) -> bool {
        let (asks, twin) = self.take_twin(page.page);
        let Some(twin) = twin else {
            let tiers = self.tiers_away(whom);
            let frame = tiers.into_iter().find_map(|tier| self.take_frame(whom, tier, page.bytes));
            return frame.is_some_and(|frame| self.set_out(whom, motions, page, frame, OUT, asks));
        };
        let Some((address, from)) = self.leave(whom, page, OUT) else {
            self.keep_twin(page.page, twin);
            return false;
        };
        let Twin { frame, print, .. } = twin;
        let (lane, context) = (OUT, whom.context);
        let taking = asks.then(|| self.device.begin_print(from, page.bytes, context).ok()).flatten();
        let step =
            taking.map_or(Step::Copying(None, Print::Unknown), |taking| Step::Comparing(taking, print));
        let motion = Motion { page, address, from, frame, lane, step, context, copier: context, late: None };
        if matches!(motion.step, Step::Copying(..)) {
            return self.begin_to_copy(whom.home, motions, motion);
        }
        motions.push(motion);
        true
    }

    fn set_out(
        &self,
        whom: For,
        motions: &mut Vec<Motion>,
        page: PageRef,
        frame: Frame,
        lane: usize,
        prints: bool,
    ) -> bool {
        let Some((address, from)) = self.leave(whom, page, lane) else {
            self.spare(frame);
            return false;
        };
        let context = whom.context;
        let prints = prints && frame.tier == self.host_tier();
        let step = Step::Copying(None, if prints { Print::Wanted } else { Print::Unknown });
        let motion = Motion { page, address, from, frame, lane, step, context, copier: context, late: None };
        self.begin_to_copy(whom.home, motions, motion)
    }

    /// Begins the copy of a page that has left its address; false where the driver refuses.
    pub(crate) fn begin_to_copy(&self, home: u8, motions: &mut Vec<Motion>, mut motion: Motion) -> bool {
        let Motion { page, from, ref frame, lane, context, .. } = motion;
        let begin = |by| self.device.begin_copy(lane, frame.shadow, from, page.bytes, by);
        let mut copier = self.copier(For { home, context }, motions, &motion);
        let mut begun = begin(copier);
        if begun.is_err() && copier != context {
            self.forget_paths(copier); // it is not asked again
            copier = context;
            begun = begin(copier);
        }
        if begun.is_err() {
            self.leave_to_late(&motion);
            self.stayed(page.page);
            self.spare(motion.frame);
            let _ = self.show_page(page.page); // tried again before its next use
            return false;
        }
        let Ok(copies) = self.device.mark_copies(lane, copier) else {
            self.lock().lost += frame.bytes; // the copy may be under way: its frame is left alone
            self.leave_to_late(&motion);
            self.stayed(page.page);
            if copier != context {
                self.forget_paths(copier);
            }
            return false;
        };
        motion.copier = copier;
        self.lock().helped += u64::from(copier != context);
        if let Step::Copying(marker, print) = &mut motion.step {
            *marker = Some(copies);
            if matches!(print, Print::Wanted) {
                let taking = self.device.begin_print(from, page.bytes, context);
                *print = taking.map_or(Print::Unknown, Print::Taking);
            }
        }
        motions.push(motion);
        true
    }

    /// Takes an idle page off its address; that, and where it is mapped besides. A page in use stays.
    fn leave(&self, whom: For, page: PageRef, lane: usize) -> Option<(u64, u64)> {
        let (address, handle, shadow, shown, sum) = {
            let mut state = self.lock();
            let State { pages, allocations, everything, done, .. } = &mut *state;
            let allocation = allocations.get(page.object)?;
            let one = pages.get_mut(page.page)?;
            // A launch that waits for the page is counted as busy with it already; nobody else is.
            let everything = &everything[whom.home as usize];
            let free = allocation.uses.is_over(done) || (lane == HOME && allocation.uses.are_passed(done));
            if !free || one.moving || !everything.is_over(done) {
                return None;
            }
            one.moving = true;
            (one.address, one.handle, one.shadow, one.shown, one.sum.take())
        };
        let shadow = if shadow != 0 { Some(shadow) } else { self.new_shadow(whom, page.bytes, handle) };
        let left = shadow.filter(|_| {
            !shown || self.device.breaks("hide") || self.device.unmap(address, page.bytes).is_ok()
        });
        let mut state = self.lock();
        let one = state.pages.get_mut(page.page)?;
        one.shadow = shadow.unwrap_or(0);
        if left.is_none() {
            one.moving = false;
            return None;
        }
        if one.shown {
            one.shown = false;
            self.hidden.fetch_add(1, Ordering::AcqRel);
        }
        if lane == OUT {
            one.habit.goes();
        }
        drop(state);
        let from = left?;
        self.verify_rest(address, page.bytes, from, sum, whom.context);
        Some((address, from))
    }
}
