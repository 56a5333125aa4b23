#!/usr/bin/env python3
"""Training of a large multi-layer perceptron in PyTorch: the loss of each step, exactly.

Sizes come from the environment: WIDTH, INNER, LAYERS (pairs of width x inner and inner x width),
BATCH, STEPS, TYPE. The defaults hold 12 GiB of weights and gradients.
"""
import contextlib
import os

from torch_common import begin, number, same_place, say_weights, train

import torch


def kind():
    """The type of all numbers."""
    return getattr(torch, os.environ.get("TYPE", "bfloat16"))


def pair(width, inner):
    """Two linear layers with activations behind them."""
    parts = torch.nn.Sequential(torch.nn.Linear(width, inner, bias=False, device="cuda", dtype=kind()),
                                torch.nn.ReLU(),
                                torch.nn.Linear(inner, width, bias=False, device="cuda", dtype=kind()))
    with torch.no_grad():
        for weight in parts.parameters():
            bound = (6.0 / weight.shape[1]) ** 0.5
            weight.uniform_(-bound, bound)
    return parts


def network(place=same_place):
    """The pairs; `place` may put each elsewhere once it is made."""
    shape = number("WIDTH", 8192), number("INNER", 32768)
    return torch.nn.Sequential(*(place(pair(*shape)) for _ in range(number("LAYERS", 6))))


def run(net, around=contextlib.nullcontext):
    """Trains and prints; the forward passes run within `around`."""
    shape = number("BATCH", 256), number("WIDTH", 8192)
    data, target = (torch.rand(*shape, device="cuda", dtype=kind()) * 2 - 1 for _ in range(2))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, foreach=False)

    def step():
        optimizer.zero_grad()
        with around():
            loss = torch.nn.functional.mse_loss(net(data).float(), target.float())
        loss.backward()
        optimizer.step()
        return loss.item()

    train(step, number("STEPS", 3))


if __name__ == "__main__":
    begin()
    net = network()
    run(net)
    say_weights(net)
