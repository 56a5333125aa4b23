//! Kernels that follow pointers, wait, or race: what a pager must not be fooled by.

use super::elementwise::{load, store};
use super::{Add, F32, PTR, U32, U64};
use crate::codes::CUDA_ERROR_MISALIGNED_ADDRESS;
use crate::exec::Exec;
use crate::registry::Args;
use crate::util::Answer;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use vgmem_abi::CUDA_ERROR_ILLEGAL_ADDRESS;

fn aligned(address: u64, unit: u64) -> Answer {
    if address.is_multiple_of(unit) { Ok(()) } else { Err(CUDA_ERROR_MISALIGNED_ADDRESS) }
}

fn times(n: u64, size: u64) -> Answer<u64> {
    n.checked_mul(size).ok_or(CUDA_ERROR_ILLEGAL_ADDRESS)
}

fn word(exec: &Exec, address: u64) -> Answer<u64> {
    let mut value = [0_u64];
    // SAFETY: eight bytes are asked for.
    unsafe { load(exec.read(address, 8)?.cast(), &mut value) };
    Ok(value[0])
}

/// Goes from address to address; the last one is the result.
fn chase(exec: &Exec, args: &Args) -> Answer {
    let (out, mut at) = (args.u64(0)?, args.u64(1)?);
    for _ in 0..args.u64(2)? {
        at = word(exec, at)?;
    }
    // SAFETY: eight bytes are asked for.
    unsafe { store(exec.write(out, 8)?.cast(), &[at]) };
    Ok(())
}

/// Writes a table of addresses that no launch ever names.
fn build_table(exec: &Exec, args: &Args) -> Answer {
    let (table, base, stride, n) = (args.u64(0)?, args.u64(1)?, args.u64(2)?, args.u64(3)?);
    let to = exec.write(table, times(n, 8)?)?.cast::<u64>();
    for index in 0..n {
        let address = base.wrapping_add(index.wrapping_mul(stride));
        // SAFETY: `n` addresses were allowed.
        unsafe { store(to.add(index as usize), &[address]) };
    }
    Ok(())
}

/// Sums `each` elements at every address of a table.
fn table_sum(exec: &Exec, args: &Args) -> Answer {
    let (out, table, n, each) = (args.u64(0)?, args.u64(1)?, args.u64(2)?, args.u64(3)?);
    let mut total = 0.0;
    for index in 0..n {
        let from = exec.read(entry(exec, table, index)?, times(each, 4)?)?;
        super::matrix::sum(from.cast(), each, &mut total);
    }
    // SAFETY: four bytes are asked for.
    unsafe { store(exec.write(out, 4)?.cast(), &[total as f32]) };
    Ok(())
}

/// Address `index` of a table.
fn entry(exec: &Exec, table: u64, index: u64) -> Answer<u64> {
    word(exec, table.checked_add(times(index, 8)?).ok_or(CUDA_ERROR_ILLEGAL_ADDRESS)?)
}

/// Adds `a` to `each` elements at every address of a table.
fn add_through(exec: &Exec, table: u64, a: f32, n: u64, each: u64) -> Answer {
    let mut part = [0.0_f32; 1024];
    for index in 0..n {
        let address = entry(exec, table, index)?;
        aligned(address, 4)?;
        let at = exec.write(address, times(each, 4)?)?.cast::<f32>();
        for first in (0..each as usize).step_by(part.len()) {
            let part = &mut part[..(each as usize - first).min(1024)];
            // SAFETY: `each` elements were allowed.
            unsafe { load(at.add(first).cast_const(), part) };
            part.iter_mut().for_each(|value| *value += a);
            // SAFETY: as above.
            unsafe { store(at.add(first), part) };
        }
    }
    Ok(())
}

fn table_add(exec: &Exec, args: &Args) -> Answer {
    add_through(exec, args.u64(0)?, args.f32(1)?, args.u64(2)?, args.u64(3)?)
}

