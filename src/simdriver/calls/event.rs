//! Events.

use crate::decode::{handle, pointer, room, stream};
use vgmem_abi::*;
use vgmem_sim::{Answer, machine};

pub(crate) unsafe fn cuEventCreate(out: *mut CUevent, flags: c_uint) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    out.put(pointer(machine.create_event(flags)?));
    Ok(())
}

pub(crate) unsafe fn cuEventDestroy(event: CUevent) -> Answer {
    machine()?.destroy_event(handle(event))
}

pub(crate) unsafe fn cuEventDestroy_v2(event: CUevent) -> Answer {
    machine()?.destroy_event(handle(event))
}

pub(crate) unsafe fn cuEventRecord(per_thread: bool, event: CUevent, which: CUstream) -> Answer {
    machine()?.record_event(handle(event), stream(per_thread, which), false)
}

pub(crate) unsafe fn cuEventRecordWithFlags(
    per_thread: bool,
    event: CUevent,
    which: CUstream,
    flags: c_uint,
) -> Answer {
    let machine = machine()?;
    if flags > 1 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    machine.record_event(handle(event), stream(per_thread, which), flags == 1)
}

pub(crate) unsafe fn cuEventQuery(event: CUevent) -> Answer {
    machine()?.query_event(handle(event))
}

pub(crate) unsafe fn cuEventSynchronize(event: CUevent) -> Answer {
    machine()?.synchronize_event(handle(event))
}

fn elapsed(out: *mut f32, from: CUevent, to: CUevent) -> Answer {
    let machine = machine()?;
    let out = room(out).map_err(|_| CUDA_ERROR_INVALID_HANDLE)?;
    out.put(machine.elapsed(handle(from), handle(to))?);
    Ok(())
}

pub(crate) unsafe fn cuEventElapsedTime(out: *mut f32, from: CUevent, to: CUevent) -> Answer {
    elapsed(out, from, to)
}

pub(crate) unsafe fn cuEventElapsedTime_v2(out: *mut f32, from: CUevent, to: CUevent) -> Answer {
    elapsed(out, from, to)
}
