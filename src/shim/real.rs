//! The driver, called for ourselves. Nothing else in the library calls it except with a program's own call.

use std::collections::HashMap;
use std::ffi::{c_int, c_uint};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use vgmem_abi::*;
use vgmem_engine::{Context, Copies, Device, DriverError, Handle, Place, Taken, Taking};

pub use crate::functions::Functions;
use crate::prints::Prints;
use crate::{broken, ledger, trace};

/// How host pages are made, found out at the first one of each GPU's node.
mod host_kind {
    pub const UNKNOWN: u8 = 0;
    pub const NUMA: u8 = 1;
    pub const PLAIN: u8 = 2;
    pub const NONE: u8 = 3;
}

/// The real driver as the engine sees it.
pub struct Driver {
    /// Its functions.
    pub call: Functions,
    /// NUMA node next to each GPU.
    nodes: Vec<i32>,
    /// `host_kind` of each GPU's node.
    kinds: Vec<AtomicU8>,
    /// Name of each GPU in the ledger.
    keys: Vec<u64>,
    /// Bytes of host RAM that the pools of all processes together may pin.
    host_budget: u64,
    /// The pager's streams, by context and lane, as numbers.
    lanes: Mutex<HashMap<(Context, usize), usize>>,
    /// Events that mark copies of a lane and are free, by context, as numbers.
    events: Mutex<HashMap<Context, Vec<usize>>>,
    prints: Prints,
}

/// Copy lanes of a context: one each way, and one for checksums.
const LANES: usize = 2;
const CHECK: usize = 2;
/// The marker of copies that were waited for.
const OVER: Copies = 0;
/// Bytes of host RAM beside what the machine keeps: with more, some may be pinned for speed; with less, that goes back.
const HOST_PLENTY: u64 = 2 << 30;
const HOST_SHORT: u64 = 1 << 29;
/// Bytes that a checksum reads at a time.
const PART: usize = 4 << 20;
/// Stream flag: no waiting for the legacy default stream, and none by it.
pub const NON_BLOCKING: c_uint = 1;

impl Driver {
    /// The driver of this process; asks nothing that needs a context.
    ///
    /// `keys` names the GPUs in the ledger, by ordinal.
    pub fn new(call: Functions, keys: Vec<u64>, host_budget: u64) -> Driver {
        let gpus = keys.len();
        let node = |gpu: usize| {
            let mut id: c_int = 0;
            // SAFETY: the out-parameter is live.
            let rc =
                unsafe { (call.cuDeviceGetAttribute)(&mut id, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, gpu as i32) };
            if rc == CUDA_SUCCESS { id.max(0) } else { 0 } // -1: no NUMA, where node 0 is right
        };
        let kinds = (0..gpus).map(|_| AtomicU8::new(host_kind::UNKNOWN)).collect();
        Driver {
            call,
            nodes: (0..gpus).map(node).collect(),
            kinds,
            keys,
            host_budget,
            lanes: Mutex::default(),
            events: Mutex::default(),
            prints: Prints::new(),
        }
    }

    /// What the driver says of the current context: its error if it is lost, gone, or not there at all. Virtual
    /// memory calls do not tell: they go on after a context is lost.
    pub fn health(&self) -> CUresult {
        let (mut free, mut total) = (0, 0);
        // SAFETY: both out-parameters are live. Allowed during a capture, unlike a query of a stream.
        unsafe { (self.call.cuMemGetInfo_v2)(&mut free, &mut total) }
    }

    /// Context and GPU that are current on this thread.
    pub fn current(&self) -> Option<(Context, u8)> {
        let context = self.current_context();
        let mut gpu: CUdevice = 0;
        // SAFETY: the out-parameter is live.
        let rc = unsafe { (self.call.cuCtxGetDevice)(&mut gpu) };
        (rc == CUDA_SUCCESS && context != 0).then_some((context, gpu as u8))
    }

    /// Context that is current on this thread, or 0.
    #[inline]
    pub fn current_context(&self) -> Context {
        let mut context: CUcontext = std::ptr::null_mut();
        // SAFETY: the out-parameter is live.
        let rc = unsafe { (self.call.cuCtxGetCurrent)(&mut context) };
        if rc == CUDA_SUCCESS { context as Context } else { 0 }
    }

