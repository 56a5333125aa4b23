//! What the processes of one user share: who has pinned how much host RAM, and whose GPU is whose home.
//!
//! One file of slots in shared memory. A process writes only its own slot, and holds a record lock on it that the
//! kernel releases when the process ends, however it ends. A slot without a lock is nobody's, whatever it says.
//! Record locks belong to the process: a forked child does not keep its parent's slot alive.

use std::ffi::CStr;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, Ordering};

use crate::settings;

/// Processes that can take part; a further one goes without the ledger.
const SLOTS: usize = 1024;
/// Home GPUs that a slot can name.
const HOMES: usize = 16;
/// Times that the admission lock is tried, a tenth of a millisecond apart, before going on without it.
const PATIENCE: usize = 200;

#[repr(C, align(256))]
struct Slot {
    process: AtomicI32,
    host: AtomicU64,
    homes: [AtomicU64; HOMES],
}

/// The ledger of this process.
pub struct Ledger {
    file: i32,
    slots: *const [Slot; SLOTS],
    mine: usize,
}

// SAFETY: the mapping is never unmapped and everything in it is atomic; the rest is constant.
unsafe impl Send for Ledger {}
// SAFETY: as above.
unsafe impl Sync for Ledger {}

static LEDGER: AtomicPtr<Ledger> = AtomicPtr::new(std::ptr::null_mut());

/// Joins the ledger. Without one (no shared memory, all slots taken) every process counts for itself.
pub fn join() {
    match open() {
        Ok(ledger) => LEDGER.store(Box::into_raw(Box::new(ledger)), Ordering::Release),
        Err(why) => log::info!("no ledger shared with other processes: {why}"),
    }
}

fn ledger() -> Option<&'static Ledger> {
    let ledger = LEDGER.load(Ordering::Acquire);
    // SAFETY: set once, from a box that is never freed.
    (!ledger.is_null()).then(|| unsafe { &*ledger })
}

/// Bytes of host RAM that other processes' pools have pinned.
pub fn host_of_others() -> u64 {
    ledger().map_or(0, |ledger| ledger.others().map(|slot| slot.host.load(Ordering::Acquire)).sum())
}

/// Books host RAM if all processes together stay within `budget`; gives whether it was booked.
pub fn take_host(bytes: u64, budget: u64) -> bool {
    let Some(ledger) = ledger() else { return true };
    let admitted = ledger.admission();
    let mine = ledger.slot(ledger.mine).host.fetch_add(bytes, Ordering::AcqRel) + bytes;
    let fits = mine.saturating_add(host_of_others()) <= budget;
    if !fits {
        ledger.slot(ledger.mine).host.fetch_sub(bytes, Ordering::AcqRel);
    }
    if admitted {
        ledger.lock(SLOTS, libc::F_UNLCK);
    }
    fits
}

/// Whether host RAM may be booked merely for speed: nobody else takes part, or half of the budget is free.
pub fn is_plenty(bytes: u64, budget: u64) -> bool {
    match booked() {
        Some(booked) => booked.saturating_add(bytes) <= budget / 2,
        None => true,
    }
}

/// Whether others take part and less than a quarter of the budget is free.
pub fn is_short(budget: u64) -> bool {
    booked().is_some_and(|booked| booked > budget / 4 * 3)
}

/// Host RAM that all processes have booked; `None` where there are no others.
fn booked() -> Option<u64> {
    let ledger = ledger()?;
    let others: Vec<u64> = ledger.others().map(|slot| slot.host.load(Ordering::Acquire)).collect();
    let mine = ledger.slot(ledger.mine).host.load(Ordering::Acquire);
    (!others.is_empty()).then(|| others.iter().fold(mine, |sum, host| sum.saturating_add(*host)))
}

/// Gives booked host RAM back.
pub fn give_host(bytes: u64) {
    if let Some(ledger) = ledger() {
        ledger.slot(ledger.mine).host.fetch_sub(bytes, Ordering::AcqRel);
    }
}

/// Notes that this process allocates for a GPU, named by a hash of its unique number.
pub fn note_home(gpu: u64) {
    let Some(ledger) = ledger() else { return };
    for home in &ledger.slot(ledger.mine).homes {
        let known = home.load(Ordering::Acquire);
        if known == gpu
            || (known == 0 && home.compare_exchange(0, gpu, Ordering::AcqRel, Ordering::Acquire).is_ok())
        {
            return;
        }
    }
}

/// Whether another process allocates for this GPU.
pub fn is_home_of_others(gpu: u64) -> bool {
    ledger().is_some_and(|ledger| {
        ledger.others().any(|slot| slot.homes.iter().any(|home| home.load(Ordering::Acquire) == gpu))
    })
}

