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
//! A page that comes home leaves the frame in host RAM behind as its twin (see `twins`), and goes without a copy if its
//! fingerprint is still that of the twin: nothing runs meanwhile that could write.
//!
//! Invariants: a frame is spare, or a page's, or in one wave; each is charged to its tier all the time. Before its
//! commit a page's address shows its old memory, and nothing has written there.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use vgmem_policy::{Exchange, PageRef, spill_order};

use crate::device::{Context, Device, DriverError, Taken, Taking};
use crate::frames::Frame;
use crate::parts::PART;
use crate::pool::{Note, Pool, State};
use crate::relocate::wait_firmly;
use crate::tiers::Around;
use crate::twins::Twin;

/// Bytes that one wave copies in one direction, at most: half of the exchange reserve, so that a wave can be under way
/// while the last one is mapped.
fn wave_bytes(exchange: u64) -> u64 {
    (exchange / 2).clamp(1, 256 << 20)
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
    /// The frame is its twin's: no copy is made, but the page compared.
    comparing: Option<Comparing>,
}

/// A page's fingerprint that is being taken, and its twin's.
#[derive(Clone, Copy)]
struct Comparing {
    taking: Taking,
    print: u128,
    since: u64,
}

/// A page that has come home, the frame that it came from, and its fingerprint that is being taken.
struct Arrival {
    page: u32,
    from: Frame,
    taking: Taking,
    since: u64,
}

/// Pages that are to move: those that come, and those that go, with whether it is worth while to ask if they were
/// written.
struct Queues {
    fetch: VecDeque<PageRef>,
    evict: VecDeque<(PageRef, bool)>,
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

impl<D: Device> Pool<D> {
    /// Whether pages of this GPU's allocations lie elsewhere. One load: asked at every launch.
    #[inline]
    pub fn is_under_pressure(&self) -> bool {
        self.displaced.load(Ordering::Relaxed)
    }

    /// A launch of a function, by a number of the caller's, names these addresses. Notes the use, and says whether
    /// pages of theirs lie away from `home`.
    pub fn note_launch(&self, home: u8, function: u64, addresses: &[u64]) -> bool {
        let mut state = self.lock();
        let named = self.objects_named(&state, addresses);
        let is_away = self.away(&state, &named, home).next().is_some();
        let away = is_away && !state.is_vain(home, &named);
        self.note(Note::Launch(function, named));
        away
    }

    /// Brings pages of the named allocations home. See the module's contract.
    pub fn bring(&self, home: u8, context: Context, addresses: &[u64]) -> Result<Exchanged, DriverError> {
        let whom = For { home, context };
        let mut motions = self.lock_motions(home);
        self.finish_motions(&mut motions, |_| true);
        self.settle_late();
        let Exchange { fetch, evict } = self.plan_exchange(whom, addresses);
        let wanted = fetch.len() as u64;
        let evict = evict.into_iter().map(|page| (page, true)).collect();
        let mut queues = Queues { fetch: fetch.into(), evict };
        let mut done = Exchanged::default();
        let mut landed = Wave::default();
        let mut arrivals = Vec::new();
        let answer = loop {
            self.leave_twins(whom, std::mem::take(&mut arrivals));
            // The next wave's copies run while the last wave's pages are mapped.
            let mut next = self.depart(whom, &mut queues);
            let progress = !next.is_empty() || !landed.is_empty();
            done.evicted += self.let_unwritten_go(whom, &mut next, &mut queues);
            let (came, went) = self.land(whom, std::mem::take(&mut landed), &mut arrivals);
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
        self.leave_twins(whom, arrivals);
        done.left = wanted - done.fetched;
        let mut state = self.lock();
        state.fetched += done.fetched;
        state.evicted += done.evicted;
        if done.fetched == 0 && done.evicted == 0 && answer.is_ok() {
            let named = self.objects_named(&state, addresses);
            if self.away(&state, &named, home).next().is_some() {
                state.note_vain(home, &named); // it does not fit, or no frame can be had anywhere
            }
        }
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

    /// Pages of these objects that may move and are mapped, and lie away from `home`.
    fn away<'a>(
        &'a self,
        state: &'a State,
        objects: &'a [u32],
        home: u8,
    ) -> impl Iterator<Item = PageRef> + 'a {
        let all = objects.iter().flat_map(move |&object| {
            let page = (object & PART != 0).then_some(object & !PART);
            let whole = state.allocations.get(object).filter(|_| page.is_none());
            page.into_iter().chain(whole.into_iter().flat_map(|allocation| allocation.pages.iter().copied()))
        });
        all.filter_map(move |id| self.movable(state, id, home))
            .filter(move |(_, tier)| *tier != home as usize)
            .map(|(page, _)| page)
    }

    /// A page that may move and is mapped, and the tier where it lies.
    fn movable(&self, state: &State, id: u32, home: u8) -> Option<(PageRef, usize)> {
        let page = state.pages.get(id)?;
        let allocation = state.allocations.get(page.allocation)?;
        let object = allocation.object(page.allocation, id);
        let moves = page.shown && self.may_move(id, allocation, home);
        moves.then_some((page.of(id, object), page.tier))
    }

