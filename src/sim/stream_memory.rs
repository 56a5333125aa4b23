//! Memory that streams allocate and free, its pools, and managed memory.

use crate::exec::Exec;
use crate::machine::Machine;
use crate::memory::{Memory, Origin, PoolValue};
use crate::scheduler::Work;
use crate::stream::{Destination, StreamRef};
use crate::task::Task;
use crate::util::{Answer, lock};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vgmem_abi::*;

/// Memory that belongs to a graph.
pub(crate) struct Owned {
    machine: &'static Machine,
    /// Where it is.
    pub address: u64,
}

impl Drop for Owned {
    fn drop(&mut self) {
        let _ = self.machine.with_memory(|memory| memory.free(self.address));
    }
}

impl Machine {
    /// Runs `act` on the memory for a GPU that exists.
    fn of_device<T>(&self, device: u32, act: impl FnOnce(&mut Memory) -> T) -> Answer<T> {
        self.check_device(device)?;
        Ok(self.with_memory(act))
    }

    /// `cuDeviceGetDefaultMemPool`.
    pub fn default_pool(&self, device: u32) -> Answer<u64> {
        self.of_device(device, |memory| memory.default_pool(device))
    }

    /// `cuDeviceGetMemPool`.
    pub fn current_pool(&self, device: u32) -> Answer<u64> {
        self.of_device(device, |memory| memory.current_pool(device))
    }

    /// `cuDeviceSetMemPool`.
    pub fn set_current_pool(&self, device: u32, pool: u64) -> Answer {
        self.of_device(device, |memory| memory.set_current_pool(device, pool))?
    }

    /// `cuMemPoolCreate`.
    pub fn create_pool(&self, device: u32) -> Answer<u64> {
        self.of_device(device, |memory| memory.create_pool(device))
    }

    /// `cuMemPoolDestroy`.
    pub fn destroy_pool(&self, pool: u64) -> Answer {
        self.with_memory(|memory| memory.destroy_pool(pool))
    }

    /// `cuMemPoolGetAttribute`.
    pub fn pool_attribute(&self, pool: u64, attribute: i32) -> Answer<PoolValue> {
        self.with_memory(|memory| memory.pool_attribute(pool, attribute))
    }

    /// Whether an attribute of pools has four bytes, not eight.
    pub fn is_pool_word(attribute: i32) -> bool {
        Memory::is_pool_word(attribute)
    }

    /// `cuMemPoolSetAttribute`.
    pub fn set_pool_attribute(&self, pool: u64, attribute: i32, value: PoolValue) -> Answer {
        self.with_memory(|memory| memory.set_pool_attribute(pool, attribute, value))
    }

    /// `cuMemPoolSetAccess` for one GPU.
    pub fn set_pool_access(&self, pool: u64, device: u32, on: bool) -> Answer {
        self.with_memory(|memory| memory.set_pool_access(pool, device, on))
    }

    /// `cuMemPoolGetAccess`.
    pub fn pool_access(&self, pool: u64, device: u32) -> Answer<bool> {
        self.with_memory(|memory| memory.pool_access(pool, device))
    }

    /// `cuMemPoolTrimTo`.
    pub fn trim_pool(&self, pool: u64, keep: u64) -> Answer {
        self.with_memory(|memory| memory.trim_pool(pool, keep))
    }

    /// The program has waited for work: pools give back what they need not keep.
    pub(crate) fn trim_pools(&self) {
        if self.pools_used.swap(false, Ordering::AcqRel) {
            self.with_memory(|memory| memory.trim_pools(false));
        }
    }

    /// `cuMemAllocAsync`, and with `pool` `cuMemAllocFromPoolAsync`. No bytes are no memory.
    pub fn allocate_async(&'static self, size: u64, pool: Option<u64>, stream: StreamRef) -> Answer<u64> {
        let destination = self.destination(stream)?;
        self.not_legacy_beside_capture(&destination)?;
        let device = destination.context.device;
        let pool = pool.unwrap_or_else(|| self.with_memory(|memory| memory.current_pool(device)));
        if size == 0 {
            return Ok(0);
        }
        if self.is_captured(destination.lane) {
            let origin = Origin::Graph(pool);
            let address = self.with_memory(|memory| memory.allocate_from_pool(pool, size, origin))?;
            let owned = Arc::new(Owned { machine: self, address });
            return self.put(&destination, Task::Allocate(owned)).map(|_| address);
        }
        self.allocate_or_wait(&destination, pool, size)
    }

    fn allocate_or_wait(&self, destination: &Destination, pool: u64, size: u64) -> Answer<u64> {
        let origin = Origin::Pool(pool);
        let mut answer = self.with_memory(|memory| memory.allocate_from_pool(pool, size, origin));
        if answer == Err(CUDA_ERROR_OUT_OF_MEMORY) {
            // What this stream has freed counts, although it has not come to that yet.
            self.scheduler.wait(self.scheduler.tail(destination.lane));
            answer = self.with_memory(|memory| {
                memory.trim_pools(true);
                memory.allocate_from_pool(pool, size, origin)
            });
        }
        answer
    }

    /// `cuMemFreeAsync`: memory of `cuMemAlloc` too.
    pub fn free_async(&'static self, address: u64, stream: StreamRef) -> Answer {
        let destination = self.destination(stream)?;
        self.not_legacy_beside_capture(&destination)?;
        if address == 0 {
            return Ok(());
        }
        let of_graph = matches!(lock(&self.memory).origin(address), Some(Origin::Graph(_)));
        if self.is_captured(destination.lane) {
            return match of_graph {
                true => self.put(&destination, Task::Free(address)).map(|_| ()),
                false => Err(CUDA_ERROR_INVALID_VALUE),
            };
        }
        if of_graph {
            return Ok(());
        }
        self.with_memory(|memory| memory.begin_free(address))?;
        let job = move |_: &Exec| {
            self.with_memory(|memory| memory.end_free(address));
            self.pools_used.store(true, Ordering::Release);
            Ok(())
        };
        let work = Work::Device(Box::new(job));
        self.submit(&destination.context, destination.lane, &[], work).map(|_| ())
    }

    /// `cuMemAllocManaged`.
    pub fn allocate_managed(&self, size: u64, flags: u32) -> Answer<u64> {
        let context = self.current()?;
        self.may_disturb()?;
        if size == 0 || !matches!(flags, 1 | 2) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        self.with_memory(|memory| memory.allocate_managed(context.device, context.handle, size))
    }

    fn is_managed(&self, address: u64, size: u64) -> Answer {
        let memory = lock(&self.memory);
        let end = memory.end_of_range(address).map(|(_, end)| end);
        let inside = end.is_some_and(|end| size > 0 && size <= end - address);
        match memory.origin(address) {
            Some(Origin::Managed) if inside => Ok(()),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }

    /// `cuMemAdvise`: a hint, which changes nothing here.
    pub fn advise(&self, address: u64, size: u64, advice: i32) -> Answer {
        self.is_managed(address, size)?;
        match advice {
            1..=6 => Ok(()),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }

    /// `cuMemPrefetchAsync`: managed memory stays where it is.
    pub fn prefetch(&'static self, address: u64, size: u64, stream: StreamRef) -> Answer {
        let destination = self.destination(stream)?;
        self.not_legacy_beside_capture(&destination)?;
        if self.is_captured(destination.lane) {
            return Err(self.refuse_in(destination.lane));
        }
        self.is_managed(address, size)?;
        self.put(&destination, Task::Empty).map(|_| ())
    }
}
