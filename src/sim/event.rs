//! Events.

use crate::exec::Exec;
use crate::handle::Kind;
use crate::ipc::SharedEvent;
use crate::machine::Machine;
use crate::scheduler::Work;
use crate::stream::StreamRef;
use crate::task::Task;
use crate::util::{Answer, lock};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use vgmem_abi::*;

const NO_TIMING: u32 = 2;
const INTERPROCESS: u32 = 4;

/// An event: the operation that recorded it last.
pub(crate) struct Event {
    pub context: u64,
    flags: u32,
    recorded: Mutex<Option<Record>>,
    /// What other processes can see of it.
    pub shared: Option<Arc<SharedEvent>>,
}

impl Event {
    /// An event that another process made.
    pub fn of_other_process(context: u64, shared: Arc<SharedEvent>) -> Event {
        let flags = INTERPROCESS | NO_TIMING;
        Event { context, flags, recorded: Mutex::new(None), shared: Some(shared) }
    }
}

#[derive(Clone)]
enum Record {
    /// An operation, and when it was over.
    Queued { operation: u64, time: Arc<AtomicU64> },
    /// The nodes of a capture that it stands for.
    Captured { capture: u64, nodes: Vec<u64> },
}

impl Machine {
    pub(crate) fn event(&self, handle: u64) -> Answer<Arc<Event>> {
        lock(&self.objects).events.get(&handle).cloned().ok_or(CUDA_ERROR_INVALID_HANDLE)
    }

    /// Checks the handle of an event.
    pub(crate) fn is_event(&self, handle: u64) -> Answer {
        self.event(handle).map(|_| ())
    }

