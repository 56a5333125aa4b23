//! Modules and libraries: every image holds every registered kernel.

use crate::handle::{self, Kind};
use crate::machine::{Machine, Objects};
use crate::registry::{self, Kernel};
use crate::stream::Destination;
use crate::util::{Answer, lock};
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use vgmem_abi::*;

/// A loaded module of a context.
pub(crate) struct Module {
    pub context: u64,
    functions: HashMap<CString, u64>,
    globals: HashMap<CString, (u64, u64)>,
}

/// A loaded library, which belongs to no context.
#[derive(Default)]
pub(crate) struct Library {
    kernels: HashMap<CString, u64>,
    /// The library's module in each context.
    modules: HashMap<u64, u64>,
}

/// A function of a module, or a kernel of a library.
pub(crate) struct Function {
    pub kernel: Arc<Kernel>,
    /// Context of a function; 0 for a kernel of a library.
    pub context: u64,
    /// The module or library.
    pub owner: u64,
    loaded: AtomicBool,
    /// Attributes that the program has set.
    pub set: Mutex<HashMap<i32, i32>>,
}

impl Function {
    fn new(kernel: Arc<Kernel>, context: u64, owner: u64) -> Arc<Function> {
        let (loaded, set) = (AtomicBool::new(false), Mutex::default());
        Arc::new(Function { kernel, context, owner, loaded, set })
    }
}

/// Variables that every module has: name and bytes.
const GLOBALS: [(&CStr, u64); 2] = [(c"sim_global_u64", 8), (c"sim_table_u64", 1024)];

impl Objects {
    /// The context of these modules is gone.
    pub fn forget_modules(&mut self, context: u64) {
        self.modules.retain(|_, module| module.context != context);
        self.functions.retain(|_, function| function.context != context);
        for library in self.libraries.values_mut() {
            library.modules.remove(&context);
        }
    }

    fn function_of_module(&mut self, module: u64, name: &CStr) -> Answer<u64> {
        let found = self.modules.get_mut(&module).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        if let Some(handle) = found.functions.get(name) {
            return Ok(*handle);
        }
        let kernel = registry::find(name).ok_or(CUDA_ERROR_NOT_FOUND)?;
        let handle = handle::fresh(Kind::Function);
        found.functions.insert(name.to_owned(), handle);
        self.functions.insert(handle, Function::new(kernel, found.context, module));
        Ok(handle)
    }

    fn new_module(&mut self, context: u64) -> u64 {
        let handle = handle::fresh(Kind::Module);
        let module = Module { context, functions: HashMap::new(), globals: HashMap::new() };
        self.modules.insert(handle, module);
        handle
    }
}

impl Machine {
    /// `cuModuleLoadData`: the image itself is not looked at.
    pub fn load_module(&self) -> Answer<u64> {
        let context = self.current()?;
        Ok(lock(&self.objects).new_module(context.handle))
    }

    /// `cuModuleUnload`.
    pub fn unload_module(&self, handle: u64) -> Answer {
        let context = self.current()?;
        let mut objects = lock(&self.objects);
        let module = objects.modules.remove(&handle).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        objects.functions.retain(|_, function| function.owner != handle);
        drop(objects);
        if !module.globals.is_empty() {
            self.scheduler.wait_for_device(context.device);
            for (address, _) in module.globals.into_values() {
                self.with_memory(|memory| memory.free(address))?;
            }
        }
        Ok(())
    }

    /// `cuModuleGetFunction`.
    pub fn module_function(&self, module: u64, name: &CStr) -> Answer<u64> {
        self.current()?;
        lock(&self.objects).function_of_module(module, name)
    }

    /// `cuModuleGetGlobal`: address and size.
    pub fn module_global(&self, module: u64, name: &CStr) -> Answer<(u64, u64)> {
        self.current()?;
        let mut objects = lock(&self.objects);
        let found = objects.modules.get(&module).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        if let Some(known) = found.globals.get(name) {
            return Ok(*known);
        }
        let context = objects.contexts.get(&found.context).cloned().ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        let size = GLOBALS.iter().find(|(global, _)| *global == name).map(|(_, size)| *size);
        let size = size.ok_or(CUDA_ERROR_NOT_FOUND)?;
        let address = self.with_memory(|memory| {
            let address = memory.allocate(context.device, context.handle, size)?;
            memory.clear(address, size);
            Answer::Ok(address)
        })?;
        if let Some(module) = objects.modules.get_mut(&module) {
            module.globals.insert(name.to_owned(), (address, size));
        }
        Ok((address, size))
    }

    /// Address of a variable of the module that a running function belongs to; the program has asked for it.
    pub(crate) fn global_of_function(&self, function: u64, context: u64, name: &CStr) -> Answer<u64> {
        let objects = lock(&self.objects);
        let owner = objects.functions.get(&function).ok_or(CUDA_ERROR_ILLEGAL_ADDRESS)?.owner;
        // A kernel of a library uses the variables of the library's module in its context.
        let module = objects.libraries.get(&owner).and_then(|library| library.modules.get(&context).copied());
        let module = objects.modules.get(&module.unwrap_or(owner)).ok_or(CUDA_ERROR_ILLEGAL_ADDRESS)?;
        module.globals.get(name).map(|(address, _)| *address).ok_or(CUDA_ERROR_ILLEGAL_ADDRESS)
    }