impl Ledger {
    fn slot(&self, index: usize) -> &Slot {
        // SAFETY: the mapping holds SLOTS slots and stays mapped.
        unsafe { &(&*self.slots)[index] }
    }

    /// Slots of living processes other than this one.
    fn others(&self) -> impl Iterator<Item = &Slot> {
        (0..SLOTS).filter(|&index| index != self.mine).map(|index| (index, self.slot(index))).filter_map(
            |(index, slot)| {
                let used = slot.process.load(Ordering::Acquire) != 0;
                (used && self.is_locked(index)).then_some(slot)
            },
        )
    }

    fn record(index: usize, kind: i32) -> libc::flock {
        libc::flock {
            l_type: kind as i16,
            l_whence: libc::SEEK_SET as i16,
            l_start: index as i64,
            l_len: 1,
            l_pid: 0,
        }
    }

    /// Takes or releases the lock of one record without waiting; gives whether it worked.
    fn lock(&self, index: usize, kind: i32) -> bool {
        let mut record = Ledger::record(index, kind);
        // SAFETY: the record is live.
        unsafe { libc::fcntl(self.file, libc::F_SETLK, &mut record) == 0 }
    }

    /// Whether another process holds a record.
    fn is_locked(&self, index: usize) -> bool {
        let mut record = Ledger::record(index, libc::F_WRLCK);
        // SAFETY: the record is live; the kernel writes who holds it.
        let rc = unsafe { libc::fcntl(self.file, libc::F_GETLK, &mut record) };
        rc == 0 && i32::from(record.l_type) != libc::F_UNLCK
    }

    /// The lock under which host RAM is booked. A holder that was stopped must not stop everybody: after a
    /// while it goes on without, and two processes may then both be refused what one could have had.
    fn admission(&self) -> bool {
        for _ in 0..PATIENCE {
            if self.lock(SLOTS, libc::F_WRLCK) {
                return true;
            }
            // SAFETY: sleeps.
            unsafe { libc::usleep(100) };
        }
        false
    }
}

fn open() -> Result<Ledger, String> {
    // SAFETY: takes no arguments.
    let user = unsafe { libc::geteuid() };
    // Tests run many simulated machines at once, which have nothing to do with one another.
    let machine = settings::early(c"VGMEM_TEST_LEDGER").map_or(String::new(), |name| {
        let plain = name.to_string_lossy().replace(|c: char| !c.is_ascii_alphanumeric(), "_");
        format!("-{plain}")
    });
    let path = format!("/dev/shm/vgmem-{user}{machine}\0");
    let path = CStr::from_bytes_with_nul(path.as_bytes()).map_err(|error| error.to_string())?;
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_CLOEXEC | libc::O_NOFOLLOW;
    // SAFETY: the path ends with NUL.
    let file = unsafe { libc::open(path.as_ptr(), flags, 0o600) };
    if file < 0 {
        return Err(format!(
            "{} cannot be opened: {}",
            path.to_string_lossy(),
            std::io::Error::last_os_error()
        ));
    }
    map(file, user).inspect_err(|_| {
        // SAFETY: the file was just opened and nothing else uses it.
        unsafe { libc::close(file) };
    })
}

fn map(file: i32, user: u32) -> Result<Ledger, String> {
    let bytes = size_of::<[Slot; SLOTS]>();
    // SAFETY: all zero is a valid `stat`.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the structure is live.
    let rc = unsafe { libc::fstat(file, &mut status) };
    if rc != 0 || status.st_uid != user || status.st_mode & libc::S_IFMT != libc::S_IFREG {
        return Err("the file in /dev/shm is not ours".to_owned());
    }
    // Memory is taken now: a full /dev/shm shall be an error here, and no SIGBUS at the first store.
    // SAFETY: the file is ours; growing it to the same size twice changes nothing.
    if unsafe { libc::posix_fallocate(file, 0, bytes as i64) } != 0 {
        return Err("the file in /dev/shm cannot grow".to_owned());
    }
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new shared mapping of a file of this size.
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, libc::MAP_SHARED, file, 0) };
    if memory == libc::MAP_FAILED {
        return Err("the file in /dev/shm cannot be mapped".to_owned());
    }
    let mut ledger = Ledger { file, slots: memory.cast(), mine: 0 };
    let process = crate::fork::process();
    // Processes that start together begin at different slots.
    let free =
        (0..SLOTS).map(|step| (process as usize + step) % SLOTS).find(|&i| ledger.lock(i, libc::F_WRLCK));
    let Some(mine) = free else { return Err("all slots are taken".to_owned()) };
    ledger.mine = mine;
    let slot = ledger.slot(mine);
    slot.host.store(0, Ordering::Release);
    slot.homes.iter().for_each(|home| home.store(0, Ordering::Release));
    slot.process.store(process, Ordering::Release);
    Ok(ledger)
}
