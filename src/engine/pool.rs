//! The pool's state and what can be asked of it.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use vgmem_policy::{PageRef, Pager, Placement, Speed};

use crate::device::{Context, Device, Handle, Place};
use crate::frames::Frame;
use crate::map::{PageId, PageMap};
use crate::overlap::Motion;
use crate::parts::Parts;
use crate::paths::Path;
use crate::slab::Slab;
use crate::small::{Chunk, DyingBlock};
use crate::spans::Spans;
use crate::tiers::TierAccount;
use crate::touch::Tables;
use crate::twins::{Habit, Late, Twin};
use crate::uses::Uses;
use crate::vain::Vain;

/// A GPU of the pool.
#[derive(Clone, Debug)]
pub struct GpuConfig {
    /// Bytes that the pool may place here.
    pub capacity: u64,
    /// Exchange reserve: bytes beyond the capacity that only moves use, so that a full pool can still move a page.
    pub exchange: u64,
    /// Bytes that the driver must keep for itself when pages are placed here.
    pub reserve: u64,
    /// Distance to every GPU's memory, `None` where this GPU cannot map it; 0 to itself.
    pub distances: Vec<Option<u32>>,
    /// What it carries; nothing is used in place by choice where that is not known.
    pub speed: Speed,
}

/// How a pool is built.
#[derive(Clone, Debug)]
pub struct Config {
    /// First address of the arena, a multiple of 2 MiB.
    pub base: u64,
    /// Bytes of the arena, a multiple of 2 MiB.
    pub bytes: u64,
    /// Largest page in bytes, a power of two of at least 2 MiB.
    pub page_bytes: u64,
    /// Where new pages go.
    pub placement: Placement,
    /// The GPUs, by ordinal; at most 64. One that is not in the pool has a capacity of 0.
    pub gpus: Vec<GpuConfig>,
    /// Bytes of host RAM that the pool may pin.
    pub host_budget: u64,
    /// Exchange reserve of the host, in bytes beyond the budget.
    pub host_exchange: u64,
    /// Bytes of freed memory that may stay mapped on each GPU, ready for the next allocation of that size.
    pub keep_bytes: u64,
    /// Whether every page's bytes are compared at both ends of every move.
    pub verify: bool,
    /// Whether every page that goes is copied, also one that was not written since it came.
    pub copies_all: bool,
}

/// An allocation to be made.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// GPU whose context asks.
    pub home: u8,
    /// That context.
    pub context: Context,
    /// Bytes asked for, more than 0.
    pub bytes: u64,
}

/// What is known about a pooled address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// First address of the allocation.
    pub base: u64,
    /// Bytes that were asked for.
    pub bytes: u64,
    /// GPU whose context made it.
    pub home: u8,
    /// That context.
    pub context: Context,
    /// Number that no other allocation of the process has.
    pub serial: u64,
    /// Where the page of this address lies.
    pub place: Place,
    /// First address of that page.
    pub page_base: u64,
    /// Bytes of that page.
    pub page_bytes: u64,
}

#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) allocation: u32,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) tier: usize,
    pub(crate) handle: Handle,
    /// Where its memory is mapped besides, for the pager's copies; 0 is nowhere.
    pub(crate) shadow: u64,
    /// Whether its memory is mapped at its address: not while it moves beside running work, nor afterwards in a
    /// place that no work uses.
    pub(crate) shown: bool,
    /// Whether a copy of it is under way.
    pub(crate) moving: bool,
    /// Checksum of its memory when it was hidden; only where moves are verified.
    pub(crate) sum: Option<u128>,
    /// Fingerprint of its memory in host RAM, while nothing can have written there.
    pub(crate) print: Option<u128>,
    /// What it came home from.
    pub(crate) twin: Option<Twin>,
    pub(crate) habit: Habit,
}

