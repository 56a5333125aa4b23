//! What concerns the whole process: start, contexts, forks, failures on demand.
#![allow(clippy::unwrap_used)] // helpers of tests are tests too

mod common;

use common::*;
use std::sync::atomic::{AtomicU32, Ordering};
use vgmem_abi::*;

/// Runs `test` in a forked child and gives its exit status.
fn in_child(test: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child only runs the closure and leaves without cleaning up.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let code = test();
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: waits for the child that was just made.
    unsafe { libc::waitpid(child, &mut status, 0) };
    libc::WEXITSTATUS(status)
}

/// One test: the machine of the process and its environment are one.
#[test]
fn the_machine_of_the_process() {
    assert_eq!(vgmem_sim::machine().err(), Some(CUDA_ERROR_NOT_INITIALIZED));
    assert_eq!(vgmem_sim::init(1).err(), Some(CUDA_ERROR_INVALID_VALUE));
    // A child of a process that has not begun may begin itself.
    assert_eq!(in_child(|| vgmem_sim::init(0).is_ok() as i32), 1);
    let m = vgmem_sim::init(0).unwrap();
    assert!(std::ptr::eq(m, vgmem_sim::init(0).unwrap()));
    assert!(std::ptr::eq(m, vgmem_sim::machine().unwrap()));
    assert_eq!(m.current().err(), Some(CUDA_ERROR_INVALID_CONTEXT));
    m.create_context(0, 0).unwrap();
    launch(m, "sleep_us", &[Long(50_000)], stream(0)).unwrap();
    let answer = in_child(|| vgmem_sim::machine().err().map_or(0, |code| code as i32));
    assert_eq!(answer, CUDA_ERROR_NOT_INITIALIZED as i32);
    // Functions of the program in a stream may not call the driver.
    let heard = std::sync::Arc::new(AtomicU32::new(0));
    let hear = heard.clone();
    let call = move |_| hear.store(vgmem_sim::machine().err().unwrap_or(0), Ordering::SeqCst);
    m.host_call(stream(0), vgmem_sim::HostCall::new(0, 0, call)).unwrap();
    m.synchronize_stream(stream(0)).unwrap();
    assert_eq!(heard.load(Ordering::SeqCst), CUDA_ERROR_NOT_PERMITTED);
}

#[test]
fn contexts_are_a_stack() {
    let m = machine("gpus=2");
    let first = m.current_handle();
    let second = m.create_context(1, 0).unwrap();
    assert_eq!(m.current().unwrap().device, 1);
    assert_eq!(m.pop_context(), Ok(second));
    assert_eq!(m.current_handle(), first);
    m.push_context(second).unwrap();
    m.set_context(0).unwrap();
    assert_eq!(m.current_handle(), first);
    assert_eq!(m.push_context(0), Err(CUDA_ERROR_INVALID_VALUE));
    assert_eq!(m.destroy_context(0), Err(CUDA_ERROR_INVALID_VALUE));
    assert_eq!(m.set_context(12345), Err(CUDA_ERROR_INVALID_CONTEXT));
    assert_eq!(m.push_context(12345), Err(CUDA_ERROR_INVALID_CONTEXT));
    m.destroy_context(second).unwrap();
    assert_eq!(m.push_context(second), Err(CUDA_ERROR_CONTEXT_IS_DESTROYED));
    assert_eq!(m.create_context(2, 0), Err(CUDA_ERROR_INVALID_DEVICE));
    m.destroy_context(first).unwrap();
    assert_eq!(m.current().err(), Some(CUDA_ERROR_INVALID_CONTEXT), "destroyed and popped");
    assert_eq!(m.pop_context(), Err(CUDA_ERROR_INVALID_CONTEXT));
    assert_eq!(m.allocate(4), Err(CUDA_ERROR_INVALID_CONTEXT));
}

