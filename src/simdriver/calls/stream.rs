//! Streams.

use crate::decode::{handle, pointer, room, stream};
use vgmem_abi::*;
use vgmem_sim::{Answer, HostCall, machine};

pub(crate) unsafe fn cuStreamCreate(out: *mut CUstream, flags: c_uint) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    out.put(pointer(machine.create_stream(flags, 0)?));
    Ok(())
}

pub(crate) unsafe fn cuStreamCreateWithPriority(
    out: *mut CUstream,
    flags: c_uint,
    priority: c_int,
) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    out.put(pointer(machine.create_stream(flags, priority)?));
    Ok(())
}

pub(crate) unsafe fn cuStreamDestroy(which: CUstream) -> Answer {
    machine()?.destroy_stream(handle(which))
}

pub(crate) unsafe fn cuStreamDestroy_v2(which: CUstream) -> Answer {
    machine()?.destroy_stream(handle(which))
}

pub(crate) unsafe fn cuStreamSynchronize(per_thread: bool, which: CUstream) -> Answer {
    machine()?.synchronize_stream(stream(per_thread, which))
}

pub(crate) unsafe fn cuStreamQuery(per_thread: bool, which: CUstream) -> Answer {
    machine()?.query_stream(stream(per_thread, which))
}

pub(crate) unsafe fn cuStreamWaitEvent(
    per_thread: bool,
    which: CUstream,
    event: CUevent,
    flags: c_uint,
) -> Answer {
    let machine = machine()?;
    if flags > 1 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    machine.wait_event(stream(per_thread, which), handle(event), flags == 1)
}

pub(crate) unsafe fn cuStreamGetFlags(per_thread: bool, which: CUstream, out: *mut c_uint) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    out.put(machine.stream_facts(stream(per_thread, which))?.0);
    Ok(())
}

pub(crate) unsafe fn cuStreamGetPriority(per_thread: bool, which: CUstream, out: *mut c_int) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    out.put(machine.stream_facts(stream(per_thread, which))?.1);
    Ok(())
}

pub(crate) unsafe fn cuStreamGetId(per_thread: bool, which: CUstream, out: *mut u64) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    out.put(machine.stream_facts(stream(per_thread, which))?.2);
    Ok(())
}

pub(crate) unsafe fn cuStreamGetCtx(per_thread: bool, which: CUstream, out: *mut CUcontext) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    out.put(pointer(machine.stream_context(stream(per_thread, which))?.0));
    Ok(())
}

pub(crate) unsafe fn cuStreamGetCtx_v2(
    per_thread: bool,
    which: CUstream,
    out: *mut CUcontext,
    green: *mut CUgreenCtx,
) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    out.put(pointer(machine.stream_context(stream(per_thread, which))?.0));
    if let Ok(green) = room(green) {
        green.put(pointer(0));
    }
    Ok(())
}

pub(crate) unsafe fn cuStreamGetDevice(per_thread: bool, which: CUstream, out: *mut CUdevice) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    out.put(machine.stream_context(stream(per_thread, which))?.1 as CUdevice);
    Ok(())
}

/// A function of the program and its argument, which another thread will call.
struct Call<F>(F, *mut c_void);

// SAFETY: the driver's contract says that the function is called on a thread of the driver; the
// argument is only handed on.
unsafe impl<F> Send for Call<F> {}
// SAFETY: as above; a graph may call from several threads, one after the other.
unsafe impl<F> Sync for Call<F> {}

type HostFunction = unsafe extern "C" fn(*mut c_void);
type Callback = unsafe extern "C" fn(CUstream, CUresult, *mut c_void);

/// A function of the program with its argument, as streams and graphs call it.
pub(super) fn host_call(function: CUhostFn, data: *mut c_void) -> Answer<HostCall> {
    if function.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let numbers = (function.expose_provenance() as u64, data.expose_provenance() as u64);
    // SAFETY: by the driver's contract this is such a function.
    let call = Call(unsafe { std::mem::transmute::<CUhostFn, HostFunction>(function) }, data);
    Ok(HostCall::new(numbers.0, numbers.1, move |_| {
        let call = &call;
        // SAFETY: the program asked for this call.
        unsafe { (call.0)(call.1) }
    }))
}

fn host_function(per_thread: bool, which: CUstream, function: CUhostFn, data: *mut c_void) -> Answer {
    let machine = machine()?;
    machine.host_call(stream(per_thread, which), host_call(function, data)?)
}

pub(crate) unsafe fn cuLaunchHostFunc(
    per_thread: bool,
    which: CUstream,
    function: CUhostFn,
    data: *mut c_void,
) -> Answer {
    host_function(per_thread, which, function, data)
}

pub(crate) unsafe fn cuLaunchHostFunc_v2(
    per_thread: bool,
    which: CUstream,
    function: CUhostFn,
    data: *mut c_void,
    mode: c_uint,
) -> Answer {
    if mode > 1 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    host_function(per_thread, which, function, data)
}

pub(crate) unsafe fn cuStreamAddCallback(
    per_thread: bool,
    which: CUstream,
    function: CUstreamCallback,
    data: *mut c_void,
    flags: c_uint,
) -> Answer {
    let machine = machine()?;
    if function.is_null() || flags != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: by the driver's contract this is such a function.
    let function = unsafe { std::mem::transmute::<CUstreamCallback, Callback>(function) };
    let call = Call((function, which), data);
    machine.callback(stream(per_thread, which), move |status| {
        let call = call;
        let (function, which) = call.0;
        // SAFETY: the program asked for this call.
        unsafe { function(which, status, call.1) }
    })
}
