#!/usr/bin/env python3
"""What a program does to outgrow a GPU without the library: the networks of the other programs, by a METHOD.

    METHOD=accelerate WORK=infer | llama         layers that do not fit are held in host memory and copied for each use
    METHOD=save_on_cpu WORK=train                what the backward pass needs is held in host memory
    METHOD=fsdp WORK=train | adamw               weights, gradients and the optimizer are the host's (one process)

MEMORY is the most bytes that PyTorch may take of the GPU (0: all of it, and no layer stays there); ROOM of them are
left to what is not a layer (accelerate). Other sizes as in the programs. With `fsdp` the optimizer's arithmetic is the
processor's: results differ.
"""
import functools
import os
import sys

from torch_common import begin, number

import torch


class Places:
    """The first layers stay on the GPU while there is room, the others go to host memory."""

    def __init__(self):
        self.left = number("MEMORY", 0) - number("ROOM", 0)
        self.found = {}

    def place(self, layer):
        """Puts a layer where it stays."""
        size = sum(weight.nbytes for weight in layer.parameters())
        fits = size <= self.left
        if fits:
            self.left -= size
        else:
            layer.to("cpu")
        self.found[layer] = 0 if fits else "cpu"
        return layer

    def dispatched(self, net):
        """The network, its layers in host memory copied to the GPU when they are called."""
        from accelerate import cpu_offload, dispatch_model
        where = {name: self.found[module] for name, module in net.named_modules() if module in self.found}
        # A map that names the processor alone would compute there.
        if set(where.values()) == {"cpu"}:
            return cpu_offload(net, execution_device=0)
        return dispatch_model(net, device_map=where)


def accelerate(work):
    """Inference by accelerate's CPU offload."""
    places = Places()
    if work == "infer":
        import torch_infer
        torch_infer.run(places.dispatched(torch_infer.network(places.place)))
    else:
        import torch_llama
        torch_llama.run(places.dispatched(torch_llama.Network(places.place)))


def save_on_cpu(_work):
    """Training with what the backward pass needs in host memory."""
    import torch_train
    torch_train.run(torch_train.network(), functools.partial(torch.autograd.graph.save_on_cpu, pin_memory=True))


def fsdp(work):
    """Training by FSDP's CPU offload."""
    import torch.distributed
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
    import torch_adamw
    import torch_train
    program = torch_train if work == "train" else torch_adamw
    torch.cuda.set_device(0)
    torch.distributed.init_process_group("cpu:gloo,cuda:nccl", store=torch.distributed.HashStore(), rank=0,
                                         world_size=1)

    def place(part):
        return fully_shard(part, offload_policy=CPUOffloadPolicy())

    program.run(place(program.network(place)))
    torch.distributed.destroy_process_group()


METHODS = {"accelerate": (accelerate, ("infer", "llama")),
           "save_on_cpu": (save_on_cpu, ("train",)),
           "fsdp": (fsdp, ("train", "adamw"))}


def main():
    """Runs the work by the method."""
    method, work = os.environ.get("METHOD", ""), os.environ.get("WORK", "")
    if method not in METHODS or work not in METHODS[method][1]:
        accepted = "; ".join(f"{name} with {' or '.join(works)}" for name, (_, works) in METHODS.items())
        sys.exit(f"METHOD={method!r} WORK={work!r} is none of: {accepted}")
    begin()
    if number("MEMORY", 0):
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, number("MEMORY", 0) / total))
    METHODS[method][0](work)


if __name__ == "__main__":
    main()
