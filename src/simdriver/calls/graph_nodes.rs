//! Graphs: what nodes do.

use super::graph::{FillParameters, HostParameters, OldKernelParameters, describe};
use crate::decode::{handle, pointer, room};
use vgmem_abi::*;
use vgmem_sim::{Answer, machine};

pub(crate) unsafe fn cuGraphKernelNodeGetParams(node: CUgraphNode, out: *mut c_void) -> Answer {
    let out = room(out.cast::<OldKernelParameters>())?;
    out.put(OldKernelParameters::of(&describe(node)?));
    Ok(())
}

pub(crate) unsafe fn cuGraphKernelNodeGetParams_v2(
    node: CUgraphNode,
    out: *mut CUDA_KERNEL_NODE_PARAMS,
) -> Answer {
    let out = room(out)?;
    out.put(describe(node)?);
    Ok(())
}

/// Attributes of launches, up to the last that driver 13.0 knows; none but the cooperative one is ever set here.
pub(crate) unsafe fn cuGraphKernelNodeGetAttribute(
    node: CUgraphNode,
    attribute: c_int,
    out: *mut c_void,
) -> Answer {
    let (call, _) = machine()?.kernel_node(handle(node))?;
    let out = room(out.cast::<[u32; 16]>())?;
    let mut value = [0; 16];
    match attribute {
        CU_LAUNCH_ATTRIBUTE_COOPERATIVE => value[0] = u32::from(call.cooperative),
        1..=16 => {}
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    }
    out.put(value);
    Ok(())
}

pub(crate) unsafe fn cuGraphMemcpyNodeGetParams(node: CUgraphNode, out: *mut CUDA_MEMCPY3D) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    let (shape, [to_host, from_host]) = machine.copy_node(handle(node))?;
    // SAFETY: all zero is a valid value of this plain structure.
    let mut copy: CUDA_MEMCPY3D = unsafe { std::mem::zeroed() };
    let kind = |host| if host { CU_MEMORYTYPE_HOST } else { CU_MEMORYTYPE_DEVICE };
    (copy.dstMemoryType, copy.srcMemoryType) = (kind(to_host), kind(from_host));
    match to_host {
        true => copy.dstHost = pointer(shape.to.address),
        false => copy.dstDevice = shape.to.address,
    }
    match from_host {
        true => copy.srcHost = pointer(shape.from.address),
        false => copy.srcDevice = shape.from.address,
    }
    (copy.WidthInBytes, copy.Height, copy.Depth) =
        (shape.width as usize, shape.rows as usize, shape.depth as usize);
    (copy.dstPitch, copy.srcPitch) = (shape.to.pitch as usize, shape.from.pitch as usize);
    let rows = |layer: u64, pitch: u64| layer.checked_div(pitch).unwrap_or(0) as usize;
    copy.dstHeight = rows(shape.to.layer, shape.to.pitch);
    copy.srcHeight = rows(shape.from.layer, shape.from.pitch);
    out.put(copy);
    Ok(())
}

pub(crate) unsafe fn cuGraphMemsetNodeGetParams(node: CUgraphNode, out: *mut c_void) -> Answer {
    let machine = machine()?;
    let out = room(out.cast::<FillParameters>())?;
    let fill = machine.fill_node(handle(node))?;
    out.put(FillParameters {
        address: fill.address,
        pitch: fill.pitch as usize,
        value: fill.value,
        unit: fill.unit as c_uint,
        width: fill.width as usize,
        height: fill.height as usize,
    });
    Ok(())
}

pub(crate) unsafe fn cuGraphHostNodeGetParams(node: CUgraphNode, out: *mut c_void) -> Answer {
    let machine = machine()?;
    let out = room(out.cast::<HostParameters>())?;
    let (function, data) = machine.host_node(handle(node))?;
    out.put(HostParameters { function: pointer(function), data: pointer(data) });
    Ok(())
}

pub(crate) unsafe fn cuGraphMemFreeNodeGetParams(node: CUgraphNode, out: *mut CUdeviceptr) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    out.put(machine.memory_node(handle(node), true)?);
    Ok(())
}

pub(crate) unsafe fn cuGraphEventRecordNodeGetEvent(node: CUgraphNode, out: *mut CUevent) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    out.put(pointer(machine.event_node(handle(node), false)?));
    Ok(())
}

pub(crate) unsafe fn cuGraphEventWaitNodeGetEvent(node: CUgraphNode, out: *mut CUevent) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    out.put(pointer(machine.event_node(handle(node), true)?));
    Ok(())
}
