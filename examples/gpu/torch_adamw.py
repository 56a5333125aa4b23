#!/usr/bin/env python3
"""Training of a transformer of 2.7B bf16 parameters with AdamW in PyTorch: the loss of each step, exactly.

Sizes come from the environment: WIDTH, HEADS, LAYERS, WORDS (of the vocabulary), BATCH, TOKENS, STEPS. The defaults
hold 20 GiB of weights, gradients and states of the optimizer, which goes through them one by one.
"""
from torch_common import begin, number, same_place, say_weights, train

import torch
from torch.nn import functional


def linear(rows, columns):
    """A layer without a bias."""
    return torch.nn.Linear(rows, columns, bias=False, device="cuda", dtype=torch.bfloat16)


class Block(torch.nn.Module):
    """Attention and a perceptron."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = linear(width, 3 * width), linear(width, width)
        self.up, self.down = linear(width, 4 * width), linear(4 * width, width)

    def forward(self, data):
        """The next hidden states."""
        batch, count, width = data.shape
        parts = self.qkv(functional.layer_norm(data, (width,))).view(batch, count, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        scores = (query @ key.transpose(2, 3)) * (width // self.heads) ** -0.5
        later = torch.ones(count, count, device=data.device, dtype=torch.bool).triu(1)
        mixed = torch.softmax(scores.masked_fill(later, float("-inf")), dim=-1) @ value
        data = data + self.out(mixed.transpose(1, 2).reshape(batch, count, width))
        return data + self.down(functional.gelu(self.up(functional.layer_norm(data, (width,)))))


def network(place=same_place):
    """Words to vectors, blocks, vectors to words; `place` may put each elsewhere once it is made."""
    width, heads, words = number("WIDTH", 2560), number("HEADS", 32), number("WORDS", 32768)
    net = torch.nn.Sequential(place(torch.nn.Embedding(words, width, device="cuda", dtype=torch.bfloat16)))
    for _ in range(number("LAYERS", 32)):
        net.append(place(Block(width, heads)))
    return net.append(place(linear(width, words)))


def run(net):
    """Trains and prints."""
    shape, words = (number("BATCH", 2), number("TOKENS", 512)), number("WORDS", 32768)
    data = torch.randint(words, shape, device="cuda")
    target = data.roll(-1, dims=1)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, foreach=False)

    def step():
        optimizer.zero_grad()
        loss = functional.cross_entropy(net(data).float().view(-1, words), target.view(-1))
        loss.backward()
        optimizer.step()
        return loss.item()

    train(step, number("STEPS", 4))


if __name__ == "__main__":
    begin()
    net = network()
    run(net)
    say_weights(net)
