//! The calls of virtual memory management.

use super::{Access, GRANULE, Kind, Memory, Place, space};
use crate::util::Answer;
use vgmem_abi::*;

/// What `cuMemCreate` was asked for.
pub(crate) type Properties = CUmemAllocationProp;

fn whole(value: u64) -> bool {
    value.is_multiple_of(GRANULE)
}

impl Memory {
    /// Checks a location and gives the place that it names.
    pub fn place(&self, properties: &Properties) -> Answer<Place> {
        let location = properties.location;
        if properties.kind != CU_MEM_ALLOCATION_TYPE_PINNED {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let fd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        let types = properties.requestedHandleTypes;
        if types & !fd != 0 {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        match Place::from_location(location.kind, location.id) {
            Some(Place::Device(gpu)) if (gpu as usize) < self.banks.len() => Ok(Place::Device(gpu)),
            Some(Place::Device(_)) => Err(CUDA_ERROR_INVALID_DEVICE),
            Some(Place::Host) if self.driver >= 13000 && types == 0 => Ok(Place::Host),
            Some(Place::Numa(0)) if self.driver >= 12020 => Ok(Place::Numa(0)),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }

    /// `cuMemCreate`.
    pub fn create(&mut self, size: u64, properties: &Properties) -> Answer<u64> {
        let place = self.place(properties)?;
        if size == 0 || !whole(size) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let handle = self.take(place, size, 1)?;
        if let Some(physical) = self.physical.get_mut(&handle) {
            physical.handle_types = properties.requestedHandleTypes;
            physical.rdma = properties.gpuDirectRDMACapable;
        }
        Ok(handle)
    }

    /// What a context takes of its GPU for itself; given back with [`Memory::release`]. 0 where it takes nothing.
    pub(crate) fn take_for_context(&mut self, device: u32, size: u64) -> Answer<u64> {
        if size == 0 { Ok(0) } else { self.take(Place::Device(device), size, 1) }
    }

    /// `cuMemRelease`.
    pub fn release(&mut self, handle: u64) -> Answer {
        match self.physical.get_mut(&handle) {
            Some(physical) if physical.references > 0 => physical.references -= 1,
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        }
        self.drop_unused(handle);
        Ok(())
    }

    /// `cuMemRetainAllocationHandle`: memory of `cuMemAlloc` has none.
    pub fn retain(&mut self, address: u64) -> Answer<u64> {
        let handle = match self.range_at(address) {
            Some((_, range)) => match range.kind {
                Kind::Mapped { physical, .. } => physical,
                _ => return Err(CUDA_ERROR_INVALID_VALUE),
            },
            None => return Err(CUDA_ERROR_INVALID_VALUE),
        };
        let physical = self.physical.get_mut(&handle).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        physical.references += 1;
        Ok(handle)
    }

    /// `cuMemGetAllocationPropertiesFromHandle`.
    pub fn properties(&self, handle: u64) -> Answer<Properties> {
        let physical = self.physical.get(&handle).filter(|p| p.references > 0);
        let physical = physical.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let (kind, id) = physical.place.location();
        Ok(Properties {
            kind: CU_MEM_ALLOCATION_TYPE_PINNED,
            requestedHandleTypes: physical.handle_types,
            location: CUmemLocation { kind, id },
            win32HandleMetaData: std::ptr::null_mut(),
            compressionType: 0,
            gpuDirectRDMACapable: physical.rdma,
            usage: 0,
            reserved: [0; 4],
        })
    }

    /// `cuMemAddressReserve`.
    pub fn reserve(&mut self, size: u64, alignment: u64, hint: u64) -> Answer<u64> {
        let aligned = alignment == 0 || alignment.is_power_of_two();
        if size == 0 || !whole(size) || !aligned || size > 1 << 47 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let address = space::reserve(size, alignment.max(GRANULE), hint).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        self.reservations.insert(address, size);
        Ok(address)
    }

    /// `cuMemAddressFree`: a whole reservation in which nothing is mapped.
    pub fn unreserve(&mut self, address: u64, size: u64) -> Answer {
        let found = self.reservations.get(&address).is_some_and(|found| *found == size);
        if !found || self.ranges.range(address..address + size).next().is_some() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        self.reservations.remove(&address);
        if !self.tainted.remove(&address) {
            space::release(address, size);
        }
        Ok(())
    }

    /// `cuMemMap`: a page is mapped whole, into reserved and unmapped addresses.
    pub fn map(&mut self, address: u64, size: u64, offset: u64, handle: u64) -> Answer {
        if !whole(address) || !whole(size) || !whole(offset) || size == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if offset != 0 {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        let physical = self.physical.get(&handle).filter(|p| p.references > 0);
        let physical = physical.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let end = address.checked_add(size).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let (start, length) = self.reservation_at(address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let taken = self.ranges.range(address..end).next().is_some() || self.range_at(address).is_some();
        if end > start + length || taken {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if size != physical.size {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        self.show(address, handle)?;
        let access = vec![Access::None; self.banks.len()];
        let kind = Kind::Mapped { physical: handle, reservation: start, access, cpu: Access::None };
        self.insert(address, size, kind);
        Ok(())
    }

    /// Starts of the mappings in `address..address + size`: whole ones, inside of one reservation.
    fn mappings(&self, address: u64, size: u64) -> Answer<Vec<u64>> {
        let end = address.checked_add(size).filter(|_| size > 0 && whole(address) && whole(size));
        let end = end.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let (start, length) = self.reservation_at(address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let cut_off = self.range_at(address).is_some_and(|(start, _)| start < address);
        if cut_off || end > start + length {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let mut found = Vec::new();
        for (start, range) in self.ranges.range(address..end) {
            if start + range.size > end {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            found.push(*start);
        }
        Ok(found)
    }

    /// `cuMemUnmap`: whole mappings only, and what is not mapped stays so; waits for nothing.
    pub fn unmap(&mut self, address: u64, size: u64) -> Answer {
        for start in self.mappings(address, size)? {
            if let Some(range) = self.ranges.remove(&start)
                && let Kind::Mapped { physical, .. } = range.kind
            {
                self.hide(start, range.size, physical, &range.users);
            }
        }
        Ok(())
    }

    /// `cuMemSetAccess`: nothing is changed unless every part is possible.
    pub fn set_access(&mut self, address: u64, size: u64, wanted: &[CUmemAccessDesc]) -> Answer {
        let starts = self.mappings(address, size)?;
        if starts.is_empty() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        for one in wanted {
            let access = access(one.flags)?;
            for start in &starts {
                self.check_access(*start, one.location, access)?;
            }
        }
        for one in wanted {
            let to = access(one.flags)?;
            starts.iter().for_each(|start| self.grant(*start, one.location, to));
        }
        Ok(())
    }

    /// Gives a mapping's access; work that loses it is lost.
    fn grant(&mut self, start: u64, location: CUmemLocation, to: Access) {
        let Some(range) = self.ranges.get_mut(&start) else { return };
        let Kind::Mapped { access, cpu, .. } = &mut range.kind else { return };
        let slot = match location.kind {
            CU_MEM_LOCATION_TYPE_DEVICE => access.get_mut(location.id as usize),
            _ => Some(cpu),
        };
        if let Some(slot) = slot {
            if to < *slot {
                range.users.iter().for_each(|user| user.lose());
            }
            *slot = to;
        }
    }

    fn check_access(&self, start: u64, location: CUmemLocation, access: Access) -> Answer {
        let place = match self.ranges.get(&start).map(|range| &range.kind) {
            Some(Kind::Mapped { physical, .. }) => self.physical.get(physical).map(|p| p.place),
            _ => None,
        };
        let place = place.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        match location.kind {
            CU_MEM_LOCATION_TYPE_DEVICE => {
                let gpu = u32::try_from(location.id).ok().filter(|gpu| (*gpu as usize) < self.banks.len());
                let gpu = gpu.ok_or(CUDA_ERROR_INVALID_VALUE)?;
                match place {
                    Place::Device(owner) if access != Access::None && !self.can_reach(gpu, owner) => {
                        Err(CUDA_ERROR_INVALID_DEVICE)
                    }
                    _ => Ok(()),
                }
            }
            CU_MEM_LOCATION_TYPE_HOST | CU_MEM_LOCATION_TYPE_HOST_NUMA => match place {
                Place::Device(_) => Err(CUDA_ERROR_NOT_SUPPORTED),
                _ => Ok(()),
            },
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }

    /// `cuMemGetAccess`: flags of one location at one address.
    pub fn get_access(&self, address: u64, location: CUmemLocation) -> Answer<u64> {
        let (_, range) = self.range_at(address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let Kind::Mapped { access, cpu, .. } = &range.kind else {
            return Err(CUDA_ERROR_INVALID_VALUE);
        };
        let found = match location.kind {
            CU_MEM_LOCATION_TYPE_DEVICE => {
                let id = usize::try_from(location.id).map_err(|_| CUDA_ERROR_INVALID_DEVICE)?;
                *access.get(id).ok_or(CUDA_ERROR_INVALID_DEVICE)?
            }
            CU_MEM_LOCATION_TYPE_HOST | CU_MEM_LOCATION_TYPE_HOST_NUMA => *cpu,
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        };
        Ok(flags(found) as u64)
    }
}

/// The driver's number of an access.
pub(super) fn flags(access: Access) -> i32 {
    match access {
        Access::None => CU_MEM_ACCESS_FLAGS_PROT_NONE,
        Access::Read => CU_MEM_ACCESS_FLAGS_PROT_READ,
        Access::Write => CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    }
}

fn access(flags: i32) -> Answer<Access> {
    match flags {
        CU_MEM_ACCESS_FLAGS_PROT_NONE => Ok(Access::None),
        CU_MEM_ACCESS_FLAGS_PROT_READ => Ok(Access::Read),
        CU_MEM_ACCESS_FLAGS_PROT_READWRITE => Ok(Access::Write),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}
