//! Memsets.

use crate::context::Context;
use crate::exec::Exec;
use crate::machine::Machine;
use crate::memory::{Reach, Wanted};
use crate::stream::StreamRef;
use crate::task::Task;
use crate::util::{Answer, lock};
use std::ptr;
use vgmem_abi::*;

/// A memset: `height` rows of `width` elements, `pitch` bytes apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    /// First row.
    pub address: u64,
    /// Bytes from row to row.
    pub pitch: u64,
    /// Bytes of an element: 1, 2 or 4.
    pub unit: u64,
    /// The element.
    pub value: u32,
    /// Elements of a row.
    pub width: u64,
    /// Number of rows.
    pub height: u64,
}

/// A memset whose numbers were checked.
#[derive(Clone, Copy)]
pub(crate) struct FillCall {
    pub fill: Fill,
    row: u64,
    reach: Reach,
}

impl FillCall {
    /// Checks the numbers; nothing to do is `None`.
    pub fn new(fill: Fill, context: &Context) -> Answer<Option<FillCall>> {
        let row = fill.width.checked_mul(fill.unit).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if fill.width == 0 || fill.height == 0 {
            return Ok(None);
        }
        let many = fill.height > 1;
        let bad_pitch = many && (fill.pitch < row || !fill.pitch.is_multiple_of(fill.unit));
        if !fill.address.is_multiple_of(fill.unit) || bad_pitch {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let rows = fill.pitch.checked_mul(fill.height - 1).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        fill.address.checked_add(rows).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let devices = 1 << context.device;
        let reach = Reach { devices, allocations: u64::MAX, owner: false, pageable: false };
        Ok(Some(FillCall { fill, row, reach }))
    }

    /// Runs the memset.
    pub fn run(&self, exec: &Exec) -> Answer {
        let fill = &self.fill;
        for line in 0..fill.height {
            let address = fill.address + line * fill.pitch;
            exec.lease(address, self.row, self.reach, Wanted::Write)
                .map_err(|_| CUDA_ERROR_ILLEGAL_ADDRESS)?;
            let at = ptr::with_exposed_provenance_mut::<u8>(address as usize);
            let count = fill.width as usize;
            // SAFETY: the row is mapped and held, and `row` is `count` elements of `unit` bytes, to
            // which the address is aligned.
            unsafe {
                match fill.unit {
                    1 => ptr::write_bytes(at, fill.value as u8, count),
                    2 => std::slice::from_raw_parts_mut(at.cast::<u16>(), count).fill(fill.value as u16),
                    _ => std::slice::from_raw_parts_mut(at.cast::<u32>(), count).fill(fill.value),
                }
            }
        }
        Ok(())
    }
}

impl Machine {
    /// Checks that memory is there for a memset; gives whether it must be waited for.
    pub(crate) fn check_fill(&self, call: &FillCall, synchronous: bool) -> Answer<bool> {
        let fill = &call.fill;
        let memory = lock(&self.memory);
        for line in 0..fill.height {
            let at = fill.address + line * fill.pitch;
            memory.cover(at, call.row, call.reach, Wanted::Write).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
        }
        Ok(memory.sync_memops(fill.address) || synchronous && memory.on_host(fill.address))
    }

    /// Sets memory.
    pub fn fill(&'static self, fill: Fill, stream: StreamRef, synchronous: bool) -> Answer {
        let destination = self.destination(stream)?;
        let Some(call) = FillCall::new(fill, &destination.context)? else { return Ok(()) };
        if self.is_captured(destination.lane) {
            // What a captured memset names is looked at when it runs.
            return self.put(&destination, Task::Fill(call)).map(|_| ());
        }
        let wait = self.check_fill(&call, synchronous)?;
        let operation = self.put(&destination, Task::Fill(call))?;
        if wait {
            self.scheduler.wait(operation.unwrap_or(0));
            return destination.context.check();
        }
        Ok(())
    }
}
