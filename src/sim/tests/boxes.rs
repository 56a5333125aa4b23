//! Copies of rectangles, boxes and batches: what is checked, and what arrives.
#![allow(clippy::unwrap_used)] // helpers of tests are tests too

mod common;

use common::*;
use vgmem_abi::*;
use vgmem_sim::{Answer, BoxCopy, Machine, Operand};

const INVALID: Answer = Err(CUDA_ERROR_INVALID_VALUE);

fn device(at: u64, pitch: u64) -> Operand {
    Operand { kind: CU_MEMORYTYPE_DEVICE, host: 0, device: at, origin: [0; 3], pitch, height: 0 }
}

fn host(at: u64, pitch: u64) -> Operand {
    Operand { kind: CU_MEMORYTYPE_HOST, host: at, ..device(0, pitch) }
}

fn rectangle(to: Operand, from: Operand, width: u64, rows: u64) -> BoxCopy {
    BoxCopy { to, from, extent: [width, rows, 1], peers: None }
}

fn bytes(m: &'static Machine, at: u64, size: usize) -> Vec<u8> {
    words(m, at, size / 4).unwrap().into_iter().flat_map(u32::to_le_bytes).collect()
}

/// An allocation whose bytes count up.
fn counted(m: &'static Machine, size: usize) -> (u64, Vec<u8>) {
    let at = m.allocate(size as u64).unwrap();
    let content: Vec<u8> = (0..size).map(|i| (i * 7 + i / 256) as u8).collect();
    let words: Vec<u32> = content.chunks(4).map(|c| u32::from_le_bytes(c.try_into().unwrap())).collect();
    put(m, at, &words).unwrap();
    (at, content)
}

#[test]
fn numbers_of_a_rectangle_are_checked_as_on_hardware() {
    let m = machine("");
    let size = 4 * MIB;
    let (s, t) = (m.allocate(size).unwrap(), m.allocate(size).unwrap());
    let copy = |change: &dyn Fn(&mut BoxCopy)| {
        let mut copy = rectangle(device(t, 512), device(s, 512), 100, 4);
        change(&mut copy);
        m.copy_box(&copy, stream(0), true)
    };
    assert_eq!(copy(&|_| {}), Ok(()));
    assert_eq!(copy(&|c| c.from.pitch = 64), INVALID);
    let one_row = |c: &mut BoxCopy, pitch| (c.from.pitch, c.extent[1]) = (pitch, 1);
    assert_eq!(copy(&|c| one_row(c, 64)), INVALID, "even one row");
    assert_eq!(copy(&|c| one_row(c, 0)), Ok(()));
    for pitch in [0, 100, 101] {
        assert_eq!(copy(&|c| c.from.pitch = pitch), Ok(()), "{pitch}");
    }
    assert_eq!(copy(&|c| c.extent[0] = 0), Ok(()));
    assert_eq!(copy(&|c| c.extent[1] = 0), Ok(()));
    assert_eq!(copy(&|c| c.from.origin[0] = 450), INVALID, "wider than the pitch");
    assert_eq!(copy(&|c| c.from.origin[0] = 412), Ok(()));
    assert_eq!(copy(&|c| c.extent[1] = size / 512 + 1), INVALID);
    assert_eq!(copy(&|c| c.extent[1] = size / 512), Ok(()));
    let below = |c: &mut BoxCopy| (c.extent[1], c.from.origin[1]) = (size / 512, 1);
    assert_eq!(copy(&below), INVALID, "the next allocation is another one");
    let mut program = vec![0_u8; 4096];
    let program = program.as_mut_ptr().expose_provenance() as u64;
    assert_eq!(copy(&|c| c.from.device = program), INVALID);
    let unified = |c: &mut BoxCopy| (c.from.kind, c.from.device) = (CU_MEMORYTYPE_UNIFIED, program);
    assert_eq!(copy(&unified), Ok(()));
    assert_eq!(copy(&|c| c.from = host(program, 512)), Ok(()));
    assert_eq!(copy(&|c| c.from = host(s, 512)), Ok(()));
    assert_eq!(copy(&|c| c.from = host(0, 512)), INVALID);
    assert_eq!(copy(&|c| c.from.kind = CU_MEMORYTYPE_ARRAY), INVALID);
    assert_eq!(copy(&|c| c.from.kind = 0), INVALID);
    assert_eq!(copy(&|c| one_row(c, 1 << 31)), Ok(()));
    let overflow = |c: &mut BoxCopy| (c.from.pitch, c.from.origin[1]) = (1 << 63, 3);
    assert_eq!(copy(&overflow), INVALID);
}

