#!/usr/bin/env python3
"""Inference of a large multi-layer perceptron in PyTorch: an exact checksum of its outputs.

Sizes come from the environment: WIDTH, INNER, LAYERS (single layers, alternating), BATCH, STEPS.
The defaults are 24 layers of 8192 x 32768 bf16 numbers: 12 GiB. FORM=buffer: all matrices are parts of one allocation;
FORM=graph: a step is captured once and replayed.
"""
import os

from torch_common import begin, checked, number, same_place

import torch


FORM = os.environ.get("FORM", "tensors")


class Product(torch.nn.Module):
    """A layer: a product with a matrix, and an activation."""

    def __init__(self, rows, columns, matrix):
        super().__init__()
        bound = (3.0 / rows) ** 0.5
        self.weight = torch.nn.Parameter(matrix.uniform_(-bound, bound), requires_grad=False)

    def forward(self, data):
        """The next layer's input."""
        return torch.relu(data @ self.weight)


def network(place=same_place):
    """The layers: narrow to wide, wide to narrow, and so on; `place` may put each elsewhere once it is made."""
    net = torch.nn.Sequential()
    shape, layers = (number("WIDTH", 8192), number("INNER", 32768)), number("LAYERS", 24)
    words = shape[0] * shape[1]
    all_words = empty(layers * words) if FORM == "buffer" else None
    for index in range(layers):
        rows, columns = shape if index % 2 == 0 else shape[::-1]
        flat = empty(words) if all_words is None else all_words[index * words:(index + 1) * words]
        net.append(place(Product(rows, columns, flat.view(rows, columns))))
    return net


def empty(words):
    """Memory for bf16 numbers."""
    return torch.empty(words, device="cuda", dtype=torch.bfloat16)


def captured(work):
    """A function that replays what `work` does, and gives its result."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        work()  # libraries make their workspaces now, not while it is captured
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = work()

    def replay():
        graph.replay()
        return result
    return replay


def run(net):
    """Runs and prints."""
    data = torch.rand(number("BATCH", 512), number("WIDTH", 8192), device="cuda", dtype=torch.bfloat16) * 2 - 1
    with torch.no_grad():
        step = captured(lambda: net(data)) if FORM == "graph" else lambda: net(data)
        checked(step, number("STEPS", 4))


if __name__ == "__main__":
    begin()
    run(network())