    /// The context that memory of the driver's own belongs to.
    pub fn context_of(&self, address: CUdeviceptr) -> Option<CUcontext> {
        let mut context: CUcontext = std::ptr::null_mut();
        let attribute = CU_POINTER_ATTRIBUTE_CONTEXT;
        // SAFETY: this attribute is one pointer, which the out-parameter has room for.
        let rc = unsafe { (self.call.cuPointerGetAttribute)((&raw mut context).cast(), attribute, address) };
        (rc == CUDA_SUCCESS && !context.is_null()).then_some(context)
    }

    /// The GPU of a context.
    pub fn gpu_of(&self, context: Context) -> Option<u8> {
        self.within(context, || {
            let mut gpu: CUdevice = 0;
            // SAFETY: the out-parameter is live.
            let rc = unsafe { (self.call.cuCtxGetDevice)(&mut gpu) };
            DriverError::check(rc).map(|()| gpu as u8)
        })
        .ok()
    }

    /// The primary context of a GPU, if it is active.
    pub fn primary(&self, gpu: CUdevice) -> Option<Context> {
        let (mut flags, mut active) = (0, 0);
        // SAFETY: both out-parameters are live.
        let rc = unsafe { (self.call.cuDevicePrimaryCtxGetState)(gpu, &mut flags, &mut active) };
        if rc != CUDA_SUCCESS || active == 0 {
            return None;
        }
        let mut context: CUcontext = std::ptr::null_mut();
        // SAFETY: the out-parameter is live; the reference is given back at once.
        let rc = unsafe { (self.call.cuDevicePrimaryCtxRetain)(&mut context, gpu) };
        if rc != CUDA_SUCCESS {
            return None;
        }
        // SAFETY: gives back the reference just taken.
        unsafe { (self.call.cuDevicePrimaryCtxRelease_v2)(gpu) };
        Some(context as Context)
    }

    /// Runs `work` with `context` current, in the relaxed capture mode.
    fn within<T>(
        &self,
        context: Context,
        work: impl FnOnce() -> Result<T, DriverError>,
    ) -> Result<T, DriverError> {
        // SAFETY: the driver checks the handle.
        DriverError::check(unsafe { (self.call.cuCtxPushCurrent_v2)(context as CUcontext) })?;
        let answer = self.relaxed(work);
        let mut pushed: CUcontext = std::ptr::null_mut();
        // SAFETY: undoes the push above on the same thread.
        unsafe { (self.call.cuCtxPopCurrent_v2)(&mut pushed) };
        answer
    }

    /// Runs `work` in the relaxed capture mode: what we do never becomes part of a capture, nor ends one.
    pub fn relaxed<T>(&self, work: impl FnOnce() -> T) -> T {
        let mut mode: c_int = 2;
        // SAFETY: the parameter is live; it receives the old mode.
        unsafe { (self.call.cuThreadExchangeStreamCaptureMode)(&mut mode) };
        let answer = work();
        // SAFETY: undoes the call above on the same thread.
        unsafe { (self.call.cuThreadExchangeStreamCaptureMode)(&mut mode) };
        answer
    }

    /// The pager's stream of a lane in the current context, made at its first use.
    fn lane(&self, context: Context, lane: usize) -> Result<CUstream, DriverError> {
        if let Some(&stream) = self.lanes.lock().unwrap_or_else(PoisonError::into_inner).get(&(context, lane))
        {
            return Ok(stream as CUstream);
        }
        let mut stream: CUstream = std::ptr::null_mut();
        // SAFETY: the out-parameter is live; the context is current.
        DriverError::check(unsafe { (self.call.cuStreamCreate)(&mut stream, NON_BLOCKING) })?;
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(*lanes.entry((context, lane)).or_insert(stream as usize) as CUstream)
    }

