#!/usr/bin/env python3
"""Kernels written in Triton: additions and sums over arrays of PyTorch, exactly.

BLOCKS arrays of BLOCK_MIB MiB each: 10 x 1 GiB by default.
"""
import os
import time

import torch
import triton
import triton.language as tl


@triton.jit
def add(out, left, right, count, BLOCK: tl.constexpr):
    """Element by element."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    tl.store(out + at, tl.load(left + at, mask=inside) + tl.load(right + at, mask=inside), mask=inside)


@triton.jit
def total(out, data, count, BLOCK: tl.constexpr):
    """The sum, modulo 2^64."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(data + at, mask=at < count, other=0).to(tl.int64)
    tl.atomic_add(out, tl.sum(values, axis=0))


def main():
    """Fills, adds, sums and prints."""
    count = int(os.environ.get("BLOCK_MIB", 1024)) * (1 << 20) // 4
    arrays = []
    for index in range(int(os.environ.get("BLOCKS", 10))):
        arrays.append(torch.arange(index, index + count, device="cuda", dtype=torch.int32))
    grid = (triton.cdiv(count, 4096),)
    times = []
    for step in range(int(os.environ.get("STEPS", 3))):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for first, second, third in zip(arrays, arrays[1:], arrays[2:]):
            add[grid](third, first, second, count, BLOCK=4096)
        out = torch.zeros(1, device="cuda", dtype=torch.int64)
        total[grid](out, arrays[-1], count, BLOCK=4096)
        print(f"result step{step + 1} {out.item()}", flush=True)
        times.append(time.perf_counter() - start)
    for index, array in enumerate(arrays):
        out = torch.zeros(1, device="cuda", dtype=torch.int64)
        total[grid](out, array, count, BLOCK=4096)
        print(f"result sum{index} {out.item()}")
    later = sorted(times[1:] or times)
    print(f"time {later[len(later) // 2] * 1e3:.3f}")
    print(f"bytes {torch.cuda.max_memory_reserved()}")


main()
