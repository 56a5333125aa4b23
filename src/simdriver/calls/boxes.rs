//! Copies of rectangles, boxes and batches.

use crate::decode::{handle, list, read, room, stream};
use vgmem_abi::*;
use vgmem_sim::{Answer, BoxCopy, Operand, StreamRef, machine};

/// Address of host memory, known to the machine as one that was handed in.
fn host(pointer: *const c_void) -> u64 {
    pointer.expose_provenance() as u64
}

fn default(per_thread: bool) -> StreamRef {
    stream(per_thread, std::ptr::null_mut())
}

fn rectangle(copy: &CUDA_MEMCPY2D) -> BoxCopy {
    let from = Operand {
        kind: copy.srcMemoryType,
        host: host(copy.srcHost),
        device: copy.srcDevice,
        origin: [copy.srcXInBytes as u64, copy.srcY as u64, 0],
        pitch: copy.srcPitch as u64,
        height: 0,
    };
    let to = Operand {
        kind: copy.dstMemoryType,
        host: host(copy.dstHost),
        device: copy.dstDevice,
        origin: [copy.dstXInBytes as u64, copy.dstY as u64, 0],
        pitch: copy.dstPitch as u64,
        height: 0,
    };
    BoxCopy { to, from, extent: [copy.WidthInBytes as u64, copy.Height as u64, 1], peers: None }
}

/// A box; the two structures have the same fields but for the contexts.
macro_rules! boxed {
    ($copy:expr, $peers:expr) => {{
        let copy = $copy;
        let from = Operand {
            kind: copy.srcMemoryType,
            host: host(copy.srcHost),
            device: copy.srcDevice,
            origin: [copy.srcXInBytes as u64, copy.srcY as u64, copy.srcZ as u64],
            pitch: copy.srcPitch as u64,
            height: copy.srcHeight as u64,
        };
        let to = Operand {
            kind: copy.dstMemoryType,
            host: host(copy.dstHost),
            device: copy.dstDevice,
            origin: [copy.dstXInBytes as u64, copy.dstY as u64, copy.dstZ as u64],
            pitch: copy.dstPitch as u64,
            height: copy.dstHeight as u64,
        };
        let extent = [copy.WidthInBytes as u64, copy.Height as u64, copy.Depth as u64];
        BoxCopy { to, from, extent, peers: $peers }
    }};
}

pub(super) fn solid(copy: &CUDA_MEMCPY3D) -> BoxCopy {
    boxed!(copy, None)
}

fn peer(copy: &CUDA_MEMCPY3D_PEER) -> BoxCopy {
    boxed!(copy, Some([handle(copy.dstContext), handle(copy.srcContext)]))
}

/// The calls for one rectangle or box: structure, what it means, stream or none.
macro_rules! copies {
    ($($name:ident($copy:ident: $type:ty $(, $stream:ident)?) is $means:ident $sync:literal;)*) => { $(
        pub(crate) unsafe fn $name(
            per_thread: bool, $copy: *const $type, $($stream: CUstream)?
        ) -> Answer {
            let machine = machine()?;
            // SAFETY: a structure or NULL, by the driver's contract.
            let $copy = unsafe { read($copy) }?;
            #[allow(unused_variables)]
            let on = default(per_thread);
            $(let on = stream(per_thread, $stream);)?
            machine.copy_box(&$means(&$copy), on, $sync)
        }
    )* };
}

copies! {
    cuMemcpy2D_v2(copy: CUDA_MEMCPY2D) is rectangle true;
    cuMemcpy2DUnaligned_v2(copy: CUDA_MEMCPY2D) is rectangle true;
    cuMemcpy2DAsync_v2(copy: CUDA_MEMCPY2D, which) is rectangle false;
    cuMemcpy3D_v2(copy: CUDA_MEMCPY3D) is solid true;
    cuMemcpy3DAsync_v2(copy: CUDA_MEMCPY3D, which) is solid false;
    cuMemcpy3DPeer(copy: CUDA_MEMCPY3D_PEER) is peer true;
    cuMemcpy3DPeerAsync(copy: CUDA_MEMCPY3D_PEER, which) is peer false;
}

/// How copies of a batch behave, as the driver lays it out.
#[repr(C)]
#[derive(Clone, Copy)]
struct Attributes {
    order: c_int,
    hints: [CUmemLocation; 2],
    flags: c_uint,
}

