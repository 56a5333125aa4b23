#!/usr/bin/env python3
"""Lookups in large tables and a perceptron behind them in PyTorch: an exact checksum of its outputs.

A recommender's shape: of every table a few rows are used in a step, of the layers all. Sizes come from the environment:
TABLES, ROWS, WIDTH, LAYERS, BATCH, STEPS. The defaults hold 6 GiB of tables and 4 GiB of layers in bf16.
"""
from torch_common import begin, checked, number

import torch
from torch.nn import functional


def filled(rows, columns, bound):
    """A matrix of random numbers."""
    return torch.empty(rows, columns, device="cuda", dtype=torch.bfloat16).uniform_(-bound, bound)


def run():
    """Runs and prints."""
    width, batch, rows = number("WIDTH", 8192), number("BATCH", 2048), number("ROWS", 131072)
    tables = [filled(rows, width, 1.0) for _ in range(number("TABLES", 3))]
    layers = [filled(width, width, (3.0 / width) ** 0.5) for _ in range(number("LAYERS", 32))]

    def step():
        picked = torch.randint(rows, (len(tables), batch), device="cuda")
        data = sum(functional.embedding(which, table) for which, table in zip(picked, tables))
        for layer in layers:
            data = torch.relu(data @ layer)
        return data

    with torch.no_grad():
        checked(step, number("STEPS", 4))


if __name__ == "__main__":
    begin()
    run()
