//! Streams, and functions of the program that run in them.

use crate::context::Context;
use crate::handle::Kind;
use crate::machine::Machine;
use crate::scheduler::{Order, Work};
use crate::task::{HostCall, Task};
use crate::util::{Answer, lock};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use vgmem_abi::*;

/// Flag of `cuStreamCreate`: the stream ignores the legacy default stream.
const NON_BLOCKING: u32 = 1;

/// A stream of the program.
pub(crate) struct Stream {
    pub context: u64,
    pub flags: u32,
    pub priority: i32,
}

/// A stream as a call names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamRef {
    /// The handle.
    pub handle: u64,
    /// Whether the call means per-thread default streams by 0.
    pub per_thread: bool,
}

/// Where a call's work goes.
pub(crate) struct Destination {
    pub context: Arc<Context>,
    pub lane: u64,
}

static THREADS: AtomicU64 = AtomicU64::new(1);

thread_local! {
    static THREAD: Cell<u64> = const { Cell::new(0) };
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// A number of the calling thread that no other thread ever has.
pub(crate) fn thread() -> u64 {
    THREAD.with(|thread| {
        if thread.get() == 0 {
            thread.set(THREADS.fetch_add(1, Ordering::Relaxed));
        }
        thread.get()
    })
}

/// Whether a host function of a stream runs on this thread: it may not call the driver.
pub(crate) fn in_host_function() -> bool {
    IN_HOST_FUNCTION.with(Cell::get)
}

/// Runs a host function.
pub(crate) fn host_function(call: impl FnOnce()) {
    IN_HOST_FUNCTION.with(|flag| flag.set(true));
    call();
    IN_HOST_FUNCTION.with(|flag| flag.set(false));
}

/// A priority that GPUs have.
const PRIORITIES: std::ops::RangeInclusive<i32> = -5..=0;

impl Machine {
    /// Where work goes that a call puts into `stream`.
    pub(crate) fn destination(&self, stream: StreamRef) -> Answer<Destination> {
        let legacy = CU_STREAM_LEGACY.addr() as u64;
        let own = CU_STREAM_PER_THREAD.addr() as u64;
        let handle = stream.handle;
        if handle == 0 || handle == legacy || handle == own {
            let context = self.current()?;
            let lane = if handle == own || handle == 0 && stream.per_thread {
                self.scheduler.thread_lane(context.handle, context.device, thread())
            } else {
                context.legacy
            };
            return Ok(Destination { context, lane });
        }
        let found = lock(&self.objects).streams.get(&handle).map(|stream| stream.context);
        let context = self.context(found.ok_or(CUDA_ERROR_INVALID_HANDLE)?)?;
        context.check()?;
        Ok(Destination { context, lane: handle })
    }

    /// `cuStreamCreateWithPriority`.
    pub fn create_stream(&self, flags: u32, priority: i32) -> Answer<u64> {
        let context = self.current()?;
        if flags & !NON_BLOCKING != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let priority = priority.clamp(*PRIORITIES.start(), *PRIORITIES.end());
        let (handle, stream) =
            self.add(Kind::Stream, |_| Arc::new(Stream { context: context.handle, flags, priority }));
        let order = if flags & NON_BLOCKING == 0 { Order::Blocking } else { Order::Free };
        self.scheduler.lane(handle, context.handle, context.device, order);
        lock(&self.objects).streams.insert(handle, stream);
        Ok(handle)
    }

    /// Least and greatest priority.
    pub fn priorities(&self) -> (i32, i32) {
        (*PRIORITIES.end(), *PRIORITIES.start())
    }

    /// `cuStreamDestroy`: work in it goes on.
    pub fn destroy_stream(&self, handle: u64) -> Answer {
        if handle <= CU_STREAM_PER_THREAD.addr() as u64 {
            return Err(CUDA_ERROR_INVALID_HANDLE);
        }
        lock(&self.objects).streams.remove(&handle).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        self.forget_captured_lane(handle);
        self.scheduler.end_lane(handle);
        Ok(())
    }

    /// Flags, priority and number of a stream.
    pub fn stream_facts(&self, stream: StreamRef) -> Answer<(u32, i32, u64)> {
        let destination = self.destination(stream)?;
        let objects = lock(&self.objects);
        Ok(match objects.streams.get(&destination.lane) {
            Some(stream) => (stream.flags, stream.priority, destination.lane),
            None => (0, 0, destination.lane),
        })
    }

    /// Handle and GPU of the context that a stream belongs to.
    pub fn stream_context(&self, stream: StreamRef) -> Answer<(u64, u32)> {
        let context = self.destination(stream)?.context;
        Ok((context.handle, context.device))
    }

    /// `cuStreamSynchronize`.
    pub fn synchronize_stream(&'static self, stream: StreamRef) -> Answer {
        let destination = self.destination(stream)?;
        self.may_wait(&destination)?;
        let last = if destination.lane == destination.context.legacy {
            // The legacy default stream also stands for the streams that block with it.
            self.submit(&destination.context, destination.lane, &[], Work::Marker(None))?
        } else {
            self.scheduler.tail(destination.lane)
        };
        self.scheduler.wait(last);
        self.trim_pools();
        destination.context.check()
    }

    /// `cuStreamQuery`.
    pub fn query_stream(&self, stream: StreamRef) -> Answer {
        let destination = self.destination(stream)?;
        self.may_wait(&destination)?;
        let idle = if destination.lane == destination.context.legacy {
            self.scheduler.is_idle(destination.lane)
        } else {
            self.scheduler.is_done(self.scheduler.tail(destination.lane))
        };
        if !idle {
            return Err(CUDA_ERROR_NOT_READY);
        }
        destination.context.check()
    }

    /// `cuCtxSynchronize`.
    pub fn synchronize_context(&self, context: &Context) -> Answer {
        context.check()?;
        self.may_wait_for_context(context.handle)?;
        self.scheduler.wait_for_context(context.handle);
        self.trim_pools();
        context.check()
    }

    /// `cuLaunchHostFunc`.
    pub fn host_call(&'static self, stream: StreamRef, call: HostCall) -> Answer {
        let destination = self.destination(stream)?;
        self.put(&destination, Task::Host(call)).map(|_| ())
    }

    /// `cuStreamAddCallback`: it is called even if the context was lost, and never captured.
    pub fn callback(
        &'static self,
        stream: StreamRef,
        call: impl FnOnce(CUresult) + Send + 'static,
    ) -> Answer {
        let destination = self.destination(stream)?;
        self.not_legacy_beside_capture(&destination)?;
        if self.is_captured(destination.lane) {
            return Err(self.refuse_in(destination.lane));
        }
        let work = Work::Host(Box::new(call), true);
        self.submit(&destination.context, destination.lane, &[], work).map(|_| ())
    }
}
