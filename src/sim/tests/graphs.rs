//! Graphs: nodes, edges, executable graphs.
#![allow(clippy::unwrap_used)] // helpers of tests are tests too

mod common;

use common::*;
use std::ffi::CString;
use std::sync::{Arc, Mutex};
use vgmem_abi::*;
use vgmem_sim::{
    BoxCopy, CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, Fill, Grid, HostCall, Machine, NodeContent, Operand,
    Towards, Transfer, Update,
};

const INVALID: u32 = CUDA_ERROR_INVALID_VALUE;

/// A node that launches `scale_f32` or another kernel of (pointer, float, count).
fn kernel(m: &Machine, name: &str, at: u64, by: f32, count: u64) -> NodeContent {
    let module = m.load_module().unwrap();
    let function = m.module_function(module, &CString::new(name).unwrap()).unwrap();
    let size = Grid { grid: [1; 3], block: [1; 3], shared: 0 };
    let call = m.kernel_call(function, false, size, |_| {
        let mut bytes = at.to_le_bytes().to_vec();
        bytes.extend(by.to_le_bytes());
        bytes.extend([0; 4]);
        bytes.extend(count.to_le_bytes());
        Ok(bytes)
    });
    NodeContent::Kernel(call.unwrap())
}

fn fill_node(at: u64, value: f32, width: u64) -> NodeContent {
    NodeContent::Fill(Fill { address: at, pitch: 0, unit: 4, value: value.to_bits(), width, height: 1 })
}

fn launch_and_wait(m: &'static Machine, executable: u64) {
    m.launch_graph(executable, stream(0)).unwrap();
    m.synchronize_stream(stream(0)).unwrap();
}

#[test]
fn nodes_and_edges_are_kept_as_on_hardware() {
    let m = machine("");
    let add = |graph, after: &[u64]| m.add_node(graph, after, NodeContent::Empty, 0);
    assert_eq!(m.create_graph(1), Err(INVALID));
    let graph = m.create_graph(0).unwrap();
    let a = add(graph, &[]).unwrap();
    let b = add(graph, &[a]).unwrap();
    let c = add(graph, &[b]).unwrap();
    assert_eq!(add(graph, &[a, a]), Err(INVALID));
    assert_eq!(m.add_edges(graph, &[(a, a)]), Err(INVALID));
    assert_eq!(m.add_edges(graph, &[(a, b)]), Err(INVALID), "there is one already");
    assert_eq!(m.graph_nodes(graph), Ok(vec![a, b, c]));
    assert_eq!(m.graph_edges(graph), Ok(vec![(a, b), (b, c)]));
    assert_eq!(m.graph_roots(graph), Ok(vec![a]));
    assert_eq!(m.node_neighbours(b, Towards::Before), Ok(vec![a]));
    assert_eq!(m.node_neighbours(b, Towards::After), Ok(vec![c]));
    let other = m.create_graph(0).unwrap();
    assert_eq!(add(other, &[a]), Err(INVALID), "of another graph");
    m.add_edges(graph, &[(c, a)]).unwrap();
    assert_eq!(m.instantiate(graph, 0), Err(INVALID), "a circle");
    m.remove_edges(graph, &[(c, a)]).unwrap();
    assert_eq!(m.remove_edges(graph, &[(c, a)]), Err(INVALID));
    m.instantiate(graph, 0).unwrap();
    assert_eq!(m.instantiate(graph, 16), Err(INVALID));
    let clone = m.clone_graph(graph).unwrap();
    let twin = m.find_in_clone(b, clone).unwrap();
    assert_eq!(m.node_neighbours(twin, Towards::Before), Ok(vec![m.find_in_clone(a, clone).unwrap()]));
    assert_eq!(m.find_in_clone(b, graph), Err(INVALID));
    m.destroy_node(b).unwrap();
    assert_eq!(m.graph_edges(graph), Ok(vec![]));
    assert_eq!(m.graph_edges(clone).unwrap().len(), 2);
    m.destroy_graph(graph).unwrap();
    assert_eq!(m.destroy_graph(graph), Err(INVALID));
    assert_eq!(m.node_type(a), Err(INVALID));
}

