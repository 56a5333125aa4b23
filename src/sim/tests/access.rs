//! Who may touch what, and what happens to those who may not.
#![allow(clippy::unwrap_used)] // helpers of tests are tests too

mod common;

use common::*;
use vgmem_abi::*;
use vgmem_sim::{Fill, Transfer};

const INVALID: u32 = CUDA_ERROR_INVALID_VALUE;
const ILLEGAL: u32 = CUDA_ERROR_ILLEGAL_ADDRESS;

fn set(address: u64, count: u64) -> Fill {
    Fill { address, pitch: 0, unit: 4, value: 1, width: count, height: 1 }
}

#[test]
fn a_page_for_reading_is_not_written() {
    let m = machine("gpus=1");
    let at = reserve(m, 1);
    page(m, at, &gpu(0));
    fill(m, at, 5, 4).unwrap();
    m.set_access(at, PAGE, &[grant(0, READ)]).unwrap();
    let out = m.allocate(64).unwrap();
    run(m, "copy_f32", &[Long(out), Long(at), Long(4)]).unwrap();
    assert_eq!(words(m, out, 4).unwrap(), [5; 4]);
    assert_eq!(m.fill(set(at, 4), stream(0), true), Err(INVALID));
    assert_eq!(put(m, at, &[1]), Err(INVALID));
    assert_eq!(words(m, at, 4).unwrap(), [5; 4], "reading goes on");
    assert_eq!(fill(m, at, 6, 1), Err(ILLEGAL));
}

#[test]
fn after_an_illegal_access_all_contexts_of_the_gpu_are_lost_and_no_other() {
    let m = machine("gpus=2");
    let beside = m.create_context(0, 0).unwrap();
    m.pop_context().unwrap();
    let good = m.allocate(64).unwrap();
    let lost = m.current_handle();
    assert_eq!(fill(m, good + 4096, 1, 1), Err(ILLEGAL));
    assert_eq!(m.allocate(64), Err(ILLEGAL));
    assert_eq!(m.free(good), Err(ILLEGAL));
    assert_eq!(words(m, good, 1), Err(ILLEGAL));
    assert_eq!(m.create_stream(0, 0), Err(ILLEGAL));
    m.attribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, good).unwrap();
    m.release(m.create(PAGE, &gpu(0)).unwrap()).unwrap();
    assert_eq!(m.query_stream(stream(0)), Err(ILLEGAL));
    m.create_context(1, 0).unwrap();
    let other = m.allocate(64).unwrap();
    fill(m, other, 3, 16).unwrap();
    m.set_context(beside).unwrap();
    assert_eq!(m.allocate(64), Err(ILLEGAL), "of the same GPU");
    m.destroy_context(beside).unwrap();
    m.destroy_context(lost).unwrap();
    m.set_context(lost).unwrap();
    assert_eq!(m.allocate(64), Err(CUDA_ERROR_CONTEXT_IS_DESTROYED), "told by the next call");
    assert_eq!(m.memory_info(0).unwrap().0, m.memory_info(0).unwrap().1, "its memory is free");
}

#[test]
fn an_access_past_the_end_is_found_to_the_byte() {
    let m = machine("gpus=1");
    let small = m.allocate(1000).unwrap();
    let large = m.allocate(3 * MIB + 4).unwrap();
    fill(m, small, 1, 250).unwrap();
    fill(m, large, 1, 3 * MIB / 4 + 1).unwrap();
    assert_eq!(put(m, small, &[0; 251]), Err(INVALID));
    assert_eq!(m.fill(set(small, 251), stream(0), true), Err(INVALID));
    assert_eq!(fill(m, large, 1, 3 * MIB / 4 + 2), Err(ILLEGAL));
}

