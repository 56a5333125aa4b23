//! Copies and memsets of rectangles and boxes, copies in batches, and copies between memory and arrays.
//!
//! As in `copy`: the driver copies across pages that lie anywhere; with several GPUs access is given first.

use std::slice;

use vgmem_abi::*;

use super::access::{Range, give, give_to_context, reach, stream_of};
use crate::exports::copy::slots;
use crate::graphs;
use crate::pager::{Held, Use};
use crate::start::engine;

/// The bytes from the first to the last that a box of `depth` layers of `rows` rows of `width` bytes covers.
fn covered(
    address: CUdeviceptr,
    [x, y, z]: [usize; 3],
    [pitch, layer]: [usize; 2],
    [width, rows, depth]: [usize; 3],
) -> Range {
    // Only speed depends on these numbers being sensible: saturate instead of failing.
    let row = |row: usize, of: usize| row.saturating_add(of.saturating_mul(layer)).saturating_mul(pitch);
    let start = row(y, z).saturating_add(x);
    let bytes = row(rows.saturating_sub(1), depth.saturating_sub(1)).saturating_add(width);
    (address.saturating_add(start as u64), bytes)
}

/// Whether one side of a rectangle or box is what the driver accepts for memory of `cuMemAlloc`. For mapped memory
/// it checks less, and loses the context over what it lets through.
fn is_sound(memory: c_int, range: Range, x: usize, width: usize, pitch: usize) -> bool {
    if !matches!(memory, CU_MEMORYTYPE_HOST..=CU_MEMORYTYPE_UNIFIED) {
        return false;
    }
    let Some(found) = engine().filter(|_| is_address(memory)).and_then(|engine| engine.pool.find(range.0))
    else {
        return true;
    };
    let inside = range.0.saturating_add(range.1 as u64) <= found.base + found.bytes;
    inside && (pitch == 0 || x.saturating_add(width) <= pitch)
}

/// Whether the copy is any of our business.
fn is_pooled(addresses: [CUdeviceptr; 2]) -> bool {
    engine().is_some_and(|engine| addresses.iter().any(|&address| engine.pool.in_arena(address)))
}

fn is_address(memory: c_int) -> bool {
    matches!(memory, CU_MEMORYTYPE_DEVICE | CU_MEMORYTYPE_UNIFIED)
}

/// Gives access to both sides of a copy of a rectangle; `None` where the driver shall refuse it.
fn rectangle(copy: &CUDA_MEMCPY2D) -> Option<Use> {
    if !is_pooled([copy.srcDevice, copy.dstDevice]) {
        return Some(Use::noted());
    }
    let size = [copy.WidthInBytes, copy.Height, 1];
    let side = |memory, address, x, y, pitch: usize| {
        let range = covered(address, [x, y, 0], [pitch, 0], size);
        is_sound(memory, range, x, size[0], pitch).then_some(if is_address(memory) { range } else { (0, 0) })
    };
    let from = side(copy.srcMemoryType, copy.srcDevice, copy.srcXInBytes, copy.srcY, copy.srcPitch);
    let to = side(copy.dstMemoryType, copy.dstDevice, copy.dstXInBytes, copy.dstY, copy.dstPitch);
    from.zip(to).and_then(|(from, to)| give(&[from, to]))
}

/// Both sides of a copy of a box, if it is sound; the two structures have the same fields.
macro_rules! sides {
    ($copy:expr) => {{
        let copy = $copy;
        let pooled = is_pooled([copy.srcDevice, copy.dstDevice]);
        let size = [copy.WidthInBytes, copy.Height, copy.Depth];
        let from = [copy.srcXInBytes, copy.srcY, copy.srcZ];
        let to = [copy.dstXInBytes, copy.dstY, copy.dstZ];
        let source = covered(copy.srcDevice, from, [copy.srcPitch, copy.srcHeight], size);
        let target = covered(copy.dstDevice, to, [copy.dstPitch, copy.dstHeight], size);
        let sound = is_sound(copy.srcMemoryType, source, from[0], size[0], copy.srcPitch)
            && is_sound(copy.dstMemoryType, target, to[0], size[0], copy.dstPitch);
        (sound || !pooled).then_some([
            if is_address(copy.srcMemoryType) { source } else { (0, 0) },
            if is_address(copy.dstMemoryType) { target } else { (0, 0) },
        ])
    }};
}

