//! The rules of virtual memory management, as measured on real drivers.
#![allow(clippy::unwrap_used)] // helpers of tests are tests too

mod common;

use common::*;
use std::os::fd::{FromRawFd, OwnedFd};
use vgmem_abi::*;
use vgmem_sim::Access;

const INVALID: u32 = CUDA_ERROR_INVALID_VALUE;

#[test]
fn a_page_is_mapped_whole_and_once() {
    let m = machine("gpus=1");
    let at = reserve(m, 4);
    let handle = m.create(2 * PAGE, &gpu(0)).unwrap();
    assert_eq!(m.map(at, 2 * PAGE, PAGE, handle), Err(CUDA_ERROR_NOT_SUPPORTED));
    assert_eq!(m.map(at, PAGE, 0, handle), Err(CUDA_ERROR_NOT_SUPPORTED), "a part of it");
    assert_eq!(m.map(at + 4096, 2 * PAGE, 0, handle), Err(INVALID), "not on a granule");
    assert_eq!(m.map(at + 3 * PAGE, 2 * PAGE, 0, handle), Err(INVALID), "past the reservation");
    assert_eq!(m.map(0x10_0000_0000, 2 * PAGE, 0, handle), Err(INVALID), "not reserved");
    m.map(at, 2 * PAGE, 0, handle).unwrap();
    let other = m.create(PAGE, &gpu(0)).unwrap();
    assert_eq!(m.map(at + PAGE, PAGE, 0, other), Err(INVALID), "mapped already");
    assert_eq!(m.unmap(at, PAGE), Err(INVALID), "half a page");
    assert_eq!(m.unmap(at + PAGE, PAGE), Err(INVALID), "the other half");
    m.map(at + 3 * PAGE, PAGE, 0, other).unwrap();
    m.unmap(at, 4 * PAGE).unwrap();
    m.unmap(at, 4 * PAGE).unwrap();
    assert_eq!(m.unmap(at, 5 * PAGE), Err(INVALID), "past the reservation");
    m.unreserve(at, 4 * PAGE).unwrap();
    assert_eq!(m.unreserve(at, 4 * PAGE), Err(INVALID));
}

#[test]
fn a_reservation_goes_only_when_it_is_empty() {
    let m = machine("gpus=1");
    let at = reserve(m, 2);
    page(m, at + PAGE, &gpu(0));
    assert_eq!(m.unreserve(at, 2 * PAGE), Err(INVALID));
    m.unmap(at + PAGE, PAGE).unwrap();
    assert_eq!(m.unreserve(at, PAGE), Err(INVALID), "a part of it");
    m.unreserve(at, 2 * PAGE).unwrap();
}

#[test]
fn sizes_are_granules_and_nothing_else() {
    let m = machine("gpus=1");
    for size in [0, 1, PAGE - 1, PAGE + 4096] {
        assert_eq!(m.create(size, &gpu(0)), Err(INVALID), "{size}");
        assert_eq!(m.reserve(size, 0, 0), Err(INVALID), "{size}");
    }
    assert_eq!(m.reserve(PAGE, 3 * PAGE, 0), Err(INVALID), "alignment is a power of two");
    let aligned = m.reserve(PAGE, 1 << 30, 0).unwrap();
    assert_eq!(aligned % (1 << 30), 0);
    assert_eq!(m.granularity(&gpu(0)), Ok(PAGE));
}

#[test]
fn terabytes_are_reserved_and_a_free_hint_is_honoured() {
    let m = machine("gpus=1");
    let hint = 0x2000_0000_0000;
    let at = m.reserve(1 << 40, 0, hint).unwrap();
    assert_eq!(at, hint);
    assert_ne!(m.reserve(1 << 40, 0, hint).unwrap(), hint, "it is taken now");
    m.unreserve(at, 1 << 40).unwrap();
    let vast = m.reserve(64 << 40, 0, 0).unwrap();
    m.unreserve(vast, 64 << 40).unwrap();
}

#[test]
fn memory_lives_while_a_handle_or_a_mapping_does() {
    let m = machine("gpus=1,mem=8M");
    let at = reserve(m, 2);
    let handle = page(m, at, &gpu(0));
    m.release(handle).unwrap();
    assert_eq!(m.release(handle), Err(INVALID), "released once already");
    fill(m, at, 7, 10).unwrap();
    assert_eq!(m.current_memory_info(), Ok((6 * MIB, 8 * MIB)));
    let again = m.retain(at + 100).unwrap();
    assert_eq!(again, handle);
    m.unmap(at, PAGE).unwrap();
    assert_eq!(m.current_memory_info(), Ok((6 * MIB, 8 * MIB)));
    m.map(at + PAGE, PAGE, 0, again).unwrap();
    m.set_access(at + PAGE, PAGE, &[grant(0, WRITE)]).unwrap();
    assert_eq!(words(m, at + PAGE, 10).unwrap(), [7; 10]);
    m.release(again).unwrap();
    m.unmap(at + PAGE, PAGE).unwrap();
    assert_eq!(m.current_memory_info(), Ok((8 * MIB, 8 * MIB)));
    assert_eq!(m.map(at, PAGE, 0, handle), Err(INVALID), "a stale handle");
    // What was freed cannot be read again, by whatever gets the memory next.
    page(m, at, &gpu(0));
    assert_eq!(words(m, at, 10).unwrap(), [0; 10]);
}

