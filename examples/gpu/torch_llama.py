#!/usr/bin/env python3
"""A network of the shape of a Llama of 7B with random weights: prefill of 2,048 tokens, then decoding.

Sizes come from the environment: LAYERS, WIDTH, INNER, HEADS, TOKENS, STEPS. The defaults hold 12.1 GiB of bf16
weights. Prints checksums of the last hidden state, and the medians of both phases.
"""
import hashlib
import os
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from torch.nn import functional


def number(name, default):
    """A size from the environment."""
    return int(os.environ.get(name, default))


class Layer:
    """Weights and cache of one layer."""

    def __init__(self, width, inner, tokens):
        def matrix(rows, columns):
            out = torch.empty(rows, columns, device="cuda", dtype=torch.bfloat16)
            return out.uniform_(-(3.0 / rows) ** 0.5, (3.0 / rows) ** 0.5)

        self.qkv, self.out = matrix(width, 3 * width), matrix(width, width)
        self.gate, self.up, self.down = matrix(width, inner), matrix(width, inner), matrix(inner, width)
        self.cache = torch.zeros(2, tokens, width, device="cuda", dtype=torch.bfloat16)

    def forward(self, data, at, heads):
        """The next hidden states; `at` tokens are in the cache already."""
        count, width = data.shape
        normal = functional.rms_norm(data, (width,))
        query, key, value = (normal @ self.qkv).split(width, dim=1)
        self.cache[0, at:at + count], self.cache[1, at:at + count] = key, value
        seen = self.cache[:, :at + count].view(2, at + count, heads, -1).transpose(1, 2)
        query = query.view(count, heads, -1).transpose(0, 1)
        scores = (query @ seen[0].transpose(1, 2)) * (width // heads) ** -0.5
        if count > 1:
            scores += torch.full((count, at + count), float("-inf"), device="cuda").triu(at + 1).to(scores.dtype)
        mixed = (torch.softmax(scores, dim=-1) @ seen[1]).transpose(0, 1).reshape(count, width)
        data = data + mixed @ self.out
        normal = functional.rms_norm(data, (width,))
        return data + (functional.silu(normal @ self.gate) * (normal @ self.up)) @ self.down


def timed(work):
    """What the work gives, and its milliseconds."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    out = work()
    torch.cuda.synchronize()
    return out, (time.perf_counter() - start) * 1e3


def checksum(data):
    """An exact one."""
    return hashlib.sha256(data.view(torch.int16).cpu().numpy().tobytes()).hexdigest()


def median(times):
    """The middle one of all but the first, which loads kernels."""
    later = sorted(times[1:] or times)
    return later[len(later) // 2]


def main():
    """Runs both phases and prints."""
    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True)
    width, heads, tokens, steps = number("WIDTH", 4096), number("HEADS", 32), number("TOKENS", 2048), number("STEPS", 4)
    layers = [Layer(width, number("INNER", 11008), tokens + steps) for _ in range(number("LAYERS", 32))]
    prompt = torch.rand(tokens, width, device="cuda", dtype=torch.bfloat16) * 2 - 1

    def run(data, at):
        for layer in layers:
            data = layer.forward(data, at, heads)
        return data

    prefill, decode = [], []
    with torch.no_grad():
        for _ in range(3):
            hidden, spent = timed(lambda: run(prompt, 0))
            prefill.append(spent)
            print("result prefill", checksum(hidden), flush=True)
        last = hidden[-1:]
        for step in range(steps):
            last, spent = timed(lambda: run(functional.rms_norm(last, (width,)), tokens + step))
            decode.append(spent)
            print("result token", checksum(last), flush=True)
    print(f"figure prefill_ms {median(prefill):.3f}")
    print(f"figure decode_ms {median(decode):.3f}")
    print(f"time {median(prefill):.3f}")
    print(f"bytes {torch.cuda.max_memory_reserved()}")


main()
