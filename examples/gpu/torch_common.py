"""What the PyTorch programs whose steps are measured have in common: sizes, steps, lines."""
import hashlib
import os
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch


def number(name, default):
    """A size from the environment."""
    return int(os.environ.get(name, default))


def same_place(part):
    """Where a part of a network is made, it stays."""
    return part


def begin():
    """The same numbers and the same kernels in every run."""
    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True)


def timed(work):
    """What the work gives, and its milliseconds."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    out = work()
    torch.cuda.synchronize()
    return out, (time.perf_counter() - start) * 1e3


def checksum(data):
    """An exact one of 16-bit numbers."""
    return hashlib.sha256(data.view(torch.int16).cpu().numpy().tobytes()).hexdigest()


def bits(tensor):
    """An exact sum of a large tensor, computed where it lies and without room of its own."""
    return tensor.view(torch.int16).sum(dtype=torch.int64).item()


def train(step, steps):
    """Runs so many steps, each of which gives its loss, and prints."""
    times = []
    for index in range(steps):
        value, spent = timed(step)
        times.append(spent)
        print(f"result step{index + 1} {value:.6f} {value.hex()}", flush=True)
    say(step=times)


def checked(step, steps):
    """Runs so many steps, each of which gives an output, and prints."""
    times = []
    for _ in range(steps):
        output, spent = timed(step)
        times.append(spent)
        print("result output", checksum(output), flush=True)
    print(f"result norm {output.double().norm().item().hex()}")
    say(step=times)


def say_weights(net):
    """The line that tells all weights."""
    print(f"result weights {sum(bits(weight.detach()) for weight in net.parameters())}")


def median(times):
    """The middle one of all but the first, which loads kernels and fills the allocator."""
    later = sorted(times[1:] or times)
    return later[len(later) // 2]


def settled(times):
    """The middle one of the later half: a pager has learned by then what comes."""
    later = sorted(times[len(times) // 2:])
    return later[len(later) // 2]


def say(**phases):
    """The lines that a suite reads: the first phase's time, what each settles at, and the memory that was taken."""
    for name, times in phases.items():
        print(f"figure {name}_ms {settled(times):.3f}")
        print(f"steps {name}", *(f"{time:.1f}" for time in times))
    print(f"time {median(next(iter(phases.values()))):.3f}")
    print(f"bytes {torch.cuda.max_memory_reserved()}", flush=True)
