//! The pager's work before a launch: bring the pages that the launch names home, send others away for them.
//!
//! Strict (rule S3): nothing is in flight on any GPU that may reach the pages, and nothing is submitted meanwhile;
//! the caller guarantees both. Pages are moved through *frames*: physical memory that no page uses, mapped for good
//! at a shadow address of its own, so that a copy needs no mapping and a host frame is pinned once.
//!
//! ```text
//! page (address -> old memory)      frame (shadow -> new memory)
//!   copy old -> shadow                                     both directions at once, a wave of pages
//!   wait
//!   unmap address, map address -> new, grant               the commit; a failure maps the old memory again
//! page (address -> new memory)      frame (shadow -> old memory), spare
//! ```
//!
//! Invariants: a frame is spare, or a page's, or in one wave; each is charged to its tier all the time. Before its
//! commit a page's address shows its old memory, and nothing has written there.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use vgmem_policy::{Exchange, PageRef, spill_order};

use crate::device::{Context, Device, DriverError, Handle};
use crate::pool::{Note, Pool, State};
use crate::relocate::wait_firmly;
use crate::tiers::Around;

/// Bytes that one wave copies in one direction, at most: half of the exchange reserve, so that a wave can be under way
/// while the last one is mapped.
fn wave_bytes(exchange: u64) -> u64 {
    (exchange / 2).clamp(1, 256 << 20)
}

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

/// What an exchange did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exchanged {
    /// Pages that came home.
    pub fetched: u64,
    /// Pages that were sent away.
    pub evicted: u64,
    /// Pages that the launch names and that are still elsewhere.
    pub left: u64,
}

/// For whom pages move.
#[derive(Clone, Copy)]
pub(crate) struct For {
    pub(crate) home: u8,
    pub(crate) context: Context,
}

/// One page on its way into a frame.
struct Passage {
    page: PageRef,
    address: u64,
    frame: Frame,
}

/// Pages that travel together.
#[derive(Default)]
struct Wave {
    outbound: Vec<Passage>,
    inbound: Vec<Passage>,
}

