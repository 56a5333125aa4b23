//! What the driver says about addresses.

use super::vmm::flags;
use super::{Access, GRANULE, Kind, Memory, Origin, Place, Range};
use crate::util::{Answer, round_up};
use vgmem_abi::*;

/// Value of a pointer attribute, in the width the driver writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attribute {
    /// Four bytes.
    Word(u32),
    /// Eight bytes.
    Long(u64),
    /// Twelve bytes: tokens.
    Tokens(u64, u32),
}

impl Attribute {
    /// The value that an address has which the driver does not know.
    pub fn unknown(attribute: i32) -> Option<Attribute> {
        match attribute {
            CU_POINTER_ATTRIBUTE_MEMORY_TYPE
            | CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
            | CU_POINTER_ATTRIBUTE_IS_MANAGED
            | CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
            | CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE
            | CU_POINTER_ATTRIBUTE_MAPPED
            | CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE
            | CU_POINTER_ATTRIBUTE_ACCESS_FLAGS => Some(Attribute::Word(0)),
            CU_POINTER_ATTRIBUTE_P2P_TOKENS => Some(Attribute::Tokens(0, 0)),
            CU_POINTER_ATTRIBUTE_CONTEXT..=CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID => Some(Attribute::Long(0)),
            _ => None,
        }
    }
}

/// Pages of the host.
const PAGE: u64 = 4096;
/// Ordinal of no GPU: -2.
const NO_DEVICE: u32 = -2_i32 as u32;

/// A range, and what the answers about it have in common.
struct View<'a> {
    address: u64,
    start: u64,
    range: &'a Range,
    device: u32,
}

