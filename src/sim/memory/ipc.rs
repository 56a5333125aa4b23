//! Legacy IPC: an allocation is named to another process, which opens the same memory.
//!
//! A handle says where the exporting process keeps its memory, and which allocation is meant. A
//! mark in the exporter's file says whether that one is still alive.

use super::{Kind, Memory, Origin, Physical, Place, Range, space};
use crate::handle;
use crate::util::Answer;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use vgmem_abi::*;

/// Where the marks of living allocations begin in the file.
const MARKS: u64 = (1 << 60) + (1 << 59);
/// How a handle begins.
const MAGIC: u64 = u64::from_le_bytes(*b"simipc-1");
const WORDS: usize = 8;

/// Memory of another process, opened here.
pub(super) struct Opened {
    inode: u64,
    id: u64,
    /// Where its physical memory is shown.
    shown: u64,
    count: u64,
}

fn mark_of(id: u64) -> u64 {
    MARKS + id * 8
}

/// Opens a file of another process if it is the one that was meant.
pub(crate) fn file_of_process(pid: u32, fd: i32, inode: u64, name: &str) -> Option<File> {
    let path = format!("/proc/{pid}/fd/{fd}");
    let target = std::fs::read_link(&path).ok()?;
    if !target.to_str()?.starts_with(&format!("/memfd:{name}")) {
        return None;
    }
    let file = File::options().read(true).write(true).open(path).ok()?;
    (file.metadata().ok()?.ino() == inode).then_some(file)
}

/// Eight numbers in 64 bytes.
pub(crate) fn pack(words: [u64; WORDS]) -> [u8; 64] {
    let mut bytes = [0; 64];
    for (chunk, word) in bytes.chunks_mut(8).zip(words) {
        chunk.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// The reverse of `pack`.
pub(crate) fn unpack(bytes: &[u8; 64]) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    for (word, chunk) in words.iter_mut().zip(bytes.chunks(8)) {
        *word = chunk.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    }
    words
}

impl Memory {
    /// `cuIpcGetMemHandle`: only memory of `cuMemAlloc` can be shared so.
    pub fn ipc_handle(&mut self, address: u64) -> Answer<[u8; 64]> {
        let (start, range) = self.range_at(address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let Kind::Allocated { device, physical, block, origin: Origin::Plain, .. } = range.kind else {
            return Err(CUDA_ERROR_INVALID_VALUE);
        };
        let (id, size) = (range.id, range.size);
        let inside = start - block.unwrap_or(start);
        let found = self.physical.get_mut(&physical).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        found.exported = true;
        let (offset, whole) = (found.offset, found.size);
        let bank = self.bank(Place::Device(device))?;
        bank.file().write_all_at(&1_u64.to_le_bytes(), mark_of(id)).map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
        let process = u64::from(std::process::id()) << 32 | bank.fd() as u64;
        let place = u64::from(device) << 48 | inside;
        Ok(pack([MAGIC, process, bank.inode(), offset, whole, place, size, id]))
    }

    /// An allocation ends: handles that name it open nothing any more.
    pub(super) fn end_ipc(&mut self, device: u32, id: u64) {
        if let Ok(bank) = self.bank(Place::Device(device)) {
            let _ = bank.file().write_all_at(&0_u64.to_le_bytes(), mark_of(id));
        }
    }

    /// `cuIpcOpenMemHandle`: the same memory opened again is counted.
    pub fn open_ipc(&mut self, handle: &[u8; 64], context: u64) -> Answer<u64> {
        let [magic, process, inode, offset, whole, place, size, id] = unpack(handle);
        if magic != MAGIC {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let (device, inside) = ((place >> 48) as u32, place & 0xffff_ffff_ffff);
        let (pid, fd) = ((process >> 32) as u32, process as u32 as i32);
        if pid == std::process::id() && self.bank(Place::Device(device)).is_ok_and(|bank| bank.is(inode)) {
            return Err(CUDA_ERROR_INVALID_CONTEXT);
        }
        let file = file_of_process(pid, fd, inode, super::bank::NAME).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let mut alive = [0; 8];
        file.read_exact_at(&mut alive, mark_of(id)).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
        let sane = size > 0 && inside.checked_add(size).is_some_and(|end| end <= whole);
        if u64::from_le_bytes(alive) == 0 || !sane {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        self.bank(Place::Device(device))?;
        let known = self.opened.iter_mut().find(|(_, one)| one.inode == inode && one.id == id);
        if let Some((address, opened)) = known {
            opened.count += 1;
            return Ok(*address);
        }
        let physical = Physical {
            place: Place::Device(device),
            offset,
            size: whole,
            handle_types: 0,
            rdma: 0,
            foreign: Some(file),
            references: 0,
            mappings: 0,
            exported: true,
        };
        let handle = handle::fresh(handle::Kind::Physical);
        self.physical.insert(handle, physical);
        let shown = self.show_somewhere(handle, whole)?;
        let (block, origin) = (Some(shown), Origin::Imported);
        let kind = Kind::Allocated { device, context, physical: handle, block, origin };
        self.insert(shown + inside, size, kind);
        self.opened.insert(shown + inside, Opened { inode, id, shown, count: 1 });
        Ok(shown + inside)
    }

    /// GPU of memory that was opened at `address`.
    pub fn owner_of_opened(&self, address: u64) -> Answer<u32> {
        match self.ranges.get(&address).map(|range| &range.kind) {
            Some(Kind::Allocated { device, origin: Origin::Imported, .. }) => Ok(*device),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }

    /// `cuIpcCloseMemHandle`: the last close hides the memory.
    pub fn close_ipc(&mut self, address: u64) -> Answer {
        let opened = self.opened.get_mut(&address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        opened.count -= 1;
        if opened.count == 0 {
            self.drop_opened(address);
        }
        Ok(())
    }

    /// Hides opened memory however often it was opened.
    pub(super) fn drop_opened(&mut self, address: u64) {
        let (Some(opened), Some(range)) = (self.opened.remove(&address), self.ranges.remove(&address)) else {
            return;
        };
        let Range { kind: Kind::Allocated { physical, .. }, users, .. } = range else { return };
        let size = self.physical.get(&physical).map_or(0, |physical| physical.size);
        self.hide(opened.shown, size, physical, &users);
        self.give_addresses(opened.shown, size);
    }
}

/// Memory of one page that two processes share for an event.
pub(crate) fn shared_page(file: &File) -> Option<u64> {
    use std::os::fd::AsRawFd;
    space::share(file.as_raw_fd(), 4096)
}