    fn plan_exchange(&self, whom: For, addresses: &[u64]) -> Exchange {
        let state = self.lock();
        let home = whom.home as usize;
        let named = self.objects_named(&state, addresses);
        let missing: Vec<PageRef> = self.away(&state, &named, whom.home).collect();
        let resident: Vec<PageRef> = state
            .allocations
            .iter()
            .flat_map(|(_, allocation)| &allocation.pages)
            .filter_map(|&id| self.movable(&state, id, whom.home))
            .filter(|(_, tier)| *tier == home)
            .map(|(page, _)| page)
            .collect();
        let tier = &state.tiers[home];
        let room = tier.capacity.saturating_sub(tier.used - tier.spare);
        drop(state); // a plan takes longer than others may wait
        self.pager().exchange(&named, &missing, &resident, room)
    }

    /// Begins to copy as many pages as there are frames for, both directions at once.
    fn depart(&self, whom: For, queues: &mut Queues) -> Wave {
        let outbound = self.embark_out(whom, &mut queues.evict);
        let inbound = self.embark_home(whom, &mut queues.fetch);
        let begin = |lane: usize, passages: Vec<Passage>| {
            let mut begun = Vec::new();
            for passage in passages {
                let (to, bytes) = (passage.frame.shadow, passage.frame.bytes);
                let copies =
                    || self.device.begin_copy(lane, to, passage.address, bytes, whom.context).is_ok();
                match passage.comparing.is_some() || copies() {
                    true => begun.push(passage),
                    false => self.spare(passage.frame), // not begun: the page stays where it is
                }
            }
            begun
        };
        Wave { outbound: begin(0, outbound), inbound: begin(1, inbound) }
    }

    /// Lets the pages of a wave go that were not written, while its copies run: mapping a page in host RAM takes nearly
    /// as long as a copy. Those that were written are to go once more. How many went.
    fn let_unwritten_go(&self, whom: For, wave: &mut Wave, queues: &mut Queues) -> u64 {
        let (comparing, copying): (Vec<_>, Vec<_>) =
            std::mem::take(&mut wave.outbound).into_iter().partition(|passage| passage.comparing.is_some());
        wave.outbound = copying;
        let mut went = 0;
        for passage in comparing {
            let page = passage.page;
            match self.compared(whom, passage) {
                None => queues.evict.push_front((page, false)),
                Some(passage) => went += u64::from(self.commit_and_spare(whom, passage)),
            }
        }
        went
    }

    /// Maps the pages of a wave whose copies are over: (came home, went away).
    fn land(&self, whom: For, wave: Wave, arrivals: &mut Vec<Arrival>) -> (u64, u64) {
        let (mut came, mut went) = (0, 0);
        for passage in wave.outbound {
            went += u64::from(self.commit_and_spare(whom, passage));
        }
        for passage in wave.inbound {
            let (page, shadow) = (passage.page, passage.frame.shadow);
            if let Ok(old) = self.commit(whom, passage) {
                came += 1;
                arrivals.extend(old.and_then(|old| self.arrived(whom, page, shadow, old)));
            }
        }
        (came, went)
    }

    /// Shows a page in its new place; whether that could be done.
    fn commit_and_spare(&self, whom: For, passage: Passage) -> bool {
        let old = self.commit(whom, passage);
        let done = old.is_ok();
        old.ok().flatten().into_iter().for_each(|old| self.spare(old));
        done
    }

    /// A page has come home from a frame, which may become its twin.
    fn arrived(&self, whom: For, page: PageRef, shadow: u64, from: Frame) -> Option<Arrival> {
        // One that is mostly written goes without the question next time, too.
        let asks = self.lock().pages.get(page.page).is_some_and(|page| page.habit.asks());
        let may_be_twin = asks && from.tier == self.host_tier() && !self.config.copies_all;
        let begin = || self.device.begin_print(shadow, page.bytes, whom.context).ok();
        let Some(taking) = may_be_twin.then(begin).flatten() else {
            self.spare(from);
            return None;
        };
        let since = self.lock().fetched;
        Some(Arrival { page: page.page, from, taking, since })
    }

    /// Makes the frames twins that pages came home from.
    fn leave_twins(&self, whom: For, arrivals: Vec<Arrival>) {
        for Arrival { page, from, taking, since } in arrivals {
            match self.taken(whom, page, taking) {
                Some(print) => self.leave_behind(page, Twin { frame: from, print, since }),
                None => self.spare(from),
            }
        }
    }

    /// Waits for a page's fingerprint, which reads it at its shadow address; nothing else runs.
    fn taken(&self, whom: For, page: u32, taking: Taking) -> Option<u128> {
        loop {
            match self.device.print(taking, whom.context) {
                Taken::Pending => std::thread::yield_now(),
                Taken::Print(print) => return Some(print),
                Taken::Never => return None,
                Taken::Late => {
                    self.leave_shadow_to_late(page, taking, whom);
                    return None;
                }
            }
        }
    }

