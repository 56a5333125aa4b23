//! Memory of `cuMemAlloc`: large sizes get granules of their own, small ones share a block.

use super::{GRANULE, Kind, Memory, Origin, Place, Range, space};
use crate::util::{Answer, round_up};
use std::collections::BTreeMap;
use vgmem_abi::*;

/// Alignment of every allocation.
pub(super) const ALIGN: u64 = 512;
/// Allocations up to this size share blocks of one granule.
const SMALL: u64 = 1 << 20;
/// Address space for `cuMemAlloc`, and what is tried where that much cannot be had.
const ARENA: [u64; 3] = [4 << 40, 256 << 30, 16 << 30];
/// What freed small memory is filled with; freed granules are punched out.
pub(super) const POISON: u8 = 0xcb;

/// Free stretches of something: start to size, joined where they touch.
#[derive(Default)]
pub(super) struct Holes(BTreeMap<u64, u64>);

impl Holes {
    /// Takes `size` from the first stretch that has it.
    pub fn take(&mut self, size: u64) -> Option<u64> {
        let (start, have) = self.0.iter().find(|(_, have)| **have >= size).map(|(s, h)| (*s, *h))?;
        self.0.remove(&start);
        if have > size {
            self.0.insert(start + size, have - size);
        }
        Some(start)
    }

    /// Gives a stretch back.
    pub fn give(&mut self, start: u64, size: u64) {
        let (mut start, mut size) = (start, size);
        if let Some((before, have)) = self.0.range(..start).next_back().map(|(s, h)| (*s, *h))
            && before + have == start
        {
            self.0.remove(&before);
            start = before;
            size += have;
        }
        if let Some(have) = self.0.remove(&(start + size)) {
            size += have;
        }
        self.0.insert(start, size);
    }
}

/// Reserved addresses that `cuMemAlloc` gives out.
pub(super) struct Arena {
    start: u64,
    size: u64,
    holes: Holes,
}

impl Arena {
    fn new() -> Option<Arena> {
        let (start, size) =
            ARENA.iter().find_map(|size| Some((space::reserve(*size, GRANULE, 0)?, *size)))?;
        let mut holes = Holes::default();
        holes.give(start, size);
        Some(Arena { start, size, holes })
    }

    /// Whether `address` is one of these.
    pub fn holds(&self, address: u64) -> bool {
        address.wrapping_sub(self.start) < self.size
    }
}

/// One granule that small allocations share.
pub(super) struct Block {
    device: u32,
    context: u64,
    physical: u64,
    live: u64,
    holes: Holes,
}

impl Memory {
    /// Fresh memory of whole granules at addresses of its own: address and handle.
    pub(super) fn granules(&mut self, place: Place, size: u64) -> Answer<(u64, u64)> {
        let handle = self.take(place, size, 0)?;
        Ok((self.show_somewhere(handle, size)?, handle))
    }

    /// Shows physical memory at free addresses; it is dropped if that fails.
    pub(super) fn show_somewhere(&mut self, handle: u64, size: u64) -> Answer<u64> {
        if self.arena.is_none() {
            self.arena = Arena::new();
        }
        let address = self.arena.as_mut().and_then(|arena| arena.holes.take(size));
        let shown = match address {
            Some(address) => self.show(address, handle).map(|()| address),
            None => Err(CUDA_ERROR_OUT_OF_MEMORY),
        };
        if shown.is_err() {
            if let Some(address) = address {
                self.give_addresses(address, size);
            }
            self.drop_unused(handle);
        }
        shown
    }

    /// Takes addresses of `show_somewhere` back.
    pub(super) fn give_addresses(&mut self, address: u64, size: u64) {
        if let Some(arena) = self.arena.as_mut() {
            arena.holes.give(address, size);
        }
    }

    /// Takes memory of `granules` back.
    pub(super) fn return_granules(&mut self, address: u64, size: u64, physical: u64) {
        self.hide(address, size, physical, &[]);
        self.give_addresses(address, size);
    }

    /// `cuMemAlloc`.
    pub fn allocate(&mut self, device: u32, context: u64, size: u64) -> Answer<u64> {
        if size == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if size <= SMALL {
            return self.allocate_small(device, context, size);
        }
        let rounded = round_up(size, GRANULE).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        let (address, physical) = self.granules(Place::Device(device), rounded)?;
        let origin = Origin::Plain;
        self.insert(address, size, Kind::Allocated { device, context, physical, block: None, origin });
        Ok(address)
    }

    fn allocate_small(&mut self, device: u32, context: u64, size: u64) -> Answer<u64> {
        let rounded = round_up(size, ALIGN).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        let mut found = None;
        for (start, block) in &mut self.blocks {
            if block.device == device
                && block.context == context
                && let Some(address) = block.holes.take(rounded)
            {
                block.live += 1;
                found = Some((*start, block.physical, address));
                break;
            }
        }
        if found.is_none() {
            let (start, physical) = self.granules(Place::Device(device), GRANULE)?;
            let mut holes = Holes::default();
            holes.give(start + rounded, GRANULE - rounded);
            self.blocks.insert(start, Block { device, context, physical, live: 1, holes });
            found = Some((start, physical, start));
        }
        let (block, physical, address) = found.ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        let (block, origin) = (Some(block), Origin::Plain);
        self.insert(address, size, Kind::Allocated { device, context, physical, block, origin });
        Ok(address)
    }

