//! A driver without bytes and with a clock of its own: what the engine calls takes the time of the actor that
//! runs.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use vgmem_engine::{Context, Copies, Device, DriverError, Handle, Place, Taken, Taking};

use crate::lanes::Lanes;
use crate::machine::{Machine, Nanos, by_size};

/// Lanes of the engine.
pub(crate) const OUT: usize = 0;
pub(crate) const HOME: usize = 1;

struct Mapping {
    bytes: u64,
    handle: Handle,
    /// When a GPU was last given access.
    granted: Nanos,
}

struct World {
    machine: Machine,
    /// Time of the actor that runs.
    now: Nanos,
    /// When each GPU has done all that it was given.
    done: Vec<Nanos>,
    lanes: Vec<Lanes>,
    /// Bytes left: GPUs, then the host.
    left: Vec<u64>,
    handles: HashMap<Handle, (Place, u64)>,
    mapped: BTreeMap<u64, Mapping>,
    made: Handle,
    /// What memory holds, as numbers.
    contents: HashMap<Handle, u64>,
    /// Fingerprints that are being taken: of what, and when they are there.
    prints: HashMap<Taking, (Handle, Nanos)>,
    begun: Taking,
    written: u64,
    /// What the engine did that no driver would have allowed.
    wrong: Option<String>,
}

impl World {
    fn tier(&self, place: Place) -> usize {
        match place {
            Place::Gpu(gpu) => gpu as usize,
            Place::HostNear(_) => self.left.len() - 1,
        }
    }

    fn refuse<T>(&mut self, what: String) -> Result<T, DriverError> {
        self.wrong.get_or_insert(what);
        Err(DriverError::INVALID_VALUE)
    }

    /// The memory at an address; 0 is none.
    fn handle(&self, address: u64) -> Handle {
        self.mapped.get(&address).map_or(0, |mapping| mapping.handle)
    }

    fn is_host(&self, address: u64) -> Option<bool> {
        let (place, _) = self.handles.get(&self.mapped.get(&address)?.handle)?;
        Some(matches!(place, Place::HostNear(_)))
    }
}

/// The machine's driver.
pub struct VirtualDevice(Mutex<World>);

impl VirtualDevice {
    /// A machine on which nothing was made yet.
    pub fn new(machine: Machine) -> VirtualDevice {
        let gpus = usize::from(machine.gpus);
        let mut left = vec![machine.memory; gpus];
        left.push(machine.host);
        VirtualDevice(Mutex::new(World {
            machine,
            now: 0,
            done: vec![0; gpus],
            lanes: (0..gpus).map(|_| Lanes::new(machine.rates)).collect(),
            left,
            handles: HashMap::new(),
            mapped: BTreeMap::new(),
            made: 0,
            contents: HashMap::new(),
            prints: HashMap::new(),
            begun: 0,
            written: 0,
            wrong: None,
        }))
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another actor runs from here on: this is its time.
    pub(crate) fn set_now(&self, now: Nanos) {
        self.world().now = now;
    }

    pub(crate) fn now(&self) -> Nanos {
        self.world().now
    }

    /// A GPU was given work that is over then.
    pub(crate) fn gave(&self, gpu: u8, end: Nanos) {
        let done = &mut self.world().done[gpu as usize];
        *done = end.max(*done);
    }

    /// When the next copy or fingerprint is over.
    pub(crate) fn next_end(&self, now: Nanos) -> Option<Nanos> {
        let world = self.world();
        let prints = world.prints.values().map(|(_, end)| (*end).max(now));
        world.lanes.iter().filter_map(|lanes| lanes.next_end(now)).chain(prints).min()
    }

    /// Whether copies of this lane are under way.
    pub(crate) fn is_busy(&self, gpu: u8, lane: usize, now: Nanos) -> bool {
        let lanes = &mut self.world().lanes[gpu as usize];
        lanes.over(lane, now) < lanes.begun(lane)
    }

    /// Bytes that were ever copied out and home.
    pub(crate) fn bytes(&self) -> [u64; 2] {
        let world = self.world();
        [OUT, HOME].map(|lane| world.lanes.iter().map(|lanes| lanes.bytes(lane)).sum())
    }

    /// How many copies were ever begun.
    pub(crate) fn begun(&self) -> u64 {
        self.world().lanes.iter().map(|lanes| lanes.begun(OUT) + lanes.begun(HOME)).sum()
    }

    /// When a lane was busy.
    pub(crate) fn busy(&self, gpu: u8, lane: usize) -> Vec<(Nanos, Nanos)> {
        let world = self.world();
        world.lanes.get(gpu as usize).map_or(Vec::new(), |lanes| lanes.busy(lane).to_vec())
    }

    /// When the page at this address was last shown there; 0 where none is.
    pub(crate) fn shown_at(&self, address: u64) -> Nanos {
        self.world().mapped.get(&address).map_or(0, |mapping| mapping.granted)
    }

    /// A kernel writes the page at this address.
    pub(crate) fn write(&self, address: u64) {
        let mut world = self.world();
        world.written += 1;
        let (value, handle) = (world.written, world.mapped.get(&address).map(|mapping| mapping.handle));
        if let Some(handle) = handle {
            world.contents.insert(handle, value);
        }
    }

    /// Physical memory and mappings that there are, and what was done wrong.
    pub(crate) fn books(&self) -> (usize, usize, Option<String>) {
        let world = self.world();
        (world.handles.len(), world.mapped.len(), world.wrong.clone())
    }
}

impl Device for VirtualDevice {
    fn create(&self, place: Place, bytes: u64) -> Result<Handle, DriverError> {
        let mut world = self.world();
        let tier = world.tier(place);
        if world.left[tier] < bytes {
            return Err(DriverError::OUT_OF_MEMORY);
        }
        world.left[tier] -= bytes;
        let costs = world.machine.costs;
        world.now += match place {
            Place::Gpu(_) => costs.create_device,
            Place::HostNear(_) => by_size((0, costs.create_host), bytes),
        };
        world.made += 1;
        let handle = world.made;
        world.handles.insert(handle, (place, bytes));
        Ok(handle)
    }

