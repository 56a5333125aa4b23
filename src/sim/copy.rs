//! Copies: lines, rectangles, boxes.

use crate::context::Context;
use crate::exec::Exec;
use crate::machine::Machine;
use crate::memory::{Cover, Memory, Reach, Wanted};
use crate::scheduler::Work;
use crate::stream::{Destination, StreamRef};
use crate::task::Task;
use crate::util::{Answer, lock};
use std::ptr;
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
    /// Between the memories of two contexts; 0 is the current one.
    Peer(u64, u64),
    /// The same, either side from anywhere.
    PeerUnified(u64, u64),
}

/// One side of a copy: its first byte, and the bytes from row to row and from layer to layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Side {
    /// Address that the copy names: what it touches must be in one piece with it.
    pub base: u64,
    /// Address of the first byte.
    pub address: u64,
    /// Bytes from row to row.
    pub pitch: u64,
    /// Bytes from layer to layer.
    pub layer: u64,
}

/// What is copied: `depth` layers of `rows` rows of `width` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Where to.
    pub to: Side,
    /// Where from.
    pub from: Side,
    /// Bytes of a row.
    pub width: u64,
    /// Rows of a layer.
    pub rows: u64,
    /// Layers.
    pub depth: u64,
}

impl Side {
    /// Address of one row; the shape's end was checked to be an address.
    fn row(&self, row: u64, layer: u64) -> u64 {
        self.address + layer * self.layer + row * self.pitch
    }

    /// Bytes from the first byte to the last that `shape` covers here.
    fn span(&self, shape: &Shape) -> Option<u64> {
        let layers = self.layer.checked_mul(shape.depth - 1)?;
        let rows = self.pitch.checked_mul(shape.rows - 1)?;
        let span = layers.checked_add(rows)?.checked_add(shape.width)?;
        self.address.checked_add(span).map(|_| span)
    }
}

impl Shape {
    /// A copy of `size` bytes in a row.
    pub fn line(to: u64, from: u64, size: u64) -> Shape {
        let side = |address| Side { base: address, address, pitch: size, layer: size };
        Shape { to: side(to), from: side(from), width: size, rows: 1, depth: 1 }
    }

    /// Rows that follow each other without a gap on both sides are one row.
    fn joined(mut self) -> Shape {
        let tight = |side: &Side| side.pitch == self.width || self.rows == 1;
        if self.rows > 1 && tight(&self.to) && tight(&self.from) {
            self.width *= self.rows;
            self.rows = 1;
        }
        let tight = |side: &Side| side.layer == self.width;
        if self.rows == 1 && self.depth > 1 && tight(&self.to) && tight(&self.from) {
            self.width *= self.depth;
            self.depth = 1;
        }
        self
    }
}

/// A copy that was checked.
#[derive(Clone, Copy)]
pub(crate) struct CopyCall {
    pub shape: Shape,
    /// From where either side is reached.
    from: Reach,
    to: Reach,
}

impl CopyCall {
    /// Runs the copy.
    pub fn run(&self, exec: &Exec) -> Answer {
        let shape = &self.shape;
        let code = match shape.rows * shape.depth {
            1 => CUDA_ERROR_ILLEGAL_ADDRESS,
            _ => CUDA_ERROR_LAUNCH_FAILED,
        };
        let lost = |_| code;
        for layer in 0..shape.depth {
            for row in 0..shape.rows {
                let (from, to) = (shape.from.row(row, layer), shape.to.row(row, layer));
                exec.lease(from, shape.width, self.from, Wanted::Read).map_err(lost)?;
                exec.lease(to, shape.width, self.to, Wanted::Write).map_err(lost)?;
                let from = ptr::with_exposed_provenance::<u8>(from as usize);
                let to = ptr::with_exposed_provenance_mut::<u8>(to as usize);
                // SAFETY: both ranges are mapped, or are memory of the program that it named in the
                // call; the lease keeps mappings in place until the operation ends.
                unsafe { ptr::copy(from, to, shape.width as usize) };
            }
        }
        Ok(())
    }
}

/// What the check of a copy found.
pub(crate) struct Checked {
    pub call: CopyCall,
    from_program: bool,
    to_program: bool,
    /// One side is memory of the host.
    host_side: bool,
    /// The program wants copies of this memory to be waited for.
    forced: bool,
    /// Whether all of it is there is seen later, and told later.
    short: bool,
}

/// What memory one side of a copy is.
struct Found {
    /// The program's own, which the driver does not know.
    program: bool,
    /// Pages that perhaps do not reach to the end: that is seen when the bytes are copied.
    short: bool,
}