    fn lane_events(&self) -> MutexGuard<'_, HashMap<Context, Vec<usize>>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An event for copies in the current context.
    fn lane_event(&self, context: Context) -> Option<CUevent> {
        if let Some(event) = self.lane_events().get_mut(&context).and_then(Vec::pop) {
            return Some(event as CUevent);
        }
        self.call.new_event().ok()
    }

    /// A context of our own on a GPU, current nowhere.
    pub fn new_context(&self, gpu: u8) -> Result<Context, DriverError> {
        let create = self.call.cuCtxCreate_v2.ok_or(DriverError::INVALID_VALUE)?;
        let (mut context, mut popped) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the out-parameter is live.
        DriverError::check(self.relaxed(|| unsafe { create(&mut context, 0, CUdevice::from(gpu)) }))?;
        // SAFETY: it was made current on this thread just now.
        unsafe { (self.call.cuCtxPopCurrent_v2)(&mut popped) };
        Ok(context as Context)
    }

    /// Makes what fingerprints need in the current context, while there is room.
    pub fn prepare_prints(&self, context: Context) {
        self.relaxed(|| self.prints.prepare(&self.call, context));
    }

    /// Whether others need the host RAM that is merely kept for speed: other pools, or anybody on the machine.
    pub fn host_is_short(&self) -> bool {
        ledger::is_short(self.host_budget) || self.host_available() < HOST_SHORT
    }

    /// Runs `work` with `context` current and in the relaxed capture mode; whether it gave something.
    pub fn works_in<T>(&self, context: Context, work: impl FnOnce() -> Option<T>) -> bool {
        self.within(context, || work().ok_or(DriverError::INVALID_VALUE)).is_ok()
    }

    fn make(&self, kind: c_int, id: c_int, bytes: u64) -> Result<Handle, DriverError> {
        let location = CUmemLocation { kind, id };
        let prop = CUmemAllocationProp {
            kind: CU_MEM_ALLOCATION_TYPE_PINNED,
            requestedHandleTypes: CU_MEM_HANDLE_TYPE_NONE,
            location,
            win32HandleMetaData: std::ptr::null_mut(),
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        };
        let mut handle = 0;
        // SAFETY: both structures are live and laid out as the driver's.
        let rc = unsafe {
            (self.call.cuMemCreate)(&mut handle, bytes as usize, (&raw const prop).cast_mut().cast(), 0)
        };
        DriverError::check(rc).map(|()| handle)
    }

    /// Host memory: by NUMA node where the driver can (it can be exported), else plain, else none.
    fn make_host(&self, near: usize, bytes: u64) -> Result<Handle, DriverError> {
        let kind = &self.kinds[near];
        let node = self.nodes[near];
        let known = kind.load(Ordering::Relaxed);
        let mut last = DriverError::OUT_OF_MEMORY;
        for (try_kind, location, id) in [
            (host_kind::NUMA, CU_MEM_LOCATION_TYPE_HOST_NUMA, node),
            (host_kind::PLAIN, CU_MEM_LOCATION_TYPE_HOST, 0),
        ] {
            if known != host_kind::UNKNOWN && known != try_kind {
                continue;
            }
            match self.make(location, id, bytes) {
                Ok(handle) => {
                    kind.store(try_kind, Ordering::Relaxed);
                    return Ok(handle);
                }
                Err(error) if error == DriverError::OUT_OF_MEMORY || known != host_kind::UNKNOWN => {
                    return Err(error);
                }
                Err(error) => last = error,
            }
        }
        if known == host_kind::UNKNOWN {
            kind.store(host_kind::NONE, Ordering::Relaxed);
            log::warn!(
                "host RAM cannot be used: the driver refuses host pages near GPU {near} (error {}); \
                 a container may need the capability SYS_NICE",
                last.code()
            );
        }
        Err(DriverError::OUT_OF_MEMORY)
    }
}

impl Device for Driver {
    fn create(&self, place: Place, bytes: u64) -> Result<Handle, DriverError> {
        match place {
            Place::Gpu(gpu) => self.make(CU_MEM_LOCATION_TYPE_DEVICE, i32::from(gpu), bytes),
            Place::HostNear(gpu) => {
                if !ledger::take_host(bytes, self.host_budget) {
                    return Err(DriverError::OUT_OF_MEMORY);
                }
                self.make_host(gpu as usize, bytes).inspect_err(|_| ledger::give_host(bytes))
            }
        }
    }

