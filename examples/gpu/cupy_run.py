#!/usr/bin/env python3
"""CuPy with its default memory pool: sums and products over arrays, exactly.

BLOCKS arrays of BLOCK_MIB MiB each: 40 x 256 MiB, 10 GiB, by default.
"""
import os
import time

import cupy


def main():
    """Fills, adds, sums and prints."""
    blocks = int(os.environ.get("BLOCKS", 40))
    count = int(os.environ.get("BLOCK_MIB", 256)) * (1 << 20) // 8
    arrays = []
    for index in range(blocks):
        arrays.append(cupy.arange(count, dtype=cupy.int64) * (index + 1))
    times = []
    for step in range(int(os.environ.get("STEPS", 3))):
        cupy.cuda.Device().synchronize()
        start = time.perf_counter()
        total = cupy.zeros((), dtype=cupy.int64)
        for left, right in zip(arrays, arrays[1:]):
            left += right
            total += left.sum()
        value = int(total)
        cupy.cuda.Device().synchronize()
        times.append(time.perf_counter() - start)
        print(f"result sum{step + 1} {value}", flush=True)
    rows = 2048
    matrix = arrays[-1][:rows * rows].reshape(rows, rows) % 17
    product = matrix.astype(cupy.float64) @ matrix.astype(cupy.float64)
    print(f"result product {int(product.sum())}")
    later = sorted(times[1:] or times)
    print(f"time {later[len(later) // 2] * 1e3:.3f}")
    print(f"bytes {cupy.get_default_memory_pool().total_bytes()}")


main()
