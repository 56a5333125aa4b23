//! Access rights: the home GPU has them from the start, others when they name a page.

use vgmem_policy::GRANULE;

use crate::device::{Context, Device};
use crate::map::PageId;
use crate::pool::Pool;

impl<D: Device> Pool<D> {
    /// Lets a GPU use the pooled pages among the `bytes` bytes from `address` on, for work of `context`.
    ///
    /// Best effort: what the driver refuses stays without access, and the program's own call then fails as it
    /// would on memory that the GPU cannot reach. Without anything to do this takes no lock.
    pub fn use_range(&self, gpu: u8, context: Context, address: u64, bytes: u64) {
        let Some(end) = address.checked_add(bytes) else { return };
        let mut at = address;
        while at < end {
            let Some(id) = self.map.lookup(at) else { return };
            if !self.map.may_access(id, gpu) {
                self.grant_missing(gpu, context, at, end);
                return;
            }
            at = (at / GRANULE + 1) * GRANULE;
        }
    }

    /// As [`Self::use_range`] for the whole allocation that holds `address`: a kernel may go anywhere in it.
    pub fn use_allocation(&self, gpu: u8, context: Context, address: u64) {
        let Some(id) = self.map.lookup(address) else { return };
        if !self.map.may_access(id, gpu)
            && let Some(found) = self.find(address)
        {
            self.grant_missing(gpu, context, found.base, found.base + found.bytes);
        }
    }

    /// As [`Self::use_allocation`] for every allocation: for work whose operands cannot be known.
    pub fn use_everything(&self, gpu: u8, context: Context) {
        let ranges: Vec<(u64, u64)> = {
            let state = self.lock();
            state.allocations.iter().map(|(_, a)| (a.base, a.base + a.span)).collect()
        };
        for (start, end) in ranges {
            self.grant_missing(gpu, context, start, end);
        }
    }

    /// The program enabled access of GPU `gpu` to the memory of GPU `home`: replayed on all pages of
    /// allocations of `home`, those made later included.
    pub fn enable_peer(&self, gpu: u8, context: Context, home: u8) {
        let ranges: Vec<(u64, u64)> = {
            let mut state = self.lock();
            if let Some(peers) = state.peers.get_mut(home as usize) {
                *peers |= 1 << gpu;
            }
            let of_home = state.allocations.iter().filter(|(_, a)| a.home == home);
            of_home.map(|(_, a)| (a.base, a.base + a.span)).collect()
        };
        for (start, end) in ranges {
            self.grant_missing(gpu, context, start, end);
        }
    }

    fn grant_missing(&self, gpu: u8, context: Context, start: u64, end: u64) {
        // (page number, allocation's serial, address, bytes)
        let missing: Vec<(u32, u64, u64, u64)> = {
            let mut state = self.lock();
            let mut list = Vec::new();
            let mut at = start;
            while at < end {
                let Some(id) = self.map.lookup(at) else { break };
                let Some(page) = state.pages.get(id.0) else { break };
                let (slot, address, bytes) = (page.allocation, page.address, page.bytes);
                let Some(allocation) = state.allocations.get_mut(slot) else { break };
                if !allocation.users.contains(&(gpu, context)) {
                    allocation.users.push((gpu, context));
                }
                if self.map.access_of(id) >> gpu & 1 == 0 {
                    list.push((id.0, allocation.serial, address, bytes));
                }
                at = address + bytes;
            }
            list
        };
        let granted: Vec<_> = missing
            .into_iter()
            .filter(|&(_, _, address, bytes)| self.device.grant(address, bytes, gpu).is_ok())
            .collect();
        let state = self.lock();
        for (id, serial, _, _) in granted {
            let same = state
                .pages
                .get(id)
                .and_then(|page| state.allocations.get(page.allocation))
                .is_some_and(|allocation| allocation.serial == serial);
            if same {
                self.map.add_access(PageId(id), gpu);
            }
        }
    }
}
