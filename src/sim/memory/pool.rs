//! Pools of stream-ordered memory: chunks that allocations share, kept for reuse.

use super::alloc::{ALIGN, Holes, POISON};
use super::{GRANULE, Kind, Memory, Origin, Place, Range};
use crate::handle;
use crate::util::{Answer, round_up};
use std::collections::BTreeMap;
use vgmem_abi::*;

/// What a pool takes from the GPU at a time.
const CHUNK: u64 = 32 << 20;
/// Bytes of freed memory that are poisoned: more would take longer than it tells.
const POISONED: u64 = 64 << 10;

/// Attributes of a pool: `CUmemPool_attribute`.
const REUSE: std::ops::RangeInclusive<i32> = 1..=3;
const RELEASE_THRESHOLD: i32 = 4;
const RESERVED: i32 = 5;
const RESERVED_HIGH: i32 = 6;
const USED: i32 = 7;
const USED_HIGH: i32 = 8;

/// Memory that a pool has taken from the GPU.
struct Chunk {
    size: u64,
    physical: u64,
    live: u64,
    holes: Holes,
}

/// A pool.
pub(crate) struct Pool {
    device: u32,
    chunks: BTreeMap<u64, Chunk>,
    reuse: [u32; 3],
    threshold: u64,
    reserved: u64,
    reserved_high: u64,
    used: u64,
    used_high: u64,
    /// GPUs that may touch its memory, as bits.
    pub(super) access: u64,
    /// It was destroyed; it goes with its last allocation.
    doomed: bool,
}

/// Value of a pool's attribute, in the width the driver writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolValue {
    /// Four bytes.
    Word(u32),
    /// Eight bytes.
    Long(u64),
}

impl Memory {
    /// `cuMemPoolCreate`.
    pub fn create_pool(&mut self, device: u32) -> u64 {
        let handle = handle::fresh(handle::Kind::Pool);
        let pool = Pool {
            device,
            chunks: BTreeMap::new(),
            reuse: [1; 3],
            threshold: 0,
            reserved: 0,
            reserved_high: 0,
            used: 0,
            used_high: 0,
            access: 1 << device,
            doomed: false,
        };
        self.pools.insert(handle, pool);
        handle
    }

    /// The pool that a GPU has from the start.
    pub fn default_pool(&mut self, device: u32) -> u64 {
        match self.default_pools.get(&device) {
            Some(pool) => *pool,
            None => {
                let pool = self.create_pool(device);
                self.default_pools.insert(device, pool);
                pool
            }
        }
    }

    /// The pool that allocations come from which name none.
    pub fn current_pool(&mut self, device: u32) -> u64 {
        match self.current_pools.get(&device) {
            Some(pool) => *pool,
            None => self.default_pool(device),
        }
    }

