//! Stream-ordered memory, its pools, managed memory. Numbers as a real driver gave them.
#![allow(clippy::unwrap_used)] // helpers of tests are tests too

mod common;

use common::*;
use vgmem_abi::*;
use vgmem_sim::Attribute::{Long as Value, Word as Short};
use vgmem_sim::{Machine, PoolValue, StreamRef};

const INVALID: u32 = CUDA_ERROR_INVALID_VALUE;
const CHUNK: u64 = 32 * MIB;

fn free_stream(m: &Machine) -> StreamRef {
    stream(m.create_stream(1, 0).unwrap())
}

fn long(m: &Machine, pool: u64, attribute: i32) -> u64 {
    let PoolValue::Long(value) = m.pool_attribute(pool, attribute).unwrap() else { return u64::MAX };
    value
}

#[test]
fn a_pool_takes_chunks_and_gives_them_back_when_the_program_waits() {
    let m = machine("gpus=1,mem=1G");
    let on = free_stream(m);
    let pool = m.default_pool(0).unwrap();
    assert_eq!(m.current_pool(0), Ok(pool));
    let left = || m.memory_info(0).unwrap().0;
    assert_eq!(m.allocate_async(0, None, on), Ok(0));
    let a = m.allocate_async(1000, None, on).unwrap();
    let b = m.allocate_async(1000, None, on).unwrap();
    assert_eq!(b - a, 1024);
    let before = left();
    let big = m.allocate_async(64 * MIB, None, on).unwrap();
    assert_eq!(before - left(), 64 * MIB);
    let numbers = || [5, 6, 7, 8].map(|attribute| long(m, pool, attribute));
    assert_eq!(numbers(), [3 * CHUNK, 3 * CHUNK, 64 * MIB + 2000, 64 * MIB + 2000]);
    m.free_async(big, on).unwrap();
    assert_eq!(m.free_async(big, on), Err(INVALID));
    m.synchronize_stream(on).unwrap();
    assert_eq!(left(), before);
    assert_eq!(numbers(), [CHUNK, 3 * CHUNK, 2000, 64 * MIB + 2000]);
    // Kept, if the program wants it so.
    m.set_pool_attribute(pool, 4, PoolValue::Long(u64::MAX)).unwrap();
    let big = m.allocate_async(64 * MIB, None, on).unwrap();
    m.free_async(big, on).unwrap();
    m.synchronize_stream(on).unwrap();
    assert_eq!(long(m, pool, 5), 3 * CHUNK);
    m.trim_pool(pool, 0).unwrap();
    assert_eq!(long(m, pool, 5), CHUNK, "the two small ones are alive");
    for (attribute, value, answer) in [
        (5, 0, Err(INVALID)),
        (6, 5, Err(INVALID)),
        (6, 0, Ok(())),
        (7, 0, Err(INVALID)),
        (8, 0, Ok(())),
        (9, 0, Err(INVALID)),
    ] {
        assert_eq!(m.set_pool_attribute(pool, attribute, PoolValue::Long(value)), answer, "{attribute}");
    }
    assert_eq!(numbers(), [CHUNK, CHUNK, 2000, 2000]);
    assert_eq!(m.pool_attribute(pool, 1), Ok(PoolValue::Word(1)));
    assert_eq!(m.pool_attribute(pool, 9), Err(INVALID));
    assert_eq!(m.destroy_pool(pool), Err(INVALID), "it is the GPU's own");
}

#[test]
fn what_may_be_freed_in_the_order_of_a_stream() {
    let m = machine("mem=256M");
    let on = free_stream(m);
    let plain = m.allocate(5 * MIB).unwrap();
    let managed = m.allocate_managed(1000, 1).unwrap();
    let pooled = m.allocate_async(4096, None, on).unwrap();
    assert_eq!(m.free_async(0, on), Ok(()));
    assert_eq!(m.free_async(4096, on), Err(INVALID));
    assert_eq!(m.free_async(pooled + 8, on), Err(INVALID));
    assert_eq!(m.free_async(managed, on), Err(CUDA_ERROR_NOT_SUPPORTED));
    // Kernels before the free in its stream still see the memory.
    launch(m, "write_after_us", &[Long(plain), Word(7), Long(30_000)], on).unwrap();
    m.free_async(plain, on).unwrap();
    assert_eq!(m.free(plain), Err(INVALID), "it is being freed");
    m.synchronize_stream(on).unwrap();
    assert_eq!(m.attribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, plain), Err(INVALID));
    m.free(pooled).unwrap();
    assert_eq!(m.free(pooled), Err(INVALID));
    m.free(managed).unwrap();
    m.current().unwrap();
}

#[test]
fn memory_that_a_stream_has_freed_counts_when_it_is_short() {
    let m = machine("gpus=1,mem=64M");
    let on = free_stream(m);
    for round in 0..10 {
        let at = m.allocate_async(40 * MIB, None, on).unwrap();
        launch(m, "write_after_us", &[Long(at), Word(round), Long(2000)], on).unwrap();
        m.free_async(at, on).unwrap();
    }
    assert_eq!(m.allocate_async(80 * MIB, None, on), Err(CUDA_ERROR_OUT_OF_MEMORY));
    assert_eq!(m.allocate_async(u64::MAX, None, on), Err(CUDA_ERROR_OUT_OF_MEMORY));
    m.synchronize_stream(on).unwrap();
}

