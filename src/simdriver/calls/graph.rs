//! Graphs: nodes and edges.

use super::boxes::solid;
use super::execution::collect;
use super::stream::host_call;
use super::values;
use crate::decode::{handle, handles, pointer, put_list, read, room};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use vgmem_abi::*;
use vgmem_sim::{Answer, Fill, Grid, KernelCall, Machine, NodeContent, Towards, machine};

pub(crate) unsafe fn cuGraphCreate(out: *mut CUgraph, flags: c_uint) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    out.put(pointer(machine.create_graph(flags)?));
    Ok(())
}

pub(crate) unsafe fn cuGraphDestroy(graph: CUgraph) -> Answer {
    let machine = machine()?;
    machine.destroy_graph(handle(graph))?;
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(kept) = kept.as_mut() {
        kept.retain(|node, _| machine.node_type(*node).is_ok());
    }
    Ok(())
}

pub(crate) unsafe fn cuGraphClone(out: *mut CUgraph, graph: CUgraph) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    out.put(pointer(machine.clone_graph(handle(graph))?));
    Ok(())
}

pub(crate) unsafe fn cuGraphNodeFindInClone(
    out: *mut CUgraphNode,
    node: CUgraphNode,
    clone: CUgraph,
) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    out.put(pointer(machine.find_in_clone(handle(node), handle(clone))?));
    Ok(())
}

/// A kernel node of the first ABI.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct OldKernelParameters {
    func: CUfunction,
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared: c_uint,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
}

impl OldKernelParameters {
    fn modern(self) -> CUDA_KERNEL_NODE_PARAMS {
        CUDA_KERNEL_NODE_PARAMS {
            func: self.func,
            gridDimX: self.grid[0],
            gridDimY: self.grid[1],
            gridDimZ: self.grid[2],
            blockDimX: self.block[0],
            blockDimY: self.block[1],
            blockDimZ: self.block[2],
            sharedMemBytes: self.shared,
            kernelParams: self.parameters,
            extra: self.extra,
            kern: std::ptr::null_mut(),
            ctx: std::ptr::null_mut(),
        }
    }

    pub(super) fn of(modern: &CUDA_KERNEL_NODE_PARAMS) -> OldKernelParameters {
        OldKernelParameters {
            // The first ABI has no room for kernels of libraries, whose handles launches take as well.
            func: if modern.func.is_null() { modern.kern } else { modern.func },
            grid: [modern.gridDimX, modern.gridDimY, modern.gridDimZ],
            block: [modern.blockDimX, modern.blockDimY, modern.blockDimZ],
            shared: modern.sharedMemBytes,
            parameters: modern.kernelParams,
            extra: modern.extra,
        }
    }
}

/// # Safety
/// As the driver's contract for the structure says.
pub(super) unsafe fn old_kernel(parameters: *const c_void) -> Answer<CUDA_KERNEL_NODE_PARAMS> {
    // SAFETY: the caller's promise.
    Ok(unsafe { read(parameters.cast::<OldKernelParameters>()) }?.modern())
}

/// The launch that a kernel node stands for.
///
/// # Safety
/// The parameters must be as the driver's contract says.
pub(super) unsafe fn kernel(
    machine: &Machine,
    parameters: &CUDA_KERNEL_NODE_PARAMS,
) -> Answer<(NodeContent, u64)> {
    let p = parameters;
    let size = Grid {
        grid: [p.gridDimX, p.gridDimY, p.gridDimZ],
        block: [p.blockDimX, p.blockDimY, p.blockDimZ],
        shared: p.sharedMemBytes,
    };
    let (function, is_kernel) = match p.func.is_null() {
        true => (p.kern, true),
        false => (p.func, false),
    };
    let mut call = machine.kernel_call(handle(function), is_kernel, size, |kernel| {
        // SAFETY: the caller's promise.
        unsafe { collect(kernel, p.kernelParams, p.extra) }
    })?;
    call.packed = !p.extra.is_null();
    Ok((NodeContent::Kernel(call), handle(p.ctx)))
}

