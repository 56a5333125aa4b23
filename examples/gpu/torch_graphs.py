#!/usr/bin/env python3
"""CUDA graphs in PyTorch: whole training steps and an inference pass, captured once and replayed.

Sizes come from the environment: WIDTH, INNER, LAYERS (pairs), BATCH, STEPS. The defaults hold 10 GiB of bf16
weights and gradients.
"""
import hashlib
import os
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch


def number(name, default):
    """A size from the environment."""
    return int(os.environ.get(name, default))


def model(width, inner, pairs):
    """Pairs of linear layers with an activation between them."""
    parts = []
    for _ in range(pairs):
        parts += [torch.nn.Linear(width, inner, bias=False, device="cuda", dtype=torch.bfloat16), torch.nn.ReLU(),
                  torch.nn.Linear(inner, width, bias=False, device="cuda", dtype=torch.bfloat16)]
    net = torch.nn.Sequential(*parts)
    with torch.no_grad():
        for weight in net.parameters():
            bound = (6.0 / weight.shape[1]) ** 0.5
            weight.uniform_(-bound, bound)
    return net


class Training:
    """A step as a graph."""

    def __init__(self, net, data, target):
        self.net, self.data, self.target = net, data, target
        self.optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, foreach=False)
        # Libraries make their workspaces now, not while the step is captured.
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(2):
                self.step()
        torch.cuda.current_stream().wait_stream(aside)
        self.optimizer.zero_grad(set_to_none=True)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.loss = self.step()

    def step(self):
        """What is captured."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.mse_loss(self.net(self.data).float(), self.target.float())
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def main():
    """Captures, replays and prints."""
    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True)
    width, batch = number("WIDTH", 8192), number("BATCH", 256)
    net = model(width, number("INNER", 32768), number("LAYERS", 5))
    data = torch.rand(batch, width, device="cuda", dtype=torch.bfloat16) * 2 - 1
    target = torch.rand(batch, width, device="cuda", dtype=torch.bfloat16) * 2 - 1
    training = Training(net, data, target)
    times = []
    for step in range(number("STEPS", 4)):
        torch.cuda.synchronize()
        start = time.perf_counter()
        training.graph.replay()
        value = training.loss.item()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
        print(f"result replay{step + 1} {value:.6f} {value.hex()}", flush=True)
    # A second graph, whose input changes between replays.
    passing = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(passing):
        output = net(data)
    for scale in (1.0, 0.5, 2.0):
        data.copy_(target * scale)
        passing.replay()
        torch.cuda.synchronize()
        print("result output", hashlib.sha256(output.view(torch.int16).cpu().numpy().tobytes()).hexdigest())
    later = sorted(times[1:] or times)
    print(f"time {later[len(later) // 2] * 1e3:.3f}")
    print(f"bytes {torch.cuda.max_memory_reserved()}")


main()