#[test]
fn out_of_memory_is_exactly_two() {
    let m = machine("gpus=2,mem=6M,host=4M");
    let mut handles = Vec::new();
    for _ in 0..3 {
        handles.push(m.create(PAGE, &gpu(0)).unwrap());
    }
    assert_eq!(m.create(PAGE, &gpu(0)), Err(CUDA_ERROR_OUT_OF_MEMORY));
    assert_eq!(m.allocate(1), Err(CUDA_ERROR_OUT_OF_MEMORY));
    assert_eq!(m.create(4 * PAGE, &gpu(1)), Err(CUDA_ERROR_OUT_OF_MEMORY));
    m.create(3 * PAGE, &gpu(1)).unwrap();
    let host = at(CU_MEM_LOCATION_TYPE_HOST, 0, 0);
    m.create(2 * PAGE, &host).unwrap();
    assert_eq!(m.create(PAGE, &host), Err(CUDA_ERROR_OUT_OF_MEMORY));
    m.release(handles[0]).unwrap();
    m.create(PAGE, &gpu(0)).unwrap();
}

#[test]
fn one_page_shows_at_two_addresses() {
    let m = machine("gpus=1");
    let at = reserve(m, 2);
    let handle = page(m, at, &gpu(0));
    m.map(at + PAGE, PAGE, 0, handle).unwrap();
    m.set_access(at + PAGE, PAGE, &[grant(0, WRITE)]).unwrap();
    fill(m, at, 1, 8).unwrap();
    fill(m, at + PAGE, 2, 4).unwrap();
    assert_eq!(words(m, at, 8).unwrap(), [2, 2, 2, 2, 1, 1, 1, 1]);
}

#[test]
fn a_mapping_starts_without_access() {
    let m = machine("gpus=1");
    let at = reserve(m, 1);
    let handle = page(m, at, &gpu(0));
    let here = CUmemLocation { kind: CU_MEM_LOCATION_TYPE_DEVICE, id: 0 };
    assert_eq!(m.get_access(at, here), Ok(3));
    m.unmap(at, PAGE).unwrap();
    m.map(at, PAGE, 0, handle).unwrap();
    assert_eq!(m.get_access(at, here), Ok(0));
    assert_eq!(words(m, at, 1), Err(INVALID));
    assert_eq!(fill(m, at, 1, 1), Err(CUDA_ERROR_ILLEGAL_ADDRESS));
}

#[test]
fn access_is_given_to_whole_mappings_that_exist() {
    let m = machine("gpus=2");
    let at = reserve(m, 3);
    let handle = m.create(2 * PAGE, &gpu(0)).unwrap();
    m.map(at, 2 * PAGE, 0, handle).unwrap();
    let whole = 2 * PAGE;
    assert_eq!(m.set_access(at, PAGE, &[grant(0, WRITE)]), Err(INVALID));
    assert_eq!(m.set_access(at + 2 * PAGE, PAGE, &[grant(0, WRITE)]), Err(INVALID), "nothing there");
    m.set_access(at, 3 * PAGE, &[grant(0, 0)]).unwrap();
    assert_eq!(m.set_access(at, whole, &[grant(0, 2)]), Err(INVALID), "no such flags");
    assert_eq!(m.set_access(at, whole, &[grant(2, WRITE)]), Err(INVALID));
    // All or nothing.
    assert!(m.set_access(at, whole, &[grant(0, WRITE), grant(5, WRITE)]).is_err());
    let here = CUmemLocation { kind: CU_MEM_LOCATION_TYPE_DEVICE, id: 0 };
    assert_eq!(m.get_access(at, here), Ok(0));
    m.set_access(at, whole, &[grant(0, WRITE), grant(1, READ)]).unwrap();
    let there = CUmemLocation { kind: CU_MEM_LOCATION_TYPE_DEVICE, id: 1 };
    assert_eq!((m.get_access(at, here), m.get_access(at, there)), (Ok(3), Ok(1)));
    let cpu = CUmemLocation { kind: CU_MEM_LOCATION_TYPE_HOST, id: 0 };
    let for_cpu = CUmemAccessDesc { location: cpu, flags: WRITE };
    assert_eq!(m.set_access(at, whole, &[for_cpu]), Err(CUDA_ERROR_NOT_SUPPORTED), "a GPU's");
    assert!(Access::None < Access::Read && Access::Read < Access::Write);
}

