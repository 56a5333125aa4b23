//! A machine as the replay knows it: sizes, rates, and what calls of the driver cost.

use vgmem_policy::{GRANULE, Speed, auto_page_size};

/// Bytes per nanosecond, which is GB/s.
pub type Rate = f64;
/// Bytes of an H200's cache.
const CACHE: u64 = 60 << 20;

/// Nanoseconds.
pub type Nanos = u64;

/// How fast bytes travel.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    /// Between a GPU and the host, one way.
    pub link: Rate,
    /// What each copy between a GPU and the host takes besides, in nanoseconds.
    pub begin: Nanos,
    /// The same, both ways together.
    pub both: Rate,
    /// A GPU and its memory.
    pub memory: Rate,
    /// Between two GPUs, one way.
    pub peer: Rate,
    /// A kernel's reads and writes of host memory.
    pub in_place: Rate,
    /// A kernel's reads and writes of another GPU's memory.
    pub in_place_peer: Rate,
    /// How often a kernel reads what it names.
    pub amplification: f64,
}

/// What calls cost the thread that makes them, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    /// Mapping a page.
    pub map: Nanos,
    /// Letting a GPU use a page of a GPU.
    pub grant_device: Nanos,
    /// Letting a GPU use a page of the host: in any case, and for each MiB.
    pub grant_host: (Nanos, Nanos),
    /// The same while copies are under way.
    pub grant_host_busy: (Nanos, Nanos),
    /// Unmapping a page of a GPU.
    pub unmap_device: Nanos,
    /// Unmapping a page of the host: in any case, and for each MiB.
    pub unmap_host: (Nanos, Nanos),
    /// Making physical memory on a GPU.
    pub create_device: Nanos,
    /// Making physical memory on the host, for each MiB; 0 where it is made ahead.
    pub create_host: Nanos,
    /// Beginning a copy.
    pub begin_copy: Nanos,
    /// Recording an event.
    pub mark: Nanos,
    /// Asking an event.
    pub query: Nanos,
    /// A launch.
    pub launch: Nanos,
    /// The fingerprint of a page, from the launch on: in any case, and for each MiB.
    pub print: (Nanos, Nanos),
    /// One decision of ours, without its calls.
    pub think: Nanos,
    /// From an event until a thread that polls for it has noticed.
    pub notice: Nanos,
    /// From one thread's word until another one that waits for it runs.
    pub wake: Nanos,
}

/// A machine and the pool's part of it.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    /// How many GPUs; at most 64.
    pub gpus: u8,
    /// Bytes of each GPU that the pool may use.
    pub memory: u64,
    /// Bytes of host RAM that the pool may use.
    pub host: u64,
    /// Bytes of the largest page.
    pub page: u64,
    /// Rates.
    pub rates: Rates,
    /// Costs.
    pub costs: Costs,
    /// Launches that the driver takes before one waits.
    pub queue: usize,
}

impl Machine {
    /// GPUs with the rates and costs of an H200, and the page size that the library would choose.
    pub fn h200(gpus: u8, memory: u64, host: u64) -> Machine {
        Machine {
            gpus,
            memory,
            host,
            page: auto_page_size(memory),
            rates: Rates {
                link: 55.4,
                begin: 8_000,
                both: 101.0,
                memory: 4_900.0,
                peer: 395.0,
                in_place: 51.0,
                in_place_peer: 370.0,
                amplification: 1.0,
            },
            costs: Costs {
                map: 1_000,
                grant_device: 40_000,
                grant_host: (29_000, 9_800),
                grant_host_busy: (29_000, 17_500),
                unmap_device: 40_000,
                unmap_host: (24_000, 2_060),
                create_device: 30_000,
                create_host: 0,
                begin_copy: 3_000,
                mark: 1_000,
                query: 500,
                launch: 5_000,
                print: (30_000, 500),
                think: 20_000,
                notice: 5_000,
                wake: 20_000,
            },
            queue: 1_024,
        }
    }

    /// Bytes of `bytes` that only moves use, as the library chooses them.
    pub(crate) fn exchange(&self, bytes: u64) -> u64 {
        let pages = bytes / self.page;
        self.page * (pages / 32).clamp(u64::from(pages >= 8), 8)
    }

    /// What comes to the first GPU of so many bytes that a program uses: from its peers, where they hold what it does
    /// not, else from the host, or both.
    pub(crate) fn arrival_rate(&self, used: u64) -> Rate {
        match self.gpus {
            1 => self.rates.link,
            gpus if used <= self.memory * u64::from(gpus) => self.rates.peer,
            _ => self.rates.peer + self.rates.link,
        }
    }

    /// What a GPU and its link carry, as the library knows it.
    pub(crate) fn speed(&self) -> Speed {
        let link = (self.rates.link * 1e3) as u64;
        Speed { memory: (self.rates.memory * 1e3) as u64, link, cache: CACHE, bytes: self.memory }
    }

    /// Whether the replay can run on it.
    ///
    /// # Errors
    /// One line that says what cannot be.
    pub fn check(&self) -> Result<(), String> {
        if self.gpus == 0 || self.gpus > 64 {
            return Err(format!("{} GPUs: 1 to 64 can be", self.gpus));
        }
        if !self.page.is_power_of_two() || self.page < GRANULE {
            return Err(format!("a page of {} bytes: a power of two from 2 MiB on is needed", self.page));
        }
        if self.memory < 16 * self.page {
            return Err(format!("{} bytes of memory are less than 16 pages of {}", self.memory, self.page));
        }
        let rates = [self.rates.link, self.rates.both, self.rates.peer, self.rates.in_place];
        if rates.iter().any(|rate| !rate.is_finite() || *rate <= 0.0) {
            return Err("rates are more than 0".to_string());
        }
        Ok(())
    }
}

/// Nanoseconds of a cost that has a part for each MiB.
pub(crate) fn by_size((fixed, per_mib): (Nanos, Nanos), bytes: u64) -> Nanos {
    fixed + per_mib * (bytes >> 20)
}