#[test]
fn a_launch_runs_what_the_graph_says_as_often_as_wanted() {
    let m = machine("gpus=1,seed=3");
    let at = m.allocate(4096).unwrap();
    let graph = m.create_graph(0).unwrap();
    let one = m.add_node(graph, &[], fill_node(at, 1.0, 64), 0).unwrap();
    let three = m.add_node(graph, &[one], kernel(m, "scale_f32", at, 3.0, 32), 0).unwrap();
    let upper = m.add_node(graph, &[one], kernel(m, "scale_f32", at + 128, 5.0, 32), 0).unwrap();
    m.add_node(graph, &[three, upper], kernel(m, "scale_f32", at, 2.0, 64), 0).unwrap();
    let executable = m.instantiate(graph, 0).unwrap();
    let check = |low: f32, high: f32| {
        assert_eq!(values(m, at, 32), [low; 32]);
        assert_eq!(values(m, at + 128, 32), [high; 32]);
    };
    for _ in 0..20 {
        launch_and_wait(m, executable);
        check(6.0, 10.0);
    }
    m.set_executable_node(executable, three, kernel(m, "scale_f32", at, 7.0, 32)).unwrap();
    launch_and_wait(m, executable);
    check(14.0, 10.0);
    m.enable_node(executable, upper, false).unwrap();
    launch_and_wait(m, executable);
    check(14.0, 2.0);
    assert_eq!(m.set_executable_node(executable, one, kernel(m, "scale_f32", at, 7.0, 32)), Err(INVALID));
    m.destroy_graph(graph).unwrap();
    launch_and_wait(m, executable);
    check(14.0, 2.0);
    m.destroy_executable(executable).unwrap();
    assert_eq!(m.launch_graph(executable, stream(0)), Err(INVALID));
}

#[test]
fn an_update_takes_over_what_has_the_same_shape() {
    let m = machine("");
    let at = m.allocate(256).unwrap();
    let make = |by| {
        let graph = m.create_graph(0).unwrap();
        let one = m.add_node(graph, &[], fill_node(at, 1.0, 64), 0).unwrap();
        m.add_node(graph, &[one], kernel(m, "scale_f32", at, by, 64), 0).unwrap();
        graph
    };
    let executable = m.instantiate(make(2.0), 0).unwrap();
    let other = make(9.0);
    assert_eq!(m.update_executable(executable, other), Ok((0, Update { result: 0, node: 0 })));
    launch_and_wait(m, executable);
    assert_eq!(values(m, at, 64), [9.0; 64]);
    m.add_node(other, &[], NodeContent::Empty, 0).unwrap();
    let (code, update) = m.update_executable(executable, other).unwrap();
    assert_eq!((code, update), (CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, Update { result: 2, node: 0 }));
    let third = m.create_graph(0).unwrap();
    let one = m.add_node(third, &[], fill_node(at, 1.0, 64), 0).unwrap();
    let two = m.add_node(third, &[one], fill_node(at, 4.0, 64), 0).unwrap();
    assert_eq!(m.update_executable(executable, third).unwrap().1, Update { result: 3, node: two });
    launch_and_wait(m, executable);
    assert_eq!(values(m, at, 64), [9.0; 64], "as before");
}

#[test]
fn a_graph_in_a_node_is_a_copy_and_runs_in_its_place() {
    let m = machine("");
    let at = m.allocate(256).unwrap();
    let inner = m.create_graph(0).unwrap();
    let a = m.add_node(inner, &[], kernel(m, "scale_f32", at, 3.0, 64), 0).unwrap();
    m.add_node(inner, &[a], kernel(m, "scale_f32", at, 5.0, 64), 0).unwrap();
    let outer = m.create_graph(0).unwrap();
    let one = m.add_node(outer, &[], fill_node(at, 1.0, 64), 0).unwrap();
    let child = m.add_node(outer, &[one], NodeContent::Child(inner), 0).unwrap();
    let back = m.allocate(256).unwrap();
    let side = |at| Operand { kind: 2, host: 0, device: at, origin: [0; 3], pitch: 0, height: 0 };
    let copy = BoxCopy { to: side(back), from: side(at), extent: [256, 1, 1], peers: None };
    m.add_node(outer, &[child], NodeContent::Copy(copy), 0).unwrap();
    assert_eq!(m.node_type(child), Ok(4));
    assert_ne!(m.child_graph(child), Ok(inner));
    assert_eq!(m.destroy_graph(m.child_graph(child).unwrap()), Err(INVALID), "it is the node's");
    m.destroy_graph(inner).unwrap();
    let executable = m.instantiate(outer, 0).unwrap();
    for _ in 0..5 {
        launch_and_wait(m, executable);
        assert_eq!(values(m, back, 64), [15.0; 64]);
    }
}