    /// `cuEventCreate`.
    pub fn create_event(&self, flags: u32) -> Answer<u64> {
        let context = self.current()?;
        let timed = flags & INTERPROCESS != 0 && flags & NO_TIMING == 0;
        if flags & !7 != 0 || timed {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let shared = match flags & INTERPROCESS {
            0 => None,
            _ => Some(Arc::new(SharedEvent::new().map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?)),
        };
        let event = Event { context: context.handle, flags, recorded: Mutex::new(None), shared };
        let (handle, event) = self.add(Kind::Event, |_| Arc::new(event));
        lock(&self.objects).events.insert(handle, event);
        Ok(handle)
    }

    /// `cuEventDestroy`.
    pub fn destroy_event(&self, handle: u64) -> Answer {
        lock(&self.objects).events.remove(&handle).map(|_| ()).ok_or(CUDA_ERROR_INVALID_HANDLE)
    }

    /// `cuEventRecord`; an `external` record in a captured stream becomes a node of the graph.
    pub fn record_event(&'static self, handle: u64, stream: StreamRef, external: bool) -> Answer {
        let event = self.event(handle)?;
        let destination = self.destination(stream)?;
        if destination.context.handle != event.context {
            return Err(CUDA_ERROR_INVALID_HANDLE);
        }
        if external && self.capture(&destination, &Task::Record(handle))? {
            return Ok(());
        }
        if let Some((capture, nodes)) = self.captured_record(&destination)? {
            *lock(&event.recorded) = Some(Record::Captured { capture, nodes });
            return Ok(());
        }
        let time = Arc::new(AtomicU64::new(0));
        // Held across the submission: two threads that record one event leave one consistent record.
        let mut recorded = lock(&event.recorded);
        let work = match &event.shared {
            Some(shared) => Work::Device(Box::new(Machine::finish_shared(shared))),
            None => Work::Marker(Some(time.clone())),
        };
        let operation = self.submit(&destination.context, destination.lane, &[], work)?;
        *recorded = Some(Record::Queued { operation, time });
        Ok(())
    }

    /// A launched graph has recorded the event.
    pub(crate) fn note_record(&self, handle: u64, operation: u64, time: Arc<AtomicU64>) {
        if let Ok(event) = self.event(handle) {
            *lock(&event.recorded) = Some(Record::Queued { operation, time });
        }
    }

    /// The operation that recorded the event last.
    pub(crate) fn recorded_operation(&self, handle: u64) -> Option<u64> {
        match &*lock(&self.event(handle).ok()?.recorded) {
            Some(Record::Queued { operation, .. }) => Some(*operation),
            _ => None,
        }
    }

    /// `cuStreamWaitEvent`; an `external` wait in a captured stream becomes a node of the graph.
    pub fn wait_event(&'static self, stream: StreamRef, handle: u64, external: bool) -> Answer {
        let event = self.event(handle)?;
        let destination = self.destination(stream)?;
        if external && self.capture(&destination, &Task::Wait(handle))? {
            return Ok(());
        }
        let record = lock(&event.recorded).clone();
        if let Some(shared) = event.shared.clone()
            && !self.is_captured(destination.lane)
        {
            let number = shared.last();
            let job = move |exec: &Exec| shared.wait(number, || exec.check_context());
            let work = Work::Device(Box::new(job));
            return self.submit(&destination.context, destination.lane, &[], work).map(|_| ());
        }
        match record {
            None => Ok(()),
            Some(Record::Captured { capture, nodes }) => self.join_capture(&destination, capture, &nodes),
            Some(Record::Queued { .. }) if self.is_captured(destination.lane) => {
                Err(self.isolation_broken(destination.lane))
            }
            Some(Record::Queued { operation, .. }) => {
                self.not_legacy_beside_capture(&destination)?;
                let (context, after) = (&destination.context, [operation]);
                self.submit(context, destination.lane, &after, Work::Marker(None)).map(|_| ())
            }
        }
    }

    /// The operation that a question about the event is about.
    fn asked(&self, event: &Event) -> Answer<Option<u64>> {
        let record = lock(&event.recorded).clone();
        if let Some(Record::Captured { capture, .. }) = record {
            return Err(self.ask_captured_event(capture));
        }
        self.may_disturb()?;
        Ok(match record {
            Some(Record::Queued { operation, .. }) => Some(operation),
            _ => None,
        })
    }

    /// `cuEventQuery`.
    pub fn query_event(&self, handle: u64) -> Answer {
        let event = self.event(handle)?;
        let asked = self.asked(&event)?;
        if event.shared.as_ref().is_some_and(|shared| !shared.is_over(shared.last())) {
            return Err(CUDA_ERROR_NOT_READY);
        }
        match asked {
            Some(operation) if !self.scheduler.is_done(operation) => Err(CUDA_ERROR_NOT_READY),
            _ => self.context(event.context)?.check(),
        }
    }

    /// `cuEventSynchronize`.
    pub fn synchronize_event(&self, handle: u64) -> Answer {
        let event = self.event(handle)?;
        if let Some(operation) = self.asked(&event)? {
            self.scheduler.wait(operation);
        }
        if let Some(shared) = &event.shared {
            shared.wait(shared.last(), || self.context(event.context)?.check())?;
        }
        self.trim_pools();
        self.context(event.context)?.check()
    }

    /// `cuEventElapsedTime`: milliseconds between two events.
    pub fn elapsed(&self, from: u64, to: u64) -> Answer<f32> {
        let mut times = [0; 2];
        for (time, handle) in times.iter_mut().zip([from, to]) {
            let event = self.event(handle)?;
            self.context(event.context)?.check()?;
            let record = lock(&event.recorded).clone().filter(|_| event.flags & NO_TIMING == 0);
            let Some(Record::Queued { operation, time: noted }) = record else {
                return Err(CUDA_ERROR_INVALID_HANDLE);
            };
            *time = noted.load(Ordering::Acquire);
            if *time == 0 || !self.scheduler.is_done(operation) {
                return Err(CUDA_ERROR_NOT_READY);
            }
        }
        Ok((times[1] as f64 - times[0] as f64) as f32 / 1e6)
    }
}
