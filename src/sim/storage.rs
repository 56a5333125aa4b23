//! Calls about memory: which context they act in, and what they wait for.

use crate::machine::Machine;
use crate::memory::{Attribute, Origin};
use crate::util::{Answer, lock, round_up};
use std::sync::atomic::Ordering;
use vgmem_abi::*;

/// Alignment of the rows of a pitched allocation.
const PITCH: u64 = 512;

impl Machine {
    /// `cuMemAlloc`.
    pub fn allocate(&self, size: u64) -> Answer<u64> {
        let context = self.current()?;
        self.may_disturb()?;
        lock(&self.memory).allocate(context.device, context.handle, size)
    }

    /// `cuMemAllocPitch`: address and pitch.
    pub fn allocate_pitch(&self, width: u64, height: u64, element: u32) -> Answer<(u64, u64)> {
        let context = self.current()?;
        if width == 0 || height == 0 || !matches!(element, 4 | 8 | 16) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        self.may_disturb()?;
        let pitch = round_up(width, PITCH).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        let size = pitch.checked_mul(height).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        let address = lock(&self.memory).allocate(context.device, context.handle, size)?;
        Ok((address, pitch))
    }

    /// `cuMemFree`: waits for all work of the memory's GPU first. It needs no current context.
    pub fn free(&self, address: u64) -> Answer {
        let current = match self.current_even_if_lost() {
            Ok(context) => {
                context.check()?;
                Some(context)
            }
            Err(CUDA_ERROR_INVALID_CONTEXT) => None,
            Err(code) => return Err(code),
        };
        self.may_disturb()?;
        let of_graph = matches!(lock(&self.memory).origin(address), Some(Origin::Graph(_)));
        if address == 0 || of_graph {
            return Ok(());
        }
        let owner = lock(&self.memory).owner_of_allocation(address)?;
        // Meanwhile others cannot launch, copy or record; mapping and queries go on.
        let gate = current.as_ref().map(|context| context.shut());
        self.scheduler.wait_for_device(owner);
        drop(gate);
        if let Some(context) = current {
            context.check()?;
        }
        self.pools_used.store(true, Ordering::Release);
        lock(&self.memory).free(address)
    }

    /// `cuMemGetInfo`: free and total bytes of the current GPU.
    pub fn current_memory_info(&self) -> Answer<(u64, u64)> {
        self.memory_info(self.current()?.device)
    }

    /// `cuMemHostAlloc`: no bytes are no memory.
    pub fn host_allocate(&self, size: u64, flags: u32) -> Answer<u64> {
        let context = self.current()?;
        self.may_disturb()?;
        if size == 0 {
            return Ok(0);
        }
        lock(&self.memory).host_allocate(context.device, context.handle, size, flags)
    }

    /// `cuMemFreeHost`: waits for all work first.
    pub fn host_free(&self, address: u64) -> Answer {
        self.current()?;
        self.may_disturb()?;
        if address == 0 {
            return Ok(());
        }
        self.scheduler.wait_for_all();
        lock(&self.memory).host_free(address)
    }

    /// `cuMemHostRegister`.
    pub fn host_register(&self, address: u64, size: u64, flags: u32) -> Answer {
        let context = self.current()?;
        self.may_disturb()?;
        if flags & !15 != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        lock(&self.memory).register(context.device, context.handle, address, size, flags)
    }

    /// `cuMemHostUnregister`: waits for all work first.
    pub fn host_unregister(&self, address: u64) -> Answer {
        self.current()?;
        self.may_disturb()?;
        self.scheduler.wait_for_all();
        lock(&self.memory).unregister(address)
    }

    /// `cuMemHostGetFlags`; an error if the address is no pinned memory.
    pub fn host_flags(&self, address: u64) -> Answer<u32> {
        self.current()?;
        lock(&self.memory).host_flags(address)
    }

