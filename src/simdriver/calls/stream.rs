//! Streams.

use crate::decode::{handle, pointer, room, stream};
use vgmem_abi::*;
use vgmem_sim::{Answer, machine};

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
    machine.wait_event(stream(per_thread, which), handle(event))
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

/// No stream is ever captured here.
pub(crate) unsafe fn cuStreamIsCapturing(per_thread: bool, which: CUstream, out: *mut c_int) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    machine.stream_facts(stream(per_thread, which))?;
    out.put(0);
    Ok(())
}

thread_local! {
    static CAPTURE_MODE: std::cell::Cell<c_int> = const { std::cell::Cell::new(0) };
}

pub(crate) unsafe fn cuThreadExchangeStreamCaptureMode(mode: *mut c_int) -> Answer {
    machine()?;
    let out = room(mode)?;
    // SAFETY: not null, as `room` found, and a number by the driver's contract.
    let wanted = unsafe { crate::decode::read(mode) }?;
    if !(0..=2).contains(&wanted) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    out.put(CAPTURE_MODE.replace(wanted));
    Ok(())
}

/// A function of the program and its argument, which another thread will call.
struct Call<F>(F, *mut c_void);

// SAFETY: the driver's contract says that the function is called on a thread of the driver; the
// argument is only handed on.
unsafe impl<F> Send for Call<F> {}

type HostFunction = unsafe extern "C" fn(*mut c_void);
type Callback = unsafe extern "C" fn(CUstream, CUresult, *mut c_void);

fn host_function(per_thread: bool, which: CUstream, function: CUhostFn, data: *mut c_void) -> Answer {
    let machine = machine()?;
    if function.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: by the driver's contract this is such a function.
    let function = unsafe { std::mem::transmute::<CUhostFn, HostFunction>(function) };
    let call = Call(function, data);
    machine.host_function(stream(per_thread, which), false, move |_| {
        let call = call;
        // SAFETY: the program asked for this call.
        unsafe { (call.0)(call.1) }
    })
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
    machine.host_function(stream(per_thread, which), true, move |status| {
        let call = call;
        let (function, which) = call.0;
        // SAFETY: the program asked for this call.
        unsafe { function(which, status, call.1) }
    })
}
