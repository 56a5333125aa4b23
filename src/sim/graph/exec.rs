//! Executable graphs: made from a graph once, launched often.

use super::{Action, Graphs};
use crate::codes::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
use crate::context::Context;
use crate::graph::NodeContent;
use crate::handle::{self, Kind};
use crate::machine::Machine;
use crate::scheduler::{Step, Work};
use crate::stream::StreamRef;
use crate::task::Task;
use crate::util::{Answer, lock};
use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use vgmem_abi::*;

/// What a step of an executable graph does.
#[derive(Clone)]
enum Part {
    Task(Task),
    Child(Body),
}

/// A node, ready to run.
#[derive(Clone)]
struct Ready {
    /// The node that it was made from.
    node: u64,
    part: Part,
    context: Arc<Context>,
    /// Places in the body of those that come before.
    after: Vec<usize>,
    enabled: bool,
}

/// Nodes in an order in which they could run one by one.
#[derive(Clone, Default)]
struct Body(Vec<Ready>);

/// An executable graph.
pub(crate) struct Executable {
    body: Body,
    flags: u64,
    /// End of its last launch: the next one waits for it.
    last: u64,
}

/// Why an executable graph could not be updated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Update {
    /// A `CUgraphExecUpdateResult`.
    pub result: i32,
    /// The node that does not fit, 0 if it is no single one.
    pub node: u64,
}

const TOPOLOGY_CHANGED: i32 = 2;
const TYPE_CHANGED: i32 = 3;

/// Flags of an instantiation.
const FLAGS: u64 = 15;

impl Graphs {
    /// Puts the nodes in order; a circle is an error.
    fn body(&self, graph: u64) -> Answer<Body> {
        let graph = self.graph(graph)?;
        let mut places = HashMap::new();
        let mut body = Body::default();
        let mut open = graph.order.clone();
        while !open.is_empty() {
            let before = open.len();
            let mut later = Vec::new();
            for handle in open {
                let node = graph.nodes.get(&handle).ok_or(CUDA_ERROR_INVALID_VALUE)?;
                let after: Option<Vec<usize>> =
                    node.after.iter().map(|before| places.get(before).copied()).collect();
                let Some(mut after) = after else {
                    later.push(handle);
                    continue;
                };
                after.sort_unstable();
                let part = match &node.action {
                    Action::Task(task) => Part::Task(task.clone()),
                    Action::Child(child) => Part::Child(self.body(*child)?),
                };
                places.insert(handle, body.0.len());
                let context = node.context.clone();
                body.0.push(Ready { node: handle, part, context, after, enabled: true });
            }
            if later.len() == before {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            open = later;
        }
        Ok(body)
    }
}

impl Part {
    fn node_type(&self) -> i32 {
        match self {
            Part::Task(task) => task.node_type(),
            Part::Child(_) => super::CHILD,
        }
    }
}

impl Body {
    fn find(&mut self, node: u64) -> Option<&mut Ready> {
        for ready in &mut self.0 {
            if ready.node == node {
                return Some(ready);
            }
            if let Part::Child(child) = &mut ready.part
                && let Some(found) = child.find(node)
            {
                return Some(found);
            }
        }
        None
    }

    /// Whether `other` has the same shape; if so this body does what the other one does.
    fn take_over(&mut self, other: &Body) -> Result<(), Update> {
        self.compare(other)?;
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            match (&mut mine.part, &theirs.part) {
                (Part::Child(mine), Part::Child(theirs)) => mine.take_over(theirs)?,
                (mine, theirs) => *mine = theirs.clone(),
            }
            mine.context = theirs.context.clone();
        }
        Ok(())
    }

    fn compare(&self, other: &Body) -> Result<(), Update> {
        if self.0.len() != other.0.len() {
            return Err(Update { result: TOPOLOGY_CHANGED, node: 0 });
        }
        for (mine, theirs) in self.0.iter().zip(&other.0) {
            if mine.after != theirs.after {
                return Err(Update { result: TOPOLOGY_CHANGED, node: theirs.node });
            }
            if mine.part.node_type() != theirs.part.node_type() {
                return Err(Update { result: TYPE_CHANGED, node: theirs.node });
            }
            if let (Part::Child(mine), Part::Child(theirs)) = (&mine.part, &theirs.part) {
                mine.compare(theirs)?;
            }
        }
        Ok(())
    }

    /// Adds the steps of one launch, all after the steps `before`; gives the steps that end it.
    fn unfold(&self, machine: &Machine, before: &[usize], plan: &mut Plan) -> Vec<usize> {
        let mut ends = Vec::with_capacity(self.0.len());
        for ready in &self.0 {
            let mut after: Vec<usize> = ready.after.iter().filter_map(|i| ends.get(*i).copied()).collect();
            if after.is_empty() {
                after.extend_from_slice(before);
            }
            let task = match &ready.part {
                Part::Child(child) if ready.enabled => {
                    after = child.unfold(machine, &after, plan);
                    Task::Empty
                }
                Part::Task(task) if ready.enabled => task.clone(),
                _ => Task::Empty,
            };
            ends.push(plan.add(machine, task, &ready.context, after));
        }
        if ends.is_empty() { before.to_vec() } else { ends }
    }
}

