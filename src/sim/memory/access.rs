//! Who may touch what, and what is being touched.

use super::{Access, Kind, Memory, Origin, Place, Range, Wanted};
use crate::exec::Running;
use std::sync::Arc;

/// From where an operation reaches memory. Sets of GPUs are bit masks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reach {
    /// GPUs whose rights to a mapping count; one that has them is enough.
    pub devices: u64,
    /// GPUs whose `cuMemAlloc` memory is in reach.
    pub allocations: u64,
    /// Whether the GPU that holds a page may use its own rights (peer copies).
    pub owner: bool,
    /// Whether host memory that the driver does not know is in reach (copies).
    pub pageable: bool,
}

/// What lies behind a range of addresses that may be touched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cover {
    /// Memory that the driver knows: the ranges, by start.
    Known(Vec<u64>),
    /// Ordinary host memory of the program.
    Pageable,
}

/// The range may not be touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Denied;

impl Memory {
    /// Checks `size` bytes at `address`.
    pub fn cover(&self, address: u64, size: u64, reach: Reach, wanted: Wanted) -> Result<Cover, Denied> {
        let end = address.checked_add(size).ok_or(Denied)?;
        if !self.is_ours(address) {
            return if reach.pageable && address != 0 { Ok(Cover::Pageable) } else { Err(Denied) };
        }
        let mut at = address;
        let mut starts = Vec::new();
        loop {
            let (start, range) = self.range_at(at).ok_or(Denied)?;
            if !self.allows(range, reach, wanted) {
                return Err(Denied);
            }
            starts.push(start);
            at = start + range.size;
            if at >= end {
                return Ok(Cover::Known(starts));
            }
            // Mappings side by side are one piece of memory, allocations are not.
            if !matches!(range.kind, Kind::Mapped { .. }) {
                return Err(Denied);
            }
        }
    }

    fn allows(&self, range: &Range, reach: Reach, wanted: Wanted) -> bool {
        let needed = match wanted {
            Wanted::Read => Access::Read,
            Wanted::Write => Access::Write,
        };
        match &range.kind {
            Kind::Pinned { .. } => true,
            Kind::Allocated { origin: Origin::Managed, .. } => true,
            // A pool says who may touch its memory; copies of the driver always may.
            Kind::Allocated { origin: Origin::Pool(pool), .. } => {
                reach.allocations == u64::MAX || self.pool_allows(*pool, reach.devices)
            }
            Kind::Allocated { device, .. } => reach.allocations >> device & 1 == 1,
            Kind::Mapped { physical, access, .. } => {
                let mut devices = reach.devices;
                if let (true, Some(Place::Device(owner))) =
                    (reach.owner, self.physical.get(physical).map(|p| p.place))
                {
                    devices |= 1 << owner;
                }
                access.iter().enumerate().any(|(gpu, have)| devices >> gpu & 1 == 1 && *have >= needed)
            }
        }
    }

    /// Notes that `running` touches the ranges; gives those that it did not touch before.
    pub fn lease(&mut self, starts: &[u64], running: &Arc<Running>) -> Vec<u64> {
        let mut new = Vec::new();
        for start in starts {
            if let Some(range) = self.ranges.get_mut(start)
                && !range.users.iter().any(|user| Arc::ptr_eq(user, running))
            {
                range.users.push(running.clone());
                new.push(*start);
            }
        }
        new
    }

    /// Notes that `running` is over.
    pub fn end_lease(&mut self, starts: &[u64], running: &Arc<Running>) {
        for start in starts {
            if let Some(range) = self.ranges.get_mut(start) {
                range.users.retain(|user| !Arc::ptr_eq(user, running));
            }
        }
    }

    /// Whether an address names memory of the program's own, or pinned host memory; not pages, wherever they lie.
    pub fn is_host_pointer(&self, address: u64) -> bool {
        self.range_at(address).is_none_or(|(_, range)| matches!(range.kind, Kind::Pinned { .. }))
    }

    /// Whether the address is memory of the host that the driver knows.
    pub fn on_host(&self, address: u64) -> bool {
        match self.range_at(address).map(|(_, range)| &range.kind) {
            Some(Kind::Pinned { .. }) => true,
            Some(Kind::Mapped { physical, .. }) => {
                self.physical.get(physical).is_some_and(|p| !matches!(p.place, Place::Device(_)))
            }
            _ => false,
        }
    }

    /// Whether the address is one of a mapped page.
    pub fn is_page(&self, address: u64) -> bool {
        matches!(self.range_at(address), Some((_, Range { kind: Kind::Mapped { .. }, .. })))
    }

    /// Zeroes fresh memory that nobody else uses yet.
    pub fn clear(&mut self, address: u64, size: u64) {
        let fits = self.range_at(address).is_some_and(|(start, range)| address + size <= start + range.size);
        if fits {
            let at = std::ptr::with_exposed_provenance_mut::<u8>(address as usize);
            // SAFETY: the live range that holds the bytes is mapped.
            unsafe { std::ptr::write_bytes(at, 0, size as usize) };
        }
    }

    /// Start and end of the range that holds `address`.
    pub fn end_of_range(&self, address: u64) -> Option<(u64, u64)> {
        self.range_at(address).map(|(start, range)| (start, start + range.size))
    }
}
