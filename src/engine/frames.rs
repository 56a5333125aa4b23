//! Frames: physical memory that no page uses, mapped at a shadow address for the pager's copies.
//!
//! Invariant: a frame is spare, or a page's, or in one motion or wave; it is charged to its tier all the time.

use std::sync::atomic::Ordering;

use crate::device::{Context, Device, DriverError, Handle};
use crate::exchange::For;
use crate::pool::{Pool, State};

/// Spare frames of a tier, at most, as a multiple of its exchange reserve.
const SPARE_PARTS: u64 = 4;

/// Physical memory that no page uses.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) handle: Handle,
    pub(crate) tier: usize,
    pub(crate) bytes: u64,
    /// Where it is mapped for the pager's copies.
    pub(crate) shadow: u64,
    /// The GPU that has access there: it alone can use the frame.
    pub(crate) home: u8,
}

/// What makes frames serve one another: tier, size, and the GPU that has access.
pub(crate) type Kind = (usize, u64, u8);

impl Frame {
    pub(crate) fn kind(&self) -> Kind {
        (self.tier, self.bytes, self.home)
    }
}

impl State {
    /// A spare frame of this tier and size that a GPU can use.
    pub(crate) fn take_spare(&mut self, tier: usize, bytes: u64, home: u8) -> Option<Frame> {
        let at = self.spare.iter().position(|frame| frame.kind() == (tier, bytes, home))?;
        self.tiers[tier].spare -= bytes;
        Some(self.spare.swap_remove(at))
    }

    pub(crate) fn add_spare(&mut self, frame: Frame) {
        self.tiers[frame.tier].spare += frame.bytes;
        self.spare.push(frame);
    }
}

impl<D: Device> Pool<D> {
    /// Makes the frames in host RAM that pages of this GPU move through, ahead of their first use: pinning them takes
    /// longer than a copy. None where the machine has little memory left: they may never be used. How many were made.
    pub fn make_frames_ahead(&self, home: u8, context: Context) -> usize {
        let whom = For { home, context };
        let (host, page) = (self.host_tier(), self.config.page_bytes);
        let count = self.config.host_exchange / page;
        let ahead = |_| self.device.host_is_plenty(page).then(|| self.take_frame(whom, host, page)).flatten();
        let frames: Vec<Frame> = (0..count).map_while(ahead).collect();
        let made = frames.len();
        frames.into_iter().for_each(|frame| self.spare(frame));
        made
    }

    /// A spare frame, or a new one where the tier has room; twins and spare frames of other sizes make room.
    pub(crate) fn take_frame(&self, whom: For, tier: usize, bytes: u64) -> Option<Frame> {
        {
            let mut state = self.lock();
            if let Some(frame) = state.take_spare(tier, bytes, whom.home) {
                return Some(frame);
            }
            // Before new memory: pinning takes longer than the copy that a twin saves.
            if let Some(frame) = state.take_twin_of_any((tier, bytes, whom.home)) {
                self.wanted_frames[whom.home as usize].store(bytes, Ordering::Release);
                return Some(frame);
            }
            if state.tiers[tier].room() < bytes {
                drop(state);
                return self.trade_frames(whom, tier, bytes);
            }
        }
        let made = self.make_frame(whom, tier, bytes);
        // The books said that there is room, but the driver has none: others use the GPU too.
        made.or_else(|| self.trade_frames(whom, tier, bytes))
    }

    /// A new frame, where the tier has room.
    pub(crate) fn make_frame(&self, whom: For, tier: usize, bytes: u64) -> Option<Frame> {
        let shadow = {
            let mut state = self.lock();
            if state.tiers[tier].room() < bytes {
                return None; // taken meanwhile
            }
            let shadow = state.spans.take(bytes)?;
            state.charge(tier, bytes);
            shadow
        };
        let place = self.place(tier, whom.home);
        let made = self.device.create(place, bytes).and_then(|handle| {
            self.reveal(whom, shadow, bytes, handle).map(|()| handle).inspect_err(|_| {
                let _ = self.device.release(place, bytes, handle); // it was never mapped: nothing else to undo
            })
        });
        match made {
            Ok(handle) => Some(Frame { handle, tier, bytes, shadow, home: whom.home }),
            Err(_) => {
                let mut state = self.lock();
                state.uncharge(tier, bytes);
                state.spans.give(shadow, bytes);
                None
            }
        }
    }

