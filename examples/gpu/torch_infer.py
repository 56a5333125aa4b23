#!/usr/bin/env python3
"""Inference of a large multi-layer perceptron in PyTorch: an exact checksum of its outputs.

Sizes come from the environment: WIDTH, INNER, LAYERS (single layers, alternating), BATCH, STEPS.
The defaults are 24 layers of 8192 x 32768 bf16 numbers: 12 GiB.
"""
import hashlib
import os
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch


def number(name, default):
    """A size from the environment."""
    return int(os.environ.get(name, default))


def weights(width, inner, layers):
    """The matrices: narrow to wide, wide to narrow, and so on."""
    out = []
    for index in range(layers):
        rows, columns = (width, inner) if index % 2 == 0 else (inner, width)
        matrix = torch.empty(rows, columns, device="cuda", dtype=torch.bfloat16)
        bound = (3.0 / rows) ** 0.5
        out.append(matrix.uniform_(-bound, bound))
    return out


def main():
    """Runs and prints."""
    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True)
    width = number("WIDTH", 8192)
    matrices = weights(width, number("INNER", 32768), number("LAYERS", 24))
    data = torch.rand(number("BATCH", 512), width, device="cuda", dtype=torch.bfloat16) * 2 - 1
    times = []
    with torch.no_grad():
        for _ in range(number("STEPS", 4)):
            torch.cuda.synchronize()
            start = time.perf_counter()
            current = data
            for matrix in matrices:
                current = torch.relu(current @ matrix)
            torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
            digest = hashlib.sha256(current.view(torch.int16).cpu().numpy().tobytes()).hexdigest()
            print(f"result output {digest}", flush=True)
    print(f"result norm {current.double().norm().item().hex()}")
    later = sorted(times[1:] or times)
    print(f"time {later[len(later) // 2] * 1e3:.3f}")
    print(f"bytes {torch.cuda.max_memory_reserved()}")


main()
