#!/usr/bin/env python3
"""Training of a large multi-layer perceptron in PyTorch: the loss of each step, exactly.

Sizes come from the environment: WIDTH, INNER, LAYERS (pairs of width x inner and inner x width),
BATCH, STEPS, TYPE. The defaults hold 12 GiB of weights and gradients.
"""
import os
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch


def number(name, default):
    """A size from the environment."""
    return int(os.environ.get(name, default))


def model(width, inner, pairs, kind):
    """Pairs of linear layers with an activation between them."""
    parts = []
    for _ in range(pairs):
        parts += [torch.nn.Linear(width, inner, bias=False, device="cuda", dtype=kind), torch.nn.ReLU(),
                  torch.nn.Linear(inner, width, bias=False, device="cuda", dtype=kind)]
    net = torch.nn.Sequential(*parts)
    with torch.no_grad():
        for weight in net.parameters():
            bound = (6.0 / weight.shape[1]) ** 0.5
            weight.uniform_(-bound, bound)
    return net


def main():
    """Trains and prints."""
    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True)
    kind = getattr(torch, os.environ.get("TYPE", "bfloat16"))
    width, inner = number("WIDTH", 8192), number("INNER", 32768)
    net = model(width, inner, number("LAYERS", 6), kind)
    batch = number("BATCH", 256)
    data = torch.rand(batch, width, device="cuda", dtype=kind) * 2 - 1
    target = torch.rand(batch, width, device="cuda", dtype=kind) * 2 - 1
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, foreach=False)
    times = []
    for step in range(number("STEPS", 3)):
        torch.cuda.synchronize()
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(net(data).float(), target.float())
        loss.backward()
        optimizer.step()
        value = loss.item()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
        print(f"result step{step + 1} {value:.6f} {value.hex()}", flush=True)
    with torch.no_grad():
        total = sum(weight.double().sum().item() for weight in net.parameters())
    print(f"result weights {total.hex()}")
    # The first step loads kernels and fills the allocator.
    print(f"time {sorted(times[1:] or times)[len(times[1:] or times) // 2] * 1e3:.3f}")
    print(f"bytes {torch.cuda.max_memory_reserved()}")


main()
