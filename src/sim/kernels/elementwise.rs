//! Kernels that treat each element by itself.
//!
//! They work through small buffers on the stack: the loops vectorise whatever the addresses are,
//! and no reference to memory exists that another thread could change.

use super::{Add, F32, PTR, U32, U64};
use crate::codes::CUDA_ERROR_MISALIGNED_ADDRESS;
use crate::exec::Exec;
use crate::registry::Args;
use crate::util::{Answer, mix};
use std::ptr;

/// Elements of a buffer.
const CHUNK: usize = 1024;

/// Bytes of `n` elements of four bytes.
fn bytes(n: u64) -> Answer<u64> {
    n.checked_mul(4).ok_or(vgmem_abi::CUDA_ERROR_ILLEGAL_ADDRESS)
}

/// Calls `each` for every chunk of `n` elements that are read from `inputs` and written to `out`.
fn zip<const N: usize>(
    exec: &Exec,
    out: u64,
    inputs: [u64; N],
    n: u64,
    mut each: impl FnMut(u64, &mut [f32], [&[f32]; N]),
) -> Answer {
    if inputs.iter().chain([&out]).any(|address| !address.is_multiple_of(4)) {
        return Err(CUDA_ERROR_MISALIGNED_ADDRESS);
    }
    let to = exec.write(out, bytes(n)?)?.cast::<f32>();
    let mut from = [ptr::null::<f32>(); N];
    for (pointer, address) in from.iter_mut().zip(inputs) {
        *pointer = exec.read(address, bytes(n)?)?.cast();
    }
    let mut done = 0;
    let mut result = [0.0; CHUNK];
    let mut loaded = [[0.0; CHUNK]; N];
    while done < n {
        let count = (n - done).min(CHUNK as u64) as usize;
        for (buffer, pointer) in loaded.iter_mut().zip(from) {
            // SAFETY: `read` allowed `n` elements at the pointer, of which `done + count` are used.
            unsafe { load(pointer.add(done as usize), &mut buffer[..count]) };
        }
        let views = std::array::from_fn(|i| &loaded[i][..count]);
        each(done, &mut result[..count], views);
        // SAFETY: `write` allowed `n` elements at the pointer, of which `done + count` are used.
        unsafe { store(to.add(done as usize), &result[..count]) };
        done += count as u64;
    }
    Ok(())
}

/// Copies elements from memory of the GPU, aligned or not.
///
/// # Safety
/// As many elements as `buffer` has must be readable at `from`.
pub(super) unsafe fn load<T: Copy>(from: *const T, buffer: &mut [T]) {
    // SAFETY: the caller's promise; bytes need no alignment.
    unsafe { ptr::copy_nonoverlapping(from.cast::<u8>(), buffer.as_mut_ptr().cast(), size_of_val(buffer)) };
}

/// Copies elements into memory of the GPU, aligned or not.
///
/// # Safety
/// As many elements as `buffer` has must be writable at `to`.
pub(super) unsafe fn store<T: Copy>(to: *mut T, buffer: &[T]) {
    // SAFETY: the caller's promise; bytes need no alignment.
    unsafe { ptr::copy_nonoverlapping(buffer.as_ptr().cast(), to.cast::<u8>(), size_of_val(buffer)) };
}

/// A number in [-scale, scale) that depends on the seed and the element's index only.
fn uniform(seed: u64, index: u64, scale: f32) -> f32 {
    let bits = mix(seed ^ index.wrapping_mul(0x9e37_79b9_7f4a_7c15)) >> 40;
    (bits as f32 * (2.0 / (1 << 24) as f32) - 1.0) * scale
}

fn fill(exec: &Exec, args: &Args) -> Answer {
    let value = args.f32(1)?;
    zip(exec, args.u64(0)?, [], args.u64(2)?, |_, out, []| out.fill(value))
}

fn copy(exec: &Exec, args: &Args) -> Answer {
    zip(exec, args.u64(0)?, [args.u64(1)?], args.u64(2)?, |_, out, [x]| out.copy_from_slice(x))
}

/// Sum of two arrays.
pub(super) fn add(exec: &Exec, out: u64, a: u64, b: u64, n: u64) -> Answer {
    zip(exec, out, [a, b], n, |_, out, [a, b]| {
        for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
            *out = a + b;
        }
    })
}