#[test]
fn numbers_of_a_box_are_checked_as_on_hardware() {
    let m = machine("");
    let (s, t) = (m.allocate(4 * MIB).unwrap(), m.allocate(4 * MIB).unwrap());
    let copy = |change: &dyn Fn(&mut BoxCopy)| {
        let side = |at| Operand { height: 8, ..device(at, 512) };
        let mut copy = BoxCopy { to: side(t), from: side(s), extent: [100, 4, 3], peers: None };
        change(&mut copy);
        m.copy_box(&copy, stream(0), true)
    };
    assert_eq!(copy(&|_| {}), Ok(()));
    assert_eq!(copy(&|c| c.from.height = 3), INVALID);
    assert_eq!(copy(&|c| c.from.height = 0), Ok(()));
    assert_eq!(copy(&|c| c.from.pitch = 0), Ok(()));
    assert_eq!(copy(&|c| c.extent[2] = 0), Ok(()));
    assert_eq!(copy(&|c| (c.extent[1], c.from.origin[1]) = (8, 1)), INVALID);
    assert_eq!(copy(&|c| c.from.origin[2] = 2000), INVALID);
    let context = m.current_handle();
    for peers in [[0, 0], [context, context]] {
        assert_eq!(copy(&|c| c.peers = Some(peers)), Ok(()));
    }
    assert_eq!(copy(&|c| c.peers = Some([1, context])), Err(CUDA_ERROR_INVALID_CONTEXT));
}

#[test]
fn a_rectangle_arrives_where_it_should_and_nowhere_else() {
    let m = machine("");
    let (from, content) = counted(m, 4096);
    let (to, before) = counted(m, 8192);
    let source = Operand { origin: [3, 2, 0], ..device(from, 128) };
    let target = Operand { origin: [17, 5, 0], ..device(to, 256) };
    m.copy_box(&rectangle(target, source, 90, 20), stream(0), true).unwrap();
    let mut wanted = before;
    for row in 0..20 {
        let (a, b) = ((row + 2) * 128 + 3, (row + 5) * 256 + 17);
        wanted[b..b + 90].copy_from_slice(&content[a..a + 90]);
    }
    assert_eq!(bytes(m, to, 8192), wanted);
}

#[test]
fn a_box_crosses_the_seams_of_pages_that_lie_anywhere() {
    let m = machine("gpus=2");
    let start = reserve(m, 3);
    page(m, start, &gpu(0));
    page(m, start + PAGE, &gpu(1));
    page(m, start + 2 * PAGE, &at(CU_MEM_LOCATION_TYPE_HOST, 0, 0));
    let (from, content) = counted(m, 65536);
    // Layers of 1 MiB and a half: each of the four lies on another page, or on two.
    let side = Operand { height: 1536, ..device(start, 1024) };
    let source = Operand { height: 16, ..device(from, 1024) };
    let copy = BoxCopy { to: side, from: source, extent: [1000, 16, 4], peers: None };
    m.copy_box(&copy, stream(0), true).unwrap();
    let mut back = vec![0_u8; 65536];
    let there = Operand { height: 16, ..host(back.as_mut_ptr().expose_provenance() as u64, 1024) };
    m.copy_box(&BoxCopy { to: there, from: side, ..copy }, stream(0), true).unwrap();
    for row in (0..65536).step_by(1024) {
        assert_eq!(back[row..row + 1000], content[row..row + 1000], "{row}");
        assert_eq!(back[row + 1000..row + 1024], [0; 24]);
    }
}

