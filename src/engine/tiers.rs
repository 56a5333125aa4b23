//! What each tier holds: the GPUs, and host RAM.

use vgmem_policy::{Amount, Tier, TierKind};

use crate::device::{Device, Place};
use crate::pool::{Pool, State};

#[derive(Debug, Clone)]
pub(crate) struct TierAccount {
    pub(crate) capacity: u64,
    pub(crate) exchange: u64,
    pub(crate) used: u64,
    /// Part of `used` that no allocation holds.
    pub(crate) kept: u64,
    /// Part of `used` that is spare frames.
    pub(crate) spare: u64,
    /// Part of `used` that is twins of pages at home.
    pub(crate) twins: u64,
    /// Used when the pool held most.
    pub(crate) used_at_peak: u64,
}

impl TierAccount {
    /// Bytes that allocations hold.
    pub(crate) fn held(&self) -> u64 {
        self.used - self.kept - self.spare - self.twins
    }

    /// Bytes that moves may still take, from the exchange reserve too.
    pub(crate) fn room(&self) -> u64 {
        (self.capacity + self.exchange).saturating_sub(self.used)
    }
}

impl<D: Device> Pool<D> {
    /// Free and total bytes of every GPU, and of the host, by the pool's own books.
    pub fn amounts(&self) -> (Vec<Amount>, Amount) {
        let state = self.lock();
        let amount =
            |t: &TierAccount| Amount { free: t.capacity.saturating_sub(t.held()), total: t.capacity };
        let (host, gpus) = match state.tiers.split_last() {
            Some((host, gpus)) => (amount(host), gpus.iter().map(amount).collect()),
            None => (Amount::default(), Vec::new()),
        };
        (gpus, host)
    }

    /// Bytes on a GPU that no allocation holds but that the driver counts as used.
    pub fn kept(&self, gpu: usize) -> u64 {
        self.lock().tiers.get(gpu).map_or(0, |tier| tier.kept)
    }

    pub(crate) fn host_tier(&self) -> usize {
        self.config.gpus.len()
    }

    pub(crate) fn place(&self, tier: usize, home: u8) -> Place {
        if tier == self.host_tier() { Place::HostNear(home) } else { Place::Gpu(tier as u8) }
    }

    /// The tiers as the policy sees them from `home`, given what is known around the pool.
    pub(crate) fn view(&self, state: &State, home: u8, around: &Around) -> Vec<Tier> {
        let gpu = self.config.gpus.get(home as usize);
        let tier = |(index, account): (usize, &TierAccount)| {
            let mut room = account.capacity.saturating_sub(account.used);
            if index == self.host_tier() {
                room = room.min(around.host_free.unwrap_or(u64::MAX));
                return Tier {
                    kind: TierKind::Host,
                    room,
                    capacity: account.capacity,
                    distance: Some(u32::MAX),
                    last: false,
                };
            }
            if index == home as usize
                && let (Some(free), Some(gpu)) = (around.home_free, gpu)
            {
                room = room.min(free.saturating_sub(gpu.reserve));
            }
            let distance = gpu.and_then(|gpu| gpu.distances.get(index).copied().flatten());
            let last = around.taken.contains(&(index as u8));
            Tier { kind: TierKind::Gpu, room, capacity: account.capacity, distance, last }
        };
        state.tiers.iter().enumerate().map(tier).collect()
    }
}

/// What is known of the world around the pool when an allocation is planned.
#[derive(Clone, Debug, Default)]
pub(crate) struct Around {
    /// Bytes that the driver has left on the home GPU, where it could be asked.
    pub(crate) home_free: Option<u64>,
    /// Bytes that the machine has left; `None` while nobody has asked.
    pub(crate) host_free: Option<u64>,
    /// GPUs that are home to other processes.
    pub(crate) taken: Vec<u8>,
}

impl State {
    pub(crate) fn charge(&mut self, tier: usize, bytes: u64) {
        self.tiers[tier].used += bytes;
    }

    pub(crate) fn uncharge(&mut self, tier: usize, bytes: u64) {
        self.tiers[tier].used -= bytes;
    }

    /// Notes where everything lies when the pool holds more than ever before.
    pub(crate) fn note_peak(&mut self) {
        let used = self.tiers.iter().map(TierAccount::held).sum();
        if used > self.peak {
            self.peak = used;
            for tier in &mut self.tiers {
                tier.used_at_peak = tier.held();
            }
        }
    }
}
