//! Memory of one GPU, or of the host: a sparse memfd with a limit.
//!
//! Offsets in the file are never used twice: the file is as large as files get and only written
//! pages take memory. Freed memory is punched out, so nothing old can be read again.

use super::{GRANULE, Place};
use crate::ledger::Ledger;
use crate::util::Answer;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use vgmem_abi::*;

/// The file's size. Pages lie in the lower half, their records in the upper half.
const SIZE: u64 = 1 << 61;
const RECORDS: u64 = 1 << 60;
const RECORD: u64 = 16;

/// Prefix of the memfd's name, by which an imported descriptor is known as one of ours.
pub(super) const NAME: &str = "vgmem-sim";

/// Memory of one GPU or of the host.
pub(super) struct Bank {
    file: File,
    inode: u64,
    next: u64,
    used: u64,
    capacity: u64,
    /// Where all processes of the machine note what they use, and the column of this memory.
    shared: Option<(Arc<Ledger>, usize)>,
}

impl Bank {
    /// Memory of `capacity` bytes.
    pub fn new(capacity: u64, shared: Option<(Arc<Ledger>, usize)>) -> io::Result<Bank> {
        let name = std::ffi::CString::new(NAME)?;
        // SAFETY: the name is a C string.
        let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made and nobody else has it.
        let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
        file.set_len(SIZE)?;
        let inode = file.metadata()?.ino();
        Ok(Bank { file, inode, next: 0, used: 0, capacity, shared })
    }

    /// Bytes that are left.
    pub fn free(&self) -> u64 {
        let used = match &self.shared {
            Some((ledger, column)) => ledger.used(*column),
            None => self.used,
        };
        self.capacity.saturating_sub(used)
    }

    /// Bytes there are.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Descriptor to map pages from.
    pub fn fd(&self) -> i32 {
        self.file.as_raw_fd()
    }

    /// The file itself.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Number of the file.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// Takes `size` bytes (whole granules) and gives their offset.
    pub fn take(&mut self, size: u64) -> Answer<u64> {
        let fits = match &self.shared {
            Some((ledger, column)) => ledger.take(*column, size, self.capacity),
            None => size <= self.free(),
        };
        if !fits {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        let offset = self.next;
        self.next += size;
        self.used += size;
        Ok(offset)
    }

    /// Gives bytes back. What an importer may still see stays in the file.
    pub fn give(&mut self, offset: u64, size: u64, keep: bool) {
        self.used -= size;
        if let Some((ledger, column)) = &self.shared {
            ledger.give(*column, size);
        }
        if !keep {
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            // SAFETY: the descriptor is ours; the call touches the file only.
            unsafe { libc::fallocate(self.fd(), mode, offset as libc::off_t, size as libc::off_t) };
        }
    }

    /// Whether `inode` is this bank's file.
    pub fn is(&self, inode: u64) -> bool {
        self.inode == inode
    }

    /// A descriptor for one page that can be passed to others: its own open file description,
    /// positioned at the page; what the page is stands in a record in the same file.
    pub fn export(&self, offset: u64, size: u64, place: Place) -> io::Result<OwnedFd> {
        let (kind, id) = place.location();
        let mut record = [0; RECORD as usize];
        record[..8].copy_from_slice(&size.to_le_bytes());
        record[8..12].copy_from_slice(&kind.to_le_bytes());
        record[12..].copy_from_slice(&id.to_le_bytes());
        self.file.write_all_at(&record, record_of(offset))?;
        let path = format!("/proc/self/fd/{}", self.fd());
        let mut copy = File::options().read(true).write(true).open(path)?;
        io::Seek::seek(&mut copy, io::SeekFrom::Start(offset))?;
        Ok(OwnedFd::from(copy))
    }
}

fn record_of(offset: u64) -> u64 {
    RECORDS + offset / GRANULE * RECORD
}

/// What an imported descriptor names.
pub(super) struct Imported {
    pub file: File,
    pub inode: u64,
    pub offset: u64,
    pub size: u64,
    pub place: Place,
}

/// Looks into a descriptor that `Bank::export` of this or another process made.
pub(super) fn import(fd: i32) -> Option<Imported> {
    let path = format!("/proc/self/fd/{fd}");
    let name = std::fs::read_link(&path).ok()?;
    if !name.to_str()?.starts_with(&format!("/memfd:{NAME}")) {
        return None;
    }
    // SAFETY: `lseek` only reads the position of a descriptor that the caller named.
    let offset = u64::try_from(unsafe { libc::lseek(fd, 0, libc::SEEK_CUR) }).ok()?;
    if offset % GRANULE != 0 || offset >= RECORDS {
        return None;
    }
    let file = File::options().read(true).write(true).open(path).ok()?;
    let mut record = [0; RECORD as usize];
    file.read_exact_at(&mut record, record_of(offset)).ok()?;
    let size = u64::from_le_bytes(record[..8].try_into().ok()?);
    let kind = i32::from_le_bytes(record[8..12].try_into().ok()?);
    let id = i32::from_le_bytes(record[12..].try_into().ok()?);
    if size == 0 || size % GRANULE != 0 {
        return None;
    }
    let place = Place::from_location(kind, id)?;
    let inode = file.metadata().ok()?.ino();
    Some(Imported { file, inode, offset, size, place })
}
