//! The kernels compute what they say, and launches are checked.
#![allow(clippy::unwrap_used)] // helpers of tests are tests too

mod common;

use common::*;
use vgmem_abi::*;
use vgmem_sim::{Answer, Machine};

/// Numbers that are neither round nor regular.
fn some(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn close(found: &[f32], wanted: &[f32], tolerance: f32) {
    assert_eq!(found.len(), wanted.len());
    for (index, (a, b)) in found.iter().zip(wanted).enumerate() {
        assert!((a - b).abs() <= tolerance * b.abs().max(1.0), "{index}: {a} and {b}");
    }
}

#[test]
fn elements() {
    let m = machine("");
    let n = 5000;
    let (a, b) = (some(n, 1), some(n, 2));
    let (at_a, at_b) = (floats(m, &a), floats(m, &b));
    let out = m.allocate(4 * n as u64).unwrap();
    let n64 = Long(n as u64);
    let each =
        |f: &dyn Fn(f32, f32) -> f32| -> Vec<f32> { a.iter().zip(&b).map(|(a, b)| f(*a, *b)).collect() };
    run(m, "add_f32", &[Long(out), Long(at_a), Long(at_b), n64]).unwrap();
    assert_eq!(values(m, out, n), each(&|a, b| a + b));
    run(m, "relu_f32", &[Long(out), Long(at_a), Long(n as u64)]).unwrap();
    assert_eq!(values(m, out, n), each(&|a, _| if a > 0.0 { a } else { 0.0 }));
    run(m, "relu_grad_f32", &[Long(out), Long(at_b), Long(at_a), Long(n as u64)]).unwrap();
    assert_eq!(values(m, out, n), each(&|a, b| if a > 0.0 { b } else { 0.0 }));
    run(m, "copy_f32", &[Long(out), Long(at_a), Long(n as u64)]).unwrap();
    run(m, "axpy_f32", &[Long(out), Long(at_b), Float(0.5), Long(n as u64)]).unwrap();
    assert_eq!(values(m, out, n), each(&|a, b| a + 0.5 * b));
    run(m, "copy_bytes", &[Long(out), Long(at_a), Long(4 * n as u64)]).unwrap();
    run(m, "sgd_f32", &[Long(out), Long(at_b), Float(0.25), Long(n as u64)]).unwrap();
    assert_eq!(values(m, out, n), each(&|a, b| a - 0.25 * b));
    run(m, "scale_f32", &[Long(at_a), Float(3.0), Long(n as u64)]).unwrap();
    assert_eq!(values(m, at_a, n), each(&|a, _| a * 3.0));
    run(m, "fill_f32", &[Long(out), Float(1.5), Long(n as u64)]).unwrap();
    assert_eq!(values(m, out, n), vec![1.5; n]);
}

#[test]
fn random_numbers_depend_on_seed_and_index_only() {
    let m = machine("");
    let (a, b) = (m.allocate(40_000).unwrap(), m.allocate(40_000).unwrap());
    run(m, "init_f32", &[Long(a), Long(7), Float(0.5), Long(10_000)]).unwrap();
    run(m, "init_f32", &[Long(b), Long(7), Float(0.5), Long(3)]).unwrap();
    let first = values(m, a, 10_000);
    assert_eq!(values(m, b, 3), first[..3]);
    assert!(first.iter().all(|x| (-0.5..0.5).contains(x)));
    let mean: f32 = first.iter().sum::<f32>() / 10_000.0;
    assert!(mean.abs() < 0.02, "{mean}");
    run(m, "init_f32", &[Long(b), Long(8), Float(0.5), Long(3)]).unwrap();
    assert_ne!(values(m, b, 3), first[..3]);
}

fn product(m: &'static Machine, shape: (usize, usize, usize), ta: bool, tb: bool, beta: f32) {
    let (rows, columns, inner) = shape;
    let (a, b, c) = (some(rows * inner, 3), some(inner * columns, 4), some(rows * columns, 5));
    let mut wanted = Vec::with_capacity(rows * columns);
    for i in 0..rows {
        for j in 0..columns {
            let dot: f64 = (0..inner)
                .map(|k| {
                    let x = if ta { a[k * rows + i] } else { a[i * inner + k] };
                    let y = if tb { b[j * inner + k] } else { b[k * columns + j] };
                    f64::from(x) * f64::from(y)
                })
                .sum();
            wanted.push((dot + f64::from(beta * c[i * columns + j])) as f32);
        }
    }
    let (at_a, at_b, at_c) = (floats(m, &a), floats(m, &b), floats(m, &c));
    let sizes = [Word(rows as u32), Word(columns as u32), Word(inner as u32)];
    let mut args = vec![Long(at_c), Long(at_a), Long(at_b)];
    args.extend(sizes);
    args.extend([Word(ta as u32), Word(tb as u32), Float(beta)]);
    run(m, "matmul_f32", &args).unwrap();
    close(&values(m, at_c, rows * columns), &wanted, 1e-4);
}

#[test]
fn products_of_all_forms_and_odd_sizes() {
    let m = machine("");
    for shape in [(1, 1, 1), (6, 16, 4), (7, 17, 300), (100, 33, 257), (97, 1030, 5), (3, 5, 1000)] {
        for (ta, tb) in [(false, false), (false, true), (true, false), (true, true)] {
            product(m, shape, ta, tb, 0.0);
            product(m, shape, ta, tb, 1.0);
        }
        product(m, shape, false, false, -0.5);
    }
}

#[test]
fn a_product_with_beta_zero_forgets_what_was_there() {
    let m = machine("");
    let c = floats(m, &[f32::NAN]);
    let (a, b) = (floats(m, &[2.0]), floats(m, &[3.0]));
    let one = || Word(1);
    let args = [Long(c), Long(a), Long(b), one(), one(), one(), Word(0), Word(0), Float(0.0)];
    run(m, "matmul_f32", &args).unwrap();
    assert_eq!(values(m, c, 1), [6.0]);
}

#[test]
fn bits_do_not_depend_on_where_memory_lies() {
    let bits = |split: bool| {
        let m = machine("gpus=2");
        let at = reserve(m, 3);
        for index in 0..3 {
            let owner = if split { (index % 2) as i32 } else { 0 };
            page(m, at + index * PAGE, &gpu(owner));
        }
        let (a, b, c) = (at, at + PAGE - 400_000, at + 2 * PAGE - 400_000);
        run(m, "init_f32", &[Long(a), Long(1), Float(1.0), Long(90_000)]).unwrap();
        run(m, "init_f32", &[Long(b), Long(2), Float(1.0), Long(90_000)]).unwrap();
        let args = [Long(c), Long(a), Long(b), Word(300), Word(300), Word(300), Word(0), Word(1), Float(0.0)];
        run(m, "matmul_f32", &args).unwrap();
        words(m, c, 90_000).unwrap()
    };
    assert_eq!(bits(false), bits(true));
}

#[test]
fn rows_of_a_network() {
    let m = machine("");
    let (rows, columns) = (3, 4);
    let logits = some(rows * columns, 9);
    let labels = [2_u32, 0, 3];
    let y = floats(m, &logits);
    let bias = floats(m, &[1.0, 2.0, 3.0, 4.0]);
    let size = || [Word(3), Word(4)];
    let mut args = vec![Long(y), Long(bias)];
    args.extend(size());
    run(m, "bias_add_f32", &args).unwrap();
    let shifted: Vec<f32> = logits.iter().enumerate().map(|(i, x)| x + (i % 4 + 1) as f32).collect();
    assert_eq!(values(m, y, 12), shifted);
    let (loss, gradient) = (m.allocate(4).unwrap(), m.allocate(48).unwrap());
    let at_labels = m.allocate(12).unwrap();
    put(m, at_labels, &labels).unwrap();
    let mut args = vec![Long(loss), Long(gradient), Long(y), Long(at_labels)];
    args.extend(size());
    run(m, "softmax_xent_f32", &args).unwrap();
    let (mut mean, mut wanted) = (0.0, Vec::new());
    for (row, label) in shifted.chunks(4).zip(labels) {
        let sum: f32 = row.iter().map(|x| x.exp()).sum();
        mean -= (row[label as usize].exp() / sum).ln() / 3.0;
        let one = |j: usize| if j == label as usize { 1.0 } else { 0.0 };
        wanted.extend(row.iter().enumerate().map(|(j, x)| (x.exp() / sum - one(j)) / 3.0));
    }
    close(&values(m, loss, 1), &[mean], 1e-5);
    close(&values(m, gradient, 12), &wanted, 1e-5);
    let many = some(100_003, 11);
    let at = floats(m, &many);
    run(m, "reduce_sum_f32", &[Long(loss), Long(at), Long(many.len() as u64)]).unwrap();
    let sum: f64 = many.iter().map(|x| f64::from(*x)).sum();
    close(&values(m, loss, 1), &[sum as f32], 1e-3);
}

#[test]
fn pointers_in_memory_are_followed_and_checked() {
    let m = machine("");
    let data = m.allocate(8000).unwrap();
    let (table, out) = (m.allocate(80).unwrap(), m.allocate(8).unwrap());
    run(m, "fill_f32", &[Long(data), Float(0.5), Long(2000)]).unwrap();
    run(m, "build_table", &[Long(table), Long(data), Long(800), Long(10)]).unwrap();
    run(m, "table_sum_f32", &[Long(out), Long(table), Long(10), Long(200)]).unwrap();
    assert_eq!(values(m, out, 1), [1000.0]);
    // A ring of two: each holds the other's address.
    run(m, "build_table", &[Long(table), Long(table + 8), Long(0), Long(1)]).unwrap();
    run(m, "build_table", &[Long(table + 8), Long(table), Long(0), Long(1)]).unwrap();
    run(m, "chase_u64", &[Long(out), Long(table), Long(100_001)]).unwrap();
    let found = words(m, out, 2).unwrap();
    assert_eq!(u64::from(found[0]) | u64::from(found[1]) << 32, table + 8);
    m.free(data).unwrap();
    run(m, "build_table", &[Long(table), Long(data), Long(800), Long(10)]).unwrap();
    let lost = run(m, "table_sum_f32", &[Long(out), Long(table), Long(10), Long(200)]);
    assert_eq!(lost, Err(CUDA_ERROR_ILLEGAL_ADDRESS));
}

#[test]
fn kernels_write_through_tables_and_add_to_themselves() {
    let m = machine("");
    let data = floats(m, &[1.0; 2000]);
    let (table, holder) = (m.allocate(80).unwrap(), m.allocate(8).unwrap());
    run(m, "build_table", &[Long(table), Long(data), Long(800), Long(10)]).unwrap();
    run(m, "table_add_f32", &[Long(table), Float(2.0), Long(9), Long(200)]).unwrap();
    let mut wanted = [vec![3.0; 1800], vec![1.0; 200]].concat();
    assert_eq!(values(m, data, 2000), wanted);
    let hidden = !data;
    put(m, holder, &[hidden as u32, (hidden >> 32) as u32]).unwrap();
    run(m, "self_table_f32", &[Long(table), Long(holder), Long(800), Float(1.0), Long(10), Long(200)])
        .unwrap();
    wanted.iter_mut().for_each(|value| *value += 1.0);
    assert_eq!(values(m, data, 2000), wanted);
    // A buffer that begins with its own address: a step counts in the second word and adds to a third.
    put(m, data, &[data as u32, (data >> 32) as u32, 0, 0, 5, 0]).unwrap();
    put(m, holder, &[data as u32, (data >> 32) as u32]).unwrap();
    for step in [3, 4] {
        run(m, "self_step_u64", &[Long(holder), Long(step), Long(3)]).unwrap();
    }
    assert_eq!(words(m, data, 6).unwrap()[2..], [2, 0, 12, 0]);
    m.free(data).unwrap();
    let lost = run(m, "table_add_f32", &[Long(table), Float(2.0), Long(1), Long(200)]);
    assert_eq!(lost, Err(CUDA_ERROR_ILLEGAL_ADDRESS));
}

#[test]
fn grouped_products_are_those_of_each_group() {
    let m = machine("");
    let (a, b) = (floats(m, &[1.0, 2.0, 3.0, 4.0]), floats(m, &[5.0, 6.0, 7.0, 8.0]));
    let out = floats(m, &[0.0; 8]);
    let tables = [[out, out + 16], [a, b], [b, a]].map(|[first, second]| {
        let table = m.allocate(16).unwrap();
        run(m, "build_table", &[Long(table), Long(first), Long(second.wrapping_sub(first)), Long(2)])
            .unwrap();
        Long(table)
    });
    let [c, left, right] = tables;
    run(m, "grouped_matmul_f32", &[c, left, right, Long(2), Word(2), Word(2), Word(2)]).unwrap();
    assert_eq!(values(m, out, 8), [19.0, 22.0, 43.0, 50.0, 23.0, 34.0, 31.0, 46.0]);
}

#[test]
fn atomics_of_two_streams_all_arrive() {
    let m = machine("");
    let counter = m.allocate(8).unwrap();
    fill(m, counter, 0, 2).unwrap();
    for _ in 0..4 {
        let on = stream(m.create_stream(1, 0).unwrap());
        launch(m, "atomic_add_u64", &[Long(counter), Long(10_000)], on).unwrap();
    }
    m.synchronize_context(&m.current().unwrap()).unwrap();
    assert_eq!(words(m, counter, 2).unwrap(), [40_000, 0]);
}

#[test]
fn atomics_of_two_gpus_get_lost_on_the_host_only() {
    let count = |kind, id, gpus: u32| {
        let m = machine("gpus=2");
        let at = reserve(m, 1);
        page(m, at, &common::at(kind, id, 0));
        m.set_access(at, PAGE, &[grant(0, WRITE), grant(1, WRITE)]).unwrap();
        let mut contexts = vec![m.current_handle()];
        contexts.push(m.create_context(1, 0).unwrap());
        for index in 0..2 {
            m.set_context(contexts[if gpus == 2 { index } else { 0 }]).unwrap();
            let on = stream(m.create_stream(1, 0).unwrap());
            launch(m, "atomic_add_u64", &[Long(at), Long(100_000)], on).unwrap();
        }
        for context in contexts {
            m.synchronize_context(&m.context(context).unwrap()).unwrap();
            m.set_context(context).unwrap();
        }
        words(m, at, 1).unwrap()[0]
    };
    assert_eq!(count(CU_MEM_LOCATION_TYPE_HOST, 0, 1), 200_000);
    assert_eq!(count(CU_MEM_LOCATION_TYPE_DEVICE, 1, 2), 200_000);
    let lossy = (0..20).any(|_| count(CU_MEM_LOCATION_TYPE_HOST, 0, 2) < 200_000);
    assert!(lossy, "atomics of two GPUs on a page of the host came out right 20 times");
}

/// Whether a scan of `words` words finds something; the flag lies in pinned memory, as the library's does.
fn scanned(m: &'static Machine, address: u64, words: u64, bounds: (u64, u64)) -> Answer<bool> {
    let flag = m.host_allocate(4096, 2).unwrap() + 8;
    let host = flag as *mut u32;
    // SAFETY: aligned, in memory just allocated, and no kernel runs that uses it.
    unsafe { host.write(0) };
    let args = [Long(address), Long(words), Long(bounds.0), Long(bounds.1), Long(flag)];
    run(m, "vgmem_scan", &args)?;
    // SAFETY: the kernel is over.
    let (found, behind) = unsafe { (host.read(), host.add(1).read()) };
    assert!(found <= 1 && behind == 0, "{found} in the flag, {behind} behind it");
    Ok(found == 1)
}

fn put_words(m: &'static Machine, address: u64, words: &[u64]) {
    let halves: Vec<u32> = words.iter().flat_map(|word| [*word as u32, (*word >> 32) as u32]).collect();
    put(m, address, &halves).unwrap();
}

#[test]
fn a_scan_finds_addresses_at_the_edges_only() {
    let m = machine("");
    let (low, high) = (0x2000_0000_0000, 0x3000_0000_0000);
    let at = m.allocate(64).unwrap();
    put_words(m, at, &[0, low - 1, high, u64::MAX, low, 7, high - 1, 8]);
    let found = |first: u64, words| scanned(m, at + 8 * first, words, (low, high));
    assert_eq!(found(0, 4), Ok(false));
    assert_eq!(found(0, 5), Ok(true));
    assert_eq!(found(4, 1), Ok(true));
    assert_eq!(found(5, 1), Ok(false));
    assert_eq!(found(5, 3), Ok(true));
    assert_eq!(found(7, 1), Ok(false));
    assert_eq!(found(4, 0), Ok(false), "no words");
    assert_eq!(scanned(m, at, 8, (9, 9)), Ok(false), "no bounds");
}

#[test]
fn a_scan_reads_all_of_a_range_and_nothing_else() {
    let m = machine("");
    let at = reserve(m, 3);
    for number in 0..3 {
        let place = if number == 1 { common::at(CU_MEM_LOCATION_TYPE_HOST, 0, 0) } else { gpu(0) };
        page(m, at + number * PAGE, &place);
    }
    let (words, wanted) = (3 * PAGE / 8, 0x1234_5678_9abc_u64);
    fill(m, at, 0, 2 * words).unwrap();
    for index in [0, 511, 512, PAGE / 8 - 1, PAGE / 8, 2 * PAGE / 8 + 5, words - 1] {
        assert_eq!(scanned(m, at, words, (wanted, wanted + 1)), Ok(false), "{index}");
        put_words(m, at + 8 * index, &[wanted]);
        assert_eq!(scanned(m, at, words, (wanted, wanted + 1)), Ok(true), "{index}");
        assert_eq!(scanned(m, at, index, (wanted, wanted + 1)), Ok(false), "{index}: in front of it");
        let behind = scanned(m, at + 8 * (index + 1), words - index - 1, (wanted, wanted + 1));
        assert_eq!(behind, Ok(false), "{index}: behind it");
        put_words(m, at + 8 * index, &[0]);
    }
    let pinned = m.host_allocate(64, 2).unwrap();
    put_words(m, pinned, &[0, wanted, 0, 0, 0, 0, 0, 0]);
    assert_eq!(scanned(m, pinned, 8, (wanted, wanted + 1)), Ok(true), "memory of the host");
    assert_eq!(scanned(m, at, words + 1, (1, 2)), Err(CUDA_ERROR_ILLEGAL_ADDRESS));
}

#[test]
fn a_scan_of_words_that_are_not_aligned_fails() {
    let m = machine("");
    let at = m.allocate(64).unwrap();
    assert_eq!(scanned(m, at + 4, 1, (1, 2)), Err(716));
}

#[test]
fn kernels_have_layouts_and_handles_of_two_kinds() {
    let m = machine("gpus=2");
    let module = m.load_module().unwrap();
    let function = m.module_function(module, c"matmul_f32").unwrap();
    let library = m.load_library().unwrap();
    let kernel = m.library_kernel(library, c"matmul_f32").unwrap();
    let layout = &m.function_kernel(function).unwrap().parameters;
    let offsets: Vec<_> = layout.iter().map(|(offset, _)| *offset).collect();
    assert_eq!(offsets, [0, 8, 16, 24, 28, 32, 36, 40, 44]);
    assert_eq!(m.function_kernel(kernel).err(), Some(CUDA_ERROR_INVALID_HANDLE));
    assert_eq!(m.kernel_kernel(function).err(), Some(CUDA_ERROR_INVALID_HANDLE));
    assert_eq!(m.module_function(module, c"no_such_kernel"), Err(CUDA_ERROR_NOT_FOUND));
    let of_kernel = m.kernel_function(kernel).unwrap();
    assert_ne!(of_kernel, function);
    assert_eq!(m.kernel_function(kernel), Ok(of_kernel));
    assert_eq!(m.is_loaded(of_kernel), Ok(false));
    m.load_function(of_kernel).unwrap();
    assert_eq!(m.is_loaded(of_kernel), Ok(true));
    let prepare = |handle, block| m.prepare_launch(handle, [1; 3], [block, 1, 1], 0, stream(0)).err();
    assert_eq!(prepare(kernel, 32), None);
    assert_eq!(prepare(of_kernel, 32), None);
    assert_eq!(prepare(of_kernel, 2000), Some(CUDA_ERROR_INVALID_VALUE));
    assert_eq!(prepare(of_kernel, 0), Some(CUDA_ERROR_INVALID_VALUE));
    m.create_context(1, 0).unwrap();
    assert_eq!(prepare(kernel, 32), None, "a kernel goes anywhere");
    assert_eq!(prepare(of_kernel, 32), Some(CUDA_ERROR_INVALID_HANDLE), "a function does not");
    m.unload_library(library).unwrap();
    assert_eq!(prepare(kernel, 32), Some(CUDA_ERROR_INVALID_HANDLE));
    m.unload_module(module).unwrap();
    assert_eq!(m.module_function(module, c"fill_f32"), Err(CUDA_ERROR_INVALID_HANDLE));
}

#[test]
fn modules_have_a_variable() {
    let m = machine("mem=8M");
    let module = m.load_module().unwrap();
    let (address, size) = m.module_global(module, c"sim_global_u64").unwrap();
    assert_eq!((size, words(m, address, 2).unwrap()), (8, vec![0, 0]));
    fill(m, address, 5, 2).unwrap();
    assert_eq!(m.module_global(module, c"sim_global_u64"), Ok((address, 8)));
    assert_eq!(m.module_global(module, c"other"), Err(CUDA_ERROR_NOT_FOUND));
    m.unload_module(module).unwrap();
    assert_eq!(m.current_memory_info(), Ok((8 * MIB, 8 * MIB)));
}

/// Each module has its own, and a kernel finds those of its own module.
#[test]
fn kernels_find_addresses_in_variables() {
    let m = machine("");
    let data = floats(m, &[1.0; 100]);
    let (module, other) = (m.load_module().unwrap(), m.load_module().unwrap());
    let add = |module: u64, count: u64| {
        let function = m.module_function(module, c"global_pointer_add_f32").unwrap();
        let launch = m.prepare_launch(function, [1; 3], [1; 3], 0, stream(0)).unwrap();
        let parameters = [&2.0_f32.to_le_bytes()[..], &[0; 4], &count.to_le_bytes()].concat();
        m.launch(launch, parameters).unwrap();
        m.current().and_then(|context| m.synchronize_context(&context))
    };
    for (module, address) in [(module, data), (other, data + 200)] {
        let (at, _) = m.module_global(module, c"sim_global_u64").unwrap();
        put(m, at, &[address as u32, (address >> 32) as u32]).unwrap();
    }
    add(module, 10).unwrap();
    add(other, 50).unwrap();
    assert_eq!(values(m, data, 100), [vec![3.0; 10], vec![1.0; 40], vec![3.0; 50]].concat());
    let untouched = m.load_module().unwrap();
    assert_eq!(add(untouched, 1), Err(CUDA_ERROR_ILLEGAL_ADDRESS), "nobody has asked for its variable");
}

#[test]
fn structs_by_value_carry_pointers() {
    let m = machine("");
    let (a, b) = (floats(m, &[1.0; 10]), floats(m, &[2.0; 10]));
    let module = m.load_module().unwrap();
    let function = m.module_function(module, c"struct_add_f32").unwrap();
    let bytes: Vec<u8> = [a, a, b, 10].iter().flat_map(|field: &u64| field.to_le_bytes()).collect();
    let prepare = || m.prepare_launch(function, [1; 3], [1; 3], 0, stream(0)).unwrap();
    assert_eq!(m.launch(prepare(), bytes[..31].to_vec()), Err(CUDA_ERROR_INVALID_VALUE));
    m.launch(prepare(), bytes).unwrap();
    assert_eq!(values(m, a, 10), [3.0; 10]);
}

#[test]
fn a_kernel_that_fails_loses_the_context() {
    let m = machine("");
    let name = c"a_kernel_that_fails_for_this_test";
    assert!(vgmem_sim::register(name.into(), &[4], |_, args| Err(args.u32(0)?)));
    assert!(!vgmem_sim::register(name.into(), &[0], |_, _| Ok(())), "no parameter has no bytes");
    let failed = run(m, name.to_str().unwrap(), &[Word(CUDA_ERROR_LAUNCH_FAILED)]);
    assert_eq!(failed, Err(CUDA_ERROR_LAUNCH_FAILED));
    assert_eq!(m.allocate(4), Err(CUDA_ERROR_LAUNCH_FAILED));
}
