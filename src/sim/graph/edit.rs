//! Nodes that the program adds, reads and changes itself.

use super::Action;
use crate::boxes::BoxCopy;
use crate::context::Context;
use crate::copy::Shape;
use crate::fill::{Fill, FillCall};
use crate::machine::Machine;
use crate::task::{HostCall, KernelCall, Task};
use crate::util::{Answer, lock};
use crate::values::ValueOp;
use std::sync::Arc;
use vgmem_abi::*;

/// What a node shall do.
#[derive(Clone)]
pub enum NodeContent {
    /// Nothing but take its turn.
    Empty,
    /// A launch.
    Kernel(KernelCall),
    /// A copy.
    Copy(BoxCopy),
    /// A memset.
    Fill(Fill),
    /// A function of the program.
    Host(HostCall),
    /// Another graph, which is copied.
    Child(u64),
    /// Records an event.
    Record(u64),
    /// Waits for an event.
    Wait(u64),
    /// Waits for and writes values.
    Values(Vec<ValueOp>),
}

impl Machine {
    /// The operation that a node's content stands for.
    pub(crate) fn task(&self, content: NodeContent, context: &Context) -> Answer<Task> {
        let nothing = CUDA_ERROR_INVALID_VALUE;
        Ok(match content {
            NodeContent::Empty => Task::Empty,
            NodeContent::Kernel(call) => Task::Kernel(call),
            NodeContent::Copy(copy) => {
                let (transfer, shape) = copy.shape(&|address| self.is_page(address))?.ok_or(nothing)?;
                Task::Copy(self.check_copy(transfer, shape, context)?.ok_or(nothing)?.call)
            }
            NodeContent::Fill(fill) => {
                let call = FillCall::new(fill, context)?.ok_or(nothing)?;
                self.check_fill(&call, false)?;
                Task::Fill(call)
            }
            NodeContent::Host(call) => Task::Host(call),
            NodeContent::Record(event) => self.is_event(event).map(|()| Task::Record(event))?,
            NodeContent::Wait(event) => self.is_event(event).map(|()| Task::Wait(event))?,
            NodeContent::Values(ops) => Task::Values(ops.into()),
            NodeContent::Child(_) => return Err(nothing),
        })
    }

    /// Context of a handle; 0 is the current one.
    pub(crate) fn context_or_current(&self, handle: u64) -> Answer<Arc<Context>> {
        match handle {
            0 => self.current(),
            handle => {
                let context = self.context(handle)?;
                context.check().map(|()| context)
            }
        }
    }

    /// Adds a node to a graph; `context` 0 is the current one.
    pub fn add_node(&self, graph: u64, after: &[u64], content: NodeContent, context: u64) -> Answer<u64> {
        let context = self.context_or_current(context)?;
        self.check_nodes(graph, after)?;
        let action = match content {
            NodeContent::Child(child) => Action::Child(lock(&self.graphs).clone_graph(child, true)?),
            content => Action::Task(self.task(content, &context)?),
        };
        self.add_node_in(&context, graph, after, action)
    }

    /// `cuGraphChildGraphNodeGetGraph`.
    pub fn child_graph(&self, node: u64) -> Answer<u64> {
        match lock(&self.graphs).node(node)?.action {
            Action::Child(child) => Ok(child),
            Action::Task(_) => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }

    /// `cuGraphKernelNodeGetParams`: the launch and its context. The parameters' bytes stay where
    /// they are until the node is changed or destroyed.
    pub fn kernel_node(&self, node: u64) -> Answer<(KernelCall, u64)> {
        let graphs = lock(&self.graphs);
        let node = graphs.node(node)?;
        match &node.action {
            Action::Task(Task::Kernel(call)) => Ok((call.clone(), node.context.handle)),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }

    /// `cuGraphMemcpyNodeGetParams`: the shape, and whether either side is host memory.
    pub fn copy_node(&self, node: u64) -> Answer<(Shape, [bool; 2])> {
        let shape = match &lock(&self.graphs).node(node)?.action {
            Action::Task(Task::Copy(call)) => call.shape,
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        };
        let memory = lock(&self.memory);
        Ok((shape, [shape.to.address, shape.from.address].map(|at| memory.is_host_pointer(at))))
    }

    /// `cuGraphMemsetNodeGetParams`.
    pub fn fill_node(&self, node: u64) -> Answer<Fill> {
        match &lock(&self.graphs).node(node)?.action {
            Action::Task(Task::Fill(call)) => Ok(call.fill),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }

    /// `cuGraphHostNodeGetParams`: function and argument.
    pub fn host_node(&self, node: u64) -> Answer<(u64, u64)> {
        match &lock(&self.graphs).node(node)?.action {
            Action::Task(Task::Host(call)) => Ok((call.function, call.data)),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }

    /// `cuGraphEventRecordNodeGetEvent` and `cuGraphEventWaitNodeGetEvent`.
    pub fn event_node(&self, node: u64, waits: bool) -> Answer<u64> {
        match lock(&self.graphs).node(node)?.action {
            Action::Task(Task::Record(event)) if !waits => Ok(event),
            Action::Task(Task::Wait(event)) if waits => Ok(event),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }

    /// `cuGraphMemFreeNodeGetParams`, and the address of `cuGraphMemAllocNodeGetParams`.
    pub fn memory_node(&self, node: u64, frees: bool) -> Answer<u64> {
        match &lock(&self.graphs).node(node)?.action {
            Action::Task(Task::Free(address)) if frees => Ok(*address),
            Action::Task(Task::Allocate(owned)) if !frees => Ok(owned.address),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }

    /// Changes what a node does; its type stays.
    pub fn set_node(&self, node: u64, content: NodeContent) -> Answer {
        let context = lock(&self.graphs).node(node)?.context.clone();
        let task = self.task(content, &context)?;
        let mut graphs = lock(&self.graphs);
        let node = graphs.node_mut(node)?;
        if node.action.node_type() != task.node_type() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        node.action = Action::Task(task);
        Ok(())
    }
}