impl Wave {
    fn is_empty(&self) -> bool {
        self.outbound.is_empty() && self.inbound.is_empty()
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
    /// Whether pages of this GPU's allocations lie elsewhere. One load: asked at every launch.
    #[inline]
    pub fn is_under_pressure(&self) -> bool {
        self.displaced.load(Ordering::Relaxed)
    }

    /// A launch of a function, by a number of the caller's, names these addresses. Notes the use, and says whether
    /// pages of theirs lie away from `home`.
    pub fn note_launch(&self, home: u8, function: u64, addresses: &[u64]) -> bool {
        let state = self.lock();
        let (named, away) = self.named_pages(&state, home, addresses);
        self.note(Note::Launch(function, named));
        away.iter().any(|(_, tier)| *tier != home as usize)
    }

    /// Brings pages of the named allocations home. See the module's contract.
    pub fn bring(&self, home: u8, context: Context, addresses: &[u64]) -> Result<Exchanged, DriverError> {
        let whom = For { home, context };
        let mut motions = self.lock_motions(home);
        self.finish_motions(&mut motions, |_| true);
        let Exchange { fetch, evict } = self.plan_exchange(whom, addresses);
        let wanted = fetch.len() as u64;
        let (mut fetch, mut evict) = (VecDeque::from(fetch), VecDeque::from(evict));
        let mut done = Exchanged::default();
        let mut landed = Wave::default();
        let answer = loop {
            // The next wave's copies run while the last wave's pages are mapped.
            let next = self.depart(whom, &mut fetch, &mut evict);
            let progress = !next.is_empty() || !landed.is_empty();
            let (came, went) = self.land(whom, std::mem::take(&mut landed));
            done.fetched += came;
            done.evicted += went;
            if !progress {
                break Ok(()); // all is done, or there is no frame anywhere: the rest is used where it lies
            }
            if !self.device.breaks("exchange-copy")
                && let Err(error) = wait_firmly(|| self.device.wait_copies(context))
            {
                self.abandon(next);
                break Err(error);
            }
            landed = next;
        };
        done.left = wanted - done.fetched;
        let mut state = self.lock();
        state.fetched += done.fetched;
        state.evicted += done.evicted;
        drop(state);
        answer.map(|()| done)
    }

    pub(crate) fn named(&self, state: &State, addresses: &[u64]) -> Vec<u32> {
        let mut named: Vec<u32> =
            addresses.iter().filter_map(|&address| self.slot_of(state, address)).collect();
        named.sort_unstable();
        named.dedup();
        named
    }

    /// The objects that a launch wants at home, and their pages as [`Self::movable`] gives them.
    fn named_pages(&self, state: &State, home: u8, addresses: &[u64]) -> (Vec<u32>, Vec<(PageRef, usize)>) {
        let objects = self.objects_named(state, addresses);
        let slots = self.named(state, addresses);
        let all = slots.iter().flat_map(|&slot| self.movable(state, slot, home));
        let pages = all.filter(|(page, _)| objects.binary_search(&page.object).is_ok()).collect();
        (objects, pages)
    }

    /// Pages of an allocation that may move and are mapped, and the tiers where they lie.
    fn movable<'a>(
        &'a self,
        state: &'a State,
        slot: u32,
        home: u8,
    ) -> impl Iterator<Item = (PageRef, usize)> + 'a {
        state.allocations.get(slot).into_iter().flat_map(move |allocation| {
            allocation.pages.iter().filter_map(move |&id| {
                let page = state.pages.get(id)?;
                let moves = page.shown && self.may_move(id, allocation, home);
                let object = allocation.object(slot, id);
                moves.then_some((PageRef { page: id, object, bytes: page.bytes }, page.tier))
            })
        })
    }

    fn plan_exchange(&self, whom: For, addresses: &[u64]) -> Exchange {
        let state = self.lock();
        let home = whom.home as usize;
        let (named, pages) = self.named_pages(&state, whom.home, addresses);
        let of = |slot| self.movable(&state, slot, whom.home);
        let missing: Vec<PageRef> =
            pages.into_iter().filter(|(_, tier)| *tier != home).map(|(page, _)| page).collect();
        let resident: Vec<PageRef> = state
            .allocations
            .iter()
            .flat_map(|(slot, _)| of(slot))
            .filter(|(_, tier)| *tier == home)
            .map(|(page, _)| page)
            .collect();
        let tier = &state.tiers[home];
        let room = tier.capacity.saturating_sub(tier.used - tier.spare);
        drop(state); // a plan takes longer than others may wait
        self.pager().exchange(&named, &missing, &resident, room)
    }

    /// Begins to copy as many pages as there are frames for, both directions at once.
    fn depart(&self, whom: For, fetch: &mut VecDeque<PageRef>, evict: &mut VecDeque<PageRef>) -> Wave {
        let outbound = self.embark(whom, evict, false);
        let inbound = self.embark(whom, fetch, true);
        let begin = |lane: usize, passages: Vec<Passage>| {
            let mut begun = Vec::new();
            for passage in passages {
                let (to, bytes) = (passage.frame.shadow, passage.frame.bytes);
                match self.device.begin_copy(lane, to, passage.address, bytes, whom.context) {
                    Ok(()) => begun.push(passage),
                    Err(_) => self.spare(passage.frame), // not begun: the page stays where it is
                }
            }
            begun
        };
        Wave { outbound: begin(0, outbound), inbound: begin(1, inbound) }
    }

    /// Maps the pages of a wave whose copies are over: (came home, went away).
    fn land(&self, whom: For, wave: Wave) -> (u64, u64) {
        let went =
            wave.outbound.into_iter().map(|p| self.commit(whom, p)).filter(Result::is_ok).count() as u64;
        let came =
            wave.inbound.into_iter().map(|p| self.commit(whom, p)).filter(Result::is_ok).count() as u64;
        (came, went)
    }

    /// The driver would not wait for a wave: its copies may be in flight, so its frames are left alone. No page of it
    /// has moved.
    fn abandon(&self, wave: Wave) {
        let lost: u64 = wave.outbound.iter().chain(&wave.inbound).map(|passage| passage.frame.bytes).sum();
        self.lock().lost += lost;
    }

    /// Finds a frame for each page at the head of the queue, up to a wave.
    fn embark(&self, whom: For, queue: &mut VecDeque<PageRef>, inbound: bool) -> Vec<Passage> {
        let wave = wave_bytes(self.config.gpus[whom.home as usize].exchange);
        let mut passages = Vec::new();
        let mut bytes = 0;
        while let Some(&page) = queue.front() {
            if bytes + page.bytes > wave && bytes > 0 {
                break;
            }
            let frame = if inbound {
                self.take_frame(whom, whom.home as usize, page.bytes)
            } else {
                self.tiers_away(whom).into_iter().find_map(|tier| self.take_frame(whom, tier, page.bytes))
            };
            let Some(frame) = frame else { break };
            queue.pop_front();
            let Some(address) = self.lock().pages.get(page.page).map(|page| page.address) else {
                self.spare(frame);
                continue;
            };
            bytes += page.bytes;
            passages.push(Passage { page, address, frame });
        }
        passages
    }

    /// Whether a GPU is so full that its pages will soon have to go elsewhere.
    pub fn is_nearly_full(&self, home: u8) -> bool {
        let state = self.lock();
        state.tiers.get(home as usize).is_some_and(|tier| tier.used >= tier.capacity / 8 * 7)
    }

    /// Makes the frames in host RAM that pages of this GPU move through, ahead of their first use: pinning them takes
    /// longer than a copy. How many were made.
    pub fn make_frames_ahead(&self, home: u8, context: Context) -> usize {
        let whom = For { home, context };
        let (host, page) = (self.host_tier(), self.config.page_bytes);
        let count = self.config.host_exchange / page;
        let frames: Vec<Frame> = (0..count).map_while(|_| self.take_frame(whom, host, page)).collect();
        let made = frames.len();
        frames.into_iter().for_each(|frame| self.spare(frame));
        made
    }

    /// Tiers other than home, nearest first.
    pub(crate) fn tiers_away(&self, whom: For) -> Vec<usize> {
        let state = self.lock();
        let tiers = self.view(&state, whom.home, &Around::default());
        spill_order(&tiers).into_iter().filter(|&tier| tier != whom.home as usize).collect()
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

    /// Shows the copied page at its address; its old memory becomes a spare frame.
    fn commit(&self, whom: For, passage: Passage) -> Result<(), DriverError> {
        let Passage { page, address, frame } = passage;
        let bytes = page.bytes;
        self.verify(address, bytes, [address, frame.shadow], whom.context);
        let old = {
            let state = self.lock();
            state.pages.get(page.page).map(|page| (page.handle, page.tier, page.shadow))
        };
        let Some((handle, tier, shadow)) = old else {
            self.spare(frame);
            return Err(DriverError::INVALID_VALUE);
        };
        if let Err(error) = self.device.unmap(address, bytes) {
            self.spare(frame);
            return Err(error);
        }
        let access = 1 << whom.home;
        if let Err(error) = self.show_at(address, bytes, access, frame.handle) {
            if self.device.breaks("rollback") || self.show_at(address, bytes, access, handle).is_err() {
                self.lock().lost += bytes; // the address shows nothing: a use of it is loud
            }
            self.spare(frame);
            return Err(error);
        }
        let shadow = if shadow != 0 { Some(shadow) } else { self.new_shadow(whom, bytes, handle) };
        {
            let mut state = self.lock();
            state.give_up_twin(page.page);
            if let Some(page) = state.pages.get_mut(page.page) {
                (page.handle, page.tier, page.shadow) = (frame.handle, frame.tier, frame.shadow);
                page.print = None;
            }
        }
        match shadow {
            Some(shadow) => self.spare(Frame { handle, tier, bytes, shadow, home: whom.home }),
            None => {
                let released = self.device.release(self.place(tier, whom.home), bytes, handle).is_ok();
                let mut state = self.lock();
                if released {
                    state.uncharge(tier, bytes);
                } else {
                    state.lost += bytes;
                }
            }
        }
        Ok(())
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