    fn release(&self, place: Place, bytes: u64, handle: Handle) -> Result<(), DriverError> {
        let mut world = self.world();
        match world.handles.remove(&handle) {
            Some((_, made)) if made == bytes => {}
            _ => return world.refuse(format!("memory {handle} released as something else")),
        }
        let tier = world.tier(place);
        world.left[tier] += bytes;
        Ok(())
    }

    fn map(&self, address: u64, bytes: u64, handle: Handle) -> Result<(), DriverError> {
        let mut world = self.world();
        world.now += world.machine.costs.map;
        let before = world.mapped.range(..address + bytes).next_back();
        let free = before.is_none_or(|(at, mapping)| at + mapping.bytes <= address);
        if !free || world.handles.get(&handle).is_none_or(|(_, made)| *made != bytes) {
            return world.refuse(format!("mapping at {address:x}"));
        }
        world.mapped.insert(address, Mapping { bytes, handle, granted: 0 });
        Ok(())
    }

    fn unmap(&self, address: u64, bytes: u64) -> Result<(), DriverError> {
        let mut world = self.world();
        let costs = world.machine.costs;
        let mut at = address;
        while at < address + bytes {
            let host = world.is_host(at) == Some(true);
            let Some(mapping) = world.mapped.remove(&at) else {
                return world.refuse(format!("unmapping at {at:x}"));
            };
            at += mapping.bytes;
            world.now += if host { by_size(costs.unmap_host, mapping.bytes) } else { costs.unmap_device };
        }
        Ok(())
    }

    /// The driver waits for copies to the host that are under way (docs/DRIVER_FACTS.md).
    fn grant(&self, address: u64, bytes: u64, gpu: u8) -> Result<(), DriverError> {
        let mut world = self.world();
        let costs = world.machine.costs;
        let now = world.now;
        world.now = world.lanes[gpu as usize].end_of(OUT, now);
        let mut at = address;
        while at < address + bytes {
            let host = world.is_host(at) == Some(true);
            let Some(size) = world.mapped.get(&at).map(|mapping| mapping.bytes) else {
                return world.refuse(format!("access at {at:x}"));
            };
            let now = world.now;
            let lanes = &mut world.lanes[gpu as usize];
            world.now = now
                + match (host, lanes.over(HOME, now) < lanes.begun(HOME)) {
                    (true, true) => by_size(costs.grant_host_busy, size),
                    (true, false) => by_size(costs.grant_host, size),
                    (false, _) => costs.grant_device,
                };
            let now = world.now;
            if let Some(mapping) = world.mapped.get_mut(&at) {
                mapping.granted = now;
            }
            at += size;
        }
        Ok(())
    }