/// A memset node, first ABI: no context.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct FillParameters {
    pub(super) address: CUdeviceptr,
    pub(super) pitch: usize,
    pub(super) value: c_uint,
    pub(super) unit: c_uint,
    pub(super) width: usize,
    pub(super) height: usize,
}

/// # Safety
/// As the driver's contract for the structure says.
pub(super) unsafe fn fill(parameters: *const c_void) -> Answer<NodeContent> {
    // SAFETY: the caller's promise.
    let p = unsafe { read(parameters.cast::<FillParameters>()) }?;
    if !matches!(p.unit, 1 | 2 | 4) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    Ok(NodeContent::Fill(Fill {
        address: p.address,
        pitch: p.pitch as u64,
        unit: u64::from(p.unit),
        value: p.value,
        width: p.width as u64,
        height: p.height as u64,
    }))
}

/// A host node: function and argument.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct HostParameters {
    pub(super) function: CUhostFn,
    pub(super) data: *mut c_void,
}

/// # Safety
/// As the driver's contract for the structure says.
pub(super) unsafe fn host(parameters: *const c_void) -> Answer<NodeContent> {
    // SAFETY: the caller's promise.
    let p = unsafe { read(parameters.cast::<HostParameters>()) }?;
    Ok(NodeContent::Host(host_call(p.function, p.data)?))
}

/// # Safety
/// As the driver's contract for the structure says.
pub(super) unsafe fn copy(parameters: *const CUDA_MEMCPY3D) -> Answer<NodeContent> {
    // SAFETY: the caller's promise.
    Ok(NodeContent::Copy(solid(&unsafe { read(parameters) }?)))
}

/// # Safety
/// `after` must be NULL or point to `count` nodes.
unsafe fn add(
    out: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    content: impl FnOnce(&Machine) -> Answer<(NodeContent, u64)>,
) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    // SAFETY: the caller's promise.
    let after = unsafe { handles(after, count) }?;
    let (content, context) = content(machine)?;
    out.put(pointer(machine.add_node(handle(graph), &after, content, context)?));
    Ok(())
}

/// The calls that add a node: further parameters, and what they mean.
macro_rules! adding {
    ($($name:ident($machine:ident, $($arg:ident: $type:ty),*) $content:expr;)*) => { $(
        pub(crate) unsafe fn $name(
            out: *mut CUgraphNode,
            graph: CUgraph,
            after: *const CUgraphNode,
            count: usize,
            $($arg: $type),*
        ) -> Answer {
            // SAFETY: the driver's contract.
            unsafe { add(out, graph, after, count, |$machine| $content) }
        }
    )* };
}

adding! {
    cuGraphAddKernelNode(machine, parameters: *const c_void) kernel(machine, &old_kernel(parameters)?);
    cuGraphAddKernelNode_v2(machine, parameters: *const CUDA_KERNEL_NODE_PARAMS)
        kernel(machine, &read(parameters)?);
    cuGraphAddMemcpyNode(_machine, parameters: *const CUDA_MEMCPY3D, context: CUcontext)
        Ok((copy(parameters)?, handle(context)));
    cuGraphAddMemsetNode(_machine, parameters: *const c_void, context: CUcontext)
        Ok((fill(parameters)?, handle(context)));
    cuGraphAddHostNode(_machine, parameters: *const c_void) Ok((host(parameters)?, 0));
    cuGraphAddChildGraphNode(_machine, child: CUgraph) Ok((NodeContent::Child(handle(child)), 0));
    cuGraphAddEventRecordNode(_machine, event: CUevent) Ok((NodeContent::Record(handle(event)), 0));
    cuGraphAddEventWaitNode(_machine, event: CUevent) Ok((NodeContent::Wait(handle(event)), 0));
    cuGraphAddBatchMemOpNode(machine, parameters: *const c_void) values::node(machine, parameters);
}