#[test]
fn freed_memory_is_gone() {
    let m = machine("gpus=1");
    let keep = m.allocate(512).unwrap();
    let gone = m.allocate(512).unwrap();
    let large = m.allocate(4 * MIB).unwrap();
    for address in [gone, large] {
        m.free(address).unwrap();
        assert_eq!(m.free(address), Err(INVALID));
        assert_eq!(words(m, address, 1), Err(INVALID));
    }
    assert_eq!(m.free(keep + 256), Err(INVALID), "inside an allocation");
    let reused = m.allocate(512).unwrap();
    assert_eq!(reused, gone, "the driver reuses addresses");
    assert_eq!(words(m, reused, 1).unwrap(), [0xcbcb_cbcb], "but never shows old bytes");
    assert_eq!(run(m, "copy_f32", &[Long(keep), Long(large), Long(1)]), Err(ILLEGAL));
}

#[test]
fn copies_need_access_where_they_run() {
    let m = machine("gpus=2");
    let at = reserve(m, 2);
    for (address, owner) in [(at, 0), (at + PAGE, 1)] {
        let handle = m.create(PAGE, &gpu(owner)).unwrap();
        m.map(address, PAGE, 0, handle).unwrap();
        m.set_access(address, PAGE, &[grant(owner, WRITE)]).unwrap();
    }
    let zero = m.current_handle();
    let one = m.create_context(1, 0).unwrap();
    fill(m, at + PAGE, 8, 100).unwrap();
    m.set_context(zero).unwrap();
    let there = at + PAGE;
    assert_eq!(m.copy(Transfer::OnDevice, at, there, 400, stream(0), true), Err(INVALID));
    assert_eq!(m.copy(Transfer::Unified, at, there, 400, stream(0), false), Err(INVALID));
    m.copy(Transfer::Peer(zero, one), at, there, 400, stream(0), true).unwrap();
    assert_eq!(words(m, at, 100).unwrap(), [8; 100]);
    // The named contexts need not hold the pages.
    m.copy(Transfer::Peer(zero, zero), at + 1000, there, 400, stream(0), true).unwrap();
    m.set_access(there, PAGE, &[grant(0, WRITE)]).unwrap();
    m.copy(Transfer::OnDevice, there, at, 400, stream(0), true).unwrap();
}

#[test]
fn allocations_of_a_peer_need_its_leave_in_kernels_only() {
    let m = machine("gpus=2");
    let zero = m.current_handle();
    let one = m.create_context(1, 0).unwrap();
    let there = m.allocate(4096).unwrap();
    let here = m.current_handle();
    assert_eq!(here, one);
    m.set_context(zero).unwrap();
    put(m, there, &[4; 10]).unwrap();
    assert_eq!(words(m, there, 10).unwrap(), [4; 10]);
    assert_eq!(m.disable_peer(one), Err(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED));
    m.enable_peer(one, 0).unwrap();
    assert_eq!(m.enable_peer(one, 0), Err(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED));
    fill(m, there, 7, 10).unwrap();
    m.disable_peer(one).unwrap();
    assert_eq!(fill(m, there, 7, 10), Err(ILLEGAL));
}

#[test]
fn peers_without_a_link_are_refused() {
    let m = machine("gpus=2,link=none");
    let zero = m.current_handle();
    let one = m.create_context(1, 0).unwrap();
    m.set_context(zero).unwrap();
    assert_eq!(m.enable_peer(one, 0), Err(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED));
    assert_eq!(m.enable_peer(zero, 0), Err(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED));
}

#[test]
fn unmapping_under_a_kernel_is_found() {
    let m = machine("gpus=1");
    let at = reserve(m, 2);
    page(m, at, &gpu(0));
    let next = page(m, at + PAGE, &gpu(0));
    launch(m, "write_after_us", &[Long(at), Word(1), Long(300_000)], stream(0)).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(50));
    // The neighbour may move under the running kernel.
    m.unmap(at + PAGE, PAGE).unwrap();
    m.map(at + PAGE, PAGE, 0, next).unwrap();
    m.current().unwrap();
    m.unmap(at, PAGE).unwrap();
    m.unmap(at + PAGE, PAGE).unwrap();
    // Not even the addresses may go from under it.
    m.unreserve(at, 2 * PAGE).unwrap();
    assert_eq!(m.synchronize_context(&m.current().unwrap()), Err(ILLEGAL));
}

