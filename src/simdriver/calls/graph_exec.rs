//! Graphs: what nodes do is changed, and executable graphs.

use super::graph::{copy, fill, host, kernel, old_kernel};
use crate::decode::{handle, pointer, read, room, stream};
use vgmem_abi::*;
use vgmem_sim::{Answer, Machine, NodeContent, machine};

/// # Safety
/// As the driver's contract for the structure says.
unsafe fn launch(machine: &Machine, parameters: *const CUDA_KERNEL_NODE_PARAMS) -> Answer<NodeContent> {
    // SAFETY: the caller's promise.
    unsafe { Ok(kernel(machine, &read(parameters)?)?.0) }
}

/// # Safety
/// As the driver's contract for the structure says.
unsafe fn old_launch(machine: &Machine, parameters: *const c_void) -> Answer<NodeContent> {
    // SAFETY: the caller's promise.
    unsafe { Ok(kernel(machine, &old_kernel(parameters)?)?.0) }
}

/// The calls that change what a node of a graph does.
macro_rules! setting {
    ($($name:ident($machine:ident, $arg:ident: $type:ty) $content:expr;)*) => { $(
        pub(crate) unsafe fn $name(node: CUgraphNode, $arg: $type) -> Answer {
            let $machine = machine()?;
            // SAFETY: the driver's contract.
            let content = unsafe { $content };
            $machine.set_node(handle(node), content)
        }
    )* };
}

setting! {
    cuGraphKernelNodeSetParams(machine, parameters: *const c_void) old_launch(machine, parameters)?;
    cuGraphKernelNodeSetParams_v2(machine, parameters: *const CUDA_KERNEL_NODE_PARAMS)
        launch(machine, parameters)?;
    cuGraphMemcpyNodeSetParams(machine, parameters: *const CUDA_MEMCPY3D) copy(parameters)?;
    cuGraphMemsetNodeSetParams(machine, parameters: *const c_void) fill(parameters)?;
    cuGraphHostNodeSetParams(machine, parameters: *const c_void) host(parameters)?;
}

pub(crate) unsafe fn cuGraphEventRecordNodeSetEvent(node: CUgraphNode, event: CUevent) -> Answer {
    machine()?.set_node(handle(node), NodeContent::Record(handle(event)))
}

pub(crate) unsafe fn cuGraphEventWaitNodeSetEvent(node: CUgraphNode, event: CUevent) -> Answer {
    machine()?.set_node(handle(node), NodeContent::Wait(handle(event)))
}

/// The calls that change what a node of an executable graph does.
macro_rules! setting_executable {
    ($($name:ident($machine:ident, $arg:ident: $type:ty $(, $more:ident: $other:ty)?) $content:expr;)*) => { $(
        #[allow(unused_variables)]
        pub(crate) unsafe fn $name(
            executable: CUgraphExec,
            node: CUgraphNode,
            $arg: $type,
            $($more: $other)?
        ) -> Answer {
            let $machine = machine()?;
            // SAFETY: the driver's contract.
            let content = unsafe { $content };
            $machine.set_executable_node(handle(executable), handle(node), content)
        }
    )* };
}

setting_executable! {
    cuGraphExecKernelNodeSetParams(machine, parameters: *const c_void) old_launch(machine, parameters)?;
    cuGraphExecKernelNodeSetParams_v2(machine, parameters: *const CUDA_KERNEL_NODE_PARAMS)
        launch(machine, parameters)?;
    cuGraphExecMemcpyNodeSetParams(machine, parameters: *const CUDA_MEMCPY3D, context: CUcontext)
        copy(parameters)?;
    cuGraphExecMemsetNodeSetParams(machine, parameters: *const c_void, context: CUcontext)
        fill(parameters)?;
    cuGraphExecHostNodeSetParams(machine, parameters: *const c_void) host(parameters)?;
}

pub(crate) unsafe fn cuGraphExecChildGraphNodeSetParams(
    executable: CUgraphExec,
    node: CUgraphNode,
    child: CUgraph,
) -> Answer {
    let content = NodeContent::Child(handle(child));
    machine()?.set_executable_node(handle(executable), handle(node), content)
}

pub(crate) unsafe fn cuGraphExecEventRecordNodeSetEvent(
    executable: CUgraphExec,
    node: CUgraphNode,
    event: CUevent,
) -> Answer {
    let content = NodeContent::Record(handle(event));
    machine()?.set_executable_node(handle(executable), handle(node), content)
}

pub(crate) unsafe fn cuGraphExecEventWaitNodeSetEvent(
    executable: CUgraphExec,
    node: CUgraphNode,
    event: CUevent,
) -> Answer {
    let content = NodeContent::Wait(handle(event));
    machine()?.set_executable_node(handle(executable), handle(node), content)
}