/// Hooks for one structure, with or without a stream behind it.
macro_rules! structures {
    ($($(#[$doc:meta])* $name:ident($copy:ident: $type:ty $(, $stream:ident)?) gives $ranges:expr;)*) => { $(
        $(#[$doc])*
        pub unsafe fn $name(
            real: pointers::$name, $copy: *const $type, $($stream: CUstream)?
        ) -> CUresult {
            // SAFETY: NULL, or the structure that the driver is about to read.
            let made = match unsafe { $copy.as_ref() } {
                None => Some(Use::noted()),
                Some($copy) => $ranges,
            };
            let Some(made) = made else { return CUDA_ERROR_INVALID_VALUE };
            // SAFETY: the program's own call, unchanged.
            let rc = unsafe { real($copy, $($stream)?) };
            let streams: &[CUstream] = &[$($stream)?];
            let stream = streams.first().copied().unwrap_or(std::ptr::null_mut());
            made.done(rc, stream_of(stream, real as usize, &slots::$name))
        }
    )* };
}

/// Gives both contexts of a peer copy access to both sides.
fn peers(copy: &CUDA_MEMCPY3D_PEER) -> Option<Use> {
    let ranges = sides!(copy)?;
    let made = give(&ranges)?;
    give_to_context(copy.srcContext, &ranges);
    give_to_context(copy.dstContext, &ranges);
    Some(made)
}

structures! {
    /// `cuMemcpy2D`.
    cuMemcpy2D_v2(copy: CUDA_MEMCPY2D) gives rectangle(copy);
    /// `cuMemcpy2DUnaligned`.
    cuMemcpy2DUnaligned_v2(copy: CUDA_MEMCPY2D) gives rectangle(copy);
    /// `cuMemcpy2DAsync`.
    cuMemcpy2DAsync_v2(copy: CUDA_MEMCPY2D, stream) gives rectangle(copy);
    /// `cuMemcpy3D`.
    cuMemcpy3D_v2(copy: CUDA_MEMCPY3D) gives sides!(copy).and_then(|sides| give(&sides));
    /// `cuMemcpy3DAsync`.
    cuMemcpy3DAsync_v2(copy: CUDA_MEMCPY3D, stream) gives sides!(copy).and_then(|sides| give(&sides));
    /// `cuMemcpy3DPeer`.
    cuMemcpy3DPeer(copy: CUDA_MEMCPY3D_PEER) gives peers(copy);
    /// `cuMemcpy3DPeerAsync`.
    cuMemcpy3DPeerAsync(copy: CUDA_MEMCPY3D_PEER, stream) gives peers(copy);
}

/// Gives the context that a graph's copy runs in access to both sides; false where the driver shall refuse it.
///
/// # Safety
/// `copy` is NULL or what the driver is about to read.
unsafe fn node(copy: *const CUDA_MEMCPY3D, context: CUcontext) -> bool {
    // SAFETY: by contract.
    let Some(copy) = (unsafe { copy.as_ref() }) else { return true };
    let Some(ranges) = sides!(copy) else { return false };
    give_to_context(context, &ranges);
    reach(&ranges)
}

/// `cuGraphAddMemcpyNode`: the copy runs later, but access can be given now.
pub unsafe fn cuGraphAddMemcpyNode(
    real: pointers::cuGraphAddMemcpyNode,
    made: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    copy: *const CUDA_MEMCPY3D,
    context: CUcontext,
) -> CUresult {
    let _held = Held::of_everything();
    // SAFETY: the program's own structure.
    if !unsafe { node(copy, context) } {
        return CUDA_ERROR_INVALID_VALUE;
    }
    // SAFETY: the program's own call, unchanged.
    unsafe { real(made, graph, after, count, copy, context) }
}

/// `cuGraphExecMemcpyNodeSetParams`.
pub unsafe fn cuGraphExecMemcpyNodeSetParams(
    real: pointers::cuGraphExecMemcpyNodeSetParams,
    exec: CUgraphExec,
    of: CUgraphNode,
    copy: *const CUDA_MEMCPY3D,
    context: CUcontext,
) -> CUresult {
    let _held = Held::of_everything();
    // SAFETY: the program's own structure.
    if !unsafe { node(copy, context) } {
        return CUDA_ERROR_INVALID_VALUE;
    }
    graphs::changed(exec, false);
    // SAFETY: the program's own call, unchanged.
    unsafe { real(exec, of, copy, context) }
}

/// Gives access to every copy of a batch; `None` as [`give`].
///
/// # Safety
/// Each array is NULL or holds `count` entries.
unsafe fn batch(
    to: *const CUdeviceptr,
    from: *const CUdeviceptr,
    sizes: *const usize,
    count: usize,
) -> Option<Use> {
    if to.is_null() || from.is_null() || sizes.is_null() {
        return Some(Use::noted());
    }
    // SAFETY: by contract.
    let (to, from, sizes) = unsafe {
        (
            slice::from_raw_parts(to, count),
            slice::from_raw_parts(from, count),
            slice::from_raw_parts(sizes, count),
        )
    };
    let sides =
        to.iter().zip(from).zip(sizes).flat_map(|((&to, &from), &bytes)| [(to, bytes), (from, bytes)]);
    give(&sides.collect::<Vec<_>>())
}

/// `cuMemcpyBatchAsync`, first ABI.
pub unsafe fn cuMemcpyBatchAsync(
    real: pointers::cuMemcpyBatchAsync,
    to: *mut CUdeviceptr,
    from: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    attributes: *mut c_void,
    starts: *mut usize,
    attribute_count: usize,
    failed: *mut usize,
    stream: CUstream,
) -> CUresult {
    // SAFETY: the driver is about to read the same arrays.
    let Some(made) = (unsafe { batch(to, from, sizes, count) }) else { return CUDA_ERROR_INVALID_VALUE };
    // SAFETY: the program's own call, unchanged.
    let rc = unsafe { real(to, from, sizes, count, attributes, starts, attribute_count, failed, stream) };
    made.in_parts().done(rc, stream_of(stream, real as usize, &slots::cuMemcpyBatchAsync))
}

/// `cuMemcpyBatchAsync`, second ABI.
pub unsafe fn cuMemcpyBatchAsync_v2(
    real: pointers::cuMemcpyBatchAsync_v2,
    to: *mut CUdeviceptr,
    from: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    attributes: *mut c_void,
    starts: *mut usize,
    attribute_count: usize,
    stream: CUstream,
) -> CUresult {
    // SAFETY: the driver is about to read the same arrays.
    let Some(made) = (unsafe { batch(to, from, sizes, count) }) else { return CUDA_ERROR_INVALID_VALUE };
    // SAFETY: the program's own call, unchanged.
    let rc = unsafe { real(to, from, sizes, count, attributes, starts, attribute_count, stream) };
    made.in_parts().done(rc, stream_of(stream, real as usize, &slots::cuMemcpyBatchAsync_v2))
}

/// One box of a batch: two operands and a size, as the driver lays them out.
#[repr(C)]
struct BatchBox {
    operands: [Operand; 2],
    size: [usize; 3],
    order: c_int,
    flags: c_uint,
}

/// One side of a box in a batch; `kind` 1 is an address with the length of a row and the height of a layer.
#[repr(C)]
struct Operand {
    kind: c_int,
    address: CUdeviceptr,
    row: usize,
    layer: usize,
    hint: [usize; 1],
}

const OPERAND_IS_ADDRESS: c_int = 1;

/// # Safety
/// `boxes` is NULL or holds `count` boxes.
unsafe fn boxes(boxes: *const c_void, count: usize) -> Option<Use> {
    if boxes.is_null() {
        return Some(Use::noted());
    }
    // SAFETY: by contract.
    let list = unsafe { slice::from_raw_parts(boxes.cast::<BatchBox>(), count) };
    let sides = list.iter().flat_map(|one| {
        let [width, rows, depth] = one.size;
        let side = |operand: &Operand| {
            if operand.kind != OPERAND_IS_ADDRESS {
                return (0, 0);
            }
            // 0 means tightly packed.
            let row = if operand.row == 0 { width } else { operand.row };
            let layer = if operand.layer == 0 { rows } else { operand.layer };
            covered(operand.address, [0; 3], [row, layer], [width, rows, depth])
        };
        [side(&one.operands[0]), side(&one.operands[1])]
    });
    give(&sides.collect::<Vec<_>>())
}

/// `cuMemcpy3DBatchAsync`, first ABI.
pub unsafe fn cuMemcpy3DBatchAsync(
    real: pointers::cuMemcpy3DBatchAsync,
    count: usize,
    list: *mut c_void,
    failed: *mut usize,
    flags: u64,
    stream: CUstream,
) -> CUresult {
    // SAFETY: the driver is about to read the same list.
    let Some(made) = (unsafe { boxes(list, count) }) else { return CUDA_ERROR_INVALID_VALUE };
    // SAFETY: the program's own call, unchanged.
    let rc = unsafe { real(count, list, failed, flags, stream) };
    made.in_parts().done(rc, stream_of(stream, real as usize, &slots::cuMemcpy3DBatchAsync))
}

/// `cuMemcpy3DBatchAsync`, second ABI.
pub unsafe fn cuMemcpy3DBatchAsync_v2(
    real: pointers::cuMemcpy3DBatchAsync_v2,
    count: usize,
    list: *mut c_void,
    flags: u64,
    stream: CUstream,
) -> CUresult {
    // SAFETY: the driver is about to read the same list.
    let Some(made) = (unsafe { boxes(list, count) }) else { return CUDA_ERROR_INVALID_VALUE };
    // SAFETY: the program's own call, unchanged.
    let rc = unsafe { real(count, list, flags, stream) };
    made.in_parts().done(rc, stream_of(stream, real as usize, &slots::cuMemcpy3DBatchAsync_v2))
}

/// `cuMemcpy3DWithAttributesAsync`.
pub unsafe fn cuMemcpy3DWithAttributesAsync(
    real: pointers::cuMemcpy3DWithAttributesAsync,
    one: *mut c_void,
    flags: u64,
    stream: CUstream,
) -> CUresult {
    // SAFETY: NULL, or one box that the driver is about to read.
    let Some(made) = (unsafe { boxes(one, 1) }) else { return CUDA_ERROR_INVALID_VALUE };
    // SAFETY: the program's own call, unchanged.
    let rc = unsafe { real(one, flags, stream) };
    made.done(rc, stream_of(stream, real as usize, &slots::cuMemcpy3DWithAttributesAsync))
}
