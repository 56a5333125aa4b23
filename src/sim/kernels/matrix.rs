//! Matrix product, and the rows of a network: bias, softmax, sums.
//!
//! Every sum has one order that depends on the shapes only, so a result never depends on where
//! memory lies, on the seed, or on the vector unit of the machine.

use super::elementwise::{load, store};
use super::{Add, F32, PTR, U32, U64};
use crate::exec::Exec;
use crate::registry::Args;
use crate::util::Answer;
use vgmem_abi::CUDA_ERROR_ILLEGAL_ADDRESS;

/// Rows and columns of the tile that is kept in registers.
const MR: usize = 6;
const NR: usize = 16;
/// Part of the inner dimension, of rows, and of columns that is packed at a time.
const KC: usize = 256;
const MC: usize = 96;
const NC: usize = 1024;

/// A matrix in memory of the GPU.
#[derive(Clone, Copy)]
struct Matrix {
    at: *const f32,
    /// Elements from row to row of the matrix as it is stored.
    stride: usize,
    transposed: bool,
}

impl Matrix {
    /// Copies row `row` of the operand, columns `first..first + into.len()`.
    ///
    /// # Safety
    /// The elements must lie in the matrix.
    unsafe fn row(&self, row: usize, first: usize, into: &mut [f32]) {
        if self.transposed {
            for (index, value) in into.iter_mut().enumerate() {
                // SAFETY: the caller's promise.
                *value = unsafe { self.at.add((first + index) * self.stride + row).read_unaligned() };
            }
        } else {
            // SAFETY: the caller's promise.
            unsafe { load(self.at.add(row * self.stride + first), into) };
        }
    }

    /// Copies column `column` of the operand, rows `first..first + into.len()`.
    ///
    /// # Safety
    /// The elements must lie in the matrix.
    unsafe fn column(&self, column: usize, first: usize, into: &mut [f32]) {
        let turned = Matrix { transposed: !self.transposed, ..*self };
        // SAFETY: the caller's promise, seen from the other side.
        unsafe { turned.row(column, first, into) };
    }
}