pub(crate) unsafe fn cuGraphNodeSetEnabled(executable: CUgraphExec, node: CUgraphNode, on: c_uint) -> Answer {
    machine()?.enable_node(handle(executable), handle(node), on != 0)
}

pub(crate) unsafe fn cuGraphNodeGetEnabled(
    executable: CUgraphExec,
    node: CUgraphNode,
    out: *mut c_uint,
) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    out.put(machine.node_enabled(handle(executable), handle(node))? as c_uint);
    Ok(())
}

fn instantiate(out: *mut CUgraphExec, graph: CUgraph, flags: u64) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    out.put(pointer(machine.instantiate(handle(graph), flags)?));
    Ok(())
}

/// # Safety
/// `log` must be NULL or have `size` bytes.
unsafe fn instantiate_with_log(
    out: *mut CUgraphExec,
    graph: CUgraph,
    error: *mut CUgraphNode,
    log: *mut c_char,
    size: usize,
) -> Answer {
    if let Ok(error) = room(error) {
        error.put(pointer(0));
    }
    if size > 0
        && let Ok(log) = room(log)
    {
        log.put(0);
    }
    instantiate(out, graph, 0)
}

pub(crate) unsafe fn cuGraphInstantiate(
    out: *mut CUgraphExec,
    graph: CUgraph,
    error: *mut CUgraphNode,
    log: *mut c_char,
    size: usize,
) -> Answer {
    // SAFETY: the driver's contract.
    unsafe { instantiate_with_log(out, graph, error, log, size) }
}

pub(crate) unsafe fn cuGraphInstantiate_v2(
    out: *mut CUgraphExec,
    graph: CUgraph,
    error: *mut CUgraphNode,
    log: *mut c_char,
    size: usize,
) -> Answer {
    // SAFETY: the driver's contract.
    unsafe { instantiate_with_log(out, graph, error, log, size) }
}

pub(crate) unsafe fn cuGraphInstantiateWithFlags(
    out: *mut CUgraphExec,
    graph: CUgraph,
    flags: u64,
) -> Answer {
    instantiate(out, graph, flags)
}

/// Parameters of an instantiation, with room for what went wrong.
#[repr(C)]
#[derive(Clone, Copy)]
struct Instantiation {
    flags: u64,
    upload: CUstream,
    error: CUgraphNode,
    result: c_int,
}

pub(crate) unsafe fn cuGraphInstantiateWithParams(
    _per_thread: bool,
    out: *mut CUgraphExec,
    graph: CUgraph,
    parameters: *mut c_void,
) -> Answer {
    let there = room(parameters.cast::<Instantiation>())?;
    // SAFETY: not null, as `room` found, and a structure by the driver's contract.
    let mut told = unsafe { read(parameters.cast::<Instantiation>()) }?;
    let answer = instantiate(out, graph, told.flags);
    told.error = pointer(0);
    told.result = answer.is_err() as c_int;
    there.put(told);
    answer
}

pub(crate) unsafe fn cuGraphLaunch(per_thread: bool, executable: CUgraphExec, which: CUstream) -> Answer {
    machine()?.launch_graph(handle(executable), stream(per_thread, which))
}

pub(crate) unsafe fn cuGraphUpload(per_thread: bool, executable: CUgraphExec, which: CUstream) -> Answer {
    machine()?.upload(handle(executable), stream(per_thread, which))
}

pub(crate) unsafe fn cuGraphExecDestroy(executable: CUgraphExec) -> Answer {
    machine()?.destroy_executable(handle(executable))
}

pub(crate) unsafe fn cuGraphExecGetFlags(executable: CUgraphExec, out: *mut u64) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    out.put(machine.executable_flags(handle(executable))?);
    Ok(())
}

fn answer(code: CUresult) -> Answer {
    if code == CUDA_SUCCESS { Ok(()) } else { Err(code) }
}

pub(crate) unsafe fn cuGraphExecUpdate(
    executable: CUgraphExec,
    graph: CUgraph,
    node: *mut CUgraphNode,
    result: *mut c_int,
) -> Answer {
    let (code, update) = machine()?.update_executable(handle(executable), handle(graph))?;
    if let Ok(node) = room(node) {
        node.put(pointer(update.node));
    }
    if let Ok(result) = room(result) {
        result.put(update.result);
    }
    answer(code)
}

/// What the second ABI says about an update.
#[repr(C)]
#[derive(Clone, Copy)]
struct UpdateInfo {
    result: c_int,
    node: CUgraphNode,
    from: CUgraphNode,
}

pub(crate) unsafe fn cuGraphExecUpdate_v2(
    executable: CUgraphExec,
    graph: CUgraph,
    info: *mut c_void,
) -> Answer {
    let (code, update) = machine()?.update_executable(handle(executable), handle(graph))?;
    if let Ok(info) = room(info.cast::<UpdateInfo>()) {
        info.put(UpdateInfo { result: update.result, node: pointer(update.node), from: pointer(0) });
    }
    answer(code)
}
