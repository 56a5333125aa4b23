//! Modules, libraries, functions, kernels.

use crate::decode::{handle, name, pointer, room};
use std::sync::Arc;
use vgmem_abi::*;
use vgmem_sim::{Answer, Kernel, machine};

fn load(out: *mut CUmodule, image: *const c_void) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    if image.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    out.put(pointer(machine.load_module()?));
    Ok(())
}

/// A file is looked for, but not into.
///
/// # Safety
/// `path` must be NULL or a C string.
unsafe fn check_file(path: *const c_char) -> Answer {
    // SAFETY: the caller's promise.
    let path = unsafe { name(path) }?.to_str().map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
    std::fs::File::open(path).map(|_| ()).map_err(|_| CUDA_ERROR_FILE_NOT_FOUND)
}

pub(crate) unsafe fn cuModuleLoad(out: *mut CUmodule, path: *const c_char) -> Answer {
    machine()?;
    // SAFETY: a C string, by the driver's contract.
    unsafe { check_file(path) }?;
    load(out, path.cast())
}

pub(crate) unsafe fn cuModuleLoadData(out: *mut CUmodule, image: *const c_void) -> Answer {
    load(out, image)
}

pub(crate) unsafe fn cuModuleLoadDataEx(
    out: *mut CUmodule,
    image: *const c_void,
    count: c_uint,
    options: *mut c_int,
    values: *mut *mut c_void,
) -> Answer {
    if count > 0 && (options.is_null() || values.is_null()) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    load(out, image)
}

pub(crate) unsafe fn cuModuleLoadFatBinary(out: *mut CUmodule, image: *const c_void) -> Answer {
    load(out, image)
}

pub(crate) unsafe fn cuModuleUnload(module: CUmodule) -> Answer {
    machine()?.unload_module(handle(module))
}

pub(crate) unsafe fn cuModuleGetFunction(
    out: *mut CUfunction,
    module: CUmodule,
    function: *const c_char,
) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    // SAFETY: a C string, by the driver's contract.
    out.put(pointer(machine.module_function(handle(module), unsafe { name(function) }?)?));
    Ok(())
}

fn put_global(out: *mut CUdeviceptr, size: *mut usize, found: (u64, u64)) {
    // Either may be NULL: the program wants the other.
    if let Ok(out) = room(out) {
        out.put(found.0);
    }
    if let Ok(size) = room(size) {
        size.put(found.1 as usize);
    }
}

pub(crate) unsafe fn cuModuleGetGlobal_v2(
    out: *mut CUdeviceptr,
    size: *mut usize,
    module: CUmodule,
    global: *const c_char,
) -> Answer {
    let machine = machine()?;
    if out.is_null() && size.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: a C string, by the driver's contract.
    put_global(out, size, machine.module_global(handle(module), unsafe { name(global) }?)?);
    Ok(())
}

/// Functions are loaded when they are first used.
pub(crate) unsafe fn cuModuleGetLoadingMode(out: *mut c_int) -> Answer {
    machine()?;
    room(out)?.put(2);
    Ok(())
}

pub(crate) unsafe fn cuLibraryLoadData(
    out: *mut CUlibrary,
    image: *const c_void,
    _jit_options: *mut c_int,
    _jit_values: *mut *mut c_void,
    _jit_count: c_uint,
    _options: *mut c_int,
    _values: *mut *mut c_void,
    _count: c_uint,
) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    if image.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    out.put(pointer(machine.load_library()?));
    Ok(())
}

pub(crate) unsafe fn cuLibraryLoadFromFile(
    out: *mut CUlibrary,
    path: *const c_char,
    _jit_options: *mut c_int,
    _jit_values: *mut *mut c_void,
    _jit_count: c_uint,
    _options: *mut c_int,
    _values: *mut *mut c_void,
    _count: c_uint,
) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    // SAFETY: a C string, by the driver's contract.
    unsafe { check_file(path) }?;
    out.put(pointer(machine.load_library()?));
    Ok(())
}

pub(crate) unsafe fn cuLibraryUnload(library: CUlibrary) -> Answer {
    machine()?.unload_library(handle(library))
}