/// One launch, before it is handed to the scheduler.
#[derive(Default)]
struct Plan {
    steps: Vec<Step>,
    /// Steps that record events: step, event, time.
    records: Vec<(usize, u64, Arc<AtomicU64>)>,
}

impl Plan {
    fn add(&mut self, machine: &Machine, task: Task, context: &Arc<Context>, after: Vec<usize>) -> usize {
        let place = self.steps.len();
        let mut also = Vec::new();
        let work = match task {
            Task::Record(event) => {
                let time = Arc::new(AtomicU64::new(0));
                self.records.push((place, event, time.clone()));
                Work::Marker(Some(time))
            }
            Task::Wait(event) => {
                also.extend(machine.recorded_operation(event));
                Work::Marker(None)
            }
            task => task.work(),
        };
        self.steps.push(Step { context: context.clone(), work, after, also });
        place
    }
}

impl Machine {
    fn executable(&self, handle: u64) -> Answer<Arc<Mutex<Executable>>> {
        lock(&self.graphs).executables.get(&handle).cloned().ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    /// `cuGraphInstantiate`.
    pub fn instantiate(&self, graph: u64, flags: u64) -> Answer<u64> {
        if flags & !FLAGS != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let mut graphs = lock(&self.graphs);
        let executable = Executable { body: graphs.body(graph)?, flags, last: 0 };
        let handle = handle::fresh(Kind::GraphExec);
        graphs.executables.insert(handle, Arc::new(Mutex::new(executable)));
        Ok(handle)
    }

    /// `cuGraphExecDestroy`: a launch that goes on is not disturbed.
    pub fn destroy_executable(&self, handle: u64) -> Answer {
        let gone = lock(&self.graphs).executables.remove(&handle);
        gone.map(|_| ()).ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    /// `cuGraphExecGetFlags`.
    pub fn executable_flags(&self, handle: u64) -> Answer<u64> {
        Ok(lock(&*self.executable(handle)?).flags)
    }

    /// `cuGraphUpload`: there is nothing to prepare.
    pub fn upload(&self, handle: u64, stream: StreamRef) -> Answer {
        self.destination(stream)?;
        self.executable(handle).map(|_| ())
    }

    /// `cuGraphLaunch`.
    pub fn launch_graph(&'static self, handle: u64, stream: StreamRef) -> Answer {
        let destination = self.destination(stream)?;
        let executable = self.executable(handle)?;
        self.not_legacy_beside_capture(&destination)?;
        if self.is_captured(destination.lane) {
            return Err(self.refuse_in(destination.lane));
        }
        let mut executable = lock(&executable);
        let mut plan = Plan::default();
        executable.body.unfold(self, &[], &mut plan);
        let Plan { steps, records } = plan;
        let (operations, end) =
            self.submit_steps(&destination.context, destination.lane, &[executable.last], steps)?;
        executable.last = end;
        for (step, event, time) in records {
            if let Some(operation) = operations.get(step) {
                self.note_record(event, *operation, time);
            }
        }
        Ok(())
    }

    /// `cuGraphExecKernelNodeSetParams` and its like: what one node does from the next launch on.
    pub fn set_executable_node(&self, handle: u64, node: u64, content: NodeContent) -> Answer {
        let executable = self.executable(handle)?;
        let context = {
            let mut executable = lock(&executable);
            executable.body.find(node).ok_or(CUDA_ERROR_INVALID_VALUE)?.context.clone()
        };
        let part = match content {
            NodeContent::Child(graph) => Part::Child(lock(&self.graphs).body(graph)?),
            content => Part::Task(self.task(content, &context)?),
        };
        let mut executable = lock(&executable);
        let ready = executable.body.find(node).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        match (&mut ready.part, part) {
            (Part::Child(mine), Part::Child(theirs)) => {
                mine.compare(&theirs).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
                mine.take_over(&theirs).map_err(|_| CUDA_ERROR_INVALID_VALUE)
            }
            (mine, theirs) if mine.node_type() == theirs.node_type() => {
                *mine = theirs;
                Ok(())
            }
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }

    /// `cuGraphNodeSetEnabled`: a node that is off only takes its turn.
    pub fn enable_node(&self, handle: u64, node: u64, on: bool) -> Answer {
        let executable = self.executable(handle)?;
        let mut executable = lock(&executable);
        let ready = executable.body.find(node).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        match ready.part.node_type() {
            0..=2 => ready.enabled = on,
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        }
        Ok(())
    }

    /// `cuGraphNodeGetEnabled`.
    pub fn node_enabled(&self, handle: u64, node: u64) -> Answer<bool> {
        let executable = self.executable(handle)?;
        let mut executable = lock(&executable);
        Ok(executable.body.find(node).ok_or(CUDA_ERROR_INVALID_VALUE)?.enabled)
    }

    /// `cuGraphExecUpdate`: the code, and what did not fit.
    pub fn update_executable(&self, handle: u64, graph: u64) -> Answer<(CUresult, Update)> {
        let executable = self.executable(handle)?;
        let body = lock(&self.graphs).body(graph)?;
        let mut executable = lock(&executable);
        Ok(match executable.body.take_over(&body) {
            Ok(()) => (CUDA_SUCCESS, Update { result: 0, node: 0 }),
            Err(update) => (CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, update),
        })
    }
}
