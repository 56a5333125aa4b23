//! Making an allocation: plan, create, map, grant, publish; undone in reverse when anything fails.

use vgmem_policy::{GRANULE, Shortage, pieces, place, round_up};

use crate::device::{Device, DriverError, Handle};
use crate::map::PageId;
use crate::pool::{Allocation, Around, Page, Pool, Request, State};

/// Bytes that one piece takes on one tier.
#[derive(Clone, Copy, Debug)]
struct Piece {
    bytes: u64,
    tier: usize,
}

/// An allocation under construction. Every planned and every made piece is charged to its tier.
struct Build {
    base: u64,
    span: u64,
    /// Pieces still to be made, last first.
    planned: Vec<Piece>,
    made: Vec<(Piece, Handle)>,
    /// Tiers on which the driver had no memory during this allocation.
    full: Vec<usize>,
}

impl Build {
    fn mapped(&self) -> u64 {
        self.made.iter().map(|(piece, _)| piece.bytes).sum()
    }
}

impl<D: Device> Pool<D> {
    /// Makes an allocation and returns its address.
    ///
    /// Errors are the driver's: out of memory when neither the GPUs nor the host have room, and whatever a
    /// driver call answered otherwise. After an error nothing is left behind.
    pub fn allocate(&self, request: Request) -> Result<u64, DriverError> {
        self.collect();
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
        let first = self.plan(&self.lock(), request, span, &around)?;
        // Asking the machine costs tens of microseconds: only allocations that overflow pay it.
        if first.iter().any(|&(_, tier)| tier != request.home as usize) {
            around.host_free = Some(self.device.host_available());
            around.taken = self.homes_of_others(request.home);
        }
        let mut state = self.lock();
        // Planned again under the lock that books it: another thread may have taken room meanwhile.
        let plan = self.plan(&state, request, span, &around)?;
        let base = state.spans.take(span).ok_or(DriverError::OUT_OF_MEMORY)?;
        let planned: Vec<Piece> = plan.into_iter().rev().map(|(bytes, tier)| Piece { bytes, tier }).collect();
        for piece in &planned {
            state.charge(piece.tier, piece.bytes);
        }
        Ok(Build { base, span, planned, made: Vec::new(), full: Vec::new() })
    }

    fn plan(
        &self,
        state: &State,
        request: Request,
        span: u64,
        around: &Around,
    ) -> Result<Vec<(u64, usize)>, DriverError> {
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
            let handle = match self.device.create(self.place(piece.tier, request.home), piece.bytes) {
                Ok(handle) => handle,
                // The books said there is room but the driver has none: others use the GPU too.
                Err(DriverError::OUT_OF_MEMORY) => {
                    self.plan_again(request, build, piece.tier)?;
                    continue;
                }
                Err(error) => return Err(error),
            };
            if let Err(error) = self.device.map(address, piece.bytes, handle) {
                self.give_up(request.home, handle, piece);
                return Err(error);
            }
            build.planned.pop();
            build.made.push((piece, handle));
            address += piece.bytes;
        }
        let peers = self.lock().peers.get(request.home as usize).copied().unwrap_or(0);
        for gpu in (0..64u8).filter(|&gpu| (peers | 1 << request.home) >> gpu & 1 == 1) {
            self.device.grant(build.base, build.span, gpu)?;
        }
        Ok(())
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
        let mut state = self.lock();
        state.serial += 1;
        let serial = state.serial;
        let peers = state.peers.get(request.home as usize).copied().unwrap_or(0);
        let slot = state.allocations.insert(Allocation {
            base: build.base,
            bytes: request.bytes,
            span: build.span,
            home: request.home,
            context: request.context,
            serial,
            pages: Vec::with_capacity(build.made.len()),
            users: vec![(request.home, request.context)],
        });
        let mut address = build.base;
        for (piece, handle) in build.made {
            let Piece { bytes, tier } = piece;
            let id = state.pages.insert(Page { allocation: slot, address, bytes, tier, handle });
            self.map.publish(PageId(id), address, bytes, peers | 1 << request.home);
            if let Some(allocation) = state.allocations.get_mut(slot) {
                allocation.pages.push(id);
            }
            address += bytes;
        }
        state.made += 1;
        state.note_peak();
        build.base
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
        for &(piece, handle) in &build.made {
            self.give_up(home, handle, piece);
        }
        let mut state = self.lock();
        for piece in build.planned.iter().chain(build.made.iter().map(|(piece, _)| piece)) {
            state.uncharge(piece.tier, piece.bytes);
        }
        state.spans.give(build.base, build.span);
    }

    fn give_up(&self, home: u8, handle: Handle, piece: Piece) {
        if self.device.release(self.place(piece.tier, home), piece.bytes, handle).is_err() {
            self.lock().lost += piece.bytes;
        }
    }
}