impl Page {
    /// A page as it is mapped for a new allocation.
    pub(crate) fn new(allocation: u32, address: u64, bytes: u64, tier: usize, handle: Handle) -> Page {
        Page {
            allocation,
            address,
            bytes,
            tier,
            handle,
            shadow: 0,
            shown: true,
            moving: false,
            sum: None,
            print: None,
            twin: None,
            habit: Habit::default(),
        }
    }

    /// The page with this number as the policy sees it.
    pub(crate) fn of(&self, page: u32, object: u32) -> PageRef {
        let clean = self.twin.is_some() && self.habit.is_clean();
        PageRef { page, object, bytes: self.bytes, clean }
    }
}

#[derive(Debug)]
pub(crate) struct Allocation {
    pub(crate) base: u64,
    pub(crate) bytes: u64,
    pub(crate) span: u64,
    pub(crate) home: u8,
    pub(crate) context: Context,
    pub(crate) serial: u64,
    pub(crate) pages: Vec<u32>,
    pub(crate) uses: Uses,
    /// Something outside knows where its pages lie: they never move.
    pub(crate) pinned: bool,
    /// What pointers into it stand for, where it may be too large to be brought whole.
    pub(crate) parts: Option<Box<Parts>>,
}

pub(crate) struct State {
    /// One per GPU, then the host.
    pub(crate) tiers: Vec<TierAccount>,
    pub(crate) spans: Spans,
    pub(crate) pages: Slab<Page>,
    pub(crate) allocations: Slab<Allocation>,
    /// Allocations that are cut into small ones, by slot.
    pub(crate) chunks: BTreeMap<u32, Chunk>,
    /// Allocations that the program has freed and that wait: for the end of a capture, or for a context that the
    /// driver refused to wait in.
    pub(crate) deferred: Vec<Allocation>,
    /// As above for blocks of chunks.
    pub(crate) dying_blocks: Vec<DyingBlock>,
    /// Freed allocations that are still mapped, oldest first. Nothing is in flight on them.
    pub(crate) kept: Vec<Allocation>,
    /// Frames that no page uses.
    pub(crate) spare: Vec<Frame>,
    /// Memory that late fingerprints may still read.
    pub(crate) late: Vec<Late>,
    /// For each GPU the work that may use any allocation of it.
    pub(crate) everything: Vec<Uses>,
    /// How far each stream has come.
    pub(crate) done: Vec<u64>,
    /// For each home GPU the others that copy for it.
    pub(crate) paths: Vec<Vec<Path>>,
    /// GPUs besides the home that have access at a shadow address, one bit each.
    pub(crate) reach: HashMap<u64, u64>,
    // Pages of deferred, kept and dying allocations keep their numbers until the memory is given back.
    pub(crate) serial: u64,
    /// For each home GPU, the GPUs whose contexts enabled peer access to it.
    pub(crate) peers: Vec<u64>,
    /// For each GPU the contexts whose work may be in flight.
    pub(crate) contexts: Vec<Vec<Context>>,
    pub(crate) peak: u64,
    pub(crate) made: u64,
    /// Allocations that are gone.
    pub(crate) gone: u64,
    /// What launches wanted in vain.
    pub(crate) vain: Vain,
    pub(crate) refused: u64,
    pub(crate) moved: u64,
    pub(crate) fetched: u64,
    pub(crate) evicted: u64,
    pub(crate) unwritten: u64,
    pub(crate) helped: u64,
    pub(crate) lost: u64,
}

/// What the pager learns from.
pub(crate) enum Note {
    /// A launch of a function uses these objects: allocations, or pages of those that are divided.
    Launch(u64, Vec<u32>),
    /// The newest launch has to wait for pages.
    Waits,
    /// Objects are gone: their numbers may become another's.
    Gone(Vec<u32>),
}

/// So many notes are passed on by whoever adds one, where nobody plans anything.
const MANY_NOTES: usize = 4096;

