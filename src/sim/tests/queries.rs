//! What the driver says about addresses: raw, as a real one does.
#![allow(clippy::unwrap_used)] // helpers of tests are tests too

mod common;

use common::*;
use vgmem_abi::*;
use vgmem_sim::Attribute::{self, Long as Value, Word as Short};
use vgmem_sim::Machine;

const INVALID: u32 = CUDA_ERROR_INVALID_VALUE;

fn check(m: &Machine, address: u64, wanted: &[(i32, Attribute)]) {
    for (attribute, value) in wanted {
        assert_eq!(m.attribute(*attribute, address), Ok(*value), "attribute {attribute}");
    }
}

#[test]
fn an_allocation() {
    let m = machine("gpus=2");
    m.create_context(1, 0).unwrap();
    let at = m.allocate(5000).unwrap();
    let inside = at + 100;
    check(
        m,
        inside,
        &[
            (CU_POINTER_ATTRIBUTE_CONTEXT, Value(m.current_handle())),
            (CU_POINTER_ATTRIBUTE_MEMORY_TYPE, Short(2)),
            (CU_POINTER_ATTRIBUTE_DEVICE_POINTER, Value(inside)),
            (CU_POINTER_ATTRIBUTE_IS_MANAGED, Short(0)),
            (CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, Short(1)),
            (CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, Short(1)),
            (CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, Value(at)),
            (CU_POINTER_ATTRIBUTE_RANGE_SIZE, Value(5000)),
            (CU_POINTER_ATTRIBUTE_MAPPED, Short(1)),
            (CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, Short(1)),
            (CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, Short(1)),
            (CU_POINTER_ATTRIBUTE_MAPPING_SIZE, Value(PAGE)),
            (CU_POINTER_ATTRIBUTE_P2P_TOKENS, Attribute::Tokens(0, 0)),
            (CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, Value(0)),
            (CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, Value(0)),
            (CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, Short(3)),
        ],
    );
    assert_eq!(m.attribute(CU_POINTER_ATTRIBUTE_HOST_POINTER, at), Err(INVALID));
    assert_eq!(m.written_on_failure(CU_POINTER_ATTRIBUTE_HOST_POINTER, at), Some(Value(0)));
    assert_eq!(m.attribute(99, at), Err(INVALID));
    assert_eq!(m.address_range(inside), Ok((at, 5000)));
    assert_eq!(m.retain(at), Err(INVALID), "no handle behind it");
    let other = m.allocate(5000).unwrap();
    let id = |address| m.attribute(CU_POINTER_ATTRIBUTE_BUFFER_ID, address).unwrap();
    assert_ne!(id(at), id(other));
    m.free(other).unwrap();
    assert_eq!(m.attribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, other), Err(INVALID));
}

#[test]
fn a_page_of_a_gpu_and_a_page_of_the_host() {
    let m = machine("gpus=2");
    let start = reserve(m, 3);
    let fd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    page(m, start, &at(CU_MEM_LOCATION_TYPE_DEVICE, 1, fd));
    page(m, start + PAGE, &at(CU_MEM_LOCATION_TYPE_HOST, 0, 0));
    let common = [
        (CU_POINTER_ATTRIBUTE_CONTEXT, Value(0)),
        (CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, Value(start)),
        (CU_POINTER_ATTRIBUTE_RANGE_SIZE, Value(3 * PAGE)),
        (CU_POINTER_ATTRIBUTE_MAPPING_SIZE, Value(PAGE)),
        (CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, Short(0)),
        (CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, Short(0)),
        (CU_POINTER_ATTRIBUTE_MAPPED, Short(1)),
        (CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, Short(3)),
    ];
    check(m, start + 8, &common);
    check(m, start + PAGE + 8, &common);
    check(
        m,
        start + 8,
        &[
            (CU_POINTER_ATTRIBUTE_MEMORY_TYPE, Short(2)),
            (CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, Short(1)),
            (CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, Short(1)),
            (CU_POINTER_ATTRIBUTE_P2P_TOKENS, Attribute::Tokens(0, 0)),
            (CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, Value(1)),
            (CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, Value(start)),
        ],
    );
    let sync = CU_POINTER_ATTRIBUTE_SYNC_MEMOPS;
    check(m, start + PAGE, &[(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, Short(1)), (sync, Short(0))]);
    assert_eq!(m.attribute(CU_POINTER_ATTRIBUTE_P2P_TOKENS, start + PAGE), Err(INVALID));
    let written = m.written_on_failure(CU_POINTER_ATTRIBUTE_P2P_TOKENS, start + PAGE);
    assert_eq!(written, Some(Attribute::Tokens(0, 0)));
    assert_eq!(m.set_attribute(sync, start, true), Err(CUDA_ERROR_NOT_SUPPORTED));
    assert_eq!(m.address_range(start + 8), Ok((start, PAGE)));
    assert_eq!(m.address_range(start + PAGE).unwrap().0, 0);
    // A page without access has no address on the GPU, one that the CPU may not touch none there.
    m.set_access(start, PAGE, &[grant(0, 0)]).unwrap();
    assert_eq!(m.attribute(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, start), Err(INVALID));
    assert_eq!(m.attribute(CU_POINTER_ATTRIBUTE_HOST_POINTER, start + PAGE), Err(INVALID));
    let location = CUmemLocation { kind: CU_MEM_LOCATION_TYPE_HOST_NUMA, id: 0 };
    m.set_access(start + PAGE, PAGE, &[CUmemAccessDesc { location, flags: WRITE }]).unwrap();
    check(m, start + PAGE, &[(CU_POINTER_ATTRIBUTE_HOST_POINTER, Value(start + PAGE))]);
    // The hole behind them.
    for attribute in 1..=20 {
        assert_eq!(m.attribute(attribute, start + 2 * PAGE), Err(INVALID));
    }
    let listed = |attribute| m.attribute_in_list(attribute, start + 2 * PAGE);
    assert_eq!(listed(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR), Ok(Some(Value(start))));
    assert_eq!(listed(CU_POINTER_ATTRIBUTE_MAPPED), Ok(Some(Short(0))));
    assert_eq!(listed(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL), Ok(Some(Short(-2_i32 as u32))));
}

