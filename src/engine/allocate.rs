//! Making an allocation: plan, create, map, grant, publish; undone in reverse when anything fails.

use std::sync::atomic::Ordering;

use vgmem_policy::{GRANULE, Shortage, pieces, place, round_up};

use crate::device::{Device, DriverError, Handle};
use crate::frames::Frame;
use crate::map::PageId;
use crate::pool::{Allocation, Page, Pool, Request, State};
use crate::tiers::Around;
use crate::uses::Uses;

/// Bytes and tier of each piece, in address order.
type Plan = Vec<(u64, usize)>;

/// Bytes that one piece takes on one tier.
#[derive(Clone, Copy, Debug)]
struct Piece {
    bytes: u64,
    tier: usize,
}

/// A piece that is mapped. Its memory may have been a spare frame, with a shadow mapping; 0 is none.
#[derive(Clone, Copy, Debug)]
struct Made {
    piece: Piece,
    handle: Handle,
    shadow: u64,
}

/// An allocation under construction. Every planned and every made piece is charged to its tier.
struct Build {
    base: u64,
    span: u64,
    /// Pieces still to be made, last first.
    planned: Vec<Piece>,
    made: Vec<Made>,
    /// Tiers on which the driver had no memory during this allocation.
    full: Vec<usize>,
    /// GPUs that were given access, one bit each.
    access: u64,
}

impl Build {
    fn mapped(&self) -> u64 {
        self.made.iter().map(|made| made.piece.bytes).sum()
    }
}

impl<D: Device> Pool<D> {
    /// Makes an allocation and returns its address.
    ///
    /// Errors are the driver's: out of memory when neither the GPUs nor the host have room, and whatever a
    /// driver call answered otherwise. After an error nothing is left behind.
    pub fn allocate(&self, request: Request) -> Result<u64, DriverError> {
        self.collect();
        self.note_context(request.home, request.context);
        if let Some(address) = self.reuse(request) {
            return Ok(address);
        }
        let answer = self.begin(request).and_then(|mut build| match self.construct(request, &mut build) {
            Ok(()) => Ok(self.publish(request, build)),
            Err(error) => {
                self.roll_back(request.home, build);
                Err(error)
            }
        });
        if answer == Err(DriverError::OUT_OF_MEMORY) {
            self.lock().refused += 1;
        }
        answer
    }

    fn begin(&self, request: Request) -> Result<Build, DriverError> {
        let span = round_up(request.bytes, GRANULE).ok_or(DriverError::OUT_OF_MEMORY)?;
        let mut around = Around { home_free: self.device.free_bytes(request.home), ..Around::default() };
        let elsewhere = |plan: &Plan| plan.iter().any(|&(_, tier)| tier != request.home as usize);
        let mut first = self.plan(&self.lock(), request, span, &around);
        // What was kept for later comes before other tiers.
        if first.as_ref().map_or(true, elsewhere) && self.release_kept() > 0 {
            around.home_free = self.device.free_bytes(request.home);
            first = self.plan(&self.lock(), request, span, &around);
        }
        if first.is_err() && self.release_spare() > 0 {
            first = self.plan(&self.lock(), request, span, &around);
        }
        // Asking the machine costs tens of microseconds: only allocations that overflow pay it.
        if elsewhere(&first?) {
            around.host_free = Some(self.device.host_available());
            around.taken = self.homes_of_others(request.home);
            // The machine may have less than the books say: what is kept for speed goes first.
            if self.plan(&self.lock(), request, span, &around).is_err() && self.release_spare() > 0 {
                around.host_free = Some(self.device.host_available());
            }
        }
        let mut state = self.lock();
        // Planned again under the lock that books it: another thread may have taken room meanwhile.
        let plan = self.plan(&state, request, span, &around)?;
        let base = state.spans.take(span).ok_or(DriverError::OUT_OF_MEMORY)?;
        let planned: Vec<Piece> = plan.into_iter().rev().map(|(bytes, tier)| Piece { bytes, tier }).collect();
        for piece in &planned {
            state.charge(piece.tier, piece.bytes);
        }
        Ok(Build { base, span, planned, made: Vec::new(), full: Vec::new(), access: 0 })
    }

