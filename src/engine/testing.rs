//! A driver for tests: strict books of handles, mappings and access, faults by call number.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::num::NonZeroU32;
use std::sync::Mutex;

use vgmem_policy::{GRANULE, Placement, Speed};

use crate::device::{Context, Copies, Device, DriverError, Handle, Place, Taken, Taking};
use crate::pool::{Config, GpuConfig, Pool};

pub(crate) const BASE: u64 = 0x2000_0000_0000;
pub(crate) const G: u64 = GRANULE;
/// A code that no driver call answers by itself.
pub(crate) const FAULT: u32 = 4242;

/// What [`Mock::drain`] answers in a context of `Books::lost`.
pub(crate) const LOST: u32 = 700;

/// A copy: its number, by which context, to and from which memory, and what was there when it began.
struct Begun {
    number: Copies,
    by: Context,
    to: Handle,
    from: Handle,
    content: u64,
    /// Where they are mapped for it.
    at: [u64; 2],
}

#[derive(Default)]
pub(crate) struct Books {
    /// Contexts that are lost.
    pub(crate) lost: Vec<Context>,
    /// Bytes left: GPUs by ordinal, then the host.
    pub(crate) left: Vec<u64>,
    pub(crate) handles: HashMap<Handle, (usize, u64)>,
    /// What each block of memory holds.
    pub(crate) contents: HashMap<Handle, u64>,
    /// Address to (bytes, handle, access mask).
    pub(crate) mapped: BTreeMap<u64, (u64, Handle, u64)>,
    pub(crate) drained: Vec<(u8, Context)>,
    pub(crate) calls: usize,
    pub(crate) fail_at: Option<usize>,
    pub(crate) homes_of_others: Vec<u8>,
    next: Handle,
    /// Copies that are under way, in the order in which they run.
    begun: VecDeque<Begun>,
    marked: Copies,
    /// Fingerprints that are being taken, each known when somebody asks for the second time.
    prints: BTreeMap<Taking, (u64, Handle, bool, Context)>,
    /// The context of every copy.
    pub(crate) copied_by: Vec<Context>,
    /// Fingerprints are late, and read their memory until somebody has asked often.
    pub(crate) late: bool,
    /// Of late ones the address, the memory, and how often it was asked whether they are over.
    reading: BTreeMap<Taking, (u64, Handle, usize, Context)>,
    /// Fingerprints that were begun.
    pub(crate) printed: usize,
    /// Fingerprints are never known.
    pub(crate) blind: bool,
    /// All fingerprints are the same.
    pub(crate) blurred: bool,
    /// Copies arrive with other contents.
    pub(crate) spoiling: bool,
    asked: u64,
}

impl Books {
    fn side(&self, address: u64, bytes: u64, gpu: u8) -> Handle {
        let &(size, handle, access) = self.mapped.get(&address).expect("copy where nothing is mapped");
        assert!(size == bytes && access >> gpu & 1 == 1, "copy without access");
        handle
    }

    fn run_one(&mut self) {
        // Copies of one context follow one another; those of several run in any order.
        let last = self.begun.back().map(|copy| copy.by);
        let pick = if self.asked.is_multiple_of(3) { last } else { self.begun.front().map(|copy| copy.by) };
        let Some(index) = self.begun.iter().position(|copy| Some(copy.by) == pick) else { return };
        let Some(Begun { to, from, content, .. }) = self.begun.remove(index) else { return };
        assert!(
            self.handles.contains_key(&to) && self.handles.contains_key(&from),
            "copy of released memory"
        );
        assert_eq!(self.contents.get(&from).copied().unwrap_or(0), content, "written while it was copied");
        self.contents.insert(to, content + u64::from(self.spoiling));
    }
}

#[derive(Default)]
pub(crate) struct Mock(pub(crate) Mutex<Books>);

impl Mock {
    fn call(&self) -> Result<std::sync::MutexGuard<'_, Books>, DriverError> {
        let mut books = self.0.lock().unwrap();
        let index = books.calls;
        books.calls += 1;
        if books.fail_at == Some(index) {
            return Err(DriverError(NonZeroU32::new(FAULT).unwrap()));
        }
        Ok(books)
    }
}

impl Device for Mock {
    fn create(&self, place: Place, bytes: u64) -> Result<Handle, DriverError> {
        let mut books = self.call()?;
        let tier = match place {
            Place::Gpu(gpu) => gpu as usize,
            Place::HostNear(_) => books.left.len() - 1,
        };
        if books.left[tier] < bytes {
            return Err(DriverError::OUT_OF_MEMORY);
        }
        books.left[tier] -= bytes;
        books.next += 1;
        let handle = books.next;
        books.handles.insert(handle, (tier, bytes));
        Ok(handle)
    }

