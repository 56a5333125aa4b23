//! Access rights: the home GPU has them from the start, others when they name a page.

use vgmem_policy::GRANULE;

use crate::device::{Context, Device};
use crate::map::PageId;
use crate::pool::Pool;
use crate::uses::Ended;

/// A page that a GPU has no access to yet.
#[derive(Clone, Copy, Debug)]
struct Missing {
    id: u32,
    /// The allocation's: the page may be another's when the driver has answered.
    serial: u64,
    address: u64,
    bytes: u64,
}

/// Splits a list in address order where it has gaps.
fn runs(pages: &[Missing]) -> impl Iterator<Item = &[Missing]> {
    pages.chunk_by(|page, next| page.address + page.bytes == next.address)
}

impl<D: Device> Pool<D> {
    /// Lets a GPU use the pooled pages among the `bytes` bytes from `address` on.
    ///
    /// Best effort: what the driver refuses stays without access, and the program's own call then fails as it
    /// would on memory that the GPU cannot reach. Without anything to do this takes no lock.
    pub fn use_range(&self, gpu: u8, address: u64, bytes: u64) {
        let Some(end) = address.checked_add(bytes) else { return };
        if !self.reaches(gpu, address, bytes) {
            self.grant_missing(gpu, address, end);
        }
    }

    /// Whether a GPU has access to all pooled pages among the `bytes` bytes from `address` on. Takes no lock.
    pub fn reaches(&self, gpu: u8, address: u64, bytes: u64) -> bool {
        let end = address.saturating_add(bytes);
        let mut at = address;
        while at < end {
            match self.map.lookup(at) {
                Some(id) if !self.map.may_access(id, gpu) => return false,
                Some(_) => at = (at / GRANULE + 1) * GRANULE,
                None => return true,
            }
        }
        true
    }

    /// As [`Self::use_range`] for the whole allocation that holds `address`: a kernel may go anywhere in it.
    pub fn use_allocation(&self, gpu: u8, address: u64) {
        let Some(id) = self.map.lookup(address) else { return };
        if !self.map.may_access(id, gpu)
            && let Some(found) = self.find(address)
        {
            self.grant_missing(gpu, found.base, found.base + found.bytes);
        }
    }

    /// As [`Self::use_allocation`] for every allocation: for work whose operands cannot be known.
    pub fn use_everything(&self, gpu: u8) {
        let ranges: Vec<(u64, u64)> = {
            let state = self.lock();
            state.allocations.iter().map(|(_, a)| (a.base, a.base + a.span)).collect()
        };
        for (start, end) in ranges {
            self.grant_missing(gpu, start, end);
        }
    }

    /// The program enabled access of GPU `gpu` to the memory of GPU `home`: replayed on all pages of
    /// allocations of `home`, those made later included.
    pub fn enable_peer(&self, gpu: u8, home: u8) {
        let ranges: Vec<(u64, u64)> = {
            let mut state = self.lock();
            if let Some(peers) = state.peers.get_mut(home as usize) {
                *peers |= 1 << gpu;
            }
            let of_home = state.allocations.iter().filter(|(_, a)| a.home == home);
            of_home.map(|(_, a)| (a.base, a.base + a.span)).collect()
        };
        for (start, end) in ranges {
            self.grant_missing(gpu, start, end);
        }
    }

    /// The program disabled that access: allocations made from now on are not granted. What was granted stays,
    /// other parts of the pool may need it.
    pub fn disable_peer(&self, gpu: u8, home: u8) {
        if let Some(peers) = self.lock().peers.get_mut(home as usize) {
            *peers &= !(1 << gpu);
        }
    }

    /// Replays the peers that were enabled for `home` on one allocation.
    pub(crate) fn grant_peers(&self, base: u64, span: u64, home: u8) {
        let peers = self.lock().peers.get(home as usize).copied().unwrap_or(0);
        for gpu in (0..64u8).filter(|&gpu| peers >> gpu & 1 == 1) {
            self.grant_missing(gpu, base, base + span);
        }
    }

    /// Work of this context may use whatever its GPU has access to: freeing waits for it.
    pub fn note_context(&self, gpu: u8, context: Context) {
        let mut state = self.lock();
        if let Some(known) = state.contexts.get_mut(gpu as usize)
            && !known.contains(&context)
        {
            known.push(context);
        }
    }

    /// Grants neighbouring pages with one driver call; one by one where the driver refuses that. Those granted.
    fn grant_run(&self, gpu: u8, run: &[Missing]) -> Vec<Missing> {
        let (Some(first), Some(last)) = (run.first(), run.last()) else { return Vec::new() };
        let bytes = last.address + last.bytes - first.address;
        if self.device.grant(first.address, bytes, gpu).is_ok() {
            return run.to_vec();
        }
        let each = run.iter().filter(|page| self.device.grant(page.address, page.bytes, gpu).is_ok());
        each.copied().collect()
    }

    fn grant_missing(&self, gpu: u8, start: u64, end: u64) {
        // A hidden page has no mapping to give access to. Once two GPUs have access a page does not move.
        let mut using = self.begin_use(&[start]);
        self.claim(&mut using);
        self.grant_shown(gpu, start, end);
        self.end_use(using, Ended::Nothing);
    }

    fn grant_shown(&self, gpu: u8, start: u64, end: u64) {
        let missing: Vec<Missing> = {
            let state = self.lock();
            let mut list = Vec::new();
            let mut at = start;
            while at < end {
                let Some(id) = self.map.lookup(at) else { break };
                let Some(page) = state.pages.get(id.0) else { break };
                let Some(allocation) = state.allocations.get(page.allocation) else { break };
                if self.map.access_of(id) >> gpu & 1 == 0 {
                    let (serial, address, bytes) = (allocation.serial, page.address, page.bytes);
                    list.push(Missing { id: id.0, serial, address, bytes });
                }
                at = page.address + page.bytes;
            }
            list
        };
        let granted: Vec<_> = runs(&missing).flat_map(|run| self.grant_run(gpu, run)).collect();
        let state = self.lock();
        for Missing { id, serial, .. } in granted {
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