    fn plan(&self, state: &State, request: Request, span: u64, around: &Around) -> Result<Plan, DriverError> {
        let tiers = self.view(state, request.home, around);
        place(self.config.placement, &tiers, pieces(span, self.config.page_bytes))
            .map_err(|Shortage { .. }| DriverError::OUT_OF_MEMORY)
    }

    /// GPUs other than `home` that are home to another process.
    fn homes_of_others(&self, home: u8) -> Vec<u8> {
        let gpus = self.config.gpus.iter().enumerate().map(|(gpu, config)| (gpu as u8, config.capacity));
        let others = gpus.filter(|&(gpu, capacity)| gpu != home && capacity > 0);
        others.map(|(gpu, _)| gpu).filter(|&gpu| self.device.is_home_of_others(gpu)).collect()
    }

    fn construct(&self, request: Request, build: &mut Build) -> Result<(), DriverError> {
        let mut address = build.base;
        while let Some(&piece) = build.planned.last() {
            if let Some(frame) = self.spare_for(piece, request.home) {
                if let Err(error) = self.device.map(address, piece.bytes, frame.handle) {
                    self.spare(frame);
                    return Err(error);
                }
                // The frame was charged before: the plan's charge goes.
                self.lock().uncharge(piece.tier, piece.bytes);
                build.planned.pop();
                build.made.push(Made { piece, handle: frame.handle, shadow: frame.shadow });
                address += piece.bytes;
                continue;
            }
            let handle = match self.device.create(self.place(piece.tier, request.home), piece.bytes) {
                Ok(handle) => handle,
                // The books said there is room but the driver has none: others use the GPU too.
                Err(DriverError::OUT_OF_MEMORY) if self.release_unused() > 0 => continue,
                Err(DriverError::OUT_OF_MEMORY) => {
                    self.plan_again(request, build, piece.tier)?;
                    continue;
                }
                Err(error) => return Err(error),
            };
            if let Err(error) = self.device.map(address, piece.bytes, handle) {
                if !self.give_up(request.home, handle, piece) {
                    build.planned.pop(); // stays charged
                }
                return Err(error);
            }
            build.planned.pop();
            build.made.push(Made { piece, handle, shadow: 0 });
            address += piece.bytes;
        }
        build.access = 1 << request.home | self.peers_of(request.home);
        for gpu in (0..64u8).filter(|&gpu| build.access >> gpu & 1 == 1) {
            self.device.grant(build.base, build.span, gpu)?;
        }
        Ok(())
    }

    fn peers_of(&self, home: u8) -> u64 {
        self.lock().peers.get(home as usize).copied().unwrap_or(0)
    }

    /// Moves what is still planned away from a tier on which the driver has no memory left.
    fn plan_again(&self, request: Request, build: &mut Build, full: usize) -> Result<(), DriverError> {
        build.full.push(full);
        let around = Around {
            home_free: None,
            host_free: Some(self.device.host_available()),
            taken: self.homes_of_others(request.home),
        };
        let mut state = self.lock();
        for piece in &build.planned {
            state.uncharge(piece.tier, piece.bytes);
        }
        let mut tiers = self.view(&state, request.home, &around);
        for &tier in &build.full {
            tiers[tier].room = 0;
        }
        let sizes: Vec<u64> = build.planned.iter().rev().map(|piece| piece.bytes).collect();
        build.planned.clear();
        let plan = place(self.config.placement, &tiers, sizes.into_iter())
            .map_err(|Shortage { .. }| DriverError::OUT_OF_MEMORY)?;
        build.planned = plan.into_iter().rev().map(|(bytes, tier)| Piece { bytes, tier }).collect();
        for piece in &build.planned {
            state.charge(piece.tier, piece.bytes);
        }
        Ok(())
    }

