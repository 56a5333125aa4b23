//! Fetching pages before they are asked for, beside running work (see `overlap`).

use std::sync::atomic::Ordering;

use vgmem_policy::{Room, Standings};

use crate::device::{Context, Device};
use crate::exchange::For;
use crate::frames::Frame;
use crate::overlap::{HOME, Motion, OUT};
use crate::pool::{Pool, State};

/// Pages of the largest size that may be on their way home eagerly: one that is copied, and the next one.
const EAGER: u64 = 2;
/// Bytes on their way in one direction that keep the link busy between two looks.
const WINDOW: u64 = 128 << 20;

/// Bytes that are on their way on a lane.
pub(crate) fn bytes_on(lane: usize, motions: &[Motion]) -> u64 {
    motions.iter().filter(|motion| motion.lane == lane).map(|motion| motion.frame.bytes).sum()
}

/// Adds the frames at home that get free when what is on its way out has gone.
pub(crate) fn with_going(mut room: Room, motions: &[Motion]) -> Room {
    motions.iter().filter(|motion| motion.lane == OUT).for_each(|motion| room.add(motion.frame.bytes));
    room
}

impl<D: Device> Pool<D> {
    /// Ends copies that are over; whether others are under way. Plans nothing.
    pub fn look_at_copies(&self, home: u8) -> bool {
        let Ok(mut motions) = self.motions[home as usize].try_lock() else { return true };
        self.land_motions(&mut motions);
        self.show_waiting(home, &motions);
        !motions.is_empty()
    }

    /// Pages of this GPU whose way, out or home, is over. One load.
    pub fn landings(&self, home: u8) -> u64 {
        self.landings[home as usize].load(Ordering::Acquire)
    }

    /// Fetches what is expected to be needed next, as far as that costs hardly more copies; whether anything is on
    /// its way. Leaves `reserved` bytes at home to a launch that waits.
    pub fn look_ahead(&self, home: u8, context: Context, reserved: u64) -> bool {
        let Ok(mut motions) = self.motions[home as usize].try_lock() else { return true };
        self.land_motions(&mut motions);
        let held = self.show_waiting(home, &motions);
        let whom = For { home, context };
        let window = self.window(whom);
        let (out, inbound) = (bytes_on(OUT, &motions), bytes_on(HOME, &motions));
        // Enough is on its way home: looked at again when a copy is over.
        if inbound + self.config.page_bytes.min(window) / 2 >= window.max(2)
            || self.must_rest(home)
            || !self.is_stirred(home)
        {
            return !motions.is_empty();
        }
        let eager = (EAGER * self.config.page_bytes).saturating_sub(inbound);
        let (standings, mut free) = {
            let state = self.lock();
            (self.standings(&state, whom), self.room_at_home(&state, home))
        };
        free.reserve(reserved);
        let plan = {
            let pager = self.pager();
            let eager = if pager.is_behind() { eager } else { 0 };
            let room = with_going(free.clone(), &motions);
            pager.ahead(&standings, room, window.saturating_sub(inbound), eager)
        };
        let mut coming = with_going(Room::default(), &motions);
        for page in plan.fetch {
            // Memory of another size is made anew only where no frame of the right one is on its way.
            let waits = !free.fits(page.bytes) && coming.take_frame(page.bytes);
            if waits || !free.take(page.bytes) || !self.begin_home(whom, &mut motions, page) {
                break;
            }
        }
        let mut gone = out;
        for page in plan.evict.into_iter().take_while(|_| !held) {
            if gone + page.bytes > window || !self.begin_out(whom, &mut motions, page) {
                break;
            }
            gone += page.bytes;
        }
        !motions.is_empty()
    }

    /// What is free at home.
    pub(crate) fn room_at_home(&self, state: &State, home: u8) -> Room {
        let mut room = Room::of_loose(state.tiers[home as usize].room());
        let own = |frame: &&Frame| frame.tier == home as usize && frame.home == home;
        state.spare.iter().filter(own).for_each(|frame| room.add(frame.bytes));
        room
    }

    /// Something has happened that may move pages.
    pub(crate) fn stir(&self) {
        self.stirred.fetch_add(1, Ordering::Release);
    }

    /// Whether something has happened since this was asked for the GPU.
    fn is_stirred(&self, home: u8) -> bool {
        let now = self.stirred.load(Ordering::Acquire);
        self.looked[home as usize].swap(now, Ordering::AcqRel) != now
    }

    /// Bytes that may be on their way in one direction: enough for every link, or the largest pages two at a time.
    pub(crate) fn window(&self, whom: For) -> u64 {
        let most = self.config.gpus[whom.home as usize].exchange.max(1);
        most.min(self.links(whom.home) * WINDOW.max(2 * self.config.page_bytes))
    }

    /// All allocations as they stand: the pages that may move.
    pub(crate) fn standings(&self, state: &State, whom: For) -> Standings {
        let mut standings = Standings::default();
        for (slot, allocation) in state.allocations.iter() {
            let pages = allocation.pages.iter().filter_map(|&id| {
                let page = state.pages.get(id).filter(|page| !page.moving)?;
                let of = page.of(id, slot);
                self.may_move(id, allocation, whom.home).then_some((of, page.tier == whom.home as usize))
            });
            standings.push(slot, allocation.uses.is_over(&state.done), pages);
        }
        standings
    }
}
