//! What all processes of one simulated machine use of its memory.
//!
//! `VGMEM_SIM_MACHINE=name` makes processes share a machine: a file in shared memory has a slot for
//! each process, which the process holds a lock on. The kernel drops the lock when the process ends
//! in whatever way, and whoever looks next clears the slot.

use crate::fork;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

/// Processes at most.
const SLOTS: usize = 512;
/// Numbers in a slot: the host and up to 127 GPUs.
const COLUMNS: usize = 128;
const SIZE: usize = SLOTS * COLUMNS * size_of::<u64>();

/// Longest name of a machine.
const NAME: usize = 64;

/// The file of one machine, and a slot in it.
pub(crate) struct Ledger {
    file: File,
    numbers: NonNull<AtomicU64>,
    slot: usize,
}

// SAFETY: the numbers are atomics in a mapping that stays until the ledger is dropped.
unsafe impl Send for Ledger {}
// SAFETY: as above.
unsafe impl Sync for Ledger {}

/// Whether a machine can have this name.
pub(crate) fn is_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    !name.is_empty() && name.len() <= NAME && name.chars().all(allowed)
}

/// The byte of the file whose lock says that nobody else adds anything up.
const ALL: i64 = 0;

fn byte_of(slot: usize) -> i64 {
    slot as i64 + 1
}

/// One call about locks, which belong to the open file: they hold among threads' and forks' files.
fn lock_call(file: &File, command: i32, kind: i32, byte: i64) -> io::Result<libc::flock> {
    // SAFETY: a structure of plain numbers.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = byte;
    lock.l_len = 1;
    loop {
        // SAFETY: the descriptor is open, and the structure is what the command takes.
        if unsafe { libc::fcntl(file.as_raw_fd(), command, &mut lock) } == 0 {
            return Ok(lock);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

impl Ledger {
    fn open(name: &str) -> io::Result<Ledger> {
        let path = format!("/dev/shm/vgmem-sim-{name}");
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(path)?;
        file.set_len(SIZE as u64)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping of a file that is as long as the mapping.
        let at =
            unsafe { libc::mmap(ptr::null_mut(), SIZE, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let numbers = NonNull::new(at.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Ledger { file, numbers, slot: SLOTS })
    }

    /// Joins the machine of that name.
    pub fn join(name: &str) -> io::Result<Ledger> {
        let mut ledger = Ledger::open(name)?;
        lock_call(&ledger.file, libc::F_OFD_SETLKW, libc::F_WRLCK, ALL)?;
        let take =
            |slot: &usize| lock_call(&ledger.file, libc::F_OFD_SETLK, libc::F_WRLCK, byte_of(*slot)).is_ok();
        let slot = (0..SLOTS).find(take);
        if let Some(slot) = slot {
            ledger.slot = slot;
            ledger.clear(slot);
        }
        lock_call(&ledger.file, libc::F_OFD_SETLK, libc::F_UNLCK, ALL)?;
        if slot.is_none() {
            return Err(io::Error::other("too many processes share the machine"));
        }
        fork::close_in_child(ledger.file.as_raw_fd());
        Ok(ledger)
    }

    fn number(&self, slot: usize, column: usize) -> Option<&AtomicU64> {
        if slot >= SLOTS || column >= COLUMNS {
            return None;
        }
        // SAFETY: inside of the mapping, which lives as long as `self`; zeros are valid atomics.
        Some(unsafe { self.numbers.add(slot * COLUMNS + column).as_ref() })
    }

    fn clear(&self, slot: usize) {
        for column in 0..COLUMNS {
            if let Some(number) = self.number(slot, column) {
                number.store(0, Ordering::Release);
            }
        }
    }

    fn is_alive(&self, slot: usize) -> bool {
        if slot == self.slot {
            return true;
        }
        match lock_call(&self.file, libc::F_OFD_GETLK, libc::F_WRLCK, byte_of(slot)) {
            Ok(lock) => lock.l_type != libc::F_UNLCK as libc::c_short,
            Err(_) => true,
        }
    }

    /// Bytes that all living processes use.
    pub fn used(&self, column: usize) -> u64 {
        let of = |slot| {
            let used = self.number(slot, column).map_or(0, |number| number.load(Ordering::Acquire));
            if used > 0 && self.is_alive(slot) { used } else { 0 }
        };
        (0..SLOTS).map(of).sum()
    }

    /// Takes `size` bytes if all processes together then use at most `capacity`.
    pub fn take(&self, column: usize, size: u64, capacity: u64) -> bool {
        if lock_call(&self.file, libc::F_OFD_SETLKW, libc::F_WRLCK, ALL).is_err() {
            return false;
        }
        let fits = self.used(column).checked_add(size).is_some_and(|sum| sum <= capacity);
        if let (true, Some(own)) = (fits, self.number(self.slot, column)) {
            own.fetch_add(size, Ordering::AcqRel);
        }
        let _ = lock_call(&self.file, libc::F_OFD_SETLK, libc::F_UNLCK, ALL);
        fits
    }

    /// Gives bytes back.
    pub fn give(&self, column: usize, size: u64) {
        if let Some(own) = self.number(self.slot, column) {
            own.fetch_sub(size, Ordering::AcqRel);
        }
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        // SAFETY: the mapping that `open` made; nobody can hold a number of it any more.
        unsafe { libc::munmap(self.numbers.as_ptr().cast(), SIZE) };
    }
}

/// Column of a GPU; the host is the first.
pub(crate) fn column(device: Option<u32>) -> usize {
    device.map_or(0, |device| device as usize + 1)
}

/// Bytes that all processes of a machine use of a GPU, for those that are none of them.
pub fn shared_use(name: &str, device: u32) -> Option<u64> {
    Some(Ledger::open(name).ok()?.used(column(Some(device))))
}
