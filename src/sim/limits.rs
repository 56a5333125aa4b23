//! Limits of contexts, attributes of functions, occupancy: what programs ask before they launch.

use crate::codes::CUDA_ERROR_UNSUPPORTED_LIMIT;
use crate::handle::Kind;
use crate::machine::Machine;
use crate::module::Function;
use crate::util::{Answer, lock};
use std::sync::atomic::Ordering;
use vgmem_abi::*;

/// Limits (`CUlimit`) that can be set, and what they are at first.
const LIMITS: [(i32, u64); 6] =
    [(0, 1024), (1, 8_650_752), (2, 8_388_608), (4, 2048), (5, 64), (6, 11_796_480)];
/// Limits that can only be read.
const FIXED: [(i32, u64); 2] = [(7, 227 << 10), (8, 0)];
/// Limits that this GPU does not have.
const MISSING: [i32; 2] = [3, 9];

/// `CUfunction_attribute`: dynamic shared memory, and how much of the cache is shared memory.
const DYNAMIC_SHARED: i32 = 8;
const CARVE_OUT: i32 = 9;

const MULTIPROCESSORS: u32 = 132;
const THREADS: u32 = 2048;
const BLOCKS: u32 = 32;
const BLOCK: u32 = 1024;
const WARP: u32 = 32;
/// Shared memory of a block at most, and what the system takes of each.
const SHARED: u64 = 227 << 10;
const SYSTEM: u64 = 1 << 10;
/// Sizes that shared memory of a multiprocessor can have.
const CARVES: [u64; 9] =
    [8 << 10, 16 << 10, 32 << 10, 64 << 10, 100 << 10, 132 << 10, 164 << 10, 196 << 10, 228 << 10];

fn find(list: &[(i32, u64)], key: i32) -> Option<u64> {
    list.iter().find(|(known, _)| *known == key).map(|(_, value)| *value)
}