    /// `cuMemCreate`.
    pub fn create(&self, size: u64, properties: &CUmemAllocationProp) -> Answer<u64> {
        lock(&self.memory).create(size, properties)
    }

    /// `cuMemRelease`.
    pub fn release(&self, handle: u64) -> Answer {
        lock(&self.memory).release(handle)
    }

    /// `cuMemRetainAllocationHandle`.
    pub fn retain(&self, address: u64) -> Answer<u64> {
        lock(&self.memory).retain(address)
    }

    /// `cuMemGetAllocationPropertiesFromHandle`.
    pub fn properties(&self, handle: u64) -> Answer<CUmemAllocationProp> {
        lock(&self.memory).properties(handle)
    }

    /// `cuMemGetAllocationGranularity`.
    pub fn granularity(&self, properties: &CUmemAllocationProp) -> Answer<u64> {
        lock(&self.memory).place(properties).map(|_| crate::memory::GRANULE)
    }

    /// `cuMemAddressReserve`.
    pub fn reserve(&self, size: u64, alignment: u64, hint: u64) -> Answer<u64> {
        lock(&self.memory).reserve(size, alignment, hint)
    }

    /// `cuMemAddressFree`.
    pub fn unreserve(&self, address: u64, size: u64) -> Answer {
        lock(&self.memory).unreserve(address, size)
    }

    /// `cuMemMap`.
    pub fn map(&self, address: u64, size: u64, offset: u64, handle: u64) -> Answer {
        lock(&self.memory).map(address, size, offset, handle)
    }

    /// `cuMemUnmap`: waits for nothing.
    pub fn unmap(&self, address: u64, size: u64) -> Answer {
        lock(&self.memory).unmap(address, size)
    }

    /// `cuMemSetAccess`.
    pub fn set_access(&self, address: u64, size: u64, wanted: &[CUmemAccessDesc]) -> Answer {
        lock(&self.memory).set_access(address, size, wanted)
    }

    /// `cuMemGetAccess`.
    pub fn get_access(&self, address: u64, location: CUmemLocation) -> Answer<u64> {
        lock(&self.memory).get_access(address, location)
    }

    /// `cuMemExportToShareableHandle`: a descriptor that the program owns.
    pub fn export(&self, handle: u64, kind: i32) -> Answer<i32> {
        lock(&self.memory).export(handle, kind)
    }

    /// `cuMemImportFromShareableHandle`.
    pub fn import(&self, fd: i32, kind: i32) -> Answer<u64> {
        lock(&self.memory).import(fd, kind)
    }

    /// GPU of the current context, lost or not; the first one without a context.
    fn asking_device(&self) -> u32 {
        self.current_even_if_lost().map_or(0, |context| context.device)
    }

    /// `cuPointerGetAttribute`.
    pub fn attribute(&self, attribute: i32, address: u64) -> Answer<Attribute> {
        let device = self.asking_device();
        lock(&self.memory).attribute(attribute, address, device)
    }

    /// `cuPointerGetAttributes` for one attribute: what is written, if anything.
    pub fn attribute_in_list(&self, attribute: i32, address: u64) -> Answer<Option<Attribute>> {
        let device = self.asking_device();
        lock(&self.memory).attribute_in_list(attribute, address, device)
    }

    /// What `attribute` writes although it fails for this address.
    pub fn written_on_failure(&self, attribute: i32, address: u64) -> Option<Attribute> {
        lock(&self.memory).written_on_failure(attribute, address)
    }

    /// `cuPointerSetAttribute`: one attribute can be set.
    pub fn set_attribute(&self, attribute: i32, address: u64, on: bool) -> Answer {
        lock(&self.memory).set_attribute(attribute, address, on)
    }

    /// `cuMemGetAddressRange`: start and size.
    pub fn address_range(&self, address: u64) -> Answer<(u64, u64)> {
        self.current()?;
        lock(&self.memory).address_range(address)
    }
}