    /// `cuMemAllocManaged`: memory of the GPU that everybody may touch.
    pub fn allocate_managed(&mut self, device: u32, context: u64, size: u64) -> Answer<u64> {
        let rounded = round_up(size, GRANULE).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        let (address, physical) = self.granules(Place::Device(device), rounded)?;
        let origin = Origin::Managed;
        self.insert(address, size, Kind::Allocated { device, context, physical, block: None, origin });
        Ok(address)
    }

    /// Which call made the allocation that begins at, or holds, `address`.
    pub fn origin(&self, address: u64) -> Option<Origin> {
        match self.range_at(address)?.1.kind {
            Kind::Allocated { origin, .. } => Some(origin),
            _ => None,
        }
    }

    /// GPU whose memory a `cuMemFree` of `address` would free.
    pub fn owner_of_allocation(&self, address: u64) -> Answer<u32> {
        match self.ranges.get(&address) {
            Some(Range { kind: Kind::Allocated { origin: Origin::Imported, .. }, .. }) => {
                Err(CUDA_ERROR_INVALID_VALUE)
            }
            Some(Range { kind: Kind::Allocated { device, .. }, freeing: false, .. }) => Ok(*device),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }

    /// Notes that a stream will free the allocation: no other call may.
    pub fn begin_free(&mut self, address: u64) -> Answer {
        self.owner_of_allocation(address)?;
        match self.ranges.get_mut(&address) {
            Some(Range { kind: Kind::Allocated { origin: Origin::Managed, .. }, .. }) => {
                Err(CUDA_ERROR_NOT_SUPPORTED)
            }
            Some(range) => {
                range.freeing = true;
                Ok(())
            }
            None => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }

    /// Frees what `begin_free` has marked; the memory may have gone with its context.
    pub fn end_free(&mut self, address: u64) {
        if let Some(range) = self.ranges.get_mut(&address)
            && std::mem::take(&mut range.freeing)
        {
            let _ = self.free(address);
        }
    }

    /// `cuMemFree`, after the device's work was waited for.
    pub fn free(&mut self, address: u64) -> Answer {
        self.owner_of_allocation(address)?;
        let Some(range) = self.ranges.remove(&address) else { return Err(CUDA_ERROR_INVALID_VALUE) };
        let Kind::Allocated { physical, block, origin, device, .. } = range.kind else { return Ok(()) };
        range.users.iter().for_each(|user| user.lose());
        if self.physical.get(&physical).is_some_and(|physical| physical.exported) {
            self.end_ipc(device, range.id);
        }
        if let (Origin::Pool(pool) | Origin::Graph(pool), Some(start)) = (origin, block) {
            self.free_to_pool(pool, start, address, &range);
            return Ok(());
        }
        match block {
            None => {
                let size = round_up(range.size, GRANULE).unwrap_or(range.size);
                self.hide(address, size, physical, &range.users);
                self.give_addresses(address, size);
            }
            Some(start) => self.free_small(start, address, &range),
        }
        Ok(())
    }

    fn free_small(&mut self, start: u64, address: u64, range: &super::Range) {
        let Some(block) = self.blocks.get_mut(&start) else { return };
        let rounded = round_up(range.size, ALIGN).unwrap_or(range.size);
        block.holes.give(address, rounded);
        block.live -= 1;
        if block.live > 0 {
            let at = std::ptr::with_exposed_provenance_mut::<u8>(address as usize);
            // SAFETY: the block is mapped while it has live allocations, and these bytes
            // were one of them until now.
            unsafe { std::ptr::write_bytes(at, POISON, rounded as usize) };
            return;
        }
        let physical = block.physical;
        self.blocks.remove(&start);
        self.hide(start, GRANULE, physical, &range.users);
        self.give_addresses(start, GRANULE);
    }

    /// Whether memory belongs to the context.
    pub fn has_allocations(&self, context: u64) -> bool {
        let of =
            |range: &Range| matches!(range.kind, Kind::Allocated { context: owner, .. } if owner == context);
        self.ranges.values().any(of)
    }

    /// Frees whatever a context that ends has allocated.
    pub fn free_context(&mut self, context: u64) {
        let of = |range: &super::Range| match range.kind {
            Kind::Allocated { context: owner, .. } | Kind::Pinned { context: owner, .. } => owner == context,
            Kind::Mapped { .. } => false,
        };
        let gone: Vec<u64> = self.ranges.iter().filter(|(_, r)| of(r)).map(|(start, _)| *start).collect();
        for start in gone {
            if self.opened.contains_key(&start) {
                self.drop_opened(start);
            } else if self.free(start).is_err() {
                // Pinned memory of a context that ends stays readable for the program.
                self.ranges.remove(&start);
            }
        }
    }
}