    fn release(&self, place: Place, size: u64, handle: Handle) -> Result<(), DriverError> {
        let mut books = self.call()?;
        let made = match place {
            Place::Gpu(gpu) => gpu as usize,
            Place::HostNear(_) => books.left.len() - 1,
        };
        assert_eq!(books.handles[&handle], (made, size), "released as something else");
        let reader = books.reading.values().find(|read| read.1 == handle);
        assert!(books.mapped.values().all(|m| m.1 != handle) || reader.is_some(), "released while mapped");
        let (tier, bytes) = books.handles.remove(&handle).expect("unknown handle");
        books.left[tier] += bytes;
        Ok(())
    }

    fn map(&self, address: u64, bytes: u64, handle: Handle) -> Result<(), DriverError> {
        let mut books = self.call()?;
        assert_eq!(books.handles[&handle].1, bytes);
        let overlap = books.mapped.range(..address + bytes).next_back();
        assert!(overlap.is_none_or(|(&a, &(b, _, _))| a + b <= address), "mapped over a mapping");
        books.mapped.insert(address, (bytes, handle, 0));
        Ok(())
    }

    fn unmap(&self, address: u64, bytes: u64) -> Result<(), DriverError> {
        let mut books = self.call()?;
        let mut at = address;
        while at < address + bytes {
            let reading = books.reading.values().map(|read| read.0);
            let taking = books.prints.values().map(|print| print.0);
            assert!(reading.chain(taking).all(|other| other != at), "unmapped under a fingerprint");
            assert!(books.begun.iter().all(|copy| !copy.at.contains(&at)), "unmapped under a copy");
            at += books.mapped.remove(&at).expect("unmapped where nothing is mapped").0;
        }
        assert_eq!(at, address + bytes, "unmapped part of a mapping");
        Ok(())
    }

    fn grant(&self, address: u64, bytes: u64, gpu: u8) -> Result<(), DriverError> {
        let mut books = self.call()?;
        let mut at = address;
        while at < address + bytes {
            let mapping = books.mapped.get_mut(&at).expect("granted where nothing is mapped");
            mapping.2 |= 1 << gpu;
            at += mapping.0;
        }
        Ok(())
    }

    fn copy(&self, to: u64, from: u64, bytes: u64, gpu: u8, _: Context) -> Result<(), DriverError> {
        let mut books = self.call()?;
        let (to, from) = (books.side(to, bytes, gpu), books.side(from, bytes, gpu));
        let content = books.contents.get(&from).copied().unwrap_or(0);
        books.contents.insert(to, content);
        Ok(())
    }

    /// By the GPU of the context.
    fn begin_copy(&self, _: usize, to: u64, from: u64, bytes: u64, by: Context) -> Result<(), DriverError> {
        let mut books = self.call()?;
        let gpu = (by - 100) as u8;
        let at = [to, from];
        let (to, from) = (books.side(to, bytes, gpu), books.side(from, bytes, gpu));
        books.copied_by.push(by);
        let content = books.contents.get(&from).copied().unwrap_or(0);
        books.marked += 1;
        let number = books.marked;
        books.begun.push_back(Begun { number, by, to, from, content, at });
        Ok(())
    }

    fn mark_copies(&self, _: usize, _: Context) -> Result<Copies, DriverError> {
        Ok(self.call()?.marked)
    }

    /// Copies run one at a time, whenever somebody asks for the second time.
    fn are_over(&self, copies: Copies, by: Context) -> Result<bool, DriverError> {
        let mut books = self.call()?;
        books.asked += 1;
        if books.asked.is_multiple_of(2) {
            books.run_one();
        }
        Ok(books.begun.iter().all(|copy| copy.by != by || copy.number > copies))
    }

    fn begin_print(&self, address: u64, bytes: u64, by: Context) -> Result<Taking, DriverError> {
        let mut books = self.call()?;
        let handle = books.side(address, bytes, 0);
        books.next += 1;
        let taking = books.next;
        books.prints.insert(taking, (address, handle, false, by));
        books.printed += 1;
        Ok(taking)
    }

    /// Reads the memory when the answer is there, as a kernel may run late.
    fn print(&self, taking: Taking, _: Context) -> Taken {
        let mut books = self.0.lock().unwrap();
        let taken = books.prints.remove(&taking);
        let (address, handle, asked, by) = taken.expect("asked for a fingerprint that is not being taken");
        if !asked {
            books.prints.insert(taking, (address, handle, true, by));
            return Taken::Pending;
        }
        if books.late {
            books.reading.insert(taking, (address, handle, 0, by));
            return Taken::Late;
        }
        assert!(books.handles.contains_key(&handle), "fingerprint of released memory");
        let content = books.contents.get(&handle).copied().unwrap_or(0);
        match (books.blind, books.blurred) {
            (true, _) => Taken::Never,
            (false, true) => Taken::Print(0),
            (false, false) => Taken::Print(u128::from(content)),
        }
    }

