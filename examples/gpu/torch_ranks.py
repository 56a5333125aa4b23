#!/usr/bin/env python3
"""Two or more processes, one GPU each, NCCL between them: what torchrun starts. WORK chooses what they do.

reduce: all-reduces of a tensor of MIB MiB (256): exact sums, and the bandwidth.
train: each rank trains its own model on its own data, gradients averaged by all-reduce; sizes as in torch_train.py.
REPORTS names a folder: each rank then asks the library, if it is there, for a report of its own.
"""
import os
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
RANK = int(os.environ["RANK"])
if "VGMEM_REPORT" in os.environ and "REPORTS" in os.environ:
    os.environ["VGMEM_REPORT"] = os.path.join(os.environ["REPORTS"], f"rank{RANK}.json")

import torch
from torch import distributed


def number(name, default):
    """A size from the environment."""
    return int(os.environ.get(name, default))


def median(times):
    """The middle one of all but the first."""
    later = sorted(times[1:] or times)
    return later[len(later) // 2]


def say(text):
    """From one rank, or lines would mix."""
    if RANK == 0:
        print(text, flush=True)


def reduce_many():
    """All-reduces, exact and timed."""
    count = (number("MIB", 256) << 20) // 4
    data = torch.arange(count, device="cuda", dtype=torch.int32) % 1000 + RANK
    times = []
    for turn in range(number("STEPS", 24)):
        part = data + turn
        torch.cuda.synchronize()
        start = time.perf_counter()
        distributed.all_reduce(part)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
        if turn % 8 == 0:
            say(f"result sum{turn} {int((part.to(torch.int64) * (torch.arange(count, device='cuda') % 97)).sum())}")
    # So often a byte crosses a rank's link in each direction; once with two.
    crossings = 2 * (distributed.get_world_size() - 1) / distributed.get_world_size()
    say(f"figure bus_gb_per_s {crossings * count * 4 / median(times) / 1e9:.1f}")
    return median(times)


def model():
    """The same weights in both ranks."""
    torch.manual_seed(1)
    width, inner, parts = number("WIDTH", 8192), number("INNER", 32768), []
    for _ in range(number("LAYERS", 5)):
        parts += [torch.nn.Linear(width, inner, bias=False, device="cuda", dtype=torch.bfloat16), torch.nn.ReLU(),
                  torch.nn.Linear(inner, width, bias=False, device="cuda", dtype=torch.bfloat16)]
    net = torch.nn.Sequential(*parts)
    with torch.no_grad():
        for weight in net.parameters():
            weight.uniform_(-(6.0 / weight.shape[1]) ** 0.5, (6.0 / weight.shape[1]) ** 0.5)
    return net


def of_all(value):
    """A number of each rank."""
    values = [torch.zeros_like(value) for _ in range(distributed.get_world_size())]
    distributed.all_gather(values, value)
    return " ".join(one.item().hex() for one in values)


def train():
    """Data-parallel training."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, foreach=False)
    torch.manual_seed(100 + RANK)
    batch, width = number("BATCH", 256), number("WIDTH", 8192)
    data, target = (torch.rand(batch, width, device="cuda", dtype=torch.bfloat16) * 2 - 1 for _ in range(2))
    times = []
    for step in range(number("STEPS", 3)):
        torch.cuda.synchronize()
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(net(data).float(), target.float())
        loss.backward()
        for weight in net.parameters():
            distributed.all_reduce(weight.grad)
            weight.grad.div_(distributed.get_world_size())
        optimizer.step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
        loss = loss.detach().reshape(1)
        say(f"result step{step + 1} {of_all(loss)}")
    with torch.no_grad():
        total = torch.stack([weight.double().sum() for weight in net.parameters()]).sum().reshape(1)
    say(f"result weights {of_all(total)}")
    return median(times)


def main():
    """Joins, works and prints."""
    torch.use_deterministic_algorithms(True)
    gpu = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(gpu)
    distributed.init_process_group("nccl", device_id=torch.device("cuda", gpu))
    # From here on each process is known to the other's pool.
    torch.zeros(1 << 22, device="cuda")
    distributed.barrier()
    spent = {"reduce": reduce_many, "train": train}[os.environ.get("WORK", "reduce")]()
    say(f"time {spent * 1e3:.3f}")
    say(f"bytes {torch.cuda.max_memory_reserved()}")
    distributed.barrier()
    distributed.destroy_process_group()


main()
