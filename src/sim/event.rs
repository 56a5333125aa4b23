//! Events.

use crate::handle::Kind;
use crate::machine::Machine;
use crate::scheduler::Work;
use crate::stream::StreamRef;
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
}

#[derive(Clone)]
struct Record {
    operation: u64,
    time: Arc<AtomicU64>,
}

impl Machine {
    fn event(&self, handle: u64) -> Answer<Arc<Event>> {
        lock(&self.objects).events.get(&handle).cloned().ok_or(CUDA_ERROR_INVALID_HANDLE)
    }

    /// `cuEventCreate`.
    pub fn create_event(&self, flags: u32) -> Answer<u64> {
        let context = self.current()?;
        let shared = flags & INTERPROCESS != 0 && flags & NO_TIMING == 0;
        if flags & !7 != 0 || shared {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let event = Event { context: context.handle, flags, recorded: Mutex::new(None) };
        let (handle, event) = self.add(Kind::Event, |_| Arc::new(event));
        lock(&self.objects).events.insert(handle, event);
        Ok(handle)
    }

    /// `cuEventDestroy`.
    pub fn destroy_event(&self, handle: u64) -> Answer {
        lock(&self.objects).events.remove(&handle).map(|_| ()).ok_or(CUDA_ERROR_INVALID_HANDLE)
    }

    /// `cuEventRecord`.
    pub fn record_event(&'static self, handle: u64, stream: StreamRef) -> Answer {
        let event = self.event(handle)?;
        let destination = self.destination(stream)?;
        if destination.context.handle != event.context {
            return Err(CUDA_ERROR_INVALID_HANDLE);
        }
        let time = Arc::new(AtomicU64::new(0));
        // Held across the submission: two threads that record one event leave one consistent record.
        let mut recorded = lock(&event.recorded);
        let work = Work::Marker(Some(time.clone()));
        let operation = self.submit(&destination.context, destination.lane, &[], work)?;
        *recorded = Some(Record { operation, time });
        Ok(())
    }

    /// `cuStreamWaitEvent`.
    pub fn wait_event(&'static self, stream: StreamRef, handle: u64) -> Answer {
        let event = self.event(handle)?;
        let destination = self.destination(stream)?;
        let record = lock(&event.recorded).clone();
        if let Some(record) = record {
            let after = [record.operation];
            self.submit(&destination.context, destination.lane, &after, Work::Marker(None))?;
        }
        Ok(())
    }

    /// `cuEventQuery`.
    pub fn query_event(&self, handle: u64) -> Answer {
        let event = self.event(handle)?;
        let record = lock(&event.recorded).clone();
        match record {
            Some(record) if !self.scheduler.is_done(record.operation) => Err(CUDA_ERROR_NOT_READY),
            _ => self.context(event.context)?.check(),
        }
    }

    /// `cuEventSynchronize`.
    pub fn synchronize_event(&self, handle: u64) -> Answer {
        let event = self.event(handle)?;
        let record = lock(&event.recorded).clone();
        if let Some(record) = record {
            self.scheduler.wait(record.operation);
        }
        self.context(event.context)?.check()
    }

    /// `cuEventElapsedTime`: milliseconds between two events.
    pub fn elapsed(&self, from: u64, to: u64) -> Answer<f32> {
        let mut times = [0; 2];
        for (time, handle) in times.iter_mut().zip([from, to]) {
            let event = self.event(handle)?;
            self.context(event.context)?.check()?;
            let record = lock(&event.recorded).clone().filter(|_| event.flags & NO_TIMING == 0);
            let record = record.ok_or(CUDA_ERROR_INVALID_HANDLE)?;
            *time = record.time.load(Ordering::Acquire);
            if *time == 0 || !self.scheduler.is_done(record.operation) {
                return Err(CUDA_ERROR_NOT_READY);
            }
        }
        Ok((times[1] as f64 - times[0] as f64) as f32 / 1e6)
    }
}