    fn publish(&self, request: Request, build: Build) -> u64 {
        let elsewhere = build.made.iter().any(|made| made.piece.tier != request.home as usize);
        let mut state = self.lock();
        state.serial += 1;
        let serial = state.serial;
        let slot = state.allocations.insert(Allocation {
            base: build.base,
            bytes: request.bytes,
            span: build.span,
            home: request.home,
            context: request.context,
            serial,
            pages: Vec::with_capacity(build.made.len()),
            uses: Uses::default(),
            pinned: false,
            parts: None,
        });
        let mut address = build.base;
        for Made { piece: Piece { bytes, tier }, handle, shadow } in build.made {
            let page = Page { shadow, ..Page::new(slot, address, bytes, tier, handle) };
            let id = state.pages.insert(page);
            self.map.publish(PageId(id), address, bytes, build.access);
            if let Some(allocation) = state.allocations.get_mut(slot) {
                allocation.pages.push(id);
            }
            address += bytes;
        }
        if elsewhere {
            self.displaced.store(true, Ordering::Relaxed);
        }
        self.large.fetch_or(state.may_be_divided(slot), Ordering::Relaxed);
        self.note_large(&state, slot);
        state.made += 1;
        state.note_peak();
        let late = state.peers.get(request.home as usize).is_some_and(|peers| peers & !build.access != 0);
        drop(state);
        if late {
            // A peer was enabled while this allocation was being made.
            self.grant_peers(build.base, build.span, request.home);
        }
        build.base
    }

    /// An allocation from memory that was kept: no driver call at all.
    fn reuse(&self, request: Request) -> Option<u64> {
        let span = round_up(request.bytes, GRANULE)?;
        let mut state = self.lock();
        let index = state.kept.iter().rposition(|kept| kept.span == span && kept.home == request.home)?;
        let mut allocation = state.kept.remove(index);
        state.serial += 1;
        allocation.serial = state.serial;
        allocation.bytes = request.bytes;
        allocation.context = request.context;
        allocation.uses = Uses::default();
        allocation.pinned = false;
        let (base, pages) = (allocation.base, allocation.pages.clone());
        let slot = state.allocations.insert(allocation);
        for id in pages {
            if let Some(page) = state.pages.get_mut(id) {
                page.allocation = slot;
                let (address, bytes, tier) = (page.address, page.bytes, page.tier);
                self.map.publish(PageId(id), address, bytes, self.map.access_of(PageId(id)));
                state.tiers[tier].kept -= bytes;
            }
        }
        self.large.fetch_or(state.may_be_divided(slot), Ordering::Relaxed);
        self.note_large(&state, slot);
        state.made += 1;
        state.note_peak();
        drop(state);
        self.grant_peers(base, span, request.home);
        Some(base)
    }

    fn roll_back(&self, home: u8, build: Build) {
        let mapped = build.mapped();
        if mapped > 0 && self.device.unmap(build.base, mapped).is_err() {
            // Still mapped: neither the addresses nor the memory can be used again.
            let mut state = self.lock();
            state.lost += mapped;
            for piece in &build.planned {
                state.uncharge(piece.tier, piece.bytes);
            }
            return;
        }
        let mut released = Vec::new();
        for Made { piece, handle, shadow } in build.made {
            if shadow != 0 {
                self.spare(Frame { handle, tier: piece.tier, bytes: piece.bytes, shadow, home });
            } else if self.give_up(home, handle, piece) {
                released.push(piece);
            }
        }
        let mut state = self.lock();
        for piece in build.planned.iter().chain(&released) {
            state.uncharge(piece.tier, piece.bytes);
        }
        state.spans.give(build.base, build.span);
    }

    /// A spare frame for a piece that lies away from home. At home the pager's frames are its reserve.
    fn spare_for(&self, piece: Piece, home: u8) -> Option<Frame> {
        let away = piece.tier != home as usize;
        away.then(|| self.lock().take_spare(piece.tier, piece.bytes, home)).flatten()
    }

    /// Releases one piece. What the driver does not take back counts as lost and stays charged.
    fn give_up(&self, home: u8, handle: Handle, piece: Piece) -> bool {
        let released = self.device.release(self.place(piece.tier, home), piece.bytes, handle).is_ok();
        if !released {
            self.lock().lost += piece.bytes;
        }
        released
    }
}