#[test]
fn a_pool_of_the_programs_own_goes_with_its_last_allocation() {
    let m = machine("gpus=2,mem=256M");
    let on = free_stream(m);
    let pool = m.create_pool(0).unwrap();
    let at = m.allocate_async(3 * MIB, Some(pool), on).unwrap();
    assert_eq!(m.attribute(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, at), Ok(Value(pool)));
    m.set_current_pool(0, pool).unwrap();
    assert_eq!(m.set_current_pool(1, pool), Err(INVALID));
    assert_eq!(m.current_pool(0), Ok(pool));
    m.destroy_pool(pool).unwrap();
    assert_eq!(m.destroy_pool(pool), Err(INVALID));
    assert_ne!(m.current_pool(0), Ok(pool));
    fill(m, at, 5, 4).unwrap();
    assert_eq!(words(m, at, 4), Ok(vec![5; 4]));
    m.free_async(at, on).unwrap();
    m.synchronize_stream(on).unwrap();
    assert_eq!(m.memory_info(0).unwrap().0, 256 * MIB);
    assert_eq!(m.allocate_async(64, Some(pool), on), Err(INVALID));
}

#[test]
fn a_pool_says_which_gpus_may_touch_its_memory() {
    let m = machine("gpus=2");
    let pool = m.default_pool(0).unwrap();
    let at = m.allocate_async(4096, None, stream(0)).unwrap();
    assert_eq!([m.pool_access(pool, 0), m.pool_access(pool, 1)], [Ok(true), Ok(false)]);
    assert_eq!(m.set_pool_access(pool, 0, false), Err(CUDA_ERROR_INVALID_DEVICE));
    let first = m.current_handle();
    let second = m.create_context(1, 0).unwrap();
    m.set_pool_access(pool, 1, true).unwrap();
    fill(m, at, 1, 4).unwrap();
    m.set_pool_access(pool, 1, false).unwrap();
    assert_eq!(fill(m, at, 2, 4), Err(CUDA_ERROR_ILLEGAL_ADDRESS));
    m.destroy_context(second).unwrap();
    m.set_context(first).unwrap();
    assert_eq!(words(m, at, 4), Ok(vec![1; 4]));
}

#[test]
fn what_the_driver_says_about_pooled_and_managed_memory() {
    let m = machine("");
    let pooled = m.allocate_async(1000, None, stream(0)).unwrap();
    let managed = m.allocate_managed(1000, 1).unwrap();
    let context = m.current_handle();
    let pool = m.default_pool(0).unwrap();
    for (attribute, of_pooled, of_managed) in [
        (CU_POINTER_ATTRIBUTE_CONTEXT, Ok(Value(0)), Ok(Value(context))),
        (CU_POINTER_ATTRIBUTE_MEMORY_TYPE, Ok(Short(2)), Ok(Short(2))),
        (CU_POINTER_ATTRIBUTE_HOST_POINTER, Err(INVALID), Ok(Value(managed))),
        (CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, Ok(Short(1)), Ok(Short(1))),
        (CU_POINTER_ATTRIBUTE_IS_MANAGED, Ok(Short(0)), Ok(Short(1))),
        (CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, Ok(Short(0)), Ok(Short(0))),
        (CU_POINTER_ATTRIBUTE_RANGE_SIZE, Ok(Value(1000)), Ok(Value(1000))),
        (CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, Ok(Short(0)), Ok(Short(0))),
        (CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, Ok(Value(pool)), Ok(Value(0))),
        (CU_POINTER_ATTRIBUTE_MAPPING_SIZE, Ok(Value(CHUNK)), Ok(Value(PAGE))),
    ] {
        assert_eq!(m.attribute(attribute, pooled), of_pooled, "{attribute}");
        assert_eq!(m.attribute(attribute, managed), of_managed, "{attribute}");
    }
    assert_eq!(m.ipc_handle(pooled), Err(INVALID));
}

#[test]
fn managed_memory_is_everybodys() {
    let m = machine("gpus=2");
    for (size, flags) in [(0, 1), (1000, 0), (1000, 3)] {
        assert_eq!(m.allocate_managed(size, flags), Err(INVALID));
    }
    let at = m.allocate_managed(4096, 2).unwrap();
    fill(m, at, 3, 1024).unwrap();
    let second = m.create_context(1, 0).unwrap();
    run(m, "copy_bytes", &[Long(at + 2048), Long(at), Long(4)]).unwrap();
    m.destroy_context(second).unwrap();
    // SAFETY: the memory is mapped for the host, and no kernel runs.
    let seen =
        unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance::<u32>(at as usize), 1024) };
    assert_eq!(seen, [3; 1024]);
    let plain = m.allocate(4096).unwrap();
    assert_eq!([m.advise(at, 4096, 1), m.prefetch(at, 4096, stream(0))], [Ok(()); 2]);
    assert_eq!([m.advise(at, 4097, 1), m.advise(at, 4096, 7)], [Err(INVALID); 2]);
    assert_eq!([m.advise(plain, 64, 1), m.prefetch(plain, 64, stream(0))], [Err(INVALID); 2]);
}
