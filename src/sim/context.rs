//! Contexts, and which one is current on a thread.

use crate::handle::{self, Kind};
use crate::machine::Machine;
use crate::util::{Answer, lock};
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use vgmem_abi::*;

/// A context on one GPU.
pub struct Context {
    /// Handle of the context.
    pub handle: u64,
    /// Its GPU.
    pub device: u32,
    /// Whether it is the GPU's primary context.
    pub primary: bool,
    flags: AtomicU32,
    /// The error that ended the context, or 0.
    lost: AtomicU32,
    /// GPUs whose `cuMemAlloc` memory its kernels may touch, as bits.
    peers: AtomicU64,
    /// Held by calls that keep others from putting work into the context while they wait.
    gate: Mutex<()>,
    /// Limits that the program has set, and how it wants caches to be split.
    pub(crate) limits: Mutex<HashMap<i32, u64>>,
    pub(crate) cache: AtomicU32,
    /// Lane of its legacy default stream.
    pub(crate) legacy: u64,
    /// Memory that it takes for itself, 0 for none.
    own_memory: u64,
}

impl Context {
    /// The error that ended the context.
    pub fn check(&self) -> Answer {
        match self.lost.load(Ordering::Acquire) {
            CUDA_SUCCESS => Ok(()),
            code => Err(code),
        }
    }

    /// Ends the context with an error that every later call answers; the first one stays.
    fn lose(&self, code: CUresult) {
        let _ = self.lost.compare_exchange(CUDA_SUCCESS, code, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Flags that the context was made with.
    pub fn flags(&self) -> u32 {
        self.flags.load(Ordering::Relaxed)
    }

    /// Changes the flags.
    pub fn set_flags(&self, flags: u32) {
        self.flags.store(flags, Ordering::Relaxed);
    }

    /// Shuts the context's gate until the guard is dropped; waits while somebody else has it.
    pub(crate) fn shut(&self) -> MutexGuard<'_, ()> {
        lock(&self.gate)
    }

    pub(crate) fn peers(&self) -> u64 {
        self.peers.load(Ordering::Acquire)
    }
}

/// The primary context of a GPU.
#[derive(Default)]
pub(crate) struct Primary {
    context: Option<Arc<Context>>,
    references: u64,
    flags: u32,
}

const DEPTH: usize = 64;

/// Contexts pushed on a thread. A plain array: it needs no destructor, so it works in the exit
/// handlers of the program as well.
struct Stack {
    depth: Cell<usize>,
    entries: [Cell<u64>; DEPTH],
}

thread_local! {
    static STACK: Stack = const { Stack { depth: Cell::new(0), entries: [const { Cell::new(0) }; DEPTH] } };
}

fn top() -> u64 {
    STACK.with(|stack| match stack.depth.get() {
        0 => 0,
        depth => stack.entries[depth - 1].get(),
    })
}

fn push(handle: u64) -> Answer {
    STACK.with(|stack| {
        let depth = stack.depth.get();
        let entry = stack.entries.get(depth).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        entry.set(handle);
        stack.depth.set(depth + 1);
        Ok(())
    })
}

fn pop() -> u64 {
    STACK.with(|stack| match stack.depth.get() {
        0 => 0,
        depth => {
            stack.depth.set(depth - 1);
            stack.entries[depth - 1].get()
        }
    })
}

const FLAGS: u32 = 0xff;

impl Machine {
    /// The context of a handle: 709 if it is gone, 201 if it never was one.
    pub fn context(&self, handle: u64) -> Answer<Arc<Context>> {
        match lock(&self.objects).contexts.get(&handle) {
            Some(context) => Ok(context.clone()),
            None if handle::is(handle, Kind::Context) => Err(CUDA_ERROR_CONTEXT_IS_DESTROYED),
            None => Err(CUDA_ERROR_INVALID_CONTEXT),
        }
    }

    /// The current context, which must not have been lost.
    pub fn current(&self) -> Answer<Arc<Context>> {
        let context = self.current_even_if_lost()?;
        context.check()?;
        Ok(context)
    }

    /// The current context.
    pub fn current_even_if_lost(&self) -> Answer<Arc<Context>> {
        self.context(top())
    }

    /// Handle of the current context, 0 if there is none.
    pub fn current_handle(&self) -> u64 {
        top()
    }

    fn make_context(&self, device: u32, flags: u32, primary: bool) -> Answer<Arc<Context>> {
        self.check_device(device)?;
        let handle = handle::fresh(Kind::Context);
        let legacy = self.scheduler.legacy_lane(handle, device);
        let own_memory = lock(&self.memory).take_for_context(device, self.settings.context)?;
        let context = Arc::new(Context {
            handle,
            device,
            primary,
            flags: AtomicU32::new(flags),
            lost: AtomicU32::new(CUDA_SUCCESS),
            peers: AtomicU64::new(0),
            gate: Mutex::new(()),
            limits: Mutex::default(),
            cache: AtomicU32::new(0),
            legacy,
            own_memory,
        });
        lock(&self.objects).contexts.insert(handle, context.clone());
        Ok(context)
    }

    /// `cuCtxCreate`: the new context is current.
    pub fn create_context(&self, device: u32, flags: u32) -> Answer<u64> {
        if flags & !FLAGS != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let context = self.make_context(device, flags, false)?;
        push(context.handle)?;
        Ok(context.handle)
    }

    /// `cuCtxDestroy`.
    pub fn destroy_context(&self, handle: u64) -> Answer {
        if handle == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let context = self.context(handle)?;
        if context.primary {
            return Err(CUDA_ERROR_INVALID_CONTEXT);
        }
        if top() == handle {
            pop();
        }
        self.end_context(&context);
        Ok(())
    }

