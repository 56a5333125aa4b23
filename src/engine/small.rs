//! Small allocations in shared pages, for when the driver has no room for them itself.
//!
//! A chunk is an ordinary allocation of one granule that is cut into blocks. Blocks of one context share a chunk,
//! so that the chunk ends with the context.

use std::collections::BTreeMap;

use vgmem_policy::GRANULE;

use crate::device::{Device, DriverError};
use crate::free::{Freed, Waited};
use crate::pool::{Pool, Request, State};

/// Blocks begin at multiples of this, as programs expect of `cuMemAlloc` (API: 256 promised, 512 assumed).
const ALIGN: u64 = 512;

/// One block, by its offset in the chunk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    /// Bytes asked for.
    pub(crate) bytes: u64,
    /// Number that no other allocation of the process has.
    pub(crate) serial: u64,
    /// Freed by the program, but work may still use it: nobody else gets it, and no address finds it.
    dying: bool,
}

/// A block that the program has freed and that is still there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DyingBlock {
    slot: u32,
    address: u64,
    serial: u64,
}

/// The blocks of one chunk.
#[derive(Debug, Default)]
pub(crate) struct Chunk {
    blocks: BTreeMap<u64, Block>,
}

impl Chunk {
    /// The block that holds the byte at `offset`, and where it begins.
    pub(crate) fn block_at(&self, offset: u64) -> Option<(u64, Block)> {
        let (&start, &block) = self.blocks.range(..=offset).next_back()?;
        (offset < start + block.bytes && !block.dying).then_some((start, block))
    }

    /// The first gap of `bytes` bytes.
    fn gap(&self, bytes: u64) -> Option<u64> {
        let mut start = 0;
        for (&offset, block) in &self.blocks {
            if offset - start >= bytes {
                return Some(start);
            }
            start = (offset + block.bytes).next_multiple_of(ALIGN);
        }
        (start + bytes <= GRANULE).then_some(start)
    }
}

impl<D: Device> Pool<D> {
    /// Makes a small allocation (less than 2 MiB) in a page shared with others of its context.
    pub fn allocate_small(&self, request: Request) -> Result<u64, DriverError> {
        if request.bytes > GRANULE / 2 {
            return self.allocate(request);
        }
        if let Some(address) = self.place_block(&mut self.lock(), request) {
            return Ok(address);
        }
        let base = self.allocate(Request { bytes: GRANULE, ..request })?;
        let mut state = self.lock();
        let slot = self.slot_of(&state, base).ok_or(DriverError::OUT_OF_MEMORY)?;
        // Into this one, though another thread may have made a chunk meanwhile: an empty one would never go.
        state.serial += 1;
        let block = Block { bytes: request.bytes, serial: state.serial, dying: false };
        state.chunks.insert(slot, Chunk { blocks: BTreeMap::from([(0, block)]) });
        Ok(base)
    }

    fn place_block(&self, state: &mut State, request: Request) -> Option<u64> {
        let State { chunks, allocations, serial, .. } = state;
        for (&slot, chunk) in chunks.iter_mut() {
            let Some(allocation) = allocations.get(slot) else { continue };
            if (allocation.home, allocation.context) != (request.home, request.context) {
                continue;
            }
            if let Some(offset) = chunk.gap(request.bytes) {
                *serial += 1;
                chunk.blocks.insert(offset, Block { bytes: request.bytes, serial: *serial, dying: false });
                return Some(allocation.base + offset);
            }
        }
        None
    }

    /// The allocation that holds a pooled address.
    pub(crate) fn slot_of(&self, state: &State, address: u64) -> Option<u32> {
        let page = state.pages.get(self.map.lookup(address)?.0)?;
        state.allocations.get(page.allocation).map(|_| page.allocation)
    }

    /// Frees a block after the work that may use it; `None` where `slot` is no chunk.
    pub(crate) fn free_block(&self, slot: u32, address: u64) -> Option<Freed> {
        let invalid = Some(Freed::Done(Err(DriverError::INVALID_VALUE)));
        let dying = {
            let mut state = self.lock();
            let State { chunks, allocations, dying_blocks, .. } = &mut *state;
            let chunk = chunks.get_mut(&slot)?;
            let Some(allocation) = allocations.get(slot) else { return invalid };
            let serial = match chunk.blocks.get_mut(&(address - allocation.base)) {
                Some(block) if !block.dying => {
                    block.dying = true;
                    block.serial
                }
                _ => return invalid,
            };
            let dying = DyingBlock { slot, address, serial };
            if self.on_hold() {
                dying_blocks.push(dying); // during a capture nothing can be waited for
                return Some(Freed::Done(Ok(())));
            }
            dying
        };
        self.finish_block(dying)
    }

    /// Frees blocks that the program freed while the pool was on hold.
    pub(crate) fn collect_blocks(&self) {
        let blocks = std::mem::take(&mut self.lock().dying_blocks);
        for block in blocks {
            // The program was told that the free went well; a failure shows in its own next call.
            let _ = self.finish_block(block);
        }
    }

    fn finish_block(&self, DyingBlock { slot, address, serial }: DyingBlock) -> Option<Freed> {
        let invalid = Some(Freed::Done(Err(DriverError::INVALID_VALUE)));
        let (waits, own) = {
            let state = self.lock();
            let allocation = state.allocations.get(slot)?;
            let block = state.chunks.get(&slot)?.blocks.get(&address.checked_sub(allocation.base)?)?;
            if !block.dying || block.serial != serial {
                return None; // it went with its context, and the numbers are others'
            }
            (self.waits(&state, allocation), allocation.context)
        };
        // Where the driver refuses to wait, work may be in flight: the block is given up, until its context ends.
        let drained = match self.wait_for(waits, own) {
            Waited::Over(answer) => answer,
            Waited::Refused(error) => return Some(Freed::Done(Err(error))),
        };
        let Some((home, _)) = self.home_of(address) else { return invalid };
        let mut motions = self.lock_motions(home);
        self.finish_object(&mut motions, slot);
        let mut state = self.lock();
        let State { chunks, allocations, .. } = &mut *state;
        let (Some(chunk), Some(allocation)) = (chunks.get_mut(&slot), allocations.get(slot)) else {
            return invalid;
        };
        chunk.blocks.remove(&(address - allocation.base));
        if !chunk.blocks.is_empty() {
            return Some(Freed::Done(drained));
        }
        state.chunks.remove(&slot);
        let Some(allocation) = self.withdraw(&mut state, slot) else { return invalid };
        drop(state);
        drop(motions);
        Some(Freed::Done(self.retire(allocation).and(drained)))
    }
}