    /// `cuDeviceSetMemPool`.
    pub fn set_current_pool(&mut self, device: u32, pool: u64) -> Answer {
        if self.pool(pool)?.device != device {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        self.current_pools.insert(device, pool);
        Ok(())
    }

    fn pool(&self, handle: u64) -> Answer<&Pool> {
        self.pools.get(&handle).filter(|pool| !pool.doomed).ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    fn pool_mut(&mut self, handle: u64) -> Answer<&mut Pool> {
        self.pools.get_mut(&handle).filter(|pool| !pool.doomed).ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    /// `cuMemPoolDestroy`: allocations from it stay until they are freed.
    pub fn destroy_pool(&mut self, handle: u64) -> Answer {
        if self.default_pools.values().any(|pool| *pool == handle) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        self.pool_mut(handle)?.doomed = true;
        self.current_pools.retain(|_, pool| *pool != handle);
        self.trim(handle, 0);
        Ok(())
    }

    /// `cuMemPoolGetAttribute`.
    pub fn pool_attribute(&self, handle: u64, attribute: i32) -> Answer<PoolValue> {
        let pool = self.pool(handle)?;
        Ok(match attribute {
            1..=3 => PoolValue::Word(pool.reuse[attribute as usize - 1]),
            RELEASE_THRESHOLD => PoolValue::Long(pool.threshold),
            RESERVED => PoolValue::Long(pool.reserved),
            RESERVED_HIGH => PoolValue::Long(pool.reserved_high),
            USED => PoolValue::Long(pool.used),
            USED_HIGH => PoolValue::Long(pool.used_high),
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        })
    }

    /// `cuMemPoolSetAttribute`: marks of the most can only be taken back.
    pub fn set_pool_attribute(&mut self, handle: u64, attribute: i32, value: PoolValue) -> Answer {
        let pool = self.pool_mut(handle)?;
        match (attribute, value) {
            (1..=3, PoolValue::Word(on)) => pool.reuse[attribute as usize - 1] = u32::from(on != 0),
            (RELEASE_THRESHOLD, PoolValue::Long(bytes)) => pool.threshold = bytes,
            (RESERVED_HIGH, PoolValue::Long(0)) => pool.reserved_high = pool.reserved,
            (USED_HIGH, PoolValue::Long(0)) => pool.used_high = pool.used,
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        }
        Ok(())
    }

    /// Whether an attribute has four bytes.
    pub fn is_pool_word(attribute: i32) -> bool {
        REUSE.contains(&attribute)
    }

    /// `cuMemPoolSetAccess`: the pool's own GPU keeps its access.
    pub fn set_pool_access(&mut self, handle: u64, device: u32, on: bool) -> Answer {
        let owner = self.pool(handle)?.device;
        let known = (device as usize) < self.banks.len();
        if !known || device == owner && !on || on && !self.can_reach(device, owner) {
            return Err(CUDA_ERROR_INVALID_DEVICE);
        }
        let pool = self.pool_mut(handle)?;
        pool.access = pool.access & !(1 << device) | u64::from(on) << device;
        Ok(())
    }

    /// `cuMemPoolGetAccess`.
    pub fn pool_access(&self, handle: u64, device: u32) -> Answer<bool> {
        if device as usize >= self.banks.len() {
            return Err(CUDA_ERROR_INVALID_DEVICE);
        }
        Ok(self.pool(handle)?.access >> device & 1 == 1)
    }

    /// Whether one of `devices` may touch memory of the pool.
    pub(super) fn pool_allows(&self, handle: u64, devices: u64) -> bool {
        self.pools.get(&handle).is_some_and(|pool| pool.access & devices != 0)
    }

    /// Gives a new chunk of at least `size` bytes to a pool.
    fn grow_pool(&mut self, handle: u64, size: u64) -> Answer<u64> {
        let device = self.pool(handle)?.device;
        let generous = round_up(size, CHUNK).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        let exact = round_up(size, GRANULE).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        let (bytes, (start, physical)) = match self.granules(Place::Device(device), generous) {
            Ok(chunk) => (generous, chunk),
            Err(_) => (exact, self.granules(Place::Device(device), exact)?),
        };
        let mut holes = Holes::default();
        holes.give(start, bytes);
        let pool = self.pool_mut(handle)?;
        pool.chunks.insert(start, Chunk { size: bytes, physical, live: 0, holes });
        pool.reserved += bytes;
        pool.reserved_high = pool.reserved_high.max(pool.reserved);
        Ok(start)
    }

    /// Allocates from a pool.
    pub fn allocate_from_pool(&mut self, handle: u64, size: u64, origin: Origin) -> Answer<u64> {
        let rounded = round_up(size, ALIGN).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        let pool = self.pool_mut(handle)?;
        let found = pool
            .chunks
            .iter_mut()
            .find_map(|(start, chunk)| chunk.holes.take(rounded).map(|address| (*start, address)));
        let (start, address) = match found {
            Some(found) => found,
            None => {
                let start = self.grow_pool(handle, rounded)?;
                let chunk = self.pool_mut(handle)?.chunks.get_mut(&start);
                let taken = chunk.and_then(|chunk| chunk.holes.take(rounded));
                (start, taken.ok_or(CUDA_ERROR_OUT_OF_MEMORY)?)
            }
        };
        let pool = self.pool_mut(handle)?;
        pool.used += size;
        pool.used_high = pool.used_high.max(pool.used);
        let device = pool.device;
        let chunk = pool.chunks.get_mut(&start).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        chunk.live += 1;
        let (physical, block) = (chunk.physical, Some(start));
        self.insert(address, size, Kind::Allocated { device, context: 0, physical, block, origin });
        Ok(address)
    }

    /// Gives an allocation back to its pool, which keeps the chunk until it is trimmed.
    pub(super) fn free_to_pool(&mut self, handle: u64, start: u64, address: u64, range: &Range) {
        let rounded = round_up(range.size, ALIGN).unwrap_or(range.size);
        let Some(pool) = self.pools.get_mut(&handle) else { return };
        let Some(chunk) = pool.chunks.get_mut(&start) else { return };
        let at = std::ptr::with_exposed_provenance_mut::<u8>(address as usize);
        // SAFETY: the chunk is mapped, and these bytes were one of its allocations until now.
        unsafe { std::ptr::write_bytes(at, POISON, rounded.min(POISONED) as usize) };
        chunk.holes.give(address, rounded);
        chunk.live -= 1;
        pool.used -= range.size;
        if pool.doomed {
            self.trim(handle, 0);
        }
    }

    /// Gives chunks without allocations back to the GPU until `keep` bytes are left.
    fn trim(&mut self, handle: u64, keep: u64) {
        let Some(pool) = self.pools.get_mut(&handle) else { return };
        let idle: Vec<u64> =
            pool.chunks.iter().filter(|(_, chunk)| chunk.live == 0).map(|(start, _)| *start).collect();
        let mut gone = Vec::new();
        for start in idle {
            if pool.reserved <= keep {
                break;
            }
            if let Some(chunk) = pool.chunks.remove(&start) {
                pool.reserved -= chunk.size;
                gone.push((start, chunk));
            }
        }
        if pool.doomed && pool.chunks.is_empty() {
            self.pools.remove(&handle);
        }
        for (start, chunk) in gone {
            self.return_granules(start, chunk.size, chunk.physical);
        }
    }

    /// `cuMemPoolTrimTo`.
    pub fn trim_pool(&mut self, handle: u64, keep: u64) -> Answer {
        self.pool(handle)?;
        self.trim(handle, keep);
        Ok(())
    }

    /// Trims all pools to what they may keep when the program waits for work; or, if memory is
    /// short, to nothing.
    pub fn trim_pools(&mut self, short: bool) {
        let all: Vec<(u64, u64)> =
            self.pools.iter().map(|(handle, pool)| (*handle, pool.threshold)).collect();
        for (handle, threshold) in all {
            self.trim(handle, if short { 0 } else { threshold });
        }
    }
}
