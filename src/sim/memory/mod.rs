//! Memory: physical pages, address ranges, who may touch them.

mod access;
mod alloc;
mod bank;
mod host;
pub(crate) mod ipc;
mod pool;
mod query;
mod share;
mod space;
mod vmm;

pub(crate) use access::{Cover, Reach};
pub use pool::PoolValue;
pub use query::Attribute;

use crate::exec::Running;
use crate::ledger::{self, Ledger};
use crate::settings::{Link, Settings};
use crate::util::Answer;
use alloc::{Arena, Block};
use bank::Bank;
use ipc::Opened;
use pool::Pool;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use vgmem_abi::*;

/// Unit of physical memory and of mappings.
pub(crate) const GRANULE: u64 = 2 << 20;

/// Where physical memory lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A GPU.
    Device(u32),
    /// The host.
    Host,
    /// A NUMA node of the host.
    Numa(i32),
}

impl Place {
    /// `CUmemLocation` of this place: type and id.
    pub fn location(self) -> (i32, i32) {
        match self {
            Place::Device(gpu) => (CU_MEM_LOCATION_TYPE_DEVICE, gpu as i32),
            Place::Host => (CU_MEM_LOCATION_TYPE_HOST, 0),
            Place::Numa(node) => (CU_MEM_LOCATION_TYPE_HOST_NUMA, node),
        }
    }

    fn from_location(kind: i32, id: i32) -> Option<Place> {
        match kind {
            CU_MEM_LOCATION_TYPE_DEVICE => Some(Place::Device(u32::try_from(id).ok()?)),
            CU_MEM_LOCATION_TYPE_HOST => Some(Place::Host),
            CU_MEM_LOCATION_TYPE_HOST_NUMA => Some(Place::Numa(id)),
            _ => None,
        }
    }
}

/// What a range of addresses may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// Nothing.
    None,
    /// Reads.
    Read,
    /// Reads and writes.
    Write,
}

/// What an operation wants to do with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Read it.
    Read,
    /// Write it.
    Write,
}

/// Physical memory: one handle of `cuMemCreate`, or what lies behind a `cuMemAlloc`.
pub(crate) struct Physical {
    place: Place,
    offset: u64,
    size: u64,
    handle_types: i32,
    rdma: u8,
    /// The file of another process that the memory was imported from; none: our bank's.
    foreign: Option<File>,
    /// How often the program may still call `cuMemRelease`.
    references: u64,
    /// How many mappings show it.
    mappings: u64,
    exported: bool,
}

/// A live range of addresses.
pub(crate) struct Range {
    size: u64,
    kind: Kind,
    /// Number that no other range of the process ever has.
    id: u64,
    /// What the program has set; none: what memory of this kind begins with.
    sync_memops: Option<bool>,
    /// It is being freed in the order of a stream: nobody may free it again.
    freeing: bool,
    /// Operations in flight that touch the range.
    users: Vec<Arc<Running>>,
}

/// What is behind a range.
enum Kind {
    /// A mapping of `cuMemMap`.
    Mapped { physical: u64, reservation: u64, access: Vec<Access>, cpu: Access },
    /// Memory of an allocating call; `block` is set if it is part of a shared block.
    Allocated { device: u32, context: u64, physical: u64, block: Option<u64>, origin: Origin },
    /// Host memory that GPUs can reach.
    Pinned { device: u32, context: u64, flags: u32, registered: bool },
}

/// Which call made an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// `cuMemAlloc`.
    Plain,
    /// `cuMemAllocAsync`: the pool.
    Pool(u64),
    /// `cuMemAllocAsync` in a captured stream: the pool. It lives as long as the graph.
    Graph(u64),
    /// `cuMemAllocManaged`.
    Managed,
    /// `cuIpcOpenMemHandle`.
    Imported,
}

/// All memory of the machine.
pub(crate) struct Memory {
    banks: Vec<Bank>,
    host: Bank,
    link: Link,
    driver: u32,
    physical: HashMap<u64, Physical>,
    /// Reservations of the program: start to size.
    reservations: BTreeMap<u64, u64>,
    /// Reservations in which lost work may still run on scratch memory: their addresses are never
    /// given back, so that it faults nobody.
    tainted: BTreeSet<u64>,
    ranges: BTreeMap<u64, Range>,
    arena: Option<Arena>,
    /// Shared blocks of small allocations: start to block.
    blocks: BTreeMap<u64, Block>,
    /// Memory of other processes, by address.
    opened: BTreeMap<u64, Opened>,
    pools: BTreeMap<u64, Pool>,
    default_pools: BTreeMap<u32, u64>,
    current_pools: BTreeMap<u32, u64>,
    next_id: u64,
}

