//! Host memory that GPUs can reach: allocated by the driver, or registered by the program.

use super::{Kind, Memory, space};
use crate::util::{Answer, round_up};
use vgmem_abi::*;

const PAGE: u64 = 4096;
/// Flag of memory that GPUs can reach.
const MAPPED: u32 = 2;

impl Memory {
    /// `cuMemHostAlloc`.
    pub fn host_allocate(&mut self, device: u32, context: u64, size: u64, flags: u32) -> Answer<u64> {
        if size == 0 || flags & !7 != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let rounded = round_up(size, PAGE).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        let address = space::host_pages(rounded).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        self.insert(address, size, Kind::Pinned { device, context, flags, registered: false });
        Ok(address)
    }

    /// `cuMemFreeHost`, after all work was waited for.
    pub fn host_free(&mut self, address: u64) -> Answer {
        match self.ranges.get(&address).map(|range| &range.kind) {
            Some(Kind::Pinned { registered: false, .. }) => {}
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        }
        if let Some(range) = self.ranges.remove(&address) {
            range.users.iter().for_each(|user| user.lose());
            space::release(address, round_up(range.size, PAGE).unwrap_or(range.size));
        }
        Ok(())
    }

    /// `cuMemHostRegister`.
    pub fn register(&mut self, device: u32, context: u64, address: u64, size: u64, flags: u32) -> Answer {
        let end = address.checked_add(size).filter(|_| size > 0 && address != 0);
        let end = end.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if self.range_at(address).is_some() || self.ranges.range(address..end).next().is_some() {
            return Err(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
        }
        if self.is_ours(address) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        self.insert(address, size, Kind::Pinned { device, context, flags, registered: true });
        Ok(())
    }

    /// `cuMemHostUnregister`.
    pub fn unregister(&mut self, address: u64) -> Answer {
        match self.ranges.get(&address).map(|range| &range.kind) {
            Some(Kind::Pinned { registered: true, .. }) => {
                if let Some(range) = self.ranges.remove(&address) {
                    range.users.iter().for_each(|user| user.lose());
                }
                Ok(())
            }
            Some(Kind::Pinned { .. }) => Err(CUDA_ERROR_INVALID_VALUE),
            // Inside of registered memory, or nowhere near any.
            _ if self.range_at(address).is_some() => Err(CUDA_ERROR_INVALID_VALUE),
            _ => Err(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED),
        }
    }

    /// Flags of pinned memory that holds `address`.
    pub fn host_flags(&self, address: u64) -> Answer<u32> {
        match self.range_at(address).map(|(_, range)| &range.kind) {
            // GPUs can reach all of it.
            Some(Kind::Pinned { flags, .. }) => Ok(*flags | MAPPED),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }
}