pub(crate) unsafe fn cuLibraryGetKernel(
    out: *mut CUkernel,
    library: CUlibrary,
    kernel: *const c_char,
) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    // SAFETY: a C string, by the driver's contract.
    out.put(pointer(machine.library_kernel(handle(library), unsafe { name(kernel) }?)?));
    Ok(())
}

pub(crate) unsafe fn cuLibraryGetModule(out: *mut CUmodule, library: CUlibrary) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    out.put(pointer(machine.library_module(handle(library))?));
    Ok(())
}

pub(crate) unsafe fn cuLibraryGetGlobal(
    out: *mut CUdeviceptr,
    size: *mut usize,
    library: CUlibrary,
    global: *const c_char,
) -> Answer {
    let machine = machine()?;
    let module = machine.library_module(handle(library))?;
    if out.is_null() && size.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: a C string, by the driver's contract.
    put_global(out, size, machine.module_global(module, unsafe { name(global) }?)?);
    Ok(())
}

pub(crate) unsafe fn cuKernelGetFunction(out: *mut CUfunction, kernel: CUkernel) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    out.put(pointer(machine.kernel_function(handle(kernel))?));
    Ok(())
}

pub(crate) unsafe fn cuKernelGetLibrary(out: *mut CUlibrary, kernel: CUkernel) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    out.put(pointer(machine.kernel_library(handle(kernel))?));
    Ok(())
}

fn put_name(out: *mut *const c_char, kernel: &Kernel) -> Answer {
    // The registry keeps every kernel that was ever handed out by name.
    room(out)?.put(kernel.name.as_ptr());
    Ok(())
}

pub(crate) unsafe fn cuKernelGetName(out: *mut *const c_char, kernel: CUkernel) -> Answer {
    put_name(out, &*machine()?.kernel_kernel(handle(kernel))?)
}

pub(crate) unsafe fn cuFuncGetName(out: *mut *const c_char, function: CUfunction) -> Answer {
    put_name(out, &*machine()?.function_kernel(handle(function))?)
}

fn put_parameter(kernel: Arc<Kernel>, index: usize, offset: *mut usize, size: *mut usize) -> Answer {
    let offset_out = room(offset)?;
    let (offset, bytes) = *kernel.parameters.get(index).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    offset_out.put(offset);
    if let Ok(size) = room(size) {
        size.put(bytes);
    }
    Ok(())
}

pub(crate) unsafe fn cuFuncGetParamInfo(
    function: CUfunction,
    index: usize,
    offset: *mut usize,
    size: *mut usize,
) -> Answer {
    let machine = machine()?;
    if function.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    put_parameter(machine.function_kernel(handle(function))?, index, offset, size)
}

pub(crate) unsafe fn cuKernelGetParamInfo(
    kernel: CUkernel,
    index: usize,
    offset: *mut usize,
    size: *mut usize,
) -> Answer {
    put_parameter(machine()?.kernel_kernel(handle(kernel))?, index, offset, size)
}

pub(crate) unsafe fn cuFuncGetParamCount(function: CUfunction, out: *mut usize) -> Answer {
    let kernel = machine()?.function_kernel(handle(function))?;
    room(out)?.put(kernel.parameters.len());
    Ok(())
}

pub(crate) unsafe fn cuKernelGetParamCount(kernel: CUkernel, out: *mut usize) -> Answer {
    let kernel = machine()?.kernel_kernel(handle(kernel))?;
    room(out)?.put(kernel.parameters.len());
    Ok(())
}

pub(crate) unsafe fn cuFuncGetModule(out: *mut CUmodule, function: CUfunction) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    out.put(pointer(machine.function_module(handle(function))?));
    Ok(())
}

pub(crate) unsafe fn cuFuncLoad(function: CUfunction) -> Answer {
    machine()?.load_function(handle(function))
}

pub(crate) unsafe fn cuFuncIsLoaded(out: *mut c_int, function: CUfunction) -> Answer {
    let machine = machine()?;
    let out = room(out)?;
    out.put(machine.is_loaded(handle(function))? as c_int);
    Ok(())
}