    fn release(&self, place: Place, bytes: u64, handle: Handle) -> Result<(), DriverError> {
        // SAFETY: the engine releases each handle once.
        DriverError::check(unsafe { (self.call.cuMemRelease)(handle) })?;
        if let Place::HostNear(_) = place {
            ledger::give_host(bytes);
        }
        Ok(())
    }

    fn is_home_of_others(&self, gpu: u8) -> bool {
        self.keys.get(gpu as usize).is_some_and(|&key| ledger::is_home_of_others(key))
    }

    fn map(&self, address: u64, bytes: u64, handle: Handle) -> Result<(), DriverError> {
        // SAFETY: the engine maps into its own arena.
        let map = || unsafe { (self.call.cuMemMap)(address, bytes as usize, 0, handle, 0) };
        DriverError::check(trace::call("map", map))
    }

    fn unmap(&self, address: u64, bytes: u64) -> Result<(), DriverError> {
        // SAFETY: the engine unmaps what it mapped, after the work that may use it.
        let unmap = || unsafe { (self.call.cuMemUnmap)(address, bytes as usize) };
        DriverError::check(trace::call("unmap", unmap))
    }

    fn grant(&self, address: u64, bytes: u64, gpu: u8) -> Result<(), DriverError> {
        let access = CUmemAccessDesc {
            location: CUmemLocation { kind: CU_MEM_LOCATION_TYPE_DEVICE, id: c_int::from(gpu) },
            flags: CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: the descriptor is live; the range is mapped by the engine.
        let grant = || unsafe { (self.call.cuMemSetAccess)(address, bytes as usize, &raw const access, 1) };
        DriverError::check(trace::call("grant", grant))
    }

    fn copy(&self, to: u64, from: u64, bytes: u64, _gpu: u8, context: Context) -> Result<(), DriverError> {
        self.within(context, || {
            // SAFETY: the engine mapped both ranges and gave the context's GPU access to them.
            DriverError::check(unsafe { (self.call.cuMemcpyDtoD_v2)(to, from, bytes as usize) })
        })
    }

    fn begin_copy(
        &self,
        lane: usize,
        to: u64,
        from: u64,
        bytes: u64,
        context: Context,
    ) -> Result<(), DriverError> {
        self.within(context, || {
            let stream = self.lane(context, lane)?;
            let traced = trace::page_copy(context, lane, bytes, stream);
            // SAFETY: the engine mapped both ranges and gave the context's GPU access to them.
            let copy = || unsafe { (self.call.cuMemcpyDtoDAsync_v2)(to, from, bytes as usize, stream) };
            let rc = trace::call("copy", copy);
            trace::done(traced, rc);
            DriverError::check(rc)?;
            if broken::is("verify") {
                // SAFETY: as above, within the same ranges.
                unsafe { (self.call.cuMemcpyDtoDAsync_v2)(to, from + 8, 8, stream) };
            }
            Ok(())
        })
    }

    fn mark_copies(&self, lane: usize, context: Context) -> Result<Copies, DriverError> {
        self.within(context, || {
            let stream = self.lane(context, lane)?;
            if let Some(event) = self.lane_event(context) {
                // SAFETY: an event of this context, on a stream of ours in it.
                if unsafe { (self.call.cuEventRecord)(event, stream) } == CUDA_SUCCESS {
                    return Ok(event as Copies);
                }
            }
            // SAFETY: a stream of ours.
            DriverError::check(unsafe { (self.call.cuStreamSynchronize)(stream) }).map(|()| OVER)
        })
    }

    fn are_over(&self, copies: Copies, context: Context) -> Result<bool, DriverError> {
        if copies == OVER {
            return Ok(true);
        }
        // SAFETY: an event of ours; its context has not ended, or the engine would not ask.
        match self.relaxed(|| unsafe { (self.call.cuEventQuery)(copies as CUevent) }) {
            CUDA_ERROR_NOT_READY => Ok(false),
            rc => {
                trace::page_copied();
                self.lane_events().entry(context).or_default().push(copies as usize);
                DriverError::check(rc).map(|()| true)
            }
        }
    }

    fn begin_print(&self, address: u64, bytes: u64, context: Context) -> Result<Taking, DriverError> {
        self.within(context, || {
            let begun = self.prints.begin(&self.call, context, address, bytes);
            begun.ok_or(DriverError::INVALID_VALUE)
        })
    }

    fn print(&self, taking: Taking, context: Context) -> Taken {
        self.relaxed(|| self.prints.look(&self.call, context, taking))
    }

    fn print_is_over(&self, taking: Taking, context: Context) -> bool {
        self.relaxed(|| self.prints.is_over(&self.call, context, taking))
    }

    fn host_is_plenty(&self, bytes: u64) -> bool {
        ledger::is_plenty(bytes, self.host_budget) && self.host_available() >= bytes + HOST_PLENTY
    }

    fn checksum(&self, address: u64, bytes: u64, context: Context) -> Result<u128, DriverError> {
        self.within(context, || {
            let stream = self.lane(context, CHECK)?;
            let mut part = vec![0u64; PART / 8];
            let mut sum = 0;
            for at in (0..bytes).step_by(PART) {
                let size = PART.min((bytes - at) as usize);
                // SAFETY: the engine mapped the range; the buffer has room for a part, and is waited for.
                unsafe {
                    let to = part.as_mut_ptr().cast();
                    DriverError::check((self.call.cuMemcpyDtoHAsync_v2)(to, address + at, size, stream))?;
                    DriverError::check((self.call.cuStreamSynchronize)(stream))?;
                }
                sum = part[..size / 8].iter().fold(sum, |sum: u128, &word| {
                    (sum ^ u128::from(word)).wrapping_mul(0x1_0000_0000_0000_0000_0000_013b).rotate_left(29)
                });
            }
            Ok(sum)
        })
    }

    fn stop(&self, what: &str) {
        log::error!("VGMEM_VERIFY: {what}");
        // The setting asks for it: going on would spread wrong bytes.
        std::process::abort();
    }

    #[inline]
    fn breaks(&self, rule: &str) -> bool {
        broken::is(rule)
    }

    fn complain(&self, what: &str) {
        log::error!("{what}");
    }

    fn wait_copies(&self, context: Context) -> Result<(), DriverError> {
        self.within(context, || {
            for lane in 0..LANES {
                let stream = self.lane(context, lane)?;
                // SAFETY: a stream of ours.
                DriverError::check(unsafe { (self.call.cuStreamSynchronize)(stream) })?;
            }
            Ok(())
        })
    }

    fn forget(&self, context: Context) {
        self.prints.forget(context);
        self.lane_events().remove(&context);
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner).retain(|(owner, _), _| *owner != context);
    }