/// `C[MR][NR] += A * B` for packed panels of `k` steps. Separate products and sums, never fused:
/// each element's value is the same on every machine.
#[inline(always)]
fn tile(k: usize, a: &[f32], b: &[f32], sums: &mut [[f32; NR]; MR]) {
    let mut local = *sums;
    for (a, b) in a.chunks_exact(MR).zip(b.chunks_exact(NR)).take(k) {
        for i in 0..MR {
            for j in 0..NR {
                local[i][j] += a[i] * b[j];
            }
        }
    }
    *sums = local;
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn tile_wide(k: usize, a: &[f32], b: &[f32], sums: &mut [[f32; NR]; MR]) {
    tile(k, a, b, sums);
}

/// The tile function for this machine's vector unit.
fn run_tile(wide: bool, k: usize, a: &[f32], b: &[f32], sums: &mut [[f32; NR]; MR]) {
    #[cfg(target_arch = "x86_64")]
    if wide {
        // SAFETY: `wide` is only set where the machine has these instructions.
        return unsafe { tile_wide(k, a, b, sums) };
    }
    let _ = wide;
    tile(k, a, b, sums);
}

fn has_wide() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("avx2");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Sizes of a product.
#[derive(Clone, Copy)]
struct Shape {
    m: usize,
    n: usize,
    k: usize,
}

/// Packs `rows` x `depth` of A, panels of `MR` rows, zeros at the edge.
///
/// # Safety
/// The block must lie in the matrix.
unsafe fn pack_a(a: &Matrix, row: usize, rows: usize, first: usize, depth: usize, into: &mut [f32]) {
    let mut line = [0.0; KC];
    for (panel, block) in into.chunks_exact_mut(MR * depth).take(rows.div_ceil(MR)).enumerate() {
        for i in 0..MR {
            let r = panel * MR + i;
            if r < rows {
                // SAFETY: the caller's promise.
                unsafe { a.row(row + r, first, &mut line[..depth]) };
            } else {
                line[..depth].fill(0.0);
            }
            for (step, value) in line[..depth].iter().enumerate() {
                block[step * MR + i] = *value;
            }
        }
    }
}

/// Packs `depth` x `columns` of B, panels of `NR` columns, zeros at the edge.
///
/// # Safety
/// The block must lie in the matrix.
unsafe fn pack_b(b: &Matrix, first: usize, depth: usize, column: usize, columns: usize, into: &mut [f32]) {
    let mut line = [0.0; KC];
    for (panel, block) in into.chunks_exact_mut(NR * depth).take(columns.div_ceil(NR)).enumerate() {
        let start = panel * NR;
        let width = NR.min(columns - start);
        if width < NR {
            block.fill(0.0);
        }
        if b.transposed {
            for j in 0..width {
                // SAFETY: the caller's promise.
                unsafe { b.column(column + start + j, first, &mut line[..depth]) };
                for (step, value) in line[..depth].iter().enumerate() {
                    block[step * NR + j] = *value;
                }
            }
        } else {
            for (step, row) in block.chunks_exact_mut(NR).enumerate() {
                // SAFETY: the caller's promise.
                unsafe { b.row(first + step, column + start, &mut row[..width]) };
            }
        }
    }
}

/// Multiplies one packed block of A with one of B into C.
///
/// # Safety
/// `c` must be the block's first element, in a matrix of `stride` columns that holds it.
unsafe fn block(c: *mut f32, stride: usize, a: &[f32], b: &[f32], size: Shape, wide: bool) {
    for (p, panel_b) in b.chunks_exact(NR * size.k).take(size.n.div_ceil(NR)).enumerate() {
        let width = NR.min(size.n - p * NR);
        for (q, panel_a) in a.chunks_exact(MR * size.k).take(size.m.div_ceil(MR)).enumerate() {
            let height = MR.min(size.m - q * MR);
            let mut sums = [[0.0; NR]; MR];
            // SAFETY: the caller's promise: rows and columns stay within the block.
            let at = |i: usize| unsafe { c.add((q * MR + i) * stride + p * NR) };
            for (i, sum) in sums.iter_mut().enumerate().take(height) {
                // SAFETY: as above.
                unsafe { load(at(i).cast_const(), &mut sum[..width]) };
            }
            run_tile(wide, size.k, panel_a, panel_b, &mut sums);
            for (i, sum) in sums.iter().enumerate().take(height) {
                // SAFETY: as above.
                unsafe { store(at(i), &sum[..width]) };
            }
        }
    }
}

/// Scales C by `beta` before the product is added; 0 forgets what was there, even if it was NaN.
///
/// # Safety
/// `count` elements must be writable at `c`.
unsafe fn prepare(c: *mut f32, count: usize, beta: f32) {
    if beta == 1.0 {
        return;
    }
    let mut buffer = [0.0; KC];
    let mut done = 0;
    while done < count {
        let part = &mut buffer[..KC.min(count - done)];
        if beta == 0.0 {
            part.fill(0.0);
        } else {
            // SAFETY: the caller's promise.
            unsafe { load(c.add(done).cast_const(), part) };
            part.iter_mut().for_each(|value| *value *= beta);
        }
        // SAFETY: the caller's promise.
        unsafe { store(c.add(done), part) };
        done += part.len();
    }
}

/// # Safety
/// The operands must have the sizes of `shape`.
unsafe fn multiply(c: *mut f32, a: Matrix, b: Matrix, shape: Shape) {
    let wide = has_wide();
    let mut packed_a = vec![0.0_f32; MC.next_multiple_of(MR) * KC];
    let mut packed_b = vec![0.0_f32; NC.next_multiple_of(NR) * KC];
    for column in (0..shape.n).step_by(NC) {
        let n = NC.min(shape.n - column);
        for first in (0..shape.k).step_by(KC) {
            let k = KC.min(shape.k - first);
            // SAFETY: the block lies in the operand.
            unsafe { pack_b(&b, first, k, column, n, &mut packed_b) };
            for row in (0..shape.m).step_by(MC) {
                let m = MC.min(shape.m - row);
                // SAFETY: the block lies in the operand.
                unsafe { pack_a(&a, row, m, first, k, &mut packed_a) };
                // SAFETY: the block starts at this row and column of C.
                unsafe {
                    let at = c.add(row * shape.n + column);
                    block(at, shape.n, &packed_a, &packed_b, Shape { m, n, k }, wide);
                }
            }
        }
    }
}

/// Bytes of a matrix.
fn bytes(rows: u32, columns: u32) -> Answer<u64> {
    let count = u64::from(rows).checked_mul(u64::from(columns)).ok_or(CUDA_ERROR_ILLEGAL_ADDRESS)?;
    count.checked_mul(4).ok_or(CUDA_ERROR_ILLEGAL_ADDRESS)
}

fn matmul(exec: &Exec, args: &Args) -> Answer {
    let (m, n, k) = (args.u32(3)?, args.u32(4)?, args.u32(5)?);
    let (ta, tb, beta) = (args.u32(6)? != 0, args.u32(7)? != 0, args.f32(8)?);
    let shape = Shape { m: m as usize, n: n as usize, k: k as usize };
    let c = exec.write(args.u64(0)?, bytes(m, n)?)?.cast::<f32>();
    let a = exec.read(args.u64(1)?, bytes(m, k)?)?.cast();
    let b = exec.read(args.u64(2)?, bytes(k, n)?)?.cast();
    let a = Matrix { at: a, stride: if ta { shape.m } else { shape.k }, transposed: ta };
    let b = Matrix { at: b, stride: if tb { shape.k } else { shape.n }, transposed: tb };
    // SAFETY: the ranges were allowed in exactly these sizes.
    unsafe {
        prepare(c, shape.m * shape.n, beta);
        multiply(c, a, b, shape);
    }
    Ok(())
}

/// Products whose operands are found in tables of addresses, as batched and grouped products take them:
/// outputs, left and right factors of `groups` products of one shape.
fn grouped_matmul(exec: &Exec, args: &Args) -> Answer {
    let (groups, m, n, k) = (args.u64(3)?, args.u32(4)?, args.u32(5)?, args.u32(6)?);
    let shape = Shape { m: m as usize, n: n as usize, k: k as usize };
    let table = groups.checked_mul(8).ok_or(CUDA_ERROR_ILLEGAL_ADDRESS)?;
    for group in 0..groups as usize {
        let mut found = [0_u64; 3];
        for (address, index) in found.iter_mut().zip(0..) {
            // The whole table is asked for before one address is read.
            let at = exec.read(args.u64(index)?, table)?.cast::<u64>();
            // SAFETY: `groups` addresses were allowed.
            *address = unsafe { at.add(group).read_unaligned() };
        }
        let c = exec.write(found[0], bytes(m, n)?)?.cast::<f32>();
        let a = exec.read(found[1], bytes(m, k)?)?.cast();
        let b = exec.read(found[2], bytes(k, n)?)?.cast();
        let a = Matrix { at: a, stride: shape.k, transposed: false };
        let b = Matrix { at: b, stride: shape.n, transposed: false };
        // SAFETY: the ranges were allowed in exactly these sizes.
        unsafe {
            prepare(c, shape.m * shape.n, 0.0);
            multiply(c, a, b, shape);
        }
    }
    Ok(())
}

fn bias_add(exec: &Exec, args: &Args) -> Answer {
    let (rows, columns) = (args.u32(2)?, args.u32(3)?);
    let y = exec.write(args.u64(0)?, bytes(rows, columns)?)?.cast::<f32>();
    let bias = exec.read(args.u64(1)?, bytes(1, columns)?)?.cast::<f32>();
    let mut add = vec![0.0; columns as usize];
    let mut line = vec![0.0; columns as usize];
    // SAFETY: `read` allowed one row.
    unsafe { load(bias, &mut add) };
    for row in 0..rows as usize {
        // SAFETY: `write` allowed all rows.
        let at = unsafe { y.add(row * add.len()) };
        // SAFETY: as above.
        unsafe { load(at.cast_const(), &mut line) };
        line.iter_mut().zip(&add).for_each(|(value, add)| *value += add);
        // SAFETY: as above.
        unsafe { store(at, &line) };
    }
    Ok(())
}

/// Softmax of one row in place; gives the loss against `label`.
fn softmax(line: &mut [f32], label: usize) -> f64 {
    let most = line.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let chosen = line.get(label).map_or(0.0, |value| f64::from(value - most));
    let mut sum = 0.0_f64;
    for value in line.iter_mut() {
        *value = (*value - most).exp();
        sum += f64::from(*value);
    }
    line.iter_mut().for_each(|value| *value = (f64::from(*value) / sum) as f32);
    sum.ln() - chosen
}

fn softmax_xent(exec: &Exec, args: &Args) -> Answer {
    let (rows, columns) = (args.u32(4)?, args.u32(5)?);
    let loss = exec.write(args.u64(0)?, 4)?.cast::<f32>();
    let gradient = exec.write(args.u64(1)?, bytes(rows, columns)?)?.cast::<f32>();
    let logits = exec.read(args.u64(2)?, bytes(rows, columns)?)?.cast::<f32>();
    let labels = exec.read(args.u64(3)?, bytes(rows, 1)?)?.cast::<u32>();
    let mut line = vec![0.0_f32; columns as usize];
    let mut total = 0.0_f64;
    for row in 0..rows as usize {
        let start = row * line.len();
        // SAFETY: all rows were allowed.
        let label = unsafe { labels.add(row).read_unaligned() } as usize;
        // SAFETY: as above.
        unsafe { load(logits.add(start), &mut line) };
        total += softmax(&mut line, label);
        if let Some(value) = line.get_mut(label) {
            *value -= 1.0;
        }
        let scale = 1.0 / rows as f32;
        line.iter_mut().for_each(|value| *value *= scale);
        // SAFETY: as above.
        unsafe { store(gradient.add(start), &line) };
    }
    // SAFETY: four bytes were allowed.
    unsafe { store(loss, &[(total / f64::from(rows.max(1))) as f32]) };
    Ok(())
}

/// Names the kernels of this file.
pub(super) fn each(to: Add) {
    let sizes = [PTR, PTR, PTR, U32, U32, U32, U32, U32, F32];
    to("matmul_f32", &sizes, Box::new(matmul));
    to("grouped_matmul_f32", &[PTR, PTR, PTR, U64, U32, U32, U32], Box::new(grouped_matmul));
    to("bias_add_f32", &[PTR, PTR, U32, U32], Box::new(bias_add));
    to("softmax_xent_f32", &[PTR, PTR, PTR, PTR, U32, U32], Box::new(softmax_xent));
    to("reduce_sum_f32", &[PTR, PTR, U64], Box::new(reduce));
}

/// Sum in one fixed order: chunk by chunk, each in sixteen lanes.
pub(super) fn sum(from: *const f32, n: u64, total: &mut f64) {
    let mut buffer = [0.0_f32; 1024];
    let mut done = 0_u64;
    while done < n {
        let part = &mut buffer[..1024.min((n - done) as usize)];
        // SAFETY: the callers were allowed to read `n` elements.
        unsafe { load(from.add(done as usize), part) };
        let mut lanes = [0.0_f32; 16];
        for group in part.chunks(16) {
            lanes.iter_mut().zip(group).for_each(|(lane, value)| *lane += value);
        }
        *total += lanes.iter().map(|lane| f64::from(*lane)).sum::<f64>();
        done += part.len() as u64;
    }
}

fn reduce(exec: &Exec, args: &Args) -> Answer {
    let n = args.u64(2)?;
    let size = n.checked_mul(4).ok_or(CUDA_ERROR_ILLEGAL_ADDRESS)?;
    let from = exec.read(args.u64(1)?, size)?.cast();
    let out = exec.write(args.u64(0)?, 4)?.cast::<f32>();
    let mut total = 0.0;
    sum(from, n, &mut total);
    // SAFETY: four bytes were allowed.
    unsafe { store(out, &[total as f32]) };
    Ok(())
}