/// When the source may be read: in the order of the stream, during the call, at any time.
fn check_order(order: c_int) -> Answer {
    if (1..=3).contains(&order) { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
}

/// A batch of lines, as the program passes it.
struct Batch {
    to: *const CUdeviceptr,
    from: *const CUdeviceptr,
    sizes: *const usize,
    count: usize,
    attributes: *const Attributes,
    starts: *const usize,
    attribute_count: usize,
}

impl Batch {
    /// # Safety
    /// The arrays must have the lengths that the counts say.
    unsafe fn copy(self, on: StreamRef) -> Answer {
        let machine = machine()?;
        // SAFETY: the caller's promise.
        let (to, from, sizes, attributes, starts) = unsafe {
            (
                list(self.to, self.count)?,
                list(self.from, self.count)?,
                list(self.sizes, self.count)?,
                list(self.attributes, self.attribute_count)?,
                list(self.starts, self.attribute_count)?,
            )
        };
        // The first attribute stands for the first copy, and each next one for later copies.
        let rising = starts.is_sorted_by(|a, b| a < b) && starts.last().is_some_and(|i| *i < self.count);
        if starts.first() != Some(&0) || !rising {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        attributes.iter().try_for_each(|attributes| check_order(attributes.order))?;
        let lines: Vec<_> = to.into_iter().zip(from).zip(sizes).map(|((t, f), s)| (t, f, s as u64)).collect();
        machine.copy_lines(&lines, on)
    }
}

pub(crate) unsafe fn cuMemcpyBatchAsync(
    per_thread: bool,
    to: *mut CUdeviceptr,
    from: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    attributes: *mut c_void,
    starts: *mut usize,
    attribute_count: usize,
    failed: *mut usize,
    which: CUstream,
) -> Answer {
    let batch = Batch { to, from, sizes, count, attributes: attributes.cast(), starts, attribute_count };
    // SAFETY: the driver's contract.
    let answer = unsafe { batch.copy(stream(per_thread, which)) };
    if let (Err(_), Ok(failed)) = (answer, room(failed)) {
        // No single copy is to blame.
        failed.put(usize::MAX);
    }
    answer
}

pub(crate) unsafe fn cuMemcpyBatchAsync_v2(
    per_thread: bool,
    to: *mut CUdeviceptr,
    from: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    attributes: *mut c_void,
    starts: *mut usize,
    attribute_count: usize,
    which: CUstream,
) -> Answer {
    let batch = Batch { to, from, sizes, count, attributes: attributes.cast(), starts, attribute_count };
    // SAFETY: the driver's contract.
    unsafe { batch.copy(stream(per_thread, which)) }
}

/// One side of a box of a batch, as the driver lays it out: an address with the length of a row and
/// the height of a layer.
#[repr(C)]
#[derive(Clone, Copy)]
struct BatchSide {
    kind: c_int,
    address: CUdeviceptr,
    row: usize,
    layer: usize,
    hint: CUmemLocation,
}

/// One box of a batch, as the driver lays it out.
#[repr(C)]
#[derive(Clone, Copy)]
struct BatchBox {
    from: BatchSide,
    to: BatchSide,
    extent: [usize; 3],
    order: c_int,
    flags: c_uint,
}

const IS_ADDRESS: c_int = 1;

impl BatchBox {
    fn decode(&self) -> Answer<BoxCopy> {
        check_order(self.order)?;
        let side = |side: &BatchSide| Operand {
            kind: if side.kind == IS_ADDRESS { CU_MEMORYTYPE_UNIFIED } else { CU_MEMORYTYPE_ARRAY },
            host: 0,
            device: side.address,
            origin: [0; 3],
            pitch: side.row as u64,
            height: side.layer as u64,
        };
        let extent = self.extent.map(|length| length as u64);
        Ok(BoxCopy { to: side(&self.to), from: side(&self.from), extent, peers: None })
    }
}

/// # Safety
/// `boxes` must be NULL or point to `count` of them.
unsafe fn copy_boxes(boxes: *const c_void, count: usize, flags: u64, on: StreamRef) -> Answer {
    let machine = machine()?;
    if flags != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: the caller's promise.
    let boxes = unsafe { list(boxes.cast::<BatchBox>(), count) }?;
    let boxes: Vec<BoxCopy> = boxes.iter().map(BatchBox::decode).collect::<Answer<_>>()?;
    machine.copy_boxes(&boxes, on)
}

pub(crate) unsafe fn cuMemcpy3DBatchAsync(
    per_thread: bool,
    count: usize,
    boxes: *mut c_void,
    failed: *mut usize,
    flags: u64,
    which: CUstream,
) -> Answer {
    // SAFETY: the driver's contract.
    let answer = unsafe { copy_boxes(boxes, count, flags, stream(per_thread, which)) };
    if let (Err(_), Ok(failed)) = (answer, room(failed)) {
        failed.put(usize::MAX);
    }
    answer
}

pub(crate) unsafe fn cuMemcpy3DBatchAsync_v2(
    per_thread: bool,
    count: usize,
    boxes: *mut c_void,
    flags: u64,
    which: CUstream,
) -> Answer {
    // SAFETY: the driver's contract.
    unsafe { copy_boxes(boxes, count, flags, stream(per_thread, which)) }
}
