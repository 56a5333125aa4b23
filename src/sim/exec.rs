//! What an operation sees while it runs: memory that it must ask for before it touches it.

use crate::context::Context;
use crate::machine::Machine;
use crate::memory::{Cover, Reach, Wanted};
use crate::util::{Answer, lock};
use std::cell::Cell;
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use vgmem_abi::{CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_INVALID_VALUE};

/// An operation in flight, as memory knows it.
#[derive(Default)]
pub(crate) struct Running {
    lost: AtomicBool,
    leases: Mutex<Vec<u64>>,
}

impl Running {
    /// Memory that the operation touches was taken from under it.
    pub fn lose(&self) {
        self.lost.store(true, Ordering::Release);
    }

    fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }
}

/// Runs one operation.
pub struct Exec {
    machine: &'static Machine,
    context: Arc<Context>,
    running: Arc<Running>,
    /// The range that was checked last: start, end, written. Only kernels that follow pointers
    /// ask for the same range again and again.
    last: Cell<(u64, u64, bool)>,
    /// Handle of the function or kernel that was launched; 0 for what is not a launch.
    function: Cell<u64>,
}

impl Exec {
    pub(crate) fn new(machine: &'static Machine, context: Arc<Context>) -> Exec {
        Exec { machine, context, running: Arc::default(), last: Cell::default(), function: Cell::default() }
    }

    /// The operation is a launch of this function.
    pub(crate) fn runs(&self, function: u64) {
        self.function.set(function);
    }

    /// Address of a variable of the launched function's module, as code of a module knows its variables. The
    /// program must have asked for the address before: variables are made then.
    pub fn global(&self, name: &CStr) -> Answer<u64> {
        self.machine.global_of_function(self.function.get(), self.context.handle, name)
    }

    /// GPU that runs the operation.
    pub fn device(&self) -> u32 {
        self.context.device
    }

    /// The kernel reads `size` bytes at `address`.
    pub fn read(&self, address: u64, size: u64) -> Answer<*const u8> {
        self.touch(address, size, Wanted::Read)?;
        Ok(std::ptr::with_exposed_provenance(address as usize))
    }

    /// The kernel writes (and may read) `size` bytes at `address`.
    pub fn write(&self, address: u64, size: u64) -> Answer<*mut u8> {
        self.touch(address, size, Wanted::Write)?;
        Ok(std::ptr::with_exposed_provenance_mut(address as usize))
    }

    fn touch(&self, address: u64, size: u64, wanted: Wanted) -> Answer {
        if size == 0 {
            return Ok(());
        }
        if self.running.is_lost() {
            return Err(CUDA_ERROR_ILLEGAL_ADDRESS);
        }
        let (start, end, written) = self.last.get();
        let write = wanted == Wanted::Write;
        if address >= start && address < end && size <= end - address && (written || !write) {
            return Ok(());
        }
        let own = 1 << self.context.device;
        let reach =
            Reach { devices: own, allocations: own | self.context.peers(), owner: false, pageable: false };
        self.lease(address, size, reach, wanted).map_err(|_| CUDA_ERROR_ILLEGAL_ADDRESS)?;
        if let Some((start, end)) = lock(&self.machine.memory).end_of_range(address) {
            self.last.set((start, end, write));
        }
        Ok(())
    }

    /// Checks a range once more as the operation starts, and holds it until the operation ends.
    pub(crate) fn lease(&self, address: u64, size: u64, reach: Reach, wanted: Wanted) -> Answer {
        let mut memory = lock(&self.machine.memory);
        match memory.cover(address, size, reach, wanted) {
            Ok(Cover::Pageable) => Ok(()),
            Ok(Cover::Known(starts)) => {
                let new = memory.lease(&starts, &self.running);
                lock(&self.running.leases).extend(new);
                Ok(())
            }
            Err(_) => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }

    /// The error that has ended the context meanwhile.
    pub(crate) fn check_context(&self) -> Answer {
        self.context.check()
    }

    /// Whether the address is memory of the host.
    pub fn is_on_host(&self, address: u64) -> bool {
        lock(&self.machine.memory).on_host(address)
    }

    /// Keeps other kernels of this GPU from atomics on memory of the host.
    pub fn host_atomics(&self) -> Option<MutexGuard<'_, ()>> {
        self.machine.host_atomics.get(self.context.device as usize).map(lock)
    }

    /// Whether the operation should stop, as persistent kernels ask now and then.
    pub fn is_lost(&self) -> bool {
        self.running.is_lost()
    }

    /// Ends the operation: its memory is free again.
    pub(crate) fn finish(&self) -> Answer {
        let leases = std::mem::take(&mut *lock(&self.running.leases));
        if !leases.is_empty() {
            lock(&self.machine.memory).end_lease(&leases, &self.running);
        }
        if self.running.is_lost() { Err(CUDA_ERROR_ILLEGAL_ADDRESS) } else { Ok(()) }
    }
}
