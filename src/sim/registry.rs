//! Kernels: host functions by name, with a stated layout of their parameters.

use crate::exec::Exec;
use crate::kernels;
use crate::util::{Answer, lock};
use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex, OnceLock};
use vgmem_abi::CUDA_ERROR_LAUNCH_FAILED;

type Body = dyn Fn(&Exec, &Args) -> Answer + Send + Sync;

/// A kernel.
pub struct Kernel {
    /// Its name, as modules know it.
    pub name: CString,
    /// Offset and size of each parameter in the buffer.
    pub parameters: Vec<(usize, usize)>,
    /// Bytes of the buffer.
    pub size: usize,
    body: Box<Body>,
}

/// Parameters of a launch.
pub struct Args<'a> {
    kernel: &'a Kernel,
    bytes: &'a [u8],
}

impl Args<'_> {
    /// Bytes of parameter `index`.
    pub fn bytes(&self, index: usize) -> Answer<&[u8]> {
        let (offset, size) = *self.kernel.parameters.get(index).ok_or(CUDA_ERROR_LAUNCH_FAILED)?;
        self.bytes.get(offset..offset + size).ok_or(CUDA_ERROR_LAUNCH_FAILED)
    }

    /// Number of parameters.
    pub fn count(&self) -> usize {
        self.kernel.parameters.len()
    }

    /// Parameter `index`, eight bytes.
    pub fn u64(&self, index: usize) -> Answer<u64> {
        let bytes = self.bytes(index)?.try_into().map_err(|_| CUDA_ERROR_LAUNCH_FAILED)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Parameter `index`, four bytes.
    pub fn u32(&self, index: usize) -> Answer<u32> {
        let bytes = self.bytes(index)?.try_into().map_err(|_| CUDA_ERROR_LAUNCH_FAILED)?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// Parameter `index`, a float.
    pub fn f32(&self, index: usize) -> Answer<f32> {
        self.u32(index).map(f32::from_bits)
    }
}

impl Kernel {
    fn new(name: CString, sizes: &[u32], body: Box<Body>) -> Kernel {
        let mut size = 0_usize;
        let mut parameters = Vec::with_capacity(sizes.len());
        for one in sizes.iter().map(|size| *size as usize) {
            // Aligned as C aligns a value of that size made of its largest natural parts.
            let align = 1 << one.trailing_zeros().min(3);
            size = size.next_multiple_of(align);
            parameters.push((size, one));
            size += one;
        }
        Kernel { name, parameters, size, body }
    }

    /// Runs the kernel.
    pub(crate) fn run(&self, exec: &Exec, bytes: &[u8]) -> Answer {
        (self.body)(exec, &Args { kernel: self, bytes })
    }
}

type Registry = Mutex<HashMap<CString, Arc<Kernel>>>;

fn registry() -> &'static Registry {
    static REGISTRY: OnceLock<Registry> = OnceLock::new();
    REGISTRY.get_or_init(|| {
        let mut all = HashMap::new();
        kernels::each(&mut |name, sizes, body| {
            if let Ok(name) = CString::new(name) {
                all.insert(name.clone(), Arc::new(Kernel::new(name, sizes, body)));
            }
        });
        Mutex::new(all)
    })
}

/// Adds a kernel, or replaces the one of that name; parameters have 1 to 4096 bytes each.
pub fn register(
    name: CString,
    sizes: &[u32],
    body: impl Fn(&Exec, &Args) -> Answer + Send + Sync + 'static,
) -> bool {
    if name.is_empty() || sizes.iter().any(|size| !(1..=4096).contains(size)) {
        return false;
    }
    let kernel = Arc::new(Kernel::new(name.clone(), sizes, Box::new(body)));
    lock(registry()).insert(name, kernel);
    true
}

/// The kernel of a name.
pub(crate) fn find(name: &std::ffi::CStr) -> Option<Arc<Kernel>> {
    lock(registry()).get(name).cloned()
}