/// One pool of memory over the GPUs of a machine and host RAM.
pub struct Pool<D: Device> {
    pub(crate) device: D,
    pub(crate) config: Config,
    pub(crate) map: PageMap,
    pub(crate) state: Mutex<State>,
    /// Uses of allocations, by slot. Locked after the state or without it: a plan takes longer than a launch may wait.
    pager: Mutex<Pager>,
    /// What the pager has not heard of yet. Locked last.
    pub(crate) notes: Mutex<Vec<Note>>,
    pub(crate) holding: AtomicBool,
    /// Whether pages ever lay away from their home.
    pub(crate) displaced: AtomicBool,
    /// Whether there ever was an allocation that may be divided.
    pub(crate) large: AtomicBool,
    /// Whether any allocation was so large that it might be used where it lies.
    pub(crate) has_tables: AtomicBool,
    pub(crate) tables: Mutex<Tables>,
    /// Allocations of which launches bring parts.
    pub(crate) divided: AtomicU64,
    /// Pages that are not mapped at their address.
    pub(crate) hidden: AtomicU64,
    /// For each home GPU its pages that move beside running work. Locked before the state, the lower GPU first; held
    /// across the calls of a move, which may wait as long as another thread's call on that GPU.
    pub(crate) motions: Vec<Mutex<Vec<Motion>>>,
    /// For each home GPU the allocations whose pages are all at home and wait to be mapped. Locked for a moment only.
    pub(crate) unshown: Vec<Mutex<Vec<u32>>>,
    /// The newest note says that a launch waits.
    waits: AtomicBool,
    /// Counts what may let pages move.
    pub(crate) stirred: AtomicU64,
    /// For each GPU the pages whose way, out or home, is over.
    pub(crate) landings: Vec<AtomicU64>,
    /// For each GPU the count that was looked at last.
    pub(crate) looked: Vec<AtomicU64>,
    /// For each GPU the bytes of the frame that the last page came home from whose frame others needed; 0 is none.
    pub(crate) wanted_frames: Vec<AtomicU64>,
}

impl State {
    fn new(config: &Config) -> State {
        let account = |capacity, exchange| TierAccount {
            capacity,
            exchange,
            used: 0,
            kept: 0,
            spare: 0,
            twins: 0,
            used_at_peak: 0,
        };
        let mut tiers: Vec<TierAccount> =
            config.gpus.iter().map(|gpu| account(gpu.capacity, gpu.exchange)).collect();
        tiers.push(account(config.host_budget, config.host_exchange));
        State {
            tiers,
            spans: Spans::new(config.base, config.bytes),
            pages: Slab::new(),
            allocations: Slab::new(),
            chunks: BTreeMap::new(),
            deferred: Vec::new(),
            dying_blocks: Vec::new(),
            kept: Vec::new(),
            spare: Vec::new(),
            late: Vec::new(),
            everything: config.gpus.iter().map(|_| Uses::unknown()).collect(),
            done: Vec::new(),
            paths: config.gpus.iter().map(|_| Vec::new()).collect(),
            reach: HashMap::new(),
            serial: 0,
            peers: vec![0; config.gpus.len()],
            contexts: vec![Vec::new(); config.gpus.len()],
            peak: 0,
            made: 0,
            gone: 0,
            vain: Vain::default(),
            refused: 0,
            moved: 0,
            fetched: 0,
            evicted: 0,
            unwritten: 0,
            helped: 0,
            lost: 0,
        }
    }
}

