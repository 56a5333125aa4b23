//! A machine for a test, with what C programs would write by hand.
#![allow(dead_code, clippy::unwrap_used)] // every test file uses another part; this is test code

use std::ffi::CString;
use vgmem_abi::*;
use vgmem_sim::{Answer, Machine, Settings, StreamRef};

pub const MIB: u64 = 1 << 20;
pub const PAGE: u64 = 2 * MIB;
pub const READ: i32 = CU_MEM_ACCESS_FLAGS_PROT_READ;
pub const WRITE: i32 = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;

/// A machine with a context of GPU 0 current on this thread.
pub fn machine(settings: &str) -> &'static Machine {
    let machine = Machine::new(Settings::parse(settings).unwrap()).unwrap();
    machine.create_context(0, 0).unwrap();
    machine
}

/// A parameter of a launch.
pub enum Arg {
    Long(u64),
    Word(u32),
    Float(f32),
}

pub use Arg::{Float, Long, Word};

pub fn stream(handle: u64) -> StreamRef {
    StreamRef { handle, per_thread: false }
}

/// Launches a kernel by name, parameters one after the other.
pub fn launch(m: &'static Machine, name: &str, args: &[Arg], on: StreamRef) -> Answer {
    let module = m.load_module()?;
    let function = m.module_function(module, &CString::new(name).unwrap())?;
    let launch = m.prepare_launch(function, [1; 3], [1; 3], 0, on)?;
    assert_eq!(launch.kernel.parameters.len(), args.len(), "{name}");
    let mut bytes = vec![0; launch.kernel.size];
    for (arg, (offset, size)) in args.iter().zip(&launch.kernel.parameters) {
        let value = match arg {
            Long(value) => value.to_le_bytes().to_vec(),
            Word(value) => value.to_le_bytes().to_vec(),
            Float(value) => value.to_le_bytes().to_vec(),
        };
        bytes[*offset..offset + size].copy_from_slice(&value);
    }
    m.launch(launch, bytes)
}

/// Launches on the legacy default stream and waits.
pub fn run(m: &'static Machine, name: &str, args: &[Arg]) -> Answer {
    launch(m, name, args, stream(0))?;
    m.synchronize_context(&*m.current()?)
}

/// What `cuMemCreate` is asked for.
pub fn at(kind: i32, id: i32, handle_types: i32) -> CUmemAllocationProp {
    CUmemAllocationProp {
        kind: CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: handle_types,
        location: CUmemLocation { kind, id },
        win32HandleMetaData: std::ptr::null_mut(),
        compressionType: 0,
        gpuDirectRDMACapable: 0,
        usage: 0,
        reserved: [0; 4],
    }
}

pub fn gpu(id: i32) -> CUmemAllocationProp {
    at(CU_MEM_LOCATION_TYPE_DEVICE, id, 0)
}

pub fn grant(id: i32, flags: i32) -> CUmemAccessDesc {
    CUmemAccessDesc { location: CUmemLocation { kind: CU_MEM_LOCATION_TYPE_DEVICE, id }, flags }
}

/// Reserves `pages` pages of addresses.
pub fn reserve(m: &Machine, pages: u64) -> u64 {
    m.reserve(pages * PAGE, 0, 0).unwrap()
}

/// A new page mapped at `address`, with access for GPU 0.
pub fn page(m: &Machine, address: u64, properties: &CUmemAllocationProp) -> u64 {
    let handle = m.create(PAGE, properties).unwrap();
    m.map(address, PAGE, 0, handle).unwrap();
    m.set_access(address, PAGE, &[grant(0, WRITE)]).unwrap();
    handle
}

/// Fills words from the GPU.
pub fn fill(m: &'static Machine, address: u64, value: u32, count: u64) -> Answer {
    run(m, "fill_u32", &[Long(address), Word(value), Long(count)])
}

/// Copies words to the host.
pub fn words(m: &'static Machine, address: u64, count: usize) -> Answer<Vec<u32>> {
    let mut to = vec![0_u32; count];
    let host = to.as_mut_ptr().expose_provenance() as u64;
    m.copy(vgmem_sim::Transfer::FromDevice, host, address, 4 * count as u64, stream(0), true)?;
    Ok(to)
}

/// Copies words to the GPU.
pub fn put(m: &'static Machine, address: u64, from: &[u32]) -> Answer {
    let host = from.as_ptr().expose_provenance() as u64;
    m.copy(vgmem_sim::Transfer::ToDevice, address, host, 4 * from.len() as u64, stream(0), true)
}

/// An allocation that holds `values`.
pub fn floats(m: &'static Machine, values: &[f32]) -> u64 {
    let address = m.allocate(4 * values.len() as u64).unwrap();
    let bits: Vec<u32> = values.iter().map(|value| value.to_bits()).collect();
    put(m, address, &bits).unwrap();
    address
}

/// Values of an allocation.
pub fn values(m: &'static Machine, address: u64, count: usize) -> Vec<f32> {
    words(m, address, count).unwrap().into_iter().map(f32::from_bits).collect()
}