impl Memory {
    /// Memory of the machine that `settings` describe.
    pub fn new(settings: &Settings) -> std::io::Result<Memory> {
        let ledger = match &settings.machine {
            Some(name) => Some(Arc::new(Ledger::join(name)?)),
            None => None,
        };
        let shared = |device| Some((ledger.clone()?, ledger::column(device)));
        let banks = (0..settings.gpus).map(|gpu| Bank::new(settings.gpu_memory(), shared(Some(gpu))));
        Ok(Memory {
            banks: banks.collect::<Result<_, _>>()?,
            host: Bank::new(settings.host & !(GRANULE - 1), shared(None))?,
            link: settings.link,
            driver: settings.driver,
            physical: HashMap::new(),
            reservations: BTreeMap::new(),
            tainted: BTreeSet::new(),
            ranges: BTreeMap::new(),
            arena: None,
            blocks: BTreeMap::new(),
            opened: BTreeMap::new(),
            pools: BTreeMap::new(),
            default_pools: BTreeMap::new(),
            current_pools: BTreeMap::new(),
            next_id: 1,
        })
    }

    /// Free and total bytes of a GPU.
    pub fn info(&self, device: u32) -> Answer<(u64, u64)> {
        let bank = self.banks.get(device as usize).ok_or(CUDA_ERROR_INVALID_DEVICE)?;
        Ok((bank.free(), bank.capacity()))
    }

    fn bank(&mut self, place: Place) -> Answer<&mut Bank> {
        match place {
            Place::Device(gpu) => self.banks.get_mut(gpu as usize).ok_or(CUDA_ERROR_INVALID_DEVICE),
            Place::Host | Place::Numa(_) => Ok(&mut self.host),
        }
    }

    /// Takes physical memory of whole granules; `references` as of the program.
    fn take(&mut self, place: Place, size: u64, references: u64) -> Answer<u64> {
        let offset = self.bank(place)?.take(size)?;
        let handle = crate::handle::fresh(crate::handle::Kind::Physical);
        let physical = Physical {
            place,
            offset,
            size,
            handle_types: 0,
            rdma: 0,
            foreign: None,
            references,
            mappings: 0,
            exported: false,
        };
        self.physical.insert(handle, physical);
        Ok(handle)
    }

    /// Frees physical memory that nothing refers to any more.
    fn drop_unused(&mut self, handle: u64) {
        let unused = |p: &Physical| p.references == 0 && p.mappings == 0;
        if !self.physical.get(&handle).is_some_and(unused) {
            return;
        }
        if let Some(gone) = self.physical.remove(&handle)
            && gone.foreign.is_none()
            && let Ok(bank) = self.bank(gone.place)
        {
            bank.give(gone.offset, gone.size, gone.exported);
        }
    }

    /// Shows physical memory at reserved addresses and counts the mapping.
    fn show(&mut self, address: u64, handle: u64) -> Answer {
        let physical = self.physical.get(&handle).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let (offset, size, place) = (physical.offset, physical.size, physical.place);
        let fd = match &physical.foreign {
            Some(file) => file.as_raw_fd(),
            None => self.bank(place)?.fd(),
        };
        if !space::show(address, size, fd, offset) {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        if let Some(physical) = self.physical.get_mut(&handle) {
            physical.mappings += 1;
        }
        Ok(())
    }

    /// Hides `size` bytes at `address` that showed `handle`. Work in flight on them is lost.
    fn hide(&mut self, address: u64, size: u64, handle: u64, users: &[Arc<Running>]) {
        for user in users {
            user.lose();
        }
        space::hide(address, size, !users.is_empty());
        if let (false, Some((reservation, _))) = (users.is_empty(), self.reservation_at(address)) {
            self.tainted.insert(reservation);
        }
        if let Some(physical) = self.physical.get_mut(&handle) {
            physical.mappings -= 1;
        }
        self.drop_unused(handle);
    }

    fn insert(&mut self, address: u64, size: u64, kind: Kind) {
        let id = self.next_id;
        self.next_id += 1;
        let range = Range { size, kind, id, sync_memops: None, freeing: false, users: Vec::new() };
        self.ranges.insert(address, range);
    }

    /// The live range that holds `address`.
    fn range_at(&self, address: u64) -> Option<(u64, &Range)> {
        let (start, range) = self.ranges.range(..=address).next_back()?;
        (address - start < range.size).then_some((*start, range))
    }

    /// The reservation of the program that holds `address`.
    fn reservation_at(&self, address: u64) -> Option<(u64, u64)> {
        let (start, size) = self.reservations.range(..=address).next_back()?;
        (address - start < *size).then_some((*start, *size))
    }

    /// Whether `address` is in address space of this machine, mapped or not.
    fn is_ours(&self, address: u64) -> bool {
        self.range_at(address).is_some()
            || self.reservation_at(address).is_some()
            || self.arena.as_ref().is_some_and(|arena| arena.holds(address))
    }

    /// Whether GPU `a` can map memory of GPU `b`.
    pub fn can_reach(&self, a: u32, b: u32) -> bool {
        a == b || self.link != Link::None
    }
}