pub(crate) unsafe fn cuGraphAddEmptyNode(
    out: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
) -> Answer {
    // SAFETY: the driver's contract.
    unsafe { add(out, graph, after, count, |_| Ok((NodeContent::Empty, 0))) }
}

/// Pairs of nodes that the program passes as two arrays.
///
/// # Safety
/// Both arrays must be NULL or have `count` nodes.
unsafe fn pairs(from: *const CUgraphNode, to: *const CUgraphNode, count: usize) -> Answer<Vec<(u64, u64)>> {
    // SAFETY: the caller's promise.
    let (from, to) = unsafe { (handles(from, count)?, handles(to, count)?) };
    Ok(from.into_iter().zip(to).collect())
}

/// The calls that change edges, without and with data of the edges.
macro_rules! edges {
    ($($name:ident $with_data:ident $act:ident;)*) => { $(
        pub(crate) unsafe fn $name(
            graph: CUgraph,
            from: *const CUgraphNode,
            to: *const CUgraphNode,
            count: usize,
        ) -> Answer {
            // SAFETY: the driver's contract.
            machine()?.$act(handle(graph), &unsafe { pairs(from, to, count) }?)
        }

        pub(crate) unsafe fn $with_data(
            graph: CUgraph,
            from: *const CUgraphNode,
            to: *const CUgraphNode,
            _data: *const c_void,
            count: usize,
        ) -> Answer {
            // SAFETY: the driver's contract.
            machine()?.$act(handle(graph), &unsafe { pairs(from, to, count) }?)
        }
    )* };
}

edges! {
    cuGraphAddDependencies cuGraphAddDependencies_v2 add_edges;
    cuGraphRemoveDependencies cuGraphRemoveDependencies_v2 remove_edges;
}

fn single(nodes: Vec<u64>) -> Vec<[u64; 1]> {
    nodes.into_iter().map(|node| [node]).collect()
}

pub(crate) unsafe fn cuGraphGetNodes(graph: CUgraph, out: *mut CUgraphNode, count: *mut usize) -> Answer {
    let found = single(machine()?.graph_nodes(handle(graph))?);
    // SAFETY: the driver's contract.
    unsafe { put_list([out], count, &found) }
}

pub(crate) unsafe fn cuGraphGetRootNodes(graph: CUgraph, out: *mut CUgraphNode, count: *mut usize) -> Answer {
    let found = single(machine()?.graph_roots(handle(graph))?);
    // SAFETY: the driver's contract.
    unsafe { put_list([out], count, &found) }
}

pub(crate) unsafe fn cuGraphGetEdges(
    graph: CUgraph,
    from: *mut CUgraphNode,
    to: *mut CUgraphNode,
    count: *mut usize,
) -> Answer {
    let found: Vec<_> = machine()?.graph_edges(handle(graph))?.into_iter().map(|(f, t)| [f, t]).collect();
    // SAFETY: the driver's contract.
    unsafe { put_list([from, to], count, &found) }
}

pub(crate) unsafe fn cuGraphGetEdges_v2(
    graph: CUgraph,
    from: *mut CUgraphNode,
    to: *mut CUgraphNode,
    data: *mut c_void,
    count: *mut usize,
) -> Answer {
    // SAFETY: the driver's contract.
    unsafe {
        cuGraphGetEdges(graph, from, to, count)?;
        clear_data(data, count)
    }
}

/// Edges here have no data: eight zero bytes each.
///
/// # Safety
/// `data` must be NULL or have room for `*count` edges.
unsafe fn clear_data(data: *mut c_void, count: *mut usize) -> Answer {
    if !data.is_null() {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::write_bytes(data.cast::<u8>(), 0, 8 * read(count)?) };
    }
    Ok(())
}