/// Builds a table in scratch memory and follows it at once: nobody can look at it in between. What
/// it follows is named by no parameter.
fn self_table(exec: &Exec, args: &Args) -> Answer {
    let (scratch, holder, stride) = (args.u64(0)?, args.u64(1)?, args.u64(2)?);
    let (a, n, each) = (args.f32(3)?, args.u64(4)?, args.u64(5)?);
    // The base is hidden: memory holds its complement.
    let base = !word(exec, holder)?;
    let to = exec.write(scratch, times(n, 8)?)?.cast::<u64>();
    for index in 0..n {
        let address = base.wrapping_add(index.wrapping_mul(stride));
        // SAFETY: `n` addresses were allowed.
        unsafe { store(to.add(index as usize), &[address]) };
    }
    add_through(exec, scratch, a, n, each)
}

/// Has no parameter that is an address: the table is a variable of the module.
fn global_add(exec: &Exec, args: &Args) -> Answer {
    let table = exec.global(c"sim_table_u64")?;
    add_through(exec, table, args.f32(0)?, args.u64(1)?, args.u64(2)?)
}

/// Adds `a` at the address that a variable of the module holds.
fn global_pointer_add(exec: &Exec, args: &Args) -> Answer {
    let holder = exec.global(c"sim_global_u64")?;
    add_through(exec, holder, args.f32(0)?, 1, args.u64(1)?)
}

/// One step through a buffer that holds its own address in its first word: counts in the second and adds the
/// step to one of the rest, all by the address that memory holds.
fn self_step(exec: &Exec, args: &Args) -> Answer {
    let (cell, step, words) = (args.u64(0)?, args.u64(1)?, args.u64(2)?);
    let own = word(exec, word(exec, cell)?)?;
    let target = 2 + step.wrapping_mul(0x9e37_79b9_7f4a_7c15) % words.saturating_sub(2).max(1);
    for (index, add) in [(1, 1), (target, step)] {
        let address = own.wrapping_add(times(index, 8)?);
        let value = word(exec, address)?.wrapping_add(add);
        // SAFETY: eight bytes are asked for.
        unsafe { store(exec.write(address, 8)?.cast(), &[value]) };
    }
    Ok(())
}

/// How many additions a GPU gathers before memory of the host sees them.
const GATHERED: u64 = 64;

