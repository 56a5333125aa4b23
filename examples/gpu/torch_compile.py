#!/usr/bin/env python3
"""torch.compile: inference of a perceptron whose activation is a kernel that the compiler generates.

Sizes come from the environment: WIDTH, INNER, LAYERS, BATCH, STEPS. The defaults hold 12 GiB of bf16 weights.
"""
import hashlib
import os
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
# Compiled anew in every run: under the preload the compiler works too.
os.environ.setdefault("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")

import torch


def number(name, default):
    """A size from the environment."""
    return int(os.environ.get(name, default))


@torch.compile(dynamic=False)
def activation(values, scale):
    """Several operations in one kernel."""
    return torch.tanh(values * scale) + torch.relu(values) * 0.5


@torch.compile(dynamic=False)
def layer(data, matrix):
    """A product by the library and an activation by the compiler, compiled together."""
    return torch.sigmoid(data @ matrix) - 0.25


def main():
    """Compiles, runs and prints."""
    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True)
    width, inner = number("WIDTH", 8192), number("INNER", 32768)
    matrices = []
    for index in range(number("LAYERS", 24)):
        rows, columns = (width, inner) if index % 2 == 0 else (inner, width)
        matrices.append(torch.empty(rows, columns, device="cuda", dtype=torch.bfloat16).uniform_(-0.02, 0.02))
    data = torch.rand(number("BATCH", 512), width, device="cuda", dtype=torch.bfloat16) * 2 - 1
    times = []
    with torch.no_grad():
        for _ in range(number("STEPS", 3)):
            torch.cuda.synchronize()
            start = time.perf_counter()
            current = data
            for matrix in matrices:
                current = activation(layer(current, matrix), 1.5)
            torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
            print("result output", hashlib.sha256(current.view(torch.int16).cpu().numpy().tobytes()).hexdigest())
    print(f"result norm {current.double().norm().item().hex()}")
    later = sorted(times[1:] or times)
    print(f"time {later[len(later) // 2] * 1e3:.3f}")
    print(f"bytes {torch.cuda.max_memory_reserved()}")


main()
