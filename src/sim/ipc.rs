//! Legacy IPC between processes: memory and events.

use crate::event::Event;
use crate::exec::Exec;
use crate::handle::Kind;
use crate::machine::Machine;
use crate::memory::ipc::{file_of_process, pack, shared_page, unpack};
use crate::util::{Answer, lock};
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use vgmem_abi::*;

/// How the handle of an event begins.
const MAGIC: u64 = u64::from_le_bytes(*b"simevent");
/// Name of an event's memory.
const NAME: &str = "vgmem-sim-event";
/// How often somebody who waits for another process looks.
const PAUSE: Duration = Duration::from_micros(50);

/// What processes know together about an event: how often it was recorded, and up to which of
/// those the work is over.
pub(crate) struct SharedEvent {
    file: File,
    inode: u64,
    /// Process that made it, and its descriptor.
    process: u64,
    address: u64,
}

impl SharedEvent {
    /// Memory for a new event.
    pub fn new() -> std::io::Result<SharedEvent> {
        let name = std::ffi::CString::new(NAME)?;
        // SAFETY: the name is a C string.
        let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made and nobody else has it.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(4096)?;
        let process = u64::from(std::process::id()) << 32 | file.as_raw_fd() as u64;
        SharedEvent::of(file, process).ok_or_else(std::io::Error::last_os_error)
    }

    fn of(file: File, process: u64) -> Option<SharedEvent> {
        let inode = file.metadata().ok()?.ino();
        let address = shared_page(&file)?;
        Some(SharedEvent { file, inode, process, address })
    }

    fn cell(&self, index: usize) -> &AtomicU64 {
        let at = std::ptr::with_exposed_provenance::<AtomicU64>(self.address as usize);
        // SAFETY: the page is mapped as long as `self` lives, and both numbers lie in it.
        unsafe { &*at.add(index) }
    }

    /// The number of a further record.
    pub fn record(&self) -> u64 {
        self.cell(0).fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Record `number` is over.
    pub fn finish(&self, number: u64) {
        self.cell(1).fetch_max(number, Ordering::AcqRel);
    }

    /// The last record.
    pub fn last(&self) -> u64 {
        self.cell(0).load(Ordering::Acquire)
    }

    /// Whether record `number` is over.
    pub fn is_over(&self, number: u64) -> bool {
        self.cell(1).load(Ordering::Acquire) >= number
    }

    /// Waits for record `number`, wherever it was made.
    pub fn wait(&self, number: u64, go_on: impl Fn() -> Answer) -> Answer {
        while !self.is_over(number) {
            go_on()?;
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    fn handle(&self) -> [u8; 64] {
        pack([MAGIC, self.process, self.inode, 0, 0, 0, 0, 0])
    }
}

impl Drop for SharedEvent {
    fn drop(&mut self) {
        let at = std::ptr::with_exposed_provenance_mut(self.address as usize);
        // SAFETY: the page that `of` mapped; nobody has a reference into it any more.
        unsafe { libc::munmap(at, 4096) };
        debug_assert!(self.file.as_raw_fd() >= 0);
    }
}

impl Machine {
    /// `cuIpcGetMemHandle`.
    pub fn ipc_handle(&self, address: u64) -> Answer<[u8; 64]> {
        self.current()?;
        lock(&self.memory).ipc_handle(address)
    }

    /// `cuIpcOpenMemHandle`; the flag that turns on peer access is demanded.
    pub fn open_ipc(&self, handle: &[u8; 64], flags: u32) -> Answer<u64> {
        let context = self.current()?;
        match flags {
            1 => lock(&self.memory).open_ipc(handle, context.handle),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }

    /// `cuIpcCloseMemHandle`: waits for work on the memory first.
    pub fn close_ipc(&self, address: u64) -> Answer {
        self.current()?;
        let device = lock(&self.memory).owner_of_opened(address)?;
        self.scheduler.wait_for_device(device);
        lock(&self.memory).close_ipc(address)
    }

    /// `cuIpcGetEventHandle`.
    pub fn event_handle(&self, event: u64) -> Answer<[u8; 64]> {
        let event = self.event(event)?;
        event.shared.as_ref().map(|shared| shared.handle()).ok_or(CUDA_ERROR_INVALID_HANDLE)
    }

    /// `cuIpcOpenEventHandle`.
    pub fn open_event(&self, handle: &[u8; 64]) -> Answer<u64> {
        let context = self.current()?;
        let [magic, process, inode, ..] = unpack(handle);
        let pid = (process >> 32) as u32;
        if magic != MAGIC {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if pid == std::process::id() {
            return Err(CUDA_ERROR_INVALID_CONTEXT);
        }
        let file = file_of_process(pid, process as u32 as i32, inode, NAME);
        let shared = SharedEvent::of(file.ok_or(CUDA_ERROR_INVALID_VALUE)?, process);
        let shared = Arc::new(shared.ok_or(CUDA_ERROR_OUT_OF_MEMORY)?);
        let event = Arc::new(Event::of_other_process(context.handle, shared));
        let (handle, event) = self.add(Kind::Event, |_| event);
        lock(&self.objects).events.insert(handle, event);
        Ok(handle)
    }

    /// The job of an operation that records a shared event.
    pub(crate) fn finish_shared(shared: &Arc<SharedEvent>) -> impl FnOnce(&Exec) -> Answer + Send + use<> {
        let (shared, number) = (shared.clone(), shared.record());
        move |_| {
            shared.finish(number);
            Ok(())
        }
    }
}