/// On memory of the host the atomics of one GPU are right and those of two GPUs are not: each
/// reads, adds and writes back, and knows nothing of the other.
fn atomic_add(exec: &Exec, args: &Args) -> Answer {
    let counter = args.u64(0)?;
    aligned(counter, 8)?;
    let at = exec.write(counter, 8)?.cast::<u64>();
    // SAFETY: eight aligned bytes that stay mapped; others may only use them atomically as well.
    let counter = unsafe { AtomicU64::from_ptr(at) };
    let mut left = args.u64(1)?;
    if exec.is_on_host(args.u64(0)?) {
        let _alone = exec.host_atomics();
        while left > 0 {
            let part = left.min(GATHERED);
            let seen = counter.load(Ordering::Relaxed);
            std::thread::yield_now();
            counter.store(seen + part, Ordering::Relaxed);
            left -= part;
        }
    }
    for _ in 0..left {
        counter.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Words of a scan that are looked at together.
const SCANNED: u64 = 512;

/// The pager's scan for addresses: stores 1 if a word lies in `low..high`, else leaves the result alone.
fn scan(exec: &Exec, args: &Args) -> Answer {
    let (address, words, bounds) = (args.u64(0)?, args.u64(1)?, args.u64(2)?..args.u64(3)?);
    aligned(address, 8)?;
    let from = exec.read(address, times(words, 8)?)?.cast::<u64>();
    let mut buffer = [0_u64; SCANNED as usize];
    for first in (0..words).step_by(SCANNED as usize) {
        let part = &mut buffer[..(words - first).min(SCANNED) as usize];
        // SAFETY: `words` words were allowed, of which these are the next ones.
        unsafe { load(from.add(first as usize), part) };
        if part.iter().any(|word| bounds.contains(word)) {
            let result = args.u64(4)?;
            aligned(result, 4)?;
            let at = exec.write(result, 4)?.cast::<u32>();
            // SAFETY: four aligned bytes that stay mapped; others may only use them atomically as well.
            unsafe { AtomicU32::from_ptr(at) }.store(1, Ordering::Release);
            break;
        }
    }
    Ok(())
}

/// The pager's fingerprint of pairs of words: its sums where the first block stores them. Those of other blocks are 0,
/// as they were before.
fn print(exec: &Exec, args: &Args) -> Answer {
    let (address, words, result) = (args.u64(0)?, times(args.u64(1)?, 2)?, args.u64(5)?);
    let (mut key, step, mut weight) = (args.u64(2)?, args.u64(3)?, args.u64(4)?);
    aligned(address, 16)?;
    aligned(result, 8)?;
    let from = exec.read(address, times(words, 8)?)?.cast::<u64>();
    let mut buffer = [0_u64; SCANNED as usize];
    let mut sums = [0_u64; 2];
    for first in (0..words).step_by(SCANNED as usize) {
        let part = &mut buffer[..(words - first).min(SCANNED) as usize];
        // SAFETY: `words` words were allowed, of which these are the next ones.
        unsafe { load(from.add(first as usize), part) };
        for word in part {
            let mut mixed = word.wrapping_add(key);
            for _ in 0..2 {
                mixed = (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
            }
            mixed ^= mixed >> 32;
            sums[0] = sums[0].wrapping_add(mixed);
            sums[1] = sums[1].wrapping_add(mixed.wrapping_mul(weight));
            key = key.wrapping_add(step);
            weight = weight.wrapping_add(0x236a_96c6_4b2e_da06);
        }
    }
    // SAFETY: sixteen bytes are asked for.
    unsafe { store(exec.write(result, 16)?.cast(), &sums) };
    Ok(())
}

/// Passes time; a kernel that lost its memory ends early.
fn pass(exec: &Exec, micros: u64) {
    let end = Instant::now() + Duration::from_micros(micros);
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || exec.is_lost() {
            return;
        }
        std::thread::sleep(left.min(Duration::from_millis(1)));
    }
}

fn sleep(exec: &Exec, args: &Args) -> Answer {
    pass(exec, args.u64(0)?);
    Ok(())
}

/// Holds its memory from the start, writes at the end.
fn write_after(exec: &Exec, args: &Args) -> Answer {
    let (out, value) = (args.u64(0)?, args.u32(1)?);
    let to = exec.write(out, 4)?.cast();
    pass(exec, args.u64(2)?);
    // SAFETY: four bytes were allowed, and a range that was taken away is scratch memory by now.
    unsafe { store(to, &[value]) };
    Ok(())
}

/// A persistent kernel: runs until somebody writes `value`.
fn spin_until(exec: &Exec, args: &Args) -> Answer {
    let (flag, value) = (args.u64(0)?, args.u32(1)?);
    aligned(flag, 4)?;
    let at = exec.read(flag, 4)?.cast_mut().cast::<u32>();
    // SAFETY: four aligned bytes that stay mapped while the operation runs.
    let flag = unsafe { AtomicU32::from_ptr(at) };
    while flag.load(Ordering::Acquire) != value && !exec.is_lost() {
        std::thread::sleep(Duration::from_micros(50));
    }
    Ok(())
}

/// Names the kernels of this file.
pub(super) fn each(to: Add) {
    to("chase_u64", &[PTR, PTR, U64], Box::new(chase));
    to("build_table", &[PTR, PTR, U64, U64], Box::new(build_table));
    to("table_sum_f32", &[PTR, PTR, U64, U64], Box::new(table_sum));
    to("table_add_f32", &[PTR, F32, U64, U64], Box::new(table_add));
    to("self_table_f32", &[PTR, PTR, U64, F32, U64, U64], Box::new(self_table));
    to("global_add_f32", &[F32, U64, U64], Box::new(global_add));
    to("global_pointer_add_f32", &[F32, U64], Box::new(global_pointer_add));
    to("self_step_u64", &[PTR, U64, U64], Box::new(self_step));
    to("atomic_add_u64", &[PTR, U64], Box::new(atomic_add));
    to("vgmem_scan", &[PTR, U64, PTR, PTR, PTR], Box::new(scan));
    to("vgmem_print", &[PTR, U64, U64, U64, U64, PTR], Box::new(print));
    to("sleep_us", &[U64], Box::new(sleep));
    to("write_after_us", &[PTR, U32, U64], Box::new(write_after));
    to("spin_until_u32", &[PTR, U32], Box::new(spin_until));
}