    fn copy(&self, to: u64, from: u64, bytes: u64, gpu: u8, _: Context) -> Result<(), DriverError> {
        self.begin_copy(HOME, to, from, bytes, u64::from(gpu))
    }

    /// A context is the number of its GPU.
    fn begin_copy(
        &self,
        lane: usize,
        to: u64,
        from: u64,
        bytes: u64,
        context: Context,
    ) -> Result<(), DriverError> {
        let mut world = self.world();
        world.now += world.machine.costs.begin_copy;
        let (target, source) = (world.handle(to), world.handle(from));
        let (Some(to), Some(from)) = (world.is_host(to), world.is_host(from)) else {
            return world.refuse(format!("copy from {from:x} to {to:x}"));
        };
        let content = world.contents.get(&source).copied().unwrap_or(0);
        world.contents.insert(target, content);
        let now = world.now;
        world.lanes[context as usize].begin(lane, now, bytes, to || from);
        Ok(())
    }

    fn mark_copies(&self, lane: usize, context: Context) -> Result<Copies, DriverError> {
        let mut world = self.world();
        world.now += world.machine.costs.mark;
        Ok(world.lanes[context as usize].begun(lane) << 1 | lane as u64)
    }

    fn are_over(&self, copies: Copies, context: Context) -> Result<bool, DriverError> {
        let mut world = self.world();
        world.now += world.machine.costs.query;
        let now = world.now;
        Ok(world.lanes[context as usize].over((copies & 1) as usize, now) >= copies >> 1)
    }

    fn begin_print(&self, address: u64, bytes: u64, _: Context) -> Result<Taking, DriverError> {
        let mut world = self.world();
        world.now += world.machine.costs.launch;
        let last = world.prints.values().map(|(_, end)| *end).max().unwrap_or(0);
        let end = world.now.max(last) + by_size(world.machine.costs.print, bytes);
        world.begun += 1;
        let (taking, handle) = (world.begun, world.handle(address));
        world.prints.insert(taking, (handle, end));
        Ok(taking)
    }

    fn print(&self, taking: Taking, _: Context) -> Taken {
        let mut world = self.world();
        world.now += world.machine.costs.query;
        match world.prints.get(&taking) {
            Some((_, end)) if *end > world.now => return Taken::Pending,
            Some(_) => {}
            None => return Taken::Never,
        }
        let handle = world.prints.remove(&taking).map_or(0, |(handle, _)| handle);
        Taken::Print(u128::from(world.contents.get(&handle).copied().unwrap_or(0)))
    }

    fn print_is_over(&self, _: Taking, _: Context) -> bool {
        true
    }

    fn host_is_plenty(&self, _: u64) -> bool {
        true
    }

    fn checksum(&self, _: u64, _: u64, _: Context) -> Result<u128, DriverError> {
        Ok(0) // there are no bytes that could change
    }

    fn stop(&self, what: &str) {
        self.complain(what);
    }

    fn complain(&self, what: &str) {
        self.world().wrong.get_or_insert(what.to_string());
    }

    fn wait_copies(&self, context: Context) -> Result<(), DriverError> {
        let mut world = self.world();
        let now = world.now;
        world.now = world.lanes[context as usize].end(now);
        Ok(())
    }

    fn forget(&self, _: Context) {}

    fn drain(&self, gpu: u8, context: Context) -> Result<(), DriverError> {
        self.wait_copies(context)?;
        let mut world = self.world();
        world.now = world.now.max(world.done[gpu as usize]);
        Ok(())
    }

    fn is_lost(&self, _: DriverError) -> bool {
        false
    }

    fn free_bytes(&self, gpu: u8) -> Option<u64> {
        self.world().left.get(gpu as usize).copied()
    }

    fn host_available(&self) -> u64 {
        self.world().left.last().copied().unwrap_or(0)
    }

    fn is_home_of_others(&self, _: u8) -> bool {
        false
    }
}