/// The calls that ask for neighbours of a node, without and with data of the edges.
macro_rules! neighbours {
    ($($name:ident $with_data:ident $towards:ident;)*) => { $(
        pub(crate) unsafe fn $name(
            node: CUgraphNode,
            out: *mut CUgraphNode,
            count: *mut usize,
        ) -> Answer {
            let found = single(machine()?.node_neighbours(handle(node), Towards::$towards)?);
            // SAFETY: the driver's contract.
            unsafe { put_list([out], count, &found) }
        }

        pub(crate) unsafe fn $with_data(
            node: CUgraphNode,
            out: *mut CUgraphNode,
            data: *mut c_void,
            count: *mut usize,
        ) -> Answer {
            // SAFETY: the driver's contract.
            unsafe {
                $name(node, out, count)?;
                clear_data(data, count)
            }
        }
    )* };
}

neighbours! {
    cuGraphNodeGetDependencies cuGraphNodeGetDependencies_v2 Before;
    cuGraphNodeGetDependentNodes cuGraphNodeGetDependentNodes_v2 After;
}

pub(crate) unsafe fn cuGraphNodeGetType(node: CUgraphNode, out: *mut c_int) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    out.put(machine.node_type(handle(node))?);
    Ok(())
}

pub(crate) unsafe fn cuGraphDestroyNode(node: CUgraphNode) -> Answer {
    machine()?.destroy_node(handle(node))
}

pub(crate) unsafe fn cuGraphChildGraphNodeGetGraph(node: CUgraphNode, out: *mut CUgraph) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    out.put(pointer(machine.child_graph(handle(node))?));
    Ok(())
}

/// A launch whose parameters the program may look at, and where each is, or the list that says where they all are.
struct Kept {
    call: KernelCall,
    places: Vec<usize>,
    /// Their size, to which such a list points.
    size: Box<usize>,
}

impl Kept {
    fn new(call: KernelCall) -> Kept {
        let base = call.parameters.as_ptr().expose_provenance();
        let size = Box::new(call.parameters.len());
        let at = (&raw const *size).expose_provenance();
        let places = match call.packed {
            true => vec![
                CU_LAUNCH_PARAM_BUFFER_POINTER,
                base,
                CU_LAUNCH_PARAM_BUFFER_SIZE,
                at,
                CU_LAUNCH_PARAM_END,
            ],
            false => call.kernel.parameters.iter().map(|(offset, _)| base + offset).collect(),
        };
        Kept { call, places, size }
    }

    /// Addresses of the parameters, and the list; the other one is NULL, as the driver has it.
    fn lists(&self) -> [*mut *mut c_void; 2] {
        debug_assert_eq!(*self.size, self.call.parameters.len());
        let list = self.places.as_ptr().cast_mut().cast();
        let none = std::ptr::null_mut();
        if self.call.packed { [none, list] } else { [list, none] }
    }
}

/// Launches of nodes that the program has asked for: their parameters stay until the node goes.
static KEPT: Mutex<Option<HashMap<u64, Kept>>> = Mutex::new(None);

/// Describes a kernel node; the parameters belong to the node.
pub(super) fn describe(node: CUgraphNode) -> Answer<CUDA_KERNEL_NODE_PARAMS> {
    let (call, context) = machine()?.kernel_node(handle(node))?;
    let is_kernel = vgmem_sim::is_kernel(call.function);
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    let kept = kept.get_or_insert_default();
    let known =
        kept.get(&handle(node)).is_some_and(|old| Arc::ptr_eq(&old.call.parameters, &call.parameters));
    if !known {
        kept.insert(handle(node), Kept::new(call));
    }
    let kept = kept.get(&handle(node)).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let (call, [each, packed]) = (&kept.call, kept.lists());
    let none = std::ptr::null_mut();
    let function = pointer(call.function);
    Ok(CUDA_KERNEL_NODE_PARAMS {
        func: if is_kernel { none } else { function },
        gridDimX: call.grid[0],
        gridDimY: call.grid[1],
        gridDimZ: call.grid[2],
        blockDimX: call.block[0],
        blockDimY: call.block[1],
        blockDimZ: call.block[2],
        sharedMemBytes: call.shared,
        kernelParams: each,
        extra: packed,
        kern: if is_kernel { function } else { none },
        ctx: pointer(context),
    })
}