    /// `cuLibraryLoadData`.
    pub fn load_library(&self) -> Answer<u64> {
        let handle = handle::fresh(Kind::Library);
        lock(&self.objects).libraries.insert(handle, Library::default());
        Ok(handle)
    }

    /// `cuLibraryUnload`.
    pub fn unload_library(&self, handle: u64) -> Answer {
        let mut objects = lock(&self.objects);
        let library = objects.libraries.remove(&handle).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        for module in library.modules.values() {
            objects.modules.remove(module);
        }
        objects
            .functions
            .retain(|_, f| f.owner != handle && !library.modules.values().any(|m| *m == f.owner));
        Ok(())
    }

    /// `cuLibraryGetKernel`.
    pub fn library_kernel(&self, library: u64, name: &CStr) -> Answer<u64> {
        let mut objects = lock(&self.objects);
        let found = objects.libraries.get_mut(&library).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        if let Some(handle) = found.kernels.get(name) {
            return Ok(*handle);
        }
        let kernel = registry::find(name).ok_or(CUDA_ERROR_NOT_FOUND)?;
        let handle = handle::fresh(Kind::Kernel);
        found.kernels.insert(name.to_owned(), handle);
        objects.functions.insert(handle, Function::new(kernel, 0, library));
        Ok(handle)
    }

    /// `cuLibraryGetModule`: the library's module in the current context.
    pub fn library_module(&self, library: u64) -> Answer<u64> {
        let context = self.current()?;
        let mut objects = lock(&self.objects);
        let found = objects.libraries.get(&library).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        if let Some(module) = found.modules.get(&context.handle) {
            return Ok(*module);
        }
        let module = objects.new_module(context.handle);
        if let Some(library) = objects.libraries.get_mut(&library) {
            library.modules.insert(context.handle, module);
        }
        Ok(module)
    }

    /// `cuKernelGetFunction`: the kernel's function in the current context.
    pub fn kernel_function(&self, kernel: u64) -> Answer<u64> {
        let found = self.function(kernel, Kind::Kernel)?;
        let module = self.library_module(found.owner)?;
        lock(&self.objects).function_of_module(module, &found.kernel.name)
    }

    /// A function of a module or a kernel of a library, where either will do.
    pub(crate) fn function_or_kernel(&self, handle: u64) -> Answer<Arc<Function>> {
        lock(&self.objects).functions.get(&handle).cloned().ok_or(CUDA_ERROR_INVALID_HANDLE)
    }

    pub(crate) fn function(&self, handle: u64, kind: Kind) -> Answer<Arc<Function>> {
        if !handle::is(handle, kind) {
            return Err(CUDA_ERROR_INVALID_HANDLE);
        }
        lock(&self.objects).functions.get(&handle).cloned().ok_or(CUDA_ERROR_INVALID_HANDLE)
    }

    /// What a `CUfunction` runs; `None` for a kernel of a library, as on a real driver.
    pub fn function_kernel(&self, handle: u64) -> Answer<Arc<Kernel>> {
        Ok(self.function(handle, Kind::Function)?.kernel.clone())
    }

    /// What a `CUkernel` runs.
    pub fn kernel_kernel(&self, handle: u64) -> Answer<Arc<Kernel>> {
        Ok(self.function(handle, Kind::Kernel)?.kernel.clone())
    }

    /// Module of a function.
    pub fn function_module(&self, handle: u64) -> Answer<u64> {
        Ok(self.function(handle, Kind::Function)?.owner)
    }

    /// Library of a kernel.
    pub fn kernel_library(&self, handle: u64) -> Answer<u64> {
        Ok(self.function(handle, Kind::Kernel)?.owner)
    }

    /// `cuFuncLoad`.
    pub fn load_function(&self, handle: u64) -> Answer {
        self.function(handle, Kind::Function)?.loaded.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// `cuFuncIsLoaded`.
    pub fn is_loaded(&self, handle: u64) -> Answer<bool> {
        Ok(self.function(handle, Kind::Function)?.loaded.load(Ordering::Relaxed))
    }

    /// What a launch runs: a function of `context`, or a kernel of a library.
    ///
    /// The first launch loads the function. In a stream that waits for a value the driver loads only
    /// after the stream has drained, and keeps everybody else out of the context meanwhile.
    pub(crate) fn launchable(&self, handle: u64, destination: &Destination) -> Answer<Arc<Function>> {
        let found = lock(&self.objects).functions.get(&handle).cloned();
        let function = found.ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        let context = &destination.context;
        if function.context != 0 && function.context != context.handle {
            return Err(CUDA_ERROR_INVALID_HANDLE);
        }
        if !function.loaded.load(Ordering::Relaxed) {
            if self.scheduler.waits_for_value(destination.lane) {
                let gate = context.shut();
                self.scheduler.wait(self.scheduler.tail(destination.lane));
                drop(gate);
            }
            function.loaded.store(true, Ordering::Relaxed);
        }
        Ok(function)
    }
}