    fn drain(&self, _gpu: u8, context: Context) -> Result<(), DriverError> {
        // SAFETY: waits in the context that `within` made current.
        let drained = self.within(context, || DriverError::check(unsafe { (self.call.cuCtxSynchronize)() }));
        match drained.map_err(DriverError::code) {
            // A context that is gone has nothing in flight. It can go without our notice, through old symbols.
            Err(CUDA_ERROR_INVALID_CONTEXT | CUDA_ERROR_CONTEXT_IS_DESTROYED) => Ok(()),
            _ => drained,
        }
    }

    fn is_lost(&self, error: DriverError) -> bool {
        // Errors of kernels that end their context: the driver answers them to every later call.
        matches!(error.code(), CUDA_ERROR_ILLEGAL_ADDRESS | 702 | 710 | 714..=719)
    }

    fn free_bytes(&self, gpu: u8) -> Option<u64> {
        if self.current()?.1 != gpu {
            return None;
        }
        let (mut free, mut total) = (0, 0);
        // SAFETY: both out-parameters are live.
        let rc = unsafe { (self.call.cuMemGetInfo_v2)(&mut free, &mut total) };
        (rc == CUDA_SUCCESS).then_some(free as u64)
    }

    fn host_available(&self) -> u64 {
        crate::start::host_available()
    }
}