impl Memory {
    /// `cuPointerGetAttribute` for an address, asked on GPU `device`.
    pub fn attribute(&self, attribute: i32, address: u64, device: u32) -> Answer<Attribute> {
        let unknown = Attribute::unknown(attribute).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let (start, range) = self.range_at(address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let view = View { address, start, range, device };
        let value = match &range.kind {
            Kind::Mapped { .. } => self.of_mapping(attribute, &view)?,
            Kind::Allocated { .. } => self.of_allocation(attribute, &view)?,
            Kind::Pinned { .. } => self.of_pinned(attribute, &view)?,
        };
        Ok(value.unwrap_or(unknown))
    }

    /// `cuPointerGetAttributes` for one attribute: what is written, if anything. Addresses and facts
    /// that the driver does not know are no error there.
    pub fn attribute_in_list(&self, attribute: i32, address: u64, device: u32) -> Answer<Option<Attribute>> {
        let unknown = Attribute::unknown(attribute).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if attribute == CU_POINTER_ATTRIBUTE_P2P_TOKENS {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if let Ok(value) = self.attribute(attribute, address, device) {
            return Ok(Some(value));
        }
        if self.range_at(address).is_some() {
            return Ok(Some(unknown));
        }
        // Of addresses that are reserved but not mapped only the reservation is known.
        let reservation = self.reservation_at(address);
        Ok(match attribute {
            CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => Some(Attribute::Word(NO_DEVICE)),
            CU_POINTER_ATTRIBUTE_RANGE_START_ADDR => reservation.map(|(start, _)| Attribute::Long(start)),
            CU_POINTER_ATTRIBUTE_RANGE_SIZE => reservation.map(|(_, size)| Attribute::Long(size)),
            CU_POINTER_ATTRIBUTE_HOST_POINTER => Some(Attribute::Long(address)),
            _ => Some(unknown),
        })
    }

    /// What a question that fails writes all the same: zeros for the host's address of memory that
    /// has none, and for tokens of memory of the host.
    pub fn written_on_failure(&self, attribute: i32, address: u64) -> Option<Attribute> {
        self.range_at(address)?;
        match attribute {
            CU_POINTER_ATTRIBUTE_HOST_POINTER => Some(Attribute::Long(0)),
            CU_POINTER_ATTRIBUTE_P2P_TOKENS => Some(Attribute::Tokens(0, 0)),
            _ => None,
        }
    }

    fn of_mapping(&self, attribute: i32, view: &View) -> Answer<Option<Attribute>> {
        let Kind::Mapped { physical, reservation, access, cpu } = &view.range.kind else {
            return Ok(None);
        };
        let page = self.physical.get(physical).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let here = access.get(view.device as usize).copied().unwrap_or(Access::None);
        let (ordinal, kind) = match page.place {
            Place::Device(gpu) => (gpu, CU_MEMORYTYPE_DEVICE),
            Place::Host | Place::Numa(_) => (0, CU_MEMORYTYPE_HOST),
        };
        Ok(Some(match attribute {
            CU_POINTER_ATTRIBUTE_MEMORY_TYPE => Attribute::Word(kind as u32),
            CU_POINTER_ATTRIBUTE_DEVICE_POINTER if here == Access::None => {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            CU_POINTER_ATTRIBUTE_DEVICE_POINTER => Attribute::Long(view.address),
            CU_POINTER_ATTRIBUTE_HOST_POINTER if *cpu == Access::None => {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            CU_POINTER_ATTRIBUTE_HOST_POINTER => Attribute::Long(view.address),
            CU_POINTER_ATTRIBUTE_SYNC_MEMOPS => Attribute::Word((kind == CU_MEMORYTYPE_DEVICE) as u32),
            CU_POINTER_ATTRIBUTE_P2P_TOKENS if kind == CU_MEMORYTYPE_HOST => {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            CU_POINTER_ATTRIBUTE_P2P_TOKENS => Attribute::Tokens(0, 0),
            CU_POINTER_ATTRIBUTE_BUFFER_ID | CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID => {
                Attribute::Long(*physical)
            }
            CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => Attribute::Word(ordinal),
            // The whole reservation: the driver does not know what the program calls one object.
            CU_POINTER_ATTRIBUTE_RANGE_START_ADDR => Attribute::Long(*reservation),
            CU_POINTER_ATTRIBUTE_RANGE_SIZE => {
                Attribute::Long(self.reservations.get(reservation).copied().unwrap_or(0))
            }
            CU_POINTER_ATTRIBUTE_MAPPED => Attribute::Word(1),
            CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES => Attribute::Long(page.handle_types as u64),
            CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE => Attribute::Word(page.rdma as u32),
            CU_POINTER_ATTRIBUTE_ACCESS_FLAGS => Attribute::Word(flags(here) as u32),
            CU_POINTER_ATTRIBUTE_MAPPING_SIZE => Attribute::Long(view.range.size),
            CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR => Attribute::Long(view.start),
            _ => return Ok(None), // no context, not managed, no legacy IPC, no pool
        }))
    }

    fn of_allocation(&self, attribute: i32, view: &View) -> Answer<Option<Attribute>> {
        let Kind::Allocated { device, context, block, origin, physical } = &view.range.kind else {
            return Ok(None);
        };
        let plain = *origin == Origin::Plain;
        let (managed, pool) = match origin {
            Origin::Pool(pool) | Origin::Graph(pool) => (false, *pool),
            other => (*other == Origin::Managed, 0),
        };
        let (mapping, bytes) = match block {
            // Neighbours in one block share its mapping.
            Some(block) => (*block, self.physical.get(physical).map_or(GRANULE, |p| p.size)),
            None => (view.start, round_up(view.range.size, GRANULE).unwrap_or(view.range.size)),
        };
        Ok(Some(match attribute {
            CU_POINTER_ATTRIBUTE_CONTEXT if pool != 0 => Attribute::Long(0),
            CU_POINTER_ATTRIBUTE_CONTEXT => Attribute::Long(*context),
            CU_POINTER_ATTRIBUTE_MEMORY_TYPE => Attribute::Word(CU_MEMORYTYPE_DEVICE as u32),
            CU_POINTER_ATTRIBUTE_DEVICE_POINTER => Attribute::Long(view.address),
            CU_POINTER_ATTRIBUTE_HOST_POINTER if managed => Attribute::Long(view.address),
            CU_POINTER_ATTRIBUTE_HOST_POINTER => return Err(CUDA_ERROR_INVALID_VALUE),
            // No third party has asked for any yet.
            CU_POINTER_ATTRIBUTE_P2P_TOKENS => Attribute::Tokens(0, 0),
            CU_POINTER_ATTRIBUTE_SYNC_MEMOPS => {
                Attribute::Word(view.range.sync_memops.unwrap_or(true) as u32)
            }
            CU_POINTER_ATTRIBUTE_BUFFER_ID => Attribute::Long(view.range.id),
            CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID => Attribute::Long(*physical),
            CU_POINTER_ATTRIBUTE_IS_MANAGED => Attribute::Word(managed as u32),
            CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => Attribute::Word(*device),
            CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE
            | CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE => Attribute::Word(plain as u32),
            CU_POINTER_ATTRIBUTE_RANGE_START_ADDR => Attribute::Long(view.start),
            CU_POINTER_ATTRIBUTE_RANGE_SIZE => Attribute::Long(view.range.size),
            CU_POINTER_ATTRIBUTE_MAPPED => Attribute::Word(1),
            CU_POINTER_ATTRIBUTE_MAPPING_SIZE => Attribute::Long(bytes),
            CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR => Attribute::Long(mapping),
            CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE => Attribute::Long(pool),
            CU_POINTER_ATTRIBUTE_ACCESS_FLAGS => Attribute::Word(3),
            _ => return Ok(None),
        }))
    }

    fn of_pinned(&self, attribute: i32, view: &View) -> Answer<Option<Attribute>> {
        let Kind::Pinned { device, context, registered, .. } = &view.range.kind else { return Ok(None) };
        // What the driver allocates it maps in granules.
        let unit = if *registered { PAGE } else { GRANULE };
        Ok(Some(match attribute {
            CU_POINTER_ATTRIBUTE_CONTEXT => Attribute::Long(*context),
            CU_POINTER_ATTRIBUTE_MEMORY_TYPE => Attribute::Word(CU_MEMORYTYPE_HOST as u32),
            CU_POINTER_ATTRIBUTE_DEVICE_POINTER | CU_POINTER_ATTRIBUTE_HOST_POINTER => {
                Attribute::Long(view.address)
            }
            CU_POINTER_ATTRIBUTE_P2P_TOKENS => return Err(CUDA_ERROR_INVALID_VALUE),
            CU_POINTER_ATTRIBUTE_BUFFER_ID | CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID => {
                Attribute::Long(view.range.id)
            }
            CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => Attribute::Word(*device),
            CU_POINTER_ATTRIBUTE_RANGE_START_ADDR | CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR => {
                Attribute::Long(view.start)
            }
            CU_POINTER_ATTRIBUTE_MAPPING_SIZE => {
                Attribute::Long(round_up(view.range.size, unit).unwrap_or(view.range.size))
            }
            CU_POINTER_ATTRIBUTE_RANGE_SIZE => Attribute::Long(view.range.size),
            CU_POINTER_ATTRIBUTE_MAPPED => Attribute::Word(1),
            CU_POINTER_ATTRIBUTE_ACCESS_FLAGS => Attribute::Word(3),
            _ => return Ok(None),
        }))
    }

    /// `cuMemGetAddressRange`: one mapping or allocation; base 0 for a page of host RAM.
    pub fn address_range(&self, address: u64) -> Answer<(u64, u64)> {
        let (start, range) = self.range_at(address).ok_or(CUDA_ERROR_NOT_FOUND)?;
        let on_host = match &range.kind {
            Kind::Mapped { physical, .. } => {
                self.physical.get(physical).is_some_and(|p| !matches!(p.place, Place::Device(_)))
            }
            _ => false,
        };
        Ok(if on_host { (0, range.size) } else { (start, range.size) })
    }

    /// `cuPointerSetAttribute`: mapped pages have none that can be set.
    pub fn set_attribute(&mut self, attribute: i32, address: u64, on: bool) -> Answer {
        if self.reservation_at(address).is_some() {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        let start = self.range_at(address).map(|(start, _)| start).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if let Some(range) = self.ranges.get_mut(&start) {
            range.sync_memops = Some(on);
        }
        Ok(())
    }

    /// Whether copies of this memory must be synchronous.
    pub fn sync_memops(&self, address: u64) -> bool {
        self.range_at(address).is_some_and(|(_, range)| range.sync_memops == Some(true))
    }
}