impl Function {
    /// Value of an attribute of a kernel on this GPU.
    fn attribute(&self, attribute: i32) -> Answer<i32> {
        if let Some(value) = lock(&self.set).get(&attribute) {
            return Ok(*value);
        }
        match attribute {
            0 => Ok(BLOCK as i32), // threads of a block
            1..=3 | 7 => Ok(0),    // shared, constant, local memory; cache mode
            4 => Ok(32),           // registers
            5 | 6 => Ok(90),       // architecture
            DYNAMIC_SHARED => Ok(48 << 10),
            CARVE_OUT => Ok(-1),
            10..=15 => Ok(0), // clusters
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }

    fn set_attribute(&self, attribute: i32, value: i32) -> Answer {
        let possible = match attribute {
            DYNAMIC_SHARED => (0..=SHARED as i32).contains(&value),
            CARVE_OUT => (-1..=100).contains(&value),
            11..=15 => true,
            _ => false,
        };
        if !possible {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        lock(&self.set).insert(attribute, value);
        Ok(())
    }

    /// Shared memory of a multiprocessor that runs this function.
    fn carve(&self) -> u64 {
        let percent = self.attribute(CARVE_OUT).ok().and_then(|percent| u64::try_from(percent).ok());
        let wanted = percent.map_or(CARVES[8], |percent| CARVES[8] * percent / 100);
        CARVES.into_iter().find(|size| *size >= wanted).unwrap_or(CARVES[8])
    }

    /// Bytes of shared memory that a launch may ask for.
    pub fn most_shared(&self) -> u64 {
        self.attribute(DYNAMIC_SHARED).ok().and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(0)
    }

    fn blocks(&self, threads: u32, shared: u64) -> u32 {
        if threads > BLOCK || shared > self.most_shared() {
            return 0;
        }
        let by_threads = THREADS / threads.next_multiple_of(WARP);
        let by_shared = self.carve() / (shared + SYSTEM);
        by_threads.min(BLOCKS).min(u32::try_from(by_shared).unwrap_or(BLOCKS))
    }
}

impl Machine {
    /// `cuCtxGetLimit`.
    pub fn limit(&self, limit: i32) -> Answer<u64> {
        let context = self.current()?;
        if MISSING.contains(&limit) {
            return Err(CUDA_ERROR_UNSUPPORTED_LIMIT);
        }
        let set = lock(&context.limits).get(&limit).copied();
        set.or(find(&LIMITS, limit)).or(find(&FIXED, limit)).ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    /// `cuCtxSetLimit`.
    pub fn set_limit(&self, limit: i32, value: u64) -> Answer {
        let context = self.current()?;
        if MISSING.contains(&limit) {
            return Err(CUDA_ERROR_UNSUPPORTED_LIMIT);
        }
        if find(&FIXED, limit).is_some() {
            return Err(CUDA_ERROR_NOT_PERMITTED);
        }
        find(&LIMITS, limit).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        lock(&context.limits).insert(limit, value);
        Ok(())
    }

    /// `cuCtxGetCacheConfig`.
    pub fn cache_config(&self) -> Answer<u32> {
        Ok(self.current()?.cache.load(Ordering::Relaxed))
    }

    /// `cuCtxSetCacheConfig`.
    pub fn set_cache_config(&self, config: i32) -> Answer {
        let context = self.current()?;
        check_cache_config(config)?;
        context.cache.store(config as u32, Ordering::Relaxed);
        Ok(())
    }

    /// `cuFuncSetCacheConfig`: a wish that changes nothing here.
    pub fn set_function_cache(&self, function: u64, config: i32) -> Answer {
        self.function_or_kernel(function)?;
        check_cache_config(config)
    }

    /// `cuFuncGetAttribute`.
    pub fn function_attribute(&self, function: u64, attribute: i32) -> Answer<i32> {
        self.function(function, Kind::Function)?.attribute(attribute)
    }

    /// `cuFuncSetAttribute`.
    pub fn set_function_attribute(&self, function: u64, attribute: i32, value: i32) -> Answer {
        self.function(function, Kind::Function)?.set_attribute(attribute, value)
    }

    /// `cuKernelGetAttribute`.
    pub fn kernel_attribute(&self, kernel: u64, attribute: i32, device: u32) -> Answer<i32> {
        self.check_device(device)?;
        self.function(kernel, Kind::Kernel)?.attribute(attribute)
    }

    /// `cuKernelSetAttribute`.
    pub fn set_kernel_attribute(&self, kernel: u64, attribute: i32, value: i32, device: u32) -> Answer {
        self.check_device(device)?;
        self.function(kernel, Kind::Kernel)?.set_attribute(attribute, value)
    }

    /// `cuOccupancyMaxActiveBlocksPerMultiprocessor`: of a function, or a kernel in its place.
    pub fn occupancy(&self, function: u64, threads: i32, shared: u64) -> Answer<u32> {
        self.current()?;
        let threads = u32::try_from(threads).ok().filter(|threads| *threads > 0);
        let threads = threads.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        Ok(self.function_or_kernel(function)?.blocks(threads, shared))
    }

    /// `cuOccupancyMaxPotentialBlockSize`: blocks that fill the GPU, and their threads.
    pub fn best_block(&self, function: u64, limit: i32, shared: impl Fn(u32) -> u64) -> Answer<(u32, u32)> {
        self.current()?;
        let function = self.function_or_kernel(function)?;
        let most = u32::try_from(limit).ok().filter(|limit| *limit > 0).unwrap_or(BLOCK).min(BLOCK);
        let mut best = (0, 0);
        for threads in (1..=most.div_ceil(WARP)).rev().map(|warps| (warps * WARP).min(most)) {
            let blocks = function.blocks(threads, shared(threads));
            if blocks * threads > best.0 * best.1 {
                best = (blocks, threads);
            }
        }
        Ok((best.0 * MULTIPROCESSORS, best.1))
    }

    /// `cuOccupancyAvailableDynamicSMemPerBlock`.
    pub fn shared_left(&self, function: u64, blocks: i32, threads: i32) -> Answer<u64> {
        self.current()?;
        let blocks = u64::try_from(blocks).ok().filter(|blocks| *blocks > 0);
        let blocks = blocks.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if !(1..=BLOCK as i32).contains(&threads) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        Ok((self.function_or_kernel(function)?.carve() / blocks).min(SHARED))
    }
}

fn check_cache_config(config: i32) -> Answer {
    if (0..=3).contains(&config) { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
}