fn axpy(exec: &Exec, args: &Args) -> Answer {
    let (y, x, a, n) = (args.u64(0)?, args.u64(1)?, args.f32(2)?, args.u64(3)?);
    zip(exec, y, [y, x], n, |_, out, [y, x]| {
        for ((out, y), x) in out.iter_mut().zip(y).zip(x) {
            *out = y + a * x;
        }
    })
}

fn scale(exec: &Exec, args: &Args) -> Answer {
    let (y, a) = (args.u64(0)?, args.f32(1)?);
    zip(exec, y, [y], args.u64(2)?, |_, out, [y]| {
        for (out, y) in out.iter_mut().zip(y) {
            *out = y * a;
        }
    })
}

fn init(exec: &Exec, args: &Args) -> Answer {
    let (seed, scale) = (args.u64(1)?, args.f32(2)?);
    zip(exec, args.u64(0)?, [], args.u64(3)?, |first, out, []| {
        for (index, out) in out.iter_mut().enumerate() {
            *out = uniform(seed, first + index as u64, scale);
        }
    })
}

fn relu(exec: &Exec, args: &Args) -> Answer {
    zip(exec, args.u64(0)?, [args.u64(1)?], args.u64(2)?, |_, out, [x]| {
        for (out, x) in out.iter_mut().zip(x) {
            *out = if *x > 0.0 { *x } else { 0.0 };
        }
    })
}

fn relu_grad(exec: &Exec, args: &Args) -> Answer {
    let (dx, dy, x) = (args.u64(0)?, args.u64(1)?, args.u64(2)?);
    zip(exec, dx, [dy, x], args.u64(3)?, |_, out, [dy, x]| {
        for ((out, dy), x) in out.iter_mut().zip(dy).zip(x) {
            *out = if *x > 0.0 { *dy } else { 0.0 };
        }
    })
}

fn sgd(exec: &Exec, args: &Args) -> Answer {
    let (w, g, rate) = (args.u64(0)?, args.u64(1)?, args.f32(2)?);
    zip(exec, w, [w, g], args.u64(3)?, |_, out, [w, g]| {
        for ((out, w), g) in out.iter_mut().zip(w).zip(g) {
            *out = w - rate * g;
        }
    })
}

fn copy_bytes(exec: &Exec, args: &Args) -> Answer {
    let (to, from, n) = (args.u64(0)?, args.u64(1)?, args.u64(2)?);
    let from = exec.read(from, n)?;
    let to = exec.write(to, n)?;
    // SAFETY: both ranges were allowed for `n` bytes; overlap is fine.
    unsafe { ptr::copy(from, to, n as usize) };
    Ok(())
}

/// Four numbers by value, as a program's struct.
fn struct_add(exec: &Exec, args: &Args) -> Answer {
    let bytes = args.bytes(0)?;
    let mut fields = [0_u64; 4];
    for (field, part) in fields.iter_mut().zip(bytes.chunks_exact(8)) {
        *field = u64::from_le_bytes(part.try_into().unwrap_or_default());
    }
    add(exec, fields[0], fields[1], fields[2], fields[3])
}

/// Names the kernels of this file.
pub(super) fn each(to: Add) {
    to("fill_f32", &[PTR, F32, U64], Box::new(fill));
    // The same bits whether they are called a float or not.
    to("fill_u32", &[PTR, U32, U64], Box::new(fill));
    to("copy_f32", &[PTR, PTR, U64], Box::new(copy));
    let add_f32 = |exec: &Exec, a: &Args| add(exec, a.u64(0)?, a.u64(1)?, a.u64(2)?, a.u64(3)?);
    to("add_f32", &[PTR, PTR, PTR, U64], Box::new(add_f32));
    to("axpy_f32", &[PTR, PTR, F32, U64], Box::new(axpy));
    to("scale_f32", &[PTR, F32, U64], Box::new(scale));
    to("init_f32", &[PTR, U64, F32, U64], Box::new(init));
    to("relu_f32", &[PTR, PTR, U64], Box::new(relu));
    to("relu_grad_f32", &[PTR, PTR, PTR, U64], Box::new(relu_grad));
    to("sgd_f32", &[PTR, PTR, F32, U64], Box::new(sgd));
    to("copy_bytes", &[PTR, PTR, U64], Box::new(copy_bytes));
    to("struct_add_f32", &[32], Box::new(struct_add));
}
