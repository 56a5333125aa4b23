//! Rectangles and boxes as the program describes them.

use crate::copy::{Shape, Side, Transfer};
use crate::machine::Machine;
use crate::stream::StreamRef;
use crate::util::{Answer, lock};
use vgmem_abi::*;

/// One side of a copy of a rectangle or a box, as the program describes it.
#[derive(Clone, Copy, Debug)]
pub struct Operand {
    /// A `CU_MEMORYTYPE_*`.
    pub kind: i32,
    /// Address for the type HOST.
    pub host: u64,
    /// Address for the types DEVICE and UNIFIED.
    pub device: u64,
    /// Bytes, rows and layers before the first byte.
    pub origin: [u64; 3],
    /// Bytes from row to row; 0: the rows follow each other.
    pub pitch: u64,
    /// Rows from layer to layer; 0: the layers follow each other.
    pub height: u64,
}

impl Operand {
    /// The side, and whether it must be memory that the driver knows. Of mapped pages the driver
    /// checks less than of allocations.
    fn side(&self, [width, rows, _]: [u64; 3], is_page: &dyn Fn(u64) -> bool) -> Answer<(Side, bool)> {
        let invalid = CUDA_ERROR_INVALID_VALUE;
        let page = self.kind != CU_MEMORYTYPE_HOST && is_page(self.device);
        let (start, known) = match self.kind {
            CU_MEMORYTYPE_HOST => (self.host, false),
            CU_MEMORYTYPE_DEVICE => (self.device, true),
            CU_MEMORYTYPE_UNIFIED => (self.device, false),
            kind if page && kind != CU_MEMORYTYPE_ARRAY => (self.device, true),
            _ => return Err(invalid), // there are no arrays here
        };
        let [x, y, z] = self.origin;
        let (right, bottom) = (x.checked_add(width).ok_or(invalid)?, y.checked_add(rows).ok_or(invalid)?);
        let pitch = if self.pitch == 0 { right } else { self.pitch };
        let height = if self.height == 0 { bottom } else { self.height };
        if width > pitch || right > pitch && !page || bottom > height {
            return Err(invalid);
        }
        let layer = pitch.checked_mul(height).ok_or(invalid)?;
        let offset = || z.checked_mul(layer)?.checked_add(y.checked_mul(pitch)?)?.checked_add(x);
        let address = start.checked_add(offset().ok_or(invalid)?).ok_or(invalid)?;
        Ok((Side { base: start, address, pitch, layer }, known))
    }
}

/// A copy of a box, as the program describes it.
#[derive(Clone, Copy, Debug)]
pub struct BoxCopy {
    /// Where to.
    pub to: Operand,
    /// Where from.
    pub from: Operand,
    /// Bytes of a row, rows, layers.
    pub extent: [u64; 3],
    /// Contexts that the memory belongs to: target, source; 0 is the current one.
    pub peers: Option<[u64; 2]>,
}

impl BoxCopy {
    /// Where the bytes lie, and what the copy says about them; nothing to copy is `None`.
    pub(crate) fn shape(&self, is_page: &dyn Fn(u64) -> bool) -> Answer<Option<(Transfer, Shape)>> {
        let [width, rows, depth] = self.extent;
        if self.extent.contains(&0) {
            return Ok(None);
        }
        let (to, to_known) = self.to.side(self.extent, is_page)?;
        let (from, from_known) = self.from.side(self.extent, is_page)?;
        let transfer = match (self.peers, to_known, from_known) {
            (Some([to, from]), true, true) => Transfer::Peer(to, from),
            (Some([to, from]), _, _) => Transfer::PeerUnified(to, from),
            (None, true, true) => Transfer::OnDevice,
            (None, true, false) => Transfer::ToDevice,
            (None, false, true) => Transfer::FromDevice,
            (None, false, false) => Transfer::Unified,
        };
        Ok(Some((transfer, Shape { to, from, width, rows, depth })))
    }
}

impl Machine {
    /// Whether the address is one of a mapped page.
    pub(crate) fn is_page(&self, address: u64) -> bool {
        lock(&self.memory).is_page(address)
    }

    /// `cuMemcpy2D`, `cuMemcpy3D`, `cuMemcpy3DPeer` and their asynchronous forms.
    pub fn copy_box(&'static self, copy: &BoxCopy, stream: StreamRef, synchronous: bool) -> Answer {
        self.destination(stream)?;
        match copy.shape(&|address| self.is_page(address))? {
            Some((transfer, shape)) => self.copy_shape(transfer, shape, stream, synchronous),
            None => Ok(()),
        }
    }

    /// `cuMemcpyBatchAsync`: lines, checked all before the first is copied.
    pub fn copy_lines(&'static self, lines: &[(u64, u64, u64)], stream: StreamRef) -> Answer {
        self.check_batch(lines.len(), stream)?;
        let context = self.destination(stream)?.context;
        for (to, from, size) in lines {
            let shape = Shape::line(*to, *from, *size);
            self.check_copy(Transfer::Unified, shape, &context)?.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        }
        for (to, from, size) in lines {
            self.copy(Transfer::Unified, *to, *from, *size, stream, false)?;
        }
        Ok(())
    }

    /// `cuMemcpy3DBatchAsync`: boxes, checked all before the first is copied.
    pub fn copy_boxes(&'static self, boxes: &[BoxCopy], stream: StreamRef) -> Answer {
        self.check_batch(boxes.len(), stream)?;
        let context = self.destination(stream)?.context;
        for one in boxes {
            let (transfer, shape) =
                one.shape(&|address| self.is_page(address))?.ok_or(CUDA_ERROR_INVALID_VALUE)?;
            self.check_copy(transfer, shape, &context)?;
        }
        boxes.iter().try_for_each(|one| self.copy_box(one, stream, false))
    }

    /// A batch has copies, and goes into a stream of the program.
    fn check_batch(&self, count: usize, stream: StreamRef) -> Answer {
        let destination = self.destination(stream)?;
        if count == 0 || destination.lane == destination.context.legacy {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        Ok(())
    }
}