impl<D: Device> Pool<D> {
    /// A pool over an arena that `device` has reserved.
    pub fn new(device: D, config: Config) -> Pool<D> {
        let map = PageMap::new(config.base, config.bytes);
        let motions = config.gpus.iter().map(|_| Mutex::default()).collect();
        let counters = || config.gpus.iter().map(|_| AtomicU64::new(0)).collect();
        let (looked, landings) = (counters(), counters());
        let wanted_frames = config.gpus.iter().map(|_| AtomicU64::new(0)).collect();
        let unshown = config.gpus.iter().map(|_| Mutex::default()).collect();
        let state = Mutex::new(State::new(&config));
        Pool {
            device,
            config,
            map,
            state,
            holding: AtomicBool::new(false),
            displaced: AtomicBool::new(false),
            large: AtomicBool::new(false),
            has_tables: AtomicBool::new(false),
            tables: Mutex::default(),
            divided: AtomicU64::new(0),
            hidden: AtomicU64::new(0),
            pager: Mutex::default(),
            notes: Mutex::default(),
            motions,
            unshown,
            waits: AtomicBool::new(false),
            stirred: AtomicU64::new(1),
            landings,
            looked,
            wanted_frames,
        }
    }

    /// Tells the pager something, later.
    pub(crate) fn note(&self, note: Note) {
        let waits = matches!(note, Note::Waits);
        if self.waits.swap(waits, Ordering::AcqRel) && waits {
            return; // known
        }
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        notes.push(note);
        let many = notes.len() >= MANY_NOTES;
        drop(notes);
        if many && let Ok(mut pager) = self.pager.try_lock() {
            self.tell(&mut pager);
        }
        self.stir();
    }

    /// The pager, who has heard of everything.
    pub(crate) fn pager(&self) -> MutexGuard<'_, Pager> {
        let mut pager = self.pager.lock().unwrap_or_else(PoisonError::into_inner);
        self.tell(&mut pager);
        pager
    }

    fn tell(&self, pager: &mut Pager) {
        let notes = std::mem::take(&mut *self.notes.lock().unwrap_or_else(PoisonError::into_inner));
        for note in notes {
            match note {
                Note::Launch(function, slots) => pager.launch_of(function, &slots),
                Note::Waits => pager.waits(),
                Note::Gone(objects) => objects.into_iter().for_each(|object| pager.forget(object)),
            }
        }
    }

    /// The page that holds `address`; `None` where the address is not the pool's. At most 10 ns, no lock.
    #[inline]
    pub fn lookup(&self, address: u64) -> Option<PageId> {
        self.map.lookup(address)
    }

    /// Whether `address` lies in the arena, allocated or not.
    #[inline]
    pub fn in_arena(&self, address: u64) -> bool {
        self.map.contains(address)
    }

    /// No address of the arena from here on was ever given to the program.
    pub fn highest(&self) -> u64 {
        self.lock().spans.highest()
    }

    /// The driver under the pool.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// How the pool was built.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// While `hold` is true nothing is waited for or unmapped: freed allocations are kept until it is false
    /// again. Stream captures need this: a wait would end them.
    pub fn hold(&self, hold: bool) {
        self.holding.store(hold, Ordering::SeqCst);
    }

    /// Whether a stream is being captured.
    pub fn on_hold(&self) -> bool {
        self.holding.load(Ordering::SeqCst)
    }

    /// Everything known about a pooled address.
    pub fn find(&self, address: u64) -> Option<Found> {
        let id = self.map.lookup(address)?;
        let state = self.lock();
        let page = state.pages.get(id.0)?;
        let allocation = state.allocations.get(page.allocation)?;
        let (mut base, mut bytes, mut serial) = (allocation.base, allocation.bytes, allocation.serial);
        if let Some(chunk) = state.chunks.get(&page.allocation) {
            let (offset, block) = chunk.block_at(address - allocation.base)?;
            (base, bytes, serial) = (allocation.base + offset, block.bytes, block.serial);
        }
        Some(Found {
            base,
            bytes,
            home: allocation.home,
            context: allocation.context,
            serial,
            place: self.place(page.tier, allocation.home),
            page_base: page.address,
            page_bytes: page.bytes,
        })
    }

    /// Whether one allocation holds all of the `bytes` bytes from `address` on.
    pub fn holds(&self, address: u64, bytes: u64) -> bool {
        self.find(address).is_some_and(|found| address.saturating_add(bytes) <= found.base + found.bytes)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
