#!/usr/bin/env python3
"""A network of the shape of a Llama of 7B with random weights: prefill of 2,048 tokens, then decoding.

Sizes come from the environment: LAYERS, WIDTH, INNER, HEADS, TOKENS, PREFILLS, STEPS. The defaults hold 12.1 GiB of
bf16 weights. Prints checksums of the last hidden state, and what both phases take.
"""
from torch_common import begin, checksum, number, same_place, say, timed

import torch
from torch.nn import functional


class Layer(torch.nn.Module):
    """Weights and cache of one layer."""

    def __init__(self, width, inner, tokens):
        super().__init__()

        def matrix(rows, columns):
            out = torch.empty(rows, columns, device="cuda", dtype=torch.bfloat16)
            return torch.nn.Parameter(out.uniform_(-(3.0 / rows) ** 0.5, (3.0 / rows) ** 0.5), requires_grad=False)

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


class Network(torch.nn.Module):
    """All layers; `place` may put each elsewhere once it is made."""

    def __init__(self, place=same_place):
        super().__init__()
        self.heads = number("HEADS", 32)
        width, inner = number("WIDTH", 4096), number("INNER", 11008)
        tokens = number("TOKENS", 2048) + number("STEPS", 4)
        self.layers = torch.nn.ModuleList(place(Layer(width, inner, tokens)) for _ in range(number("LAYERS", 32)))

    def forward(self, data, at):
        """The last hidden states; `at` tokens are in the caches already."""
        for layer in self.layers:
            data = layer(data, at, self.heads)
        return data


def run(net):
    """Runs both phases and prints."""
    width, tokens = number("WIDTH", 4096), number("TOKENS", 2048)
    prompt = torch.rand(tokens, width, device="cuda", dtype=torch.bfloat16) * 2 - 1
    prefill, decode = [], []
    with torch.no_grad():
        for _ in range(number("PREFILLS", 3)):
            hidden, spent = timed(lambda: net(prompt, 0))
            prefill.append(spent)
            print("result prefill", checksum(hidden), flush=True)
        last = hidden[-1:]
        for step in range(number("STEPS", 4)):
            last, spent = timed(lambda: net(functional.rms_norm(last, (width,)), tokens + step))
            decode.append(spent)
            print("result token", checksum(last), flush=True)
    say(prefill=prefill, decode=decode)


if __name__ == "__main__":
    begin()
    run(Network())
