#!/usr/bin/env python3
"""The same round again and again in PyTorch: training, inference, allocations of many sizes, host copies, a graph.

Every round starts from the same numbers, so each part of it must give what it gave in the first round: anything else
ends the program with 5. SECONDS (480) says how long it goes on, ROUNDS (0: no limit) how often. Sizes: WIDTH, INNER,
LAYERS (pairs that are trained), MATRICES (of the inference), BATCH. The defaults take 12 to 14 GiB.
GRAPH_EVERY (16): a graph is captured and replayed in the first round and in each that follows that many others.
"""
import hashlib
import os
import random
import sys
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch

MIB = 1 << 20
EVERY = 15  # seconds between two lines


def number(name, default):
    """A size from the environment."""
    return int(os.environ.get(name, default))


def fail(text):
    """A wrong value: nothing that follows would mean anything."""
    print(f"wrong: {text}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(5)


def digest(tensor):
    """A checksum of all bytes of a small tensor."""
    return hashlib.sha256(tensor.contiguous().view(torch.uint8).cpu().numpy().tobytes()).hexdigest()[:32]


def bits(tensor):
    """A checksum of a large tensor of 16-bit numbers, computed where it lies."""
    return tensor.view(torch.int16).sum(dtype=torch.int64).item()


def fill(tensor, rows):
    """Random numbers that keep products with the tensor near one."""
    bound = (3.0 / rows) ** 0.5
    return tensor.uniform_(-bound, bound)


class Soak:
    """What lives as long as the program."""

    def __init__(self):
        self.width, self.inner, self.batch = number("WIDTH", 8192), number("INNER", 32768), number("BATCH", 256)
        parts = []
        for _ in range(number("LAYERS", 4)):
            parts += [self.linear(self.width, self.inner), torch.nn.ReLU(), self.linear(self.inner, self.width)]
        self.net = torch.nn.Sequential(*parts)
        shapes = [(self.width, self.inner) if i % 2 == 0 else (self.inner, self.width)
                  for i in range(number("MATRICES", 8))]
        self.matrices = [torch.empty(*shape, device="cuda", dtype=torch.bfloat16) for shape in shapes]
        self.pinned = torch.empty(64 * MIB, dtype=torch.uint8, pin_memory=True)
        self.aside = torch.cuda.Stream()  # one for all rounds: libraries keep a workspace for each stream

    def linear(self, before, after):
        """A layer; its numbers come with each round."""
        return torch.nn.Linear(before, after, bias=False, device="cuda", dtype=torch.bfloat16)

    def data(self):
        """One batch."""
        return torch.rand(self.batch, self.width, device="cuda", dtype=torch.bfloat16) * 2 - 1

    def training(self):
        """Two steps from the same weights: the losses, and the weights that they lead to."""
        with torch.no_grad():
            for weight in self.net.parameters():
                fill(weight, weight.shape[1])
        data, target = self.data(), self.data()
        optimizer = torch.optim.SGD(self.net.parameters(), lr=1e-3, foreach=False)
        found = []
        for _ in range(2):
            optimizer.zero_grad(set_to_none=True)
            loss = torch.nn.functional.mse_loss(self.net(data).float(), target.float())
            loss.backward()
            optimizer.step()
            found.append(loss.item().hex())
        with torch.no_grad():
            found += [bits(weight) for weight in self.net.parameters()]
        optimizer.zero_grad(set_to_none=True)
        return found

    def passed(self, current):
        """What the matrices make of a batch."""
        for matrix in self.matrices:
            current = torch.relu(current @ matrix)
        return current

    def inference(self):
        """Three batches through all matrices."""
        for matrix in self.matrices:
            fill(matrix, matrix.shape[0])
        return [digest(self.passed(self.data())) for _ in range(3)]

    def allocations(self):
        """Tensors of many sizes come and go; each holds one number."""
        chance, held, found = random.Random(1), [None] * 12, 0
        for step in range(72):
            place = chance.randrange(len(held))
            kind = chance.randrange(10)
            count = (chance.randrange(1, MIB // 4) if kind < 4 else chance.randrange(MIB // 4, 8 * MIB) if kind < 8
                     else chance.randrange(16 * MIB, 64 * MIB))
            held[place] = None  # its memory may serve the new one
            held[place] = (torch.full((count,), step, device="cuda", dtype=torch.int32), count * step)
            looked_at = held[chance.randrange(len(held))]
            if looked_at is not None:
                tensor, sum_of_all = looked_at
                total = tensor.sum().item()
                if total != sum_of_all:
                    fail(f"a tensor of {tensor.numel()} numbers adds up to {total}, not to {sum_of_all}")
                found = (found * 31 + total) % (1 << 61)
            if step % 24 == 23:
                torch.cuda.empty_cache()
        return [found]

    def copies(self):
        """Parts of a matrix to the host and back, through pinned and through plain memory."""
        found = []
        for index, matrix in enumerate(self.matrices):
            every = matrix.view(torch.uint8).view(-1)
            size = min(self.pinned.numel(), every.numel())
            part = every[(every.numel() - size) // (index + 1):][:size]
            pinned = self.pinned[:size]
            pinned.copy_(part, non_blocking=True)
            torch.cuda.synchronize()
            found.append(hashlib.sha256(pinned.numpy()).hexdigest()[:32])
            back = torch.empty(size, device="cuda", dtype=torch.uint8)
            back.copy_(pinned, non_blocking=True)
            if not torch.equal(back, part) or not torch.equal(part.cpu(), pinned):
                fail(f"matrix {index} is not what was copied")
        return found

    def graph(self):
        """The inference as a graph, replayed for two batches."""
        data = self.data()
        self.aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.aside):  # libraries make their workspaces now, not while it is captured
            self.passed(data)
        torch.cuda.current_stream().wait_stream(self.aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = self.passed(data)
        found = []
        for scale in (1.0, 0.5):
            data.mul_(scale)
            graph.replay()
            torch.cuda.synchronize()
            found.append(digest(output))
        return found

    def round(self, with_graph):
        """All parts by name."""
        torch.manual_seed(1)
        with torch.no_grad():
            found = {"inference": self.inference()}
            if with_graph:
                state = torch.cuda.get_rng_state()
                found["graph"] = self.graph()
                torch.cuda.empty_cache()
                torch.cuda.set_rng_state(state)  # what follows is the same with a graph before it
            found["copies"] = self.copies()
        found["training"] = self.training()
        with torch.no_grad():
            found["allocations"] = self.allocations()
        torch.cuda.empty_cache()
        return found


def process():
    """What the process holds, as words of a line."""
    with open("/proc/self/statm", encoding="ascii") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024
    with open("/proc/self/maps", "rb") as file:
        maps = sum(1 for _ in file)
    files, threads = len(os.listdir("/proc/self/fd")) - 1, len(os.listdir("/proc/self/task"))
    return f"rss_kib {resident} maps {maps} fds {files} threads {threads}"


def main():
    """Goes round and compares."""
    torch.use_deterministic_algorithms(True)
    seconds, most, graph_every = number("SECONDS", 480), number("ROUNDS", 0), max(1, number("GRAPH_EVERY", 16))
    soak, first, times = Soak(), {}, []
    start = said = time.monotonic()
    while True:
        begin = time.monotonic()
        found = soak.round(len(times) % graph_every == 0)
        torch.cuda.synchronize()
        end = time.monotonic()
        times.append(end - begin)
        if not first:
            first = found
            for name, values in found.items():
                print(f"result {name} {' '.join(map(str, values))}")
            print(f"result round {hashlib.sha256(repr(sorted(found.items())).encode()).hexdigest()}", flush=True)
        for name, values in found.items():
            if values != first[name]:
                fail(f"{name} of round {len(times)} gives {values}, not {first[name]}")
        if end - said >= EVERY:
            said = end
            print(f"soak {end - start:.1f} rounds {len(times)} {process()}", flush=True)
        if len(times) == most or end - start >= seconds:
            break
    print(f"figure rounds {len(times)}")
    print(f"time {sorted(times[1:] or times)[len(times[1:] or times) // 2] * 1e3:.3f}")
    print(f"bytes {torch.cuda.max_memory_reserved()}")


main()