#[test]
fn launches_of_one_graph_do_not_overlap_and_keep_the_order_of_their_stream() {
    let m = machine("seed=5");
    let [a, b] = [0; 2].map(|_| stream(m.create_stream(1, 0).unwrap()));
    let log = Arc::new(Mutex::new(Vec::new()));
    let graph = m.create_graph(0).unwrap();
    let mut last = Vec::new();
    for step in 0..3 {
        let log = log.clone();
        let call = HostCall::new(0, 0, move |_| {
            std::thread::sleep(std::time::Duration::from_millis(1));
            log.lock().unwrap().push(step);
        });
        last = vec![m.add_node(graph, &last, NodeContent::Host(call), 0).unwrap()];
    }
    let executable = m.instantiate(graph, 0).unwrap();
    for on in [a, b, a, b] {
        m.launch_graph(executable, on).unwrap();
    }
    let after = log.clone();
    m.host_call(b, HostCall::new(0, 0, move |_| after.lock().unwrap().push(9))).unwrap();
    m.synchronize_context(&m.current().unwrap()).unwrap();
    assert_eq!(*log.lock().unwrap(), [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 9]);
}

#[test]
fn events_of_nodes_are_recorded_and_waited_for() {
    let m = machine("");
    let on = stream(m.create_stream(1, 0).unwrap());
    let [start, done] = [0; 2].map(|_| m.create_event(0).unwrap());
    let at = m.allocate(64).unwrap();
    let graph = m.create_graph(0).unwrap();
    let wait = m.add_node(graph, &[], NodeContent::Wait(start), 0).unwrap();
    let set = m.add_node(graph, &[wait], fill_node(at, 2.0, 16), 0).unwrap();
    m.add_node(graph, &[set], NodeContent::Record(done), 0).unwrap();
    assert_eq!(m.add_node(graph, &[], NodeContent::Record(77), 0), Err(CUDA_ERROR_INVALID_HANDLE));
    let executable = m.instantiate(graph, 0).unwrap();
    launch(m, "sleep_us", &[Long(60_000)], stream(0)).unwrap();
    m.record_event(start, stream(0), false).unwrap();
    m.launch_graph(executable, on).unwrap();
    assert_eq!(m.query_event(done), Err(CUDA_ERROR_NOT_READY));
    m.synchronize_event(done).unwrap();
    assert_eq!(values(m, at, 16), [2.0; 16]);
}

#[test]
fn pages_may_move_between_launches() {
    let m = machine("gpus=2");
    let start = reserve(m, 1);
    let first = page(m, start, &gpu(0));
    let graph = m.create_graph(0).unwrap();
    let one = m.add_node(graph, &[], fill_node(start, 1.0, 64), 0).unwrap();
    m.add_node(graph, &[one], kernel(m, "scale_f32", start, 4.0, 64), 0).unwrap();
    let executable = m.instantiate(graph, 0).unwrap();
    launch_and_wait(m, executable);
    for properties in [at(CU_MEM_LOCATION_TYPE_HOST, 0, 0), gpu(1)] {
        m.unmap(start, PAGE).unwrap();
        page(m, start, &properties);
        assert_eq!(values(m, start, 64), [0.0; 64]);
        launch_and_wait(m, executable);
        assert_eq!(values(m, start, 64), [4.0; 64]);
    }
    m.release(first).unwrap();
    m.unmap(start, PAGE).unwrap();
    m.launch_graph(executable, stream(0)).unwrap();
    assert_eq!(m.synchronize_stream(stream(0)), Err(CUDA_ERROR_ILLEGAL_ADDRESS));
}

#[test]
fn memory_of_a_graph_lasts_as_long_as_the_graph() {
    let m = machine("mem=64M");
    let on = stream(m.create_stream(1, 0).unwrap());
    m.begin_capture(on, 0, None).unwrap();
    let at = m.allocate_async(4096, None, on).unwrap();
    launch(m, "fill_f32", &[Long(at), Float(3.0), Long(64)], on).unwrap();
    let out = {
        m.exchange_capture_mode(2).unwrap();
        let out = m.allocate(256).unwrap();
        m.exchange_capture_mode(0).unwrap();
        out
    };
    m.copy(Transfer::OnDevice, out, at, 256, on, false).unwrap();
    m.free_async(at, on).unwrap();
    let graph = m.end_capture(on).unwrap();
    let nodes = m.graph_nodes(graph).unwrap();
    assert_eq!(m.memory_node(nodes[0], false), Ok(at));
    assert_eq!(m.memory_node(nodes[3], true), Ok(at));
    let executable = m.instantiate(graph, 0).unwrap();
    m.destroy_graph(graph).unwrap();
    for _ in 0..3 {
        m.fill(Fill { address: out, pitch: 0, unit: 1, value: 0, width: 256, height: 1 }, on, false).unwrap();
        m.launch_graph(executable, on).unwrap();
        m.synchronize_stream(on).unwrap();
        assert_eq!(values(m, out, 64), [3.0; 64]);
    }
    m.destroy_executable(executable).unwrap();
    assert_eq!(m.attribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at), Err(INVALID));
}