    /// The passage, if its page need not be copied or has been; `None` where it has to be after all.
    fn compared(&self, whom: For, passage: Passage) -> Option<Passage> {
        let Some(Comparing { taking, print, since }) = passage.comparing else { return Some(passage) };
        let now = self.taken(whom, passage.page.page, taking);
        let same = now == Some(print) || self.device.breaks("unwritten");
        {
            let mut state = self.lock();
            state.unwritten += u64::from(same);
            if let Some(page) = state.pages.get_mut(passage.page.page).filter(|_| now.is_some()) {
                page.habit.found(!same);
            }
        }
        if same {
            return Some(passage);
        }
        self.keep_twin(passage.page.page, Twin { frame: passage.frame, print, since });
        None
    }

    /// The driver would not wait for a wave: its copies may be in flight, so its frames are left alone. No page of it
    /// has moved.
    fn abandon(&self, wave: Wave) {
        let lost: u64 = wave.outbound.iter().chain(&wave.inbound).map(|passage| passage.frame.bytes).sum();
        self.lock().lost += lost;
    }

    /// Finds a frame for each page at the head of the queue that comes home, up to a wave.
    fn embark_home(&self, whom: For, queue: &mut VecDeque<PageRef>) -> Vec<Passage> {
        let wave = wave_bytes(self.config.gpus[whom.home as usize].exchange);
        let mut passages = Vec::new();
        let mut bytes = 0;
        while let Some(&page) = queue.front() {
            if bytes + page.bytes > wave && bytes > 0 {
                break;
            }
            let Some(frame) = self.take_frame(whom, whom.home as usize, page.bytes) else { break };
            queue.pop_front();
            bytes += page.bytes;
            passages.extend(self.passage(page, frame));
        }
        passages
    }

    /// As above for pages that go: into their twins, if they have any.
    fn embark_out(&self, whom: For, queue: &mut VecDeque<(PageRef, bool)>) -> Vec<Passage> {
        let wave = wave_bytes(self.config.gpus[whom.home as usize].exchange);
        let mut passages = Vec::new();
        let mut bytes = 0;
        while let Some(&(page, may_ask)) = queue.front() {
            if bytes + page.bytes > wave && bytes > 0 {
                break;
            }
            let (asks, twin) = self.take_twin(page.page);
            let (frame, known) = match twin {
                Some(twin) => (Some(twin.frame), Some((twin.print, twin.since))),
                None => {
                    let mut tiers = self.tiers_away(whom).into_iter();
                    (tiers.find_map(|tier| self.take_frame(whom, tier, page.bytes)), None)
                }
            };
            let Some(frame) = frame else { break };
            queue.pop_front();
            bytes += page.bytes;
            let Some(mut passage) = self.passage(page, frame) else { continue };
            let shadow = self.lock().pages.get_mut(page.page).map_or(0, |one| {
                one.habit.goes();
                one.shadow
            });
            if let Some((print, since)) = known.filter(|_| asks && may_ask && shadow != 0) {
                let taking = self.device.begin_print(shadow, page.bytes, whom.context).ok();
                passage.comparing = taking.map(|taking| Comparing { taking, print, since });
            }
            passages.push(passage);
        }
        passages
    }

    /// A page that goes into a frame; a page that is gone needs none.
    fn passage(&self, page: PageRef, frame: Frame) -> Option<Passage> {
        let address = self.lock().pages.get(page.page).map(|page| page.address);
        if address.is_none() {
            self.spare(frame);
            return None;
        }
        Some(Passage { page, address: address?, frame, comparing: None })
    }

    /// Whether a GPU is so full that its pages will soon have to go elsewhere.
    pub fn is_nearly_full(&self, home: u8) -> bool {
        let state = self.lock();
        state.tiers.get(home as usize).is_some_and(|tier| tier.used >= tier.capacity / 8 * 7)
    }

    /// Tiers other than home, nearest first.
    pub(crate) fn tiers_away(&self, whom: For) -> Vec<usize> {
        let state = self.lock();
        let tiers = self.view(&state, whom.home, &Around::default());
        spill_order(&tiers).into_iter().filter(|&tier| tier != whom.home as usize).collect()
    }

    /// Shows a page at its address in the frame that holds its bytes; its old memory as a frame.
    fn commit(&self, whom: For, passage: Passage) -> Result<Option<Frame>, DriverError> {
        let Passage { page, address, frame, .. } = passage;
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
        if let Some(shadow) = shadow {
            return Ok(Some(Frame { handle, tier, bytes, shadow, home: whom.home }));
        }
        if self.lock().hand_to_late(handle) {
            return Ok(None);
        }
        let released = self.device.release(self.place(tier, whom.home), bytes, handle).is_ok();
        let mut state = self.lock();
        if released {
            state.uncharge(tier, bytes);
        } else {
            state.lost += bytes;
        }
        Ok(None)
    }
}
