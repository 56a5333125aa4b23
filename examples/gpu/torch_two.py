#!/usr/bin/env python3
"""One process that trains on two GPUs: each has a model and half of the data; gradients are averaged by copies.

Sizes come from the environment: WIDTH, INNER, LAYERS (pairs), BATCH, STEPS.
"""
import os
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch


def number(name, default):
    """A size from the environment."""
    return int(os.environ.get(name, default))


def model(width, inner, pairs):
    """The same weights in every call, made on the first GPU."""
    torch.manual_seed(1)
    parts = []
    for _ in range(pairs):
        parts += [torch.nn.Linear(width, inner, bias=False, device="cuda:0", dtype=torch.bfloat16), torch.nn.ReLU(),
                  torch.nn.Linear(inner, width, bias=False, device="cuda:0", dtype=torch.bfloat16)]
    net = torch.nn.Sequential(*parts)
    with torch.no_grad():
        for weight in net.parameters():
            weight.uniform_(-(6.0 / weight.shape[1]) ** 0.5, (6.0 / weight.shape[1]) ** 0.5)
    return net


def average(nets):
    """Both gradients become their mean, by copies in both directions."""
    for first, second in zip(*(net.parameters() for net in nets)):
        incoming = second.grad.to("cuda:0", non_blocking=True)
        first.grad.add_(incoming).mul_(0.5)
        second.grad.copy_(first.grad, non_blocking=True)


def wait():
    """For both GPUs."""
    for gpu in (0, 1):
        torch.cuda.synchronize(gpu)


def main():
    """Trains and prints."""
    torch.use_deterministic_algorithms(True)
    width, batch = number("WIDTH", 8192), number("BATCH", 1024)
    sizes = (width, number("INNER", 32768), number("LAYERS", 2))
    nets = [model(*sizes), model(*sizes).to("cuda:1")]
    optimizers = [torch.optim.SGD(net.parameters(), lr=1e-3, foreach=False) for net in nets]
    generator = torch.Generator("cuda:0").manual_seed(2)
    data, target = (torch.rand(2 * batch, width, device="cuda:0", dtype=torch.bfloat16, generator=generator) * 2 - 1
                    for _ in range(2))
    halves = [(data[:batch].clone(), target[:batch].clone()), (data[batch:].to("cuda:1"), target[batch:].to("cuda:1"))]
    times = []
    for step in range(number("STEPS", 12)):
        wait()
        start = time.perf_counter()
        losses = []
        for net, optimizer, (part, wanted) in zip(nets, optimizers, halves):
            optimizer.zero_grad()
            losses.append(torch.nn.functional.mse_loss(net(part).float(), wanted.float()))
            losses[-1].backward()
        average(nets)
        for optimizer in optimizers:
            optimizer.step()
        wait()
        times.append(time.perf_counter() - start)
        print(f"result step{step + 1}", *(loss.item().hex() for loss in losses), flush=True)
    for first, second in zip(*(net.parameters() for net in nets)):
        if not torch.equal(first, second.to("cuda:0")):
            raise SystemExit("torch_two: the two models differ")
    with torch.no_grad():
        print("result weights", sum(weight.double().sum().item() for weight in nets[1].parameters()).hex())
    later = sorted(times[1:] or times)
    print(f"time {later[len(later) // 2] * 1e3:.3f}")
    print(f"bytes {sum(torch.cuda.max_memory_reserved(gpu) for gpu in (0, 1))}")


main()
