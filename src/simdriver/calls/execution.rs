//! Launches.

use crate::decode::{handle, read, stream};
use vgmem_abi::*;
use vgmem_sim::{Answer, Kernel, StreamRef, machine};

/// Copies the parameters of a launch, given one by one or as a buffer.
///
/// # Safety
/// `parameters` must be NULL or point to an address for each parameter of the kernel, and `extra`
/// be NULL or a list as the driver defines it.
pub(super) unsafe fn collect(
    kernel: &Kernel,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Answer<Vec<u8>> {
    let mut bytes = vec![0_u8; kernel.size];
    match (parameters.is_null(), extra.is_null()) {
        (false, false) => return Err(CUDA_ERROR_INVALID_VALUE),
        (true, true) if kernel.size > 0 => return Err(CUDA_ERROR_INVALID_VALUE),
        (true, true) => {}
        (false, true) => {
            for (index, (offset, size)) in kernel.parameters.iter().enumerate() {
                // SAFETY: the caller's promise.
                let from = unsafe { parameters.add(index).read() };
                if from.is_null() {
                    return Err(CUDA_ERROR_INVALID_VALUE);
                }
                let to = bytes.get_mut(*offset..offset + size).ok_or(CUDA_ERROR_INVALID_VALUE)?;
                // SAFETY: the program's parameter has the size that the kernel states.
                unsafe { std::ptr::copy_nonoverlapping(from.cast(), to.as_mut_ptr(), *size) };
            }
        }
        (true, false) => {
            // SAFETY: the caller's promise.
            let (from, size) = unsafe { buffer(extra) }?;
            if size < kernel.size || from.is_null() && kernel.size > 0 {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            // SAFETY: the program says that its buffer has `size` bytes.
            unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), kernel.size) };
        }
    }
    Ok(bytes)
}

/// Buffer and size from the list `extra`.
///
/// # Safety
/// `extra` must be a list as the driver defines it.
unsafe fn buffer(extra: *mut *mut c_void) -> Answer<(*const u8, usize)> {
    let (mut from, mut size) = (std::ptr::null(), None);
    let mut at = extra;
    loop {
        // SAFETY: the list goes on until its end mark, which was not seen yet.
        let (key, value) = unsafe {
            let key = at.read().addr();
            if key == CU_LAUNCH_PARAM_END {
                break;
            }
            (key, at.add(1).read())
        };
        match key {
            CU_LAUNCH_PARAM_BUFFER_POINTER => from = value.cast_const().cast(),
            // SAFETY: the value of this key points to a size.
            CU_LAUNCH_PARAM_BUFFER_SIZE => size = Some(unsafe { read(value.cast::<usize>()) }?),
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        }
        // SAFETY: the list has pairs until its end mark.
        at = unsafe { at.add(2) };
    }
    Ok((from, size.ok_or(CUDA_ERROR_INVALID_VALUE)?))
}

/// A launch, once the forms of the call are told apart.
struct Call {
    function: CUfunction,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    stream: StreamRef,
    cooperative: bool,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
}

impl Call {
    /// # Safety
    /// As `collect`.
    unsafe fn launch(self) -> Answer {
        let machine = machine()?;
        let mut launch =
            machine.prepare_launch(handle(self.function), self.grid, self.block, self.shared, self.stream)?;
        (launch.cooperative, launch.packed) = (self.cooperative, !self.extra.is_null());
        // SAFETY: the caller's promise.
        let bytes = unsafe { collect(&launch.kernel, self.parameters, self.extra) }?;
        machine.launch(launch, bytes)
    }
}

pub(crate) unsafe fn cuLaunchKernel(
    per_thread: bool,
    function: CUfunction,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared: c_uint,
    which: CUstream,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Answer {
    let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
    let (stream, cooperative) = (stream(per_thread, which), false);
    // SAFETY: the driver's contract.
    unsafe { Call { function, grid, block, shared, stream, cooperative, parameters, extra }.launch() }
}

pub(crate) unsafe fn cuLaunchCooperativeKernel(
    per_thread: bool,
    function: CUfunction,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared: c_uint,
    which: CUstream,
    parameters: *mut *mut c_void,
) -> Answer {
    let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
    let (stream, cooperative, extra) = (stream(per_thread, which), true, std::ptr::null_mut());
    // SAFETY: the driver's contract.
    unsafe { Call { function, grid, block, shared, stream, cooperative, parameters, extra }.launch() }
}

pub(crate) unsafe fn cuLaunchKernelEx(
    per_thread: bool,
    config: *const CUlaunchConfig,
    function: CUfunction,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Answer {
    // SAFETY: a structure or NULL, by the driver's contract.
    let config = unsafe { read(config) }?;
    if config.numAttrs > 0 && config.attrs.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: an array of so many attributes, 72 bytes each: number, four unused bytes, value.
    let is_set = |index: u32| unsafe {
        let attribute = config.attrs.cast::<[u32; 18]>().add(index as usize).read_unaligned();
        attribute[0] as c_int == CU_LAUNCH_ATTRIBUTE_COOPERATIVE && attribute[2] != 0
    };
    let cooperative = (0..config.numAttrs).any(is_set);
    let call = Call {
        function,
        grid: [config.gridDimX, config.gridDimY, config.gridDimZ],
        block: [config.blockDimX, config.blockDimY, config.blockDimZ],
        shared: config.sharedMemBytes,
        stream: stream(per_thread, config.hStream),
        cooperative,
        parameters,
        extra,
    };
    // SAFETY: the driver's contract.
    unsafe { call.launch() }
}
