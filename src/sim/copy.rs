//! Copies and memsets.

use crate::context::Context;
use crate::exec::Exec;
use crate::machine::Machine;
use crate::memory::{Cover, Reach, Wanted};
use crate::scheduler::Work;
use crate::stream::{Destination, StreamRef};
use crate::util::{Answer, lock};
use std::ptr;
use std::sync::Arc;
use vgmem_abi::*;

/// Pageable memory up to this size is taken at once: the program may change it after the call.
const STAGED: u64 = 64 << 10;

/// What the caller says about the two sides of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// To the device, from anywhere.
    ToDevice,
    /// From the device, to anywhere.
    FromDevice,
    /// Both on devices.
    OnDevice,
    /// Found out from the addresses.
    Unified,
    /// Between the memories of two contexts.
    Peer(u64, u64),
}

/// A memset: `height` rows of `width` elements, `pitch` bytes apart.
#[derive(Clone, Copy, Debug)]
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

struct Plan {
    to: u64,
    from: u64,
    size: u64,
    reach: Reach,
}

impl Plan {
    fn run(&self, exec: &Exec) -> Answer {
        let lost = |_| CUDA_ERROR_ILLEGAL_ADDRESS;
        exec.lease(self.from, self.size, self.reach, Wanted::Read).map_err(lost)?;
        exec.lease(self.to, self.size, self.reach, Wanted::Write).map_err(lost)?;
        let from = ptr::with_exposed_provenance::<u8>(self.from as usize);
        let to = ptr::with_exposed_provenance_mut::<u8>(self.to as usize);
        // SAFETY: both ranges are mapped, or are memory of the program that it named in the call;
        // the lease keeps mappings in place until the operation ends.
        unsafe { ptr::copy(from, to, self.size as usize) };
        Ok(())
    }
}

impl Machine {
    fn copy_reach(&self, context: &Context, transfer: Transfer) -> Answer<Reach> {
        let mut devices = 1 << context.device;
        let mut owner = false;
        if let Transfer::Peer(to, from) = transfer {
            for handle in [to, from] {
                devices |= 1 << self.context(handle)?.device;
            }
            owner = true;
        }
        Ok(Reach { devices, allocations: u64::MAX, owner, pageable: true })
    }

    /// Copies `size` bytes; a `synchronous` copy waits where the driver's does.
    pub fn copy(
        &'static self,
        transfer: Transfer,
        to: u64,
        from: u64,
        size: u64,
        stream: StreamRef,
        synchronous: bool,
    ) -> Answer {
        let destination = self.destination(stream)?;
        let context = destination.context.clone();
        let reach = self.copy_reach(&context, transfer)?;
        if size == 0 {
            return Ok(());
        }
        let memory = lock(&self.memory);
        let denied = |_| CUDA_ERROR_INVALID_VALUE;
        let source = memory.cover(from, size, reach, Wanted::Read).map_err(denied)?;
        let target = memory.cover(to, size, reach, Wanted::Write).map_err(denied)?;
        let (from_program, to_program) = (source == Cover::Pageable, target == Cover::Pageable);
        let host_side = from_program || to_program || memory.on_host(from) || memory.on_host(to);
        let forced = memory.sync_memops(from) || memory.sync_memops(to);
        drop(memory);
        let possible = match transfer {
            Transfer::ToDevice => !to_program,
            Transfer::FromDevice => !from_program,
            Transfer::OnDevice | Transfer::Peer(..) => !from_program && !to_program,
            Transfer::Unified => true,
        };
        if !possible {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let plan = Plan { to, from, size, reach };
        if from_program && !to_program && size <= STAGED && !synchronous {
            return self.copy_staged(&destination, plan);
        }
        let job = Work::Device(Box::new(move |exec| plan.run(exec)));
        let operation = self.submit(&context, destination.lane, &[], job)?;
        if from_program || to_program || forced || synchronous && host_side {
            self.scheduler.wait(operation);
            return context.check();
        }
        Ok(())
    }

    /// A small copy from memory of the program, which is read before the call returns.
    fn copy_staged(&'static self, destination: &Destination, plan: Plan) -> Answer {
        let mut stage = vec![0_u8; plan.size as usize];
        let from = ptr::with_exposed_provenance::<u8>(plan.from as usize);
        // SAFETY: the program says that it owns this memory, exactly as to a real driver.
        unsafe { ptr::copy_nonoverlapping(from, stage.as_mut_ptr(), stage.len()) };
        let job = move |exec: &Exec| {
            let lost = |_| CUDA_ERROR_ILLEGAL_ADDRESS;
            exec.lease(plan.to, plan.size, plan.reach, Wanted::Write).map_err(lost)?;
            let to = ptr::with_exposed_provenance_mut::<u8>(plan.to as usize);
            // SAFETY: the target is mapped and held; the stage has exactly that many bytes.
            unsafe { ptr::copy_nonoverlapping(stage.as_ptr(), to, stage.len()) };
            Ok(())
        };
        self.submit(&destination.context, destination.lane, &[], Work::Device(Box::new(job)))?;
        Ok(())
    }

    /// Sets memory.
    pub fn fill(&'static self, fill: Fill, stream: StreamRef, synchronous: bool) -> Answer {
        let destination = self.destination(stream)?;
        let context: Arc<Context> = destination.context.clone();
        let row = fill.width.checked_mul(fill.unit).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if fill.width == 0 || fill.height == 0 {
            return Ok(());
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
        let memory = lock(&self.memory);
        for line in 0..fill.height {
            let at = fill.address + line * fill.pitch;
            memory.cover(at, row, reach, Wanted::Write).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
        }
        let wait = memory.sync_memops(fill.address) || synchronous && memory.on_host(fill.address);
        drop(memory);
        let job = Work::Device(Box::new(move |exec| run_fill(exec, fill, row, reach)));
        let operation = self.submit(&context, destination.lane, &[], job)?;
        if wait {
            self.scheduler.wait(operation);
            return context.check();
        }
        Ok(())
    }
}

fn run_fill(exec: &Exec, fill: Fill, row: u64, reach: Reach) -> Answer {
    for line in 0..fill.height {
        let address = fill.address + line * fill.pitch;
        exec.lease(address, row, reach, Wanted::Write).map_err(|_| CUDA_ERROR_ILLEGAL_ADDRESS)?;
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