/// Looks up one side. What lies between the rows must be there too.
fn look_up(memory: &Memory, side: &Side, shape: &Shape, reach: Reach, wanted: Wanted) -> Answer<Found> {
    let span = side.span(shape).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let whole = span.checked_add(side.address - side.base).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    match memory.cover(side.base, whole, reach, wanted) {
        Ok(cover) => Ok(Found { program: cover == Cover::Pageable, short: false }),
        Err(_) if shape.rows * shape.depth > 1 && memory.is_page(side.base) => {
            memory.cover(side.base, 1, reach, wanted).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
            Ok(Found { program: false, short: true })
        }
        Err(_) => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

impl Machine {
    fn copy_reach(&self, context: &Context, transfer: Transfer) -> Answer<Reach> {
        let mut devices = 1 << context.device;
        let mut owner = false;
        if let Transfer::Peer(to, from) | Transfer::PeerUnified(to, from) = transfer {
            for handle in [to, from].into_iter().filter(|handle| *handle != 0) {
                devices |= 1 << self.context(handle)?.device;
            }
            owner = true;
        }
        Ok(Reach { devices, allocations: u64::MAX, owner, pageable: true })
    }

    /// Checks a copy; nothing to do is `None`.
    pub(crate) fn check_copy(
        &self,
        transfer: Transfer,
        shape: Shape,
        context: &Context,
    ) -> Answer<Option<Checked>> {
        let reach = self.copy_reach(context, transfer)?;
        if shape.width == 0 || shape.rows == 0 || shape.depth == 0 {
            return Ok(None);
        }
        for side in [&shape.from, &shape.to] {
            side.span(&shape).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        }
        let shape = shape.joined();
        let memory = lock(&self.memory);
        let from = look_up(&memory, &shape.from, &shape, reach, Wanted::Read)?;
        let to = look_up(&memory, &shape.to, &shape, reach, Wanted::Write)?;
        let (from_program, to_program, short) = (from.program, to.program, from.short || to.short);
        let ends = [shape.from.address, shape.to.address];
        let host_side = from_program || to_program || ends.iter().any(|end| memory.on_host(*end));
        let forced = ends.iter().any(|end| memory.sync_memops(*end));
        drop(memory);
        let possible = match transfer {
            Transfer::ToDevice => !to_program,
            Transfer::FromDevice => !from_program,
            Transfer::OnDevice | Transfer::Peer(..) => !from_program && !to_program,
            Transfer::Unified | Transfer::PeerUnified(..) => true,
        };
        let of = |pageable| Reach { pageable, ..reach };
        let call = CopyCall { shape, from: of(from_program), to: of(to_program) };
        match possible {
            true => Ok(Some(Checked { call, from_program, to_program, host_side, forced, short })),
            false => Err(CUDA_ERROR_INVALID_VALUE),
        }
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
        self.copy_shape(transfer, Shape::line(to, from, size), stream, synchronous)
    }

    /// Copies a rectangle or a box.
    pub fn copy_shape(
        &'static self,
        transfer: Transfer,
        shape: Shape,
        stream: StreamRef,
        synchronous: bool,
    ) -> Answer {
        let destination = self.destination(stream)?;
        let Some(checked) = self.check_copy(transfer, shape, &destination.context)? else { return Ok(()) };
        let Checked { call, from_program, to_program, .. } = checked;
        if self.is_captured(destination.lane) {
            if synchronous {
                return Err(self.refuse_in(destination.lane));
            }
            return self.put(&destination, Task::Copy(call)).map(|_| ());
        }
        let small = call.shape.rows == 1 && call.shape.depth == 1 && call.shape.width <= STAGED;
        if from_program && !to_program && small && !synchronous {
            return self.copy_staged(&destination, call);
        }
        let operation = self.put(&destination, Task::Copy(call))?;
        if from_program || to_program || checked.forced || synchronous && checked.host_side {
            self.scheduler.wait(operation.unwrap_or(0));
            return if checked.short { Ok(()) } else { destination.context.check() };
        }
        Ok(())
    }

    /// A small copy from memory of the program, which is read before the call returns.
    fn copy_staged(&'static self, destination: &Destination, call: CopyCall) -> Answer {
        let CopyCall { shape, to: reach, .. } = call;
        let mut stage = vec![0_u8; shape.width as usize];
        let from = ptr::with_exposed_provenance::<u8>(shape.from.address as usize);
        // SAFETY: the program says that it owns this memory, exactly as to a real driver.
        unsafe { ptr::copy_nonoverlapping(from, stage.as_mut_ptr(), stage.len()) };
        let job = move |exec: &Exec| {
            let lost = |_| CUDA_ERROR_ILLEGAL_ADDRESS;
            exec.lease(shape.to.address, shape.width, reach, Wanted::Write).map_err(lost)?;
            let to = ptr::with_exposed_provenance_mut::<u8>(shape.to.address as usize);
            // SAFETY: the target is mapped and held; the stage has exactly that many bytes.
            unsafe { ptr::copy_nonoverlapping(stage.as_ptr(), to, stage.len()) };
            Ok(())
        };
        self.not_legacy_beside_capture(destination)?;
        self.submit(&destination.context, destination.lane, &[], Work::Device(Box::new(job)))?;
        Ok(())
    }
}
