#!/usr/bin/env python3
"""Inference of a large multi-layer perceptron in PyTorch: an exact checksum of its outputs.

Sizes come from the environment: WIDTH, INNER, LAYERS (single layers, alternating), BATCH, STEPS.
The defaults are 24 layers of 8192 x 32768 bf16 numbers: 12 GiB.
"""
from torch_common import begin, checksum, number, same_place, say, timed

import torch


class Product(torch.nn.Module):
    """A layer: a product with a matrix, and an activation."""

    def __init__(self, rows, columns):
        super().__init__()
        matrix = torch.empty(rows, columns, device="cuda", dtype=torch.bfloat16)
        bound = (3.0 / rows) ** 0.5
        self.weight = torch.nn.Parameter(matrix.uniform_(-bound, bound), requires_grad=False)

    def forward(self, data):
        """The next layer's input."""
        return torch.relu(data @ self.weight)


def network(place=same_place):
    """The layers: narrow to wide, wide to narrow, and so on; `place` may put each elsewhere once it is made."""
    net = torch.nn.Sequential()
    shape = number("WIDTH", 8192), number("INNER", 32768)
    for index in range(number("LAYERS", 24)):
        net.append(place(Product(*(shape if index % 2 == 0 else shape[::-1]))))
    return net


def run(net):
    """Runs and prints."""
    data = torch.rand(number("BATCH", 512), number("WIDTH", 8192), device="cuda", dtype=torch.bfloat16) * 2 - 1
    times = []
    with torch.no_grad():
        for _ in range(number("STEPS", 4)):
            output, spent = timed(lambda: net(data))
            times.append(spent)
            print("result output", checksum(output), flush=True)
    print(f"result norm {output.double().norm().item().hex()}")
    say(step=times)


if __name__ == "__main__":
    begin()
    run(network())
