//! Operations in a form that can run any number of times: streams run them once, graphs keep them.

use crate::copy::CopyCall;
use crate::exec::Exec;
use crate::fill::FillCall;
use crate::machine::Machine;
use crate::registry::Kernel;
use crate::scheduler::Work;
use crate::stream::Destination;
use crate::stream_memory::Owned;
use crate::util::Answer;
use crate::values::ValueOp;
use std::sync::Arc;
use vgmem_abi::*;

/// A launch with its parameters.
#[derive(Clone)]
pub struct KernelCall {
    /// Handle that was launched: a function or a kernel.
    pub function: u64,
    /// What runs.
    pub kernel: Arc<Kernel>,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub shared: u32,
    /// All blocks run at once.
    pub cooperative: bool,
    /// The parameters' bytes.
    pub parameters: Arc<[u8]>,
    /// They were given in one piece.
    pub packed: bool,
}

type Call = dyn Fn(CUresult) + Send + Sync;

/// A function of the program.
#[derive(Clone)]
pub struct HostCall {
    /// Address of the function.
    pub function: u64,
    /// Its argument.
    pub data: u64,
    call: Arc<Call>,
}

impl HostCall {
    /// A call of `function` with `data`, which `call` makes.
    pub fn new(function: u64, data: u64, call: impl Fn(CUresult) + Send + Sync + 'static) -> HostCall {
        HostCall { function, data, call: Arc::new(call) }
    }
}

/// An operation.
#[derive(Clone)]
pub(crate) enum Task {
    /// Takes its turn.
    Empty,
    Kernel(KernelCall),
    Copy(CopyCall),
    Fill(FillCall),
    Host(HostCall),
    /// Waits for values in memory, and writes of values.
    Values(Arc<[ValueOp]>),
    /// Records an event.
    Record(u64),
    /// Waits for an event.
    Wait(u64),
    /// Memory of a graph comes to life, which lasts as long as the graph.
    Allocate(Arc<Owned>),
    /// Memory of a graph ends.
    Free(u64),
}

impl Task {
    /// A `CUgraphNodeType`.
    pub fn node_type(&self) -> i32 {
        match self {
            Task::Kernel(_) => 0,
            Task::Copy(_) => 1,
            Task::Fill(_) => 2,
            Task::Host(_) => 3,
            Task::Empty => 5,
            Task::Wait(_) => 6,
            Task::Record(_) => 7,
            Task::Allocate(_) => 10,
            Task::Free(_) => 11,
            Task::Values(_) => 12,
        }
    }

    /// The work of one run.
    pub fn work(self) -> Work {
        match self {
            Task::Kernel(call) => {
                let function = call.function;
                Work::Device(Box::new(move |exec: &Exec| {
                    exec.runs(function);
                    call.kernel.run(exec, &call.parameters)
                }))
            }
            Task::Copy(call) => Work::Device(Box::new(move |exec: &Exec| call.run(exec))),
            Task::Fill(call) => Work::Device(Box::new(move |exec: &Exec| call.run(exec))),
            Task::Values(ops) => {
                let waits = ops.iter().any(ValueOp::waits);
                let job = Box::new(move |exec: &Exec| ops.iter().try_for_each(|op| op.run(exec)));
                if waits { Work::Gate(job) } else { Work::Device(job) }
            }
            Task::Host(host) => Work::Host(Box::new(move |status| (host.call)(status)), false),
            Task::Empty | Task::Record(_) | Task::Wait(_) | Task::Allocate(_) | Task::Free(_) => {
                Work::Marker(None)
            }
        }
    }
}

impl Machine {
    /// Puts an operation into a stream, or into the graph that the stream is captured into; gives
    /// the number of the operation in the former case.
    pub(crate) fn put(&'static self, destination: &Destination, task: Task) -> Answer<Option<u64>> {
        if self.capture(destination, &task)? {
            return Ok(None);
        }
        let operation = self.submit(&destination.context, destination.lane, &[], task.work())?;
        Ok(Some(operation))
    }
}