#[test]
fn peers_are_reached_through_their_own_rights() {
    let m = machine("gpus=2");
    let first = m.current_handle();
    let second = m.create_context(1, 0).unwrap();
    let (there, content) = counted(m, 4096);
    m.set_context(first).unwrap();
    let here = m.allocate(4096).unwrap();
    let copy =
        BoxCopy { peers: Some([first, second]), ..rectangle(device(here, 64), device(there, 64), 64, 64) };
    m.copy_box(&copy, stream(0), true).unwrap();
    assert_eq!(bytes(m, here, 4096), content);
    let mut program = vec![0_u8; 4096];
    let to = host(program.as_mut_ptr().expose_provenance() as u64, 64);
    m.copy_box(&BoxCopy { to, ..copy }, stream(0), true).unwrap();
    assert_eq!(program, content);
}

#[test]
fn batches_are_checked_whole_and_need_a_stream() {
    let m = machine("");
    let on = stream(m.create_stream(1, 0).unwrap());
    let (from, content) = counted(m, 4096);
    let to = m.allocate(4096).unwrap();
    let lines = [(to, from + 64, 64), (to + 64, from, 64)];
    assert_eq!(m.copy_lines(&lines, stream(0)), INVALID);
    assert_eq!(m.copy_lines(&[], on), INVALID);
    fill(m, to, 0, 1024).unwrap();
    assert_eq!(m.copy_lines(&[lines[0], (to, from, 0)], on), INVALID);
    assert_eq!(m.copy_lines(&[lines[0], (to + 4000, from, 200)], on), INVALID);
    assert_eq!(bytes(m, to, 128), [0; 128], "nothing was copied");
    m.copy_lines(&lines, on).unwrap();
    m.synchronize_stream(on).unwrap();
    assert_eq!(bytes(m, to, 128), [&content[64..128], &content[..64]].concat());
    let tight = BoxCopy { to: device(to, 0), from: device(from, 128), extent: [64, 4, 2], peers: None };
    assert_eq!(m.copy_boxes(&[tight], stream(0)), INVALID);
    assert_eq!(m.copy_boxes(&[BoxCopy { extent: [64, 4, 0], ..tight }], on), INVALID);
    assert_eq!(m.copy_boxes(&[BoxCopy { from: device(from, 32), ..tight }], on), INVALID);
    m.copy_boxes(&[tight], on).unwrap();
    m.synchronize_stream(on).unwrap();
    let wanted: Vec<u8> = content.chunks(128).take(8).flat_map(|row| &row[..64]).copied().collect();
    assert_eq!(bytes(m, to, 512), wanted);
}

#[test]
fn of_pages_less_is_checked_and_the_end_is_seen_late() {
    let m = machine("");
    let start = reserve(m, 3);
    page(m, start, &gpu(0));
    page(m, start + PAGE, &gpu(0));
    let from = vec![1_u8; 1 << 20];
    let from = host(from.as_ptr().expose_provenance() as u64, 1024);
    let copy = |to, width, rows| m.copy_box(&rectangle(to, from, width, rows), stream(0), true);
    let to = device(start, 2048);
    assert_eq!(copy(to, 1000, 100), Ok(()));
    assert_eq!(copy(Operand { kind: 0, ..to }, 1000, 100), Ok(()));
    assert_eq!(copy(Operand { kind: CU_MEMORYTYPE_ARRAY, ..to }, 1000, 100), INVALID);
    assert_eq!(copy(Operand { origin: [1500, 0, 0], ..to }, 1000, 100), Ok(()), "past the pitch");
    assert_eq!(copy(Operand { pitch: 500, ..to }, 1000, 100), INVALID);
    assert_eq!(copy(Operand { origin: [0, 2000, 0], ..to }, 1000, 100), Ok(()));
    assert_eq!(m.synchronize_stream(stream(0)), Err(CUDA_ERROR_LAUNCH_FAILED));
}