#[test]
fn a_context_takes_its_memory_along() {
    let m = machine("gpus=1,mem=16M");
    let context = m.create_context(0, 0).unwrap();
    for size in [100, 3 * MIB, 600_000] {
        m.allocate(size).unwrap();
    }
    assert_eq!(m.memory_info(0), Ok((16 * MIB - 3 * PAGE, 16 * MIB)));
    let on = m.create_stream(0, 0).unwrap();
    m.destroy_context(context).unwrap();
    assert_eq!(m.memory_info(0), Ok((16 * MIB, 16 * MIB)));
    assert_eq!(m.query_stream(stream(on)), Err(CUDA_ERROR_INVALID_HANDLE));
}

#[test]
fn the_primary_context_is_counted() {
    let m = machine("gpus=2,mem=8M");
    assert_eq!(m.primary_state(1), Ok((0, false)));
    assert_eq!(m.release_primary(1), Err(CUDA_ERROR_INVALID_CONTEXT));
    m.set_primary_flags(1, 4).unwrap();
    let context = m.retain_primary(1).unwrap();
    assert_eq!(m.retain_primary(1), Ok(context));
    assert_eq!(m.primary_state(1), Ok((4, true)));
    assert_eq!(m.destroy_context(context), Err(CUDA_ERROR_INVALID_CONTEXT));
    m.set_context(context).unwrap();
    m.allocate(PAGE).unwrap();
    m.release_primary(1).unwrap();
    m.current().unwrap();
    m.release_primary(1).unwrap();
    assert_eq!(m.current().err(), Some(CUDA_ERROR_CONTEXT_IS_DESTROYED));
    assert_eq!(m.memory_info(1), Ok((8 * MIB, 8 * MIB)));
    let again = m.retain_primary(1).unwrap();
    assert_ne!(again, context);
    m.reset_primary(1).unwrap();
    assert_eq!(m.primary_state(1), Ok((4, false)));
}

#[test]
fn a_lost_primary_context_can_be_reset() {
    let m = machine("");
    let context = m.retain_primary(0).unwrap();
    m.set_context(context).unwrap();
    assert_eq!(fill(m, 4096, 1, 1), Err(CUDA_ERROR_ILLEGAL_ADDRESS));
    m.reset_primary(0).unwrap();
    let fresh = m.retain_primary(0).unwrap();
    m.set_context(fresh).unwrap();
    let at = m.allocate(64).unwrap();
    fill(m, at, 1, 16).unwrap();
}

#[test]
fn calls_fail_on_demand() {
    let m = machine("fault=3:2+cuMemCreate#2:999+cuMemFree_v2#1:700");
    assert_eq!(m.enter("cuMemAlloc_v2", 1), Ok(()));
    assert_eq!(m.enter("cuMemAlloc_v2", 2), Ok(()));
    assert_eq!(m.enter("cuMemAlloc_v2", 3), Err(2));
    assert_eq!(m.enter("cuMemCreate", 1), Ok(()));
    assert_eq!(m.enter("cuMemCreate", 2), Err(999));
    m.current().unwrap();
    assert_eq!(m.enter("cuMemFree_v2", 1), Err(700));
    assert_eq!(m.allocate(4), Err(700), "an error of this kind stays");
}

#[test]
fn gpus_have_faces() {
    let m = machine("gpus=3");
    let mut seen = std::collections::HashSet::new();
    for gpu in 0..3 {
        assert!(seen.insert(m.device_uuid(gpu).unwrap()));
        let id = m.device_pci(gpu).unwrap();
        assert_eq!(m.device_by_pci(&id), Ok(gpu));
        let bus = m.device_attribute(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, gpu).unwrap();
        assert_eq!(id, format!("0000:{bus:02X}:00.0"));
        let vmm = CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
        assert_eq!(m.device_attribute(vmm, gpu), Ok(1));
    }
    assert_eq!(m.device_uuid(3), Err(CUDA_ERROR_INVALID_DEVICE));
    assert_eq!(m.device_by_pci("0000:09:00.0"), Err(CUDA_ERROR_INVALID_DEVICE));
    assert_eq!(m.device_by_pci("nonsense"), Err(CUDA_ERROR_INVALID_VALUE));
    assert_eq!(m.can_access_peer(0, 1), Ok(true));
    assert_eq!(m.can_access_peer(0, 0), Ok(false));
    assert_eq!(m.peer_attribute(2, 0, 1), Ok(1));
}
