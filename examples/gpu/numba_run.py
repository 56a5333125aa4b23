#!/usr/bin/env python3
"""Numba: vector additions and a reduction over device arrays, exactly.

BLOCKS arrays of BLOCK_MIB MiB each: 10 x 1 GiB by default.
"""
import os
import time

import numpy

if not hasattr(numpy, "row_stack"):
    # Numba asks for a name that newer versions of NumPy dropped.
    numpy.row_stack = numpy.vstack

from numba import cuda


@cuda.jit
def fill(out, seed):
    """Numbers that depend on the index."""
    for at in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        out[at] = (at * 2654435761 + seed) % 1000003


@cuda.jit
def add(out, left, right):
    """Element by element."""
    for at in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        out[at] = left[at] + right[at]


@cuda.reduce
def total(left, right):
    """The sum of an array."""
    return left + right


def main():
    """Fills, adds, sums and prints."""
    count = int(os.environ.get("BLOCK_MIB", 1024)) * (1 << 20) // 8
    arrays = [cuda.device_array(count, dtype=numpy.int64) for _ in range(int(os.environ.get("BLOCKS", 10)))]
    for index, array in enumerate(arrays):
        fill[1024, 256](array, index * 977)
    times = []
    for step in range(int(os.environ.get("STEPS", 3))):
        cuda.synchronize()
        start = time.perf_counter()
        for first, second, third in zip(arrays, arrays[1:], arrays[2:]):
            add[1024, 256](third, first, second)
        cuda.synchronize()
        times.append(time.perf_counter() - start)
        print(f"result step{step + 1} {total(arrays[-1])}", flush=True)
    for index, array in enumerate(arrays):
        print(f"result sum{index} {total(array)}")
    part = arrays[0][:1 << 20].copy_to_host()
    print(f"result copied {int(part.sum())}")
    later = sorted(times[1:] or times)
    print(f"time {later[len(later) // 2] * 1e3:.3f}")
    print(f"bytes {sum(array.nbytes for array in arrays)}")


main()
