#!/usr/bin/env python3
"""Tensors that go between two GPUs in PyTorch: to(), copy_() whole and strided, on streams, after events.

MIB is the size of a tensor (512). The last figure is the speed of a whole copy.
"""
import os
import time

import torch


def say(name, tensor):
    """An exact checksum: a sum that depends on the place of each number."""
    flat = tensor.reshape(-1).to(torch.int64)
    weight = torch.arange(flat.numel(), device=flat.device) % 9973
    print(f"result {name} {tensor.device} {int((flat * weight).sum())}", flush=True)


def whole(data, there):
    """There and back."""
    copy = data.to(there)
    say("to", copy)
    say("back", copy.to(data.device))
    copy.zero_()
    copy.copy_(data)
    say("copy_", copy)
    # Small ones take other ways.
    for count in (1, 1000, 1 << 19):
        say(f"small{count}", data[:count].to(there))
    say("half", data.to(there, dtype=torch.int16))
    return copy


def strided(data, there):
    """Parts that are not in one piece, on either side."""
    square = data.view(-1, 8192)
    say("columns", square[:, ::2].to(there))
    target = torch.zeros(square.shape, device=there, dtype=data.dtype)
    target[:, 1::2].copy_(square[:, ::2])
    say("columns_both", target)
    target.t()[:100].copy_(square.t()[:100])
    say("transposed", target)
    target[::3].copy_(square[::3], non_blocking=True)
    torch.cuda.synchronize(there)
    torch.cuda.synchronize(data.device)
    say("rows", target)


def on_streams(data, there):
    """A copy on a stream of the sender between kernels of both, ordered by events alone."""
    sender, receiver = torch.cuda.Stream(data.device), torch.cuda.Stream(there)
    source, target = data.clone(), torch.zeros_like(data, device=there)
    torch.cuda.synchronize(data.device)
    torch.cuda.synchronize(there)
    for turn in range(4):
        with torch.cuda.stream(sender):
            source.add_(turn)
            made = sender.record_event()
        with torch.cuda.stream(receiver):
            receiver.wait_event(made)
            target.copy_(source, non_blocking=True)
            target.mul_(3)
            taken = receiver.record_event()
        with torch.cuda.stream(sender):
            sender.wait_event(taken)
            source.copy_(target, non_blocking=True)
    torch.cuda.synchronize(data.device)
    torch.cuda.synchronize(there)
    say("streams_source", source)
    say("streams_target", target)


def speed(data, copy, rounds=20):
    """Milliseconds of one whole copy."""
    for turn in range(rounds + 2):
        if turn == 2:
            torch.cuda.synchronize(data.device)
            torch.cuda.synchronize(copy.device)
            start = time.perf_counter()
        copy.copy_(data, non_blocking=True)
    torch.cuda.synchronize(data.device)
    torch.cuda.synchronize(copy.device)
    spent = (time.perf_counter() - start) / rounds
    print(f"figure copy_gb_per_s {data.nbytes / spent / 1e9:.1f}")
    print(f"time {spent * 1e3:.3f}")


def main():
    """All forms, both ways."""
    count = (int(os.environ.get("MIB", 512)) << 20) // 4
    for here, there in (("cuda:0", "cuda:1"), ("cuda:1", "cuda:0")):
        data = torch.arange(count, device=here, dtype=torch.int32) % 100003
        copy = whole(data, there)
        strided(data, there)
        on_streams(data, there)
    speed(data, copy)
    print(f"bytes {sum(torch.cuda.max_memory_reserved(gpu) for gpu in (0, 1))}")


main()