#[test]
fn what_counts_is_the_mapping_when_a_kernel_runs() {
    let m = machine("gpus=1");
    let at = reserve(m, 1);
    launch(m, "sleep_us", &[Long(100_000)], stream(0)).unwrap();
    launch(m, "fill_u32", &[Long(at), Word(3), Long(5)], stream(0)).unwrap();
    page(m, at, &gpu(0));
    m.synchronize_stream(stream(0)).unwrap();
    assert_eq!(words(m, at, 5).unwrap(), [3; 5]);
}

#[test]
fn free_waits_for_the_kernel() {
    let m = machine("gpus=1");
    let at = m.allocate(4 * MIB).unwrap();
    let watched = m.host_allocate(4, 0).unwrap();
    let other = m.create_stream(1, 0).unwrap();
    launch(m, "write_after_us", &[Long(at), Word(1), Long(100_000)], stream(other)).unwrap();
    launch(m, "fill_u32", &[Long(watched), Word(1), Long(1)], stream(other)).unwrap();
    m.free(at).unwrap();
    m.query_stream(stream(other)).unwrap();
    assert_eq!(words(m, watched, 1).unwrap(), [1]);
}

#[test]
fn memory_of_the_program_is_for_copies_only() {
    let m = machine("gpus=1");
    let mut plain = vec![1_u32; 1024];
    let host = plain.as_mut_ptr().expose_provenance() as u64;
    let at = m.allocate(4096).unwrap();
    m.copy(Transfer::Unified, at, host, 4096, stream(0), false).unwrap();
    assert_eq!(m.copy(Transfer::ToDevice, host, at, 4096, stream(0), true), Err(INVALID));
    assert_eq!(m.fill(set(host, 4), stream(0), true), Err(INVALID));
    m.host_register(host, 4096, 0).unwrap();
    assert_eq!(m.host_register(host + 8, 8, 0), Err(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED));
    fill(m, host, 2, 1024).unwrap();
    m.host_unregister(host).unwrap();
    assert_eq!(m.host_unregister(host), Err(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED));
    assert_eq!(plain, [2; 1024]);
    assert_eq!(fill(m, host, 2, 1), Err(ILLEGAL));
}

#[test]
fn memsets_of_rows_leave_the_gaps() {
    let m = machine("gpus=1");
    let (at, pitch) = m.allocate_pitch(100, 3, 4).unwrap();
    assert_eq!((at % 512, pitch), (0, 512));
    let whole = Fill { address: at, pitch: 0, unit: 1, value: 0, width: 3 * 512, height: 1 };
    m.fill(whole, stream(0), true).unwrap();
    let rows = Fill { address: at, pitch, unit: 2, value: 0x1234, width: 50, height: 3 };
    m.fill(rows, stream(0), true).unwrap();
    let found = words(m, at, 384).unwrap();
    for (index, word) in found.iter().enumerate() {
        assert_eq!(*word, if index % 128 < 25 { 0x1234_1234 } else { 0 }, "{index}");
    }
    assert_eq!(m.fill(Fill { address: at + 1, ..rows }, stream(0), true), Err(INVALID));
    assert_eq!(m.fill(Fill { pitch: 98, ..rows }, stream(0), true), Err(INVALID));
    assert_eq!(m.fill(Fill { height: 4, ..rows }, stream(0), true), Err(INVALID));
    assert_eq!(m.allocate_pitch(100, 3, 5), Err(INVALID));
}

#[test]
fn an_address_that_a_type_cannot_have_is_told_apart() {
    let m = machine("");
    let at = m.allocate(64).unwrap();
    assert_eq!(fill(m, at + 1, 1, 1), Err(vgmem_sim::CUDA_ERROR_MISALIGNED_ADDRESS));
    assert_eq!(m.allocate(64), Err(vgmem_sim::CUDA_ERROR_MISALIGNED_ADDRESS));
}

#[test]
fn memory_is_freed_without_a_context() {
    let m = machine("");
    let at = m.allocate(3 * MIB).unwrap();
    m.pop_context().unwrap();
    assert_eq!(m.allocate(64), Err(CUDA_ERROR_INVALID_CONTEXT));
    m.free(at).unwrap();
    assert_eq!(m.free(at), Err(CUDA_ERROR_INVALID_VALUE));
}