    fn end_context(&self, context: &Context) {
        self.forget_captures(context.handle);
        self.scheduler.wait_for_context(context.handle);
        if lock(&self.memory).has_allocations(context.handle) {
            // As for `cuMemFree`: others may still copy from it.
            self.scheduler.wait_for_device(context.device);
        }
        {
            let mut memory = lock(&self.memory);
            memory.free_context(context.handle);
            if context.own_memory != 0 {
                let _ = memory.release(context.own_memory); // ours, once: it cannot fail
            }
        }
        let mut objects = lock(&self.objects);
        objects.contexts.remove(&context.handle);
        objects.streams.retain(|_, stream| stream.context != context.handle);
        objects.events.retain(|_, event| event.context != context.handle);
        objects.forget_modules(context.handle);
        drop(objects);
        self.scheduler.forget_context(context.handle);
    }

    /// Ends all contexts of a GPU: what a kernel does to one it does to all.
    pub fn lose(&self, device: u32, code: CUresult) {
        for context in lock(&self.objects).contexts.values().filter(|context| context.device == device) {
            context.lose(code);
        }
    }

    /// `cuCtxPushCurrent`.
    pub fn push_context(&self, handle: u64) -> Answer {
        if handle == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        self.context(handle)?;
        push(handle)
    }

    /// `cuCtxPopCurrent`.
    pub fn pop_context(&self) -> Answer<u64> {
        match pop() {
            0 => Err(CUDA_ERROR_INVALID_CONTEXT),
            handle => Ok(handle),
        }
    }

    /// `cuCtxSetCurrent`: replaces the top of the stack, 0 removes it. A context that is gone can be
    /// set: the calls that follow say so.
    pub fn set_context(&self, handle: u64) -> Answer {
        if handle != 0 && !handle::is(handle, Kind::Context) {
            return Err(CUDA_ERROR_INVALID_CONTEXT);
        }
        pop();
        if handle == 0 { Ok(()) } else { push(handle) }
    }

    /// `cuDevicePrimaryCtxRetain`.
    pub fn retain_primary(&self, device: u32) -> Answer<u64> {
        self.check_device(device)?;
        let mut primaries = lock(&self.primaries);
        let primary = primaries.get_mut(device as usize).ok_or(CUDA_ERROR_INVALID_DEVICE)?;
        let context = match &primary.context {
            Some(context) => context.clone(),
            None => {
                let context = self.make_context(device, primary.flags, true)?;
                primary.context = Some(context.clone());
                context
            }
        };
        primary.references += 1;
        Ok(context.handle)
    }

    /// `cuDevicePrimaryCtxRelease`: the last release ends the context.
    pub fn release_primary(&self, device: u32) -> Answer {
        self.check_device(device)?;
        let mut primaries = lock(&self.primaries);
        let primary = primaries.get_mut(device as usize).ok_or(CUDA_ERROR_INVALID_DEVICE)?;
        if primary.references == 0 {
            return Err(CUDA_ERROR_INVALID_CONTEXT);
        }
        primary.references -= 1;
        let ended = if primary.references == 0 { primary.context.take() } else { None };
        drop(primaries);
        if let Some(context) = ended {
            self.end_context(&context);
        }
        Ok(())
    }

    /// `cuDevicePrimaryCtxReset`.
    pub fn reset_primary(&self, device: u32) -> Answer {
        self.check_device(device)?;
        let mut primaries = lock(&self.primaries);
        let primary = primaries.get_mut(device as usize).ok_or(CUDA_ERROR_INVALID_DEVICE)?;
        primary.references = 0;
        let ended = primary.context.take();
        drop(primaries);
        if let Some(context) = ended {
            self.end_context(&context);
        }
        Ok(())
    }

    /// `cuDevicePrimaryCtxGetState`: flags, and whether it is active.
    pub fn primary_state(&self, device: u32) -> Answer<(u32, bool)> {
        self.check_device(device)?;
        let primaries = lock(&self.primaries);
        let primary = primaries.get(device as usize).ok_or(CUDA_ERROR_INVALID_DEVICE)?;
        Ok((primary.flags, primary.context.is_some()))
    }

    /// `cuDevicePrimaryCtxSetFlags`.
    pub fn set_primary_flags(&self, device: u32, flags: u32) -> Answer {
        self.check_device(device)?;
        if flags & !FLAGS != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let mut primaries = lock(&self.primaries);
        let primary = primaries.get_mut(device as usize).ok_or(CUDA_ERROR_INVALID_DEVICE)?;
        primary.flags = flags;
        if let Some(context) = &primary.context {
            context.set_flags(flags);
        }
        Ok(())
    }

    /// `cuCtxEnablePeerAccess`: the current context may touch allocations of the other's GPU.
    pub fn enable_peer(&self, handle: u64, flags: u32) -> Answer {
        let current = self.current()?;
        let peer = self.context(handle)?;
        if flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let far = !lock(&self.memory).can_reach(current.device, peer.device);
        if peer.device == current.device || far {
            return Err(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
        }
        let bit = 1 << peer.device;
        if current.peers.fetch_or(bit, Ordering::AcqRel) & bit != 0 {
            return Err(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
        }
        Ok(())
    }

    /// `cuCtxDisablePeerAccess`.
    pub fn disable_peer(&self, handle: u64) -> Answer {
        let current = self.current()?;
        let bit = 1 << self.context(handle)?.device;
        if current.peers.fetch_and(!bit, Ordering::AcqRel) & bit == 0 {
            return Err(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
        }
        Ok(())
    }
}
