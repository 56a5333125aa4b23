//! Streams that wait for a value in memory, or write one.

use crate::exec::Exec;
use crate::machine::Machine;
use crate::memory::{Cover, Reach, Wanted};
use crate::stream::StreamRef;
use crate::task::Task;
use crate::util::{Answer, lock};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use vgmem_abi::*;

/// How often a waiting stream looks.
const PAUSE: Duration = Duration::from_micros(30);
/// Operations in one call at most.
const MOST: usize = 256;

/// When a wait is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Until {
    /// The value in memory is not less, going around.
    NotLess,
    Equal,
    /// The two have a bit in common.
    Common,
    /// There is a bit that neither has.
    Neither,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Wait(Until),
    Write,
    /// Memory operations before it are seen before those after it: always so here.
    Barrier,
}

/// One operation on a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueOp {
    what: What,
    address: u64,
    value: u64,
    /// Eight bytes, not four.
    wide: bool,
}

/// Flag of a wait that is not supported here: remote writes are flushed.
const FLUSH: u32 = 1 << 30;

impl ValueOp {
    /// A wait of `cuStreamWaitValue32` or, if `wide`, `cuStreamWaitValue64`.
    pub fn wait(address: u64, value: u64, wide: bool, flags: u32) -> Answer<ValueOp> {
        let until = match flags & !FLUSH {
            0 => Until::NotLess,
            1 => Until::Equal,
            2 => Until::Common,
            3 => Until::Neither,
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        };
        match flags & FLUSH {
            0 => Ok(ValueOp { what: What::Wait(until), address, value, wide }),
            _ => Err(CUDA_ERROR_NOT_SUPPORTED),
        }
    }

    /// A write of `cuStreamWriteValue32` or, if `wide`, `cuStreamWriteValue64`.
    pub fn write(address: u64, value: u64, wide: bool, flags: u32) -> Answer<ValueOp> {
        match flags {
            0 => Ok(ValueOp { what: What::Write, address, value, wide }),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }

    /// A barrier.
    pub fn barrier(flags: u32) -> Answer<ValueOp> {
        match flags {
            0 | 1 => Ok(ValueOp { what: What::Barrier, address: 0, value: 0, wide: false }),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }

    /// Whether it waits for somebody.
    pub(crate) fn waits(&self) -> bool {
        matches!(self.what, What::Wait(_))
    }

    fn size(&self) -> u64 {
        if self.wide { 8 } else { 4 }
    }

    fn load(&self, exec: &Exec) -> Answer<u64> {
        let at = exec.read(self.address, self.size())?;
        if self.wide {
            // SAFETY: the address was checked and is held, and it is aligned; the program may write
            // it at the same time, which an atomic access allows.
            return Ok(unsafe { &*at.cast::<AtomicU64>() }.load(Ordering::Acquire));
        }
        // SAFETY: as above.
        Ok(u64::from(unsafe { &*at.cast::<AtomicU32>() }.load(Ordering::Acquire)))
    }

    fn is_over(&self, until: Until, found: u64) -> bool {
        match (until, self.wide) {
            (Until::NotLess, true) => found.wrapping_sub(self.value) as i64 >= 0,
            (Until::NotLess, false) => (found as u32).wrapping_sub(self.value as u32) as i32 >= 0,
            (Until::Equal, _) => found == self.value,
            (Until::Common, _) => found & self.value != 0,
            (Until::Neither, true) => !(found | self.value) != 0,
            (Until::Neither, false) => !(found as u32 | self.value as u32) != 0,
        }
    }

    /// Runs the operation.
    pub(crate) fn run(&self, exec: &Exec) -> Answer {
        match self.what {
            What::Barrier => {}
            What::Write => {
                let at = exec.write(self.address, self.size())?;
                if self.wide {
                    // SAFETY: as in `load`, and the memory may be written.
                    unsafe { &*at.cast::<AtomicU64>() }.store(self.value, Ordering::Release);
                } else {
                    // SAFETY: as above.
                    unsafe { &*at.cast::<AtomicU32>() }.store(self.value as u32, Ordering::Release);
                }
            }
            What::Wait(until) => {
                while !self.is_over(until, self.load(exec)?) {
                    exec.check_context()?;
                    std::thread::sleep(PAUSE);
                }
            }
        }
        Ok(())
    }
}

impl Machine {
    /// Checks that the addresses are aligned and known to the driver.
    pub fn check_values(&self, ops: &[ValueOp]) -> Answer {
        if ops.len() > MOST {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let memory = lock(&self.memory);
        let reach = Reach { devices: u64::MAX, allocations: u64::MAX, owner: true, pageable: false };
        for op in ops.iter().filter(|op| op.what != What::Barrier) {
            let wanted = if op.waits() { Wanted::Read } else { Wanted::Write };
            let known = matches!(memory.cover(op.address, op.size(), reach, wanted), Ok(Cover::Known(_)));
            if !known || !op.address.is_multiple_of(op.size()) {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
        }
        Ok(())
    }

    /// `cuStreamBatchMemOp`, and the calls for one value.
    pub fn value_ops(&'static self, ops: Vec<ValueOp>, stream: StreamRef) -> Answer {
        let destination = self.destination(stream)?;
        self.check_values(&ops)?;
        if ops.is_empty() {
            return Ok(());
        }
        self.put(&destination, Task::Values(ops.into())).map(|_| ())
    }
}