    /// Gives spare frames of other sizes back until a new one of this size fits.
    fn trade_frames(&self, whom: For, tier: usize, bytes: u64) -> Option<Frame> {
        let other = {
            let mut state = self.lock();
            if let Some(frame) = state.take_twin_on(tier) {
                state.add_spare(frame);
            }
            let at = state.spare.iter().position(|frame| frame.tier == tier)?;
            let frame = state.spare.swap_remove(at);
            state.tiers[tier].spare -= frame.bytes;
            frame
        };
        self.drop_frame(whom.home, other);
        self.take_frame(whom, tier, bytes)
    }

    /// Maps memory at a shadow address for the pager's copies.
    fn reveal(&self, whom: For, shadow: u64, bytes: u64, handle: Handle) -> Result<(), DriverError> {
        self.device.map(shadow, bytes, handle)?;
        self.device.grant(shadow, bytes, whom.home).or_else(|error| {
            self.device.unmap(shadow, bytes)?;
            Err(error)
        })
    }

    /// Keeps a frame for the next move; gives the oldest of its tier back where there are too many.
    pub(crate) fn spare(&self, frame: Frame) {
        self.stir();
        let tier = frame.tier;
        self.lock().add_spare(frame);
        self.drop_surplus(tier);
    }

    /// Gives frames of a tier back that are more than moves need.
    pub(crate) fn drop_surplus(&self, tier: usize) {
        while let Some(surplus) = self.surplus(tier) {
            self.drop_frame(surplus.home, surplus);
        }
    }

    /// A frame more than moves need, where nobody else can use it.
    fn surplus(&self, tier: usize) -> Option<Frame> {
        let mut state = self.lock();
        let account = &state.tiers[tier];
        let most = (account.exchange * SPARE_PARTS).max(self.config.page_bytes * 2);
        if account.spare <= most {
            return None;
        }
        let at = state.spare.iter().position(|frame| frame.tier == tier)?;
        let frame = state.spare.remove(at);
        state.tiers[tier].spare -= frame.bytes;
        Some(frame)
    }

    /// Gives a frame's memory back to the driver.
    pub(crate) fn drop_frame(&self, home: u8, frame: Frame) {
        let place = self.place(frame.tier, home);
        let gone = self.device.unmap(frame.shadow, frame.bytes).is_ok();
        if gone && self.lock().hand_to_late(frame.handle) {
            return self.lock().forget_shadow(frame.shadow, frame.bytes);
        }
        let released = gone && self.device.release(place, frame.bytes, frame.handle).is_ok();
        let mut state = self.lock();
        if gone {
            state.forget_shadow(frame.shadow, frame.bytes);
        }
        if released {
            state.uncharge(frame.tier, frame.bytes);
        } else {
            state.lost += frame.bytes;
        }
    }

    /// Gives all spare frames and twins back; how many bytes that was.
    pub fn release_spare(&self) -> u64 {
        let frames = {
            let mut state = self.lock();
            state.give_up_all_twins();
            let frames = std::mem::take(&mut state.spare);
            state.tiers.iter_mut().for_each(|tier| tier.spare = 0);
            frames
        };
        let bytes = frames.iter().map(|frame| frame.bytes).sum();
        frames.into_iter().for_each(|frame| self.drop_frame(0, frame));
        bytes
    }

    pub(crate) fn new_shadow(&self, whom: For, bytes: u64, handle: Handle) -> Option<u64> {
        let shadow = self.lock().spans.take(bytes)?;
        if self.reveal(whom, shadow, bytes, handle).is_err() {
            self.lock().spans.give(shadow, bytes);
            return None;
        }
        Some(shadow)
    }
}