#[test]
fn pinned_and_unknown_memory() {
    let m = machine("");
    let host = m.host_allocate(10_000, 1).unwrap();
    check(
        m,
        host + 5,
        &[
            (CU_POINTER_ATTRIBUTE_MEMORY_TYPE, Short(1)),
            (CU_POINTER_ATTRIBUTE_HOST_POINTER, Value(host + 5)),
            (CU_POINTER_ATTRIBUTE_DEVICE_POINTER, Value(host + 5)),
            (CU_POINTER_ATTRIBUTE_RANGE_SIZE, Value(10_000)),
            (CU_POINTER_ATTRIBUTE_MAPPING_SIZE, Value(PAGE)),
            (CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, Value(host)),
        ],
    );
    assert_eq!(m.host_flags(host), Ok(3));
    assert_eq!([m.host_allocate(0, 0), m.host_free(0).map(|()| 0)], [Ok(0); 2]);
    let plain = [0_u64; 4];
    let unknown = plain.as_ptr().expose_provenance() as u64;
    assert_eq!(m.attribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, unknown), Err(INVALID));
    assert_eq!(m.address_range(unknown), Err(CUDA_ERROR_NOT_FOUND));
    assert_eq!(m.host_free(unknown), Err(INVALID));
    m.host_free(host).unwrap();
    assert_eq!(m.host_free(host), Err(INVALID));
}

#[test]
fn synchronous_memory_makes_copies_wait() {
    let m = machine("");
    let (a, b) = (m.allocate(64).unwrap(), m.allocate(64).unwrap());
    let copy = || m.copy(vgmem_sim::Transfer::OnDevice, a, b, 64, stream(0), false);
    launch(m, "sleep_us", &[Long(50_000)], stream(0)).unwrap();
    copy().unwrap();
    assert_eq!(m.query_stream(stream(0)), Err(CUDA_ERROR_NOT_READY));
    m.set_attribute(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, a + 8, true).unwrap();
    check(m, a, &[(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, Short(1))]);
    copy().unwrap();
    m.query_stream(stream(0)).unwrap();
    assert_eq!(m.set_attribute(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, 4096, true), Err(INVALID));
}

#[test]
fn a_large_allocation_is_mapped_in_granules() {
    let m = machine("");
    let at = m.allocate(8 * MIB + 12345).unwrap();
    check(
        m,
        at + 5,
        &[
            (CU_POINTER_ATTRIBUTE_RANGE_SIZE, Value(8 * MIB + 12345)),
            (CU_POINTER_ATTRIBUTE_MAPPING_SIZE, Value(10 * MIB)),
            (CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, Value(at)),
        ],
    );
    assert_eq!(m.address_range(at + 5), Ok((at, 8 * MIB + 12345)));
}

#[test]
fn lists_know_something_of_every_address() {
    let m = machine("");
    let plain = [0_u64; 4];
    for address in [0, plain.as_ptr().expose_provenance() as u64] {
        for attribute in 1..=20 {
            assert_eq!(m.attribute(attribute, address), Err(INVALID), "{attribute}");
            assert_eq!(m.written_on_failure(attribute, address), None);
            let wanted = match attribute {
                CU_POINTER_ATTRIBUTE_P2P_TOKENS => Err(INVALID),
                CU_POINTER_ATTRIBUTE_RANGE_START_ADDR | CU_POINTER_ATTRIBUTE_RANGE_SIZE => Ok(None),
                CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => Ok(Some(Short(-2_i32 as u32))),
                CU_POINTER_ATTRIBUTE_HOST_POINTER => Ok(Some(Value(address))),
                2 | 6 | 8 | 10 | 13 | 15 | 16 => Ok(Some(Short(0))),
                _ => Ok(Some(Value(0))),
            };
            assert_eq!(m.attribute_in_list(attribute, address), wanted, "{attribute}");
        }
    }
    let at = m.allocate(64).unwrap();
    assert_eq!(m.attribute_in_list(CU_POINTER_ATTRIBUTE_P2P_TOKENS, at), Err(INVALID));
    assert_eq!(m.attribute_in_list(CU_POINTER_ATTRIBUTE_HOST_POINTER, at), Ok(Some(Value(0))));
    assert_eq!(m.attribute_in_list(CU_POINTER_ATTRIBUTE_RANGE_SIZE, at), Ok(Some(Value(64))));
    assert_eq!(m.attribute_in_list(99, at), Err(INVALID));
}