#[test]
fn without_a_link_a_peer_cannot_map() {
    let m = machine("gpus=2,link=none");
    let at = reserve(m, 1);
    let handle = m.create(PAGE, &gpu(1)).unwrap();
    m.map(at, PAGE, 0, handle).unwrap();
    assert_eq!(m.set_access(at, PAGE, &[grant(0, WRITE)]), Err(CUDA_ERROR_INVALID_DEVICE));
    m.set_access(at, PAGE, &[grant(1, WRITE)]).unwrap();
    assert_eq!(m.can_access_peer(0, 1), Ok(false));
}

#[test]
fn host_pages_depend_on_the_driver() {
    let old = machine("driver=12010");
    let new = machine("driver=12020");
    let newest = machine("driver=13000");
    let host = at(CU_MEM_LOCATION_TYPE_HOST, 0, 0);
    let numa = |id| at(CU_MEM_LOCATION_TYPE_HOST_NUMA, id, 0);
    assert_eq!(old.create(PAGE, &numa(0)), Err(INVALID));
    assert_eq!(old.create(PAGE, &host), Err(INVALID));
    assert!(new.create(PAGE, &numa(0)).is_ok());
    assert_eq!(new.create(PAGE, &host), Err(INVALID));
    assert!(newest.create(PAGE, &host).is_ok());
    assert_eq!(newest.create(PAGE, &numa(-1)), Err(INVALID));
    let current = at(CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 0, 0);
    assert_eq!(newest.create(PAGE, &current), Err(INVALID));
    let fd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    assert_eq!(newest.create(PAGE, &at(CU_MEM_LOCATION_TYPE_HOST, 0, fd)), Err(INVALID));
    assert!(newest.create(PAGE, &at(CU_MEM_LOCATION_TYPE_HOST_NUMA, 0, fd)).is_ok());
}

#[test]
fn a_range_may_lie_on_gpus_and_host() {
    let m = machine("gpus=2");
    let at = reserve(m, 3);
    page(m, at, &gpu(0));
    page(m, at + PAGE, &common::at(CU_MEM_LOCATION_TYPE_HOST, 0, 0));
    page(m, at + 2 * PAGE, &gpu(1));
    let count = 3 * PAGE / 4;
    fill(m, at, 9, count).unwrap();
    assert_eq!(words(m, at, count as usize).unwrap(), vec![9; count as usize]);
    let seam: Vec<u32> = (0..100).collect();
    put(m, at + PAGE - 200, &seam).unwrap();
    assert_eq!(words(m, at + PAGE - 200, 100).unwrap(), seam);
    let handle = m.retain(at + PAGE).unwrap();
    assert_eq!(m.properties(handle).unwrap().location.kind, CU_MEM_LOCATION_TYPE_HOST);
}

#[test]
fn a_page_travels_as_a_descriptor() {
    let m = machine("gpus=1,mem=8M");
    let fd_type = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    let at = reserve(m, 1);
    let handle = page(m, at, &common::at(CU_MEM_LOCATION_TYPE_DEVICE, 0, fd_type));
    let plain = m.create(PAGE, &gpu(0)).unwrap();
    assert_eq!(m.export(plain, fd_type), Err(INVALID), "not asked for at creation");
    fill(m, at, 0x55, 16).unwrap();
    let fd = m.export(handle, fd_type).unwrap();
    // Another machine of this process sees the descriptor as another process would.
    let other = machine("gpus=1,mem=8M");
    let foreign = other.import(fd, fd_type).unwrap();
    let there = reserve(other, 1);
    other.map(there, PAGE, 0, foreign).unwrap();
    other.set_access(there, PAGE, &[grant(0, WRITE)]).unwrap();
    assert_eq!(words(other, there, 16).unwrap(), [0x55; 16]);
    fill(other, there, 0x66, 16).unwrap();
    let context = m.create_context(0, 0).unwrap();
    assert_eq!(words(m, at, 16).unwrap(), [0x66; 16]);
    // The importer keeps it alive.
    m.unmap(at, PAGE).unwrap();
    m.release(handle).unwrap();
    m.destroy_context(context).unwrap();
    assert_eq!(words(other, there, 16), Ok(vec![0x66; 16]));
    // SAFETY: `export` gave the descriptor to this test.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
    assert_eq!(m.import(fd, fd_type), Err(CUDA_ERROR_UNKNOWN), "closed");
    assert_eq!(m.import(0, fd_type), Err(CUDA_ERROR_UNKNOWN), "something else");
}

#[test]
fn our_own_descriptor_names_our_own_page() {
    let m = machine("gpus=1,mem=4M");
    let fd_type = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    let handle = m.create(PAGE, &at(CU_MEM_LOCATION_TYPE_DEVICE, 0, fd_type)).unwrap();
    let fd = m.export(handle, fd_type).unwrap();
    assert_eq!(m.import(fd, fd_type), Ok(handle));
    m.release(handle).unwrap();
    assert_eq!(m.current_memory_info().unwrap().0, 2 * MIB);
    m.release(handle).unwrap();
    assert_eq!(m.current_memory_info().unwrap().0, 4 * MIB);
    // SAFETY: `export` gave the descriptor to this test.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
}