    fn print_is_over(&self, taking: Taking, _: Context) -> bool {
        let mut books = self.0.lock().unwrap();
        if let Some((address, handle, _, by)) = books.prints.remove(&taking) {
            books.reading.insert(taking, (address, handle, 0, by));
        }
        let Some(read) = books.reading.get_mut(&taking) else { return true };
        read.2 += 1;
        if read.2 > 20 {
            books.reading.remove(&taking);
        }
        false
    }

    fn host_is_plenty(&self, _: u64) -> bool {
        true
    }

    fn checksum(&self, address: u64, bytes: u64, _: Context) -> Result<u128, DriverError> {
        let books = self.0.lock().unwrap();
        let &(size, handle, _) = books.mapped.get(&address).expect("checksum where nothing is mapped");
        assert_eq!(size, bytes);
        Ok(u128::from(books.contents.get(&handle).copied().unwrap_or(0)))
    }

    fn stop(&self, what: &str) {
        panic!("{what}");
    }

    fn complain(&self, _: &str) {}

    fn wait_copies(&self, _: Context) -> Result<(), DriverError> {
        let mut books = self.call()?;
        while !books.begun.is_empty() {
            books.run_one();
        }
        Ok(())
    }

    /// What it had begun does not run any more.
    fn forget(&self, context: Context) {
        let mut books = self.0.lock().unwrap();
        books.begun.retain(|copy| copy.by != context);
        books.reading.retain(|_, read| read.3 != context);
        books.prints.retain(|_, print| print.3 != context);
    }

    fn is_lost(&self, error: DriverError) -> bool {
        error.code() == LOST
    }

    fn drain(&self, gpu: u8, context: Context) -> Result<(), DriverError> {
        let mut books = self.call()?;
        if books.lost.contains(&context) {
            return Err(DriverError(NonZeroU32::new(LOST).unwrap()));
        }
        books.reading.clear(); // what waits for the program's work waits for fingerprints, too
        books.drained.push((gpu, context));
        Ok(())
    }

    fn free_bytes(&self, gpu: u8) -> Option<u64> {
        Some(self.0.lock().unwrap().left[gpu as usize])
    }

    fn is_home_of_others(&self, gpu: u8) -> bool {
        self.0.lock().unwrap().homes_of_others.contains(&gpu)
    }

    fn host_available(&self) -> u64 {
        *self.0.lock().unwrap().left.last().unwrap()
    }
}

impl Mock {
    /// What an address shows, as its home GPU would read it.
    pub(crate) fn read(&self, address: u64) -> Option<u64> {
        let books = self.0.lock().unwrap();
        let (_, handle, _) = books.mapped.get(&address)?;
        books.contents.get(handle).copied()
    }

    pub(crate) fn write(&self, address: u64, value: u64) {
        let mut books = self.0.lock().unwrap();
        let handle = books.mapped[&address].1;
        books.contents.insert(handle, value);
    }
}

/// A pool of GPUs with these granules each and a host with that many; all reach each other.
pub(crate) fn pool(gpus: &[u64], host: u64, page: u64, placement: Placement) -> Pool<Mock> {
    keeping(gpus, host, page, placement, 0)
}

/// As [`pool`]; keeps that many granules of freed memory on each GPU.
pub(crate) fn keeping(gpus: &[u64], host: u64, page: u64, placement: Placement, keep: u64) -> Pool<Mock> {
    let mock = Mock::default();
    mock.0.lock().unwrap().left = gpus.iter().chain([&host]).map(|g| g * G).collect();
    let gpu = |(index, &granules): (usize, &u64)| GpuConfig {
        capacity: granules * G,
        exchange: 0,
        reserve: 0,
        distances: (0..gpus.len()).map(|other| Some(u32::from(other != index))).collect(),
        speed: Speed { memory: 4_000_000, link: 50_000, cache: G, bytes: granules * G },
    };
    let config = Config {
        base: BASE,
        bytes: 1024 * G,
        page_bytes: page * G,
        placement,
        gpus: gpus.iter().enumerate().map(gpu).collect(),
        host_budget: host * G,
        host_exchange: 0,
        keep_bytes: keep * G,
        verify: true,
        copies_all: false,
    };
    Pool::new(mock, config)
}
