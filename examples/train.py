#!/usr/bin/env python3
"""Trains a multi-layer perceptron. An ordinary program: it knows nothing of vgmem.

With PyTorch and a GPU it is a PyTorch program. Elsewhere the same network runs through the CUDA
driver interface (PyPI's cuda-bindings), with kernels that a simulated machine offers by name.
Every loss is printed as a decimal and as an exact hexadecimal number, so that runs compare bit
by bit.
"""
import argparse
import array
import os
import struct
import sys
import time

GIB = 1 << 30
MIB = 1 << 20


class OutOfMemory(Exception):
    """The GPU has no room for what the program asked for."""


class DriverError(Exception):
    """A driver call failed for another reason."""


def labels_of(batch, classes):
    """The class of each row: any fixed sequence will do."""
    state, out = 12345, []
    for _ in range(batch):
        state = (state * 1103515245 + 12345) % (1 << 31)
        out.append((state >> 8) % classes)
    return out


class Device:
    """One GPU through the driver interface: memory, copies and launches."""

    def __init__(self):
        from cuda.bindings import driver
        self.driver = driver
        self.kernels = {}
        self.allocated = 0
        self.call("cuInit", 0)
        self.device = self.call("cuDeviceGet", 0)
        self.context = self.call("cuDevicePrimaryCtxRetain", self.device)
        self.call("cuCtxSetCurrent", self.context)
        self.module = self.call("cuModuleLoadData", b"kernels by name\0")

    def call(self, name, *arguments):
        """Calls a driver function; gives its results, or raises what its code says."""
        code, *results = getattr(self.driver, name)(*arguments)
        if code == self.driver.CUresult.CUDA_SUCCESS:
            return results[0] if len(results) == 1 else results
        if code == self.driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            raise OutOfMemory(f"{name}({', '.join(map(str, arguments))}) failed: {code.name}")
        raise DriverError(f"{name} failed: {code.name}")

    def name(self):
        """What the GPU is called."""
        text = self.call("cuDeviceGetName", 100, self.device)
        return text.split(b"\0")[0].decode()

    def memory(self):
        """Free and total bytes, as the driver says."""
        return self.call("cuMemGetInfo")

    def floats(self, count):
        """Room for `count` numbers."""
        pointer = int(self.call("cuMemAlloc", count * 4))
        self.allocated += count * 4
        return pointer

    def launch(self, name, count, *arguments):
        """Starts a kernel; `arguments` are pairs of a value and a letter of `LETTERS`."""
        import ctypes
        letters = {"p": ctypes.c_void_p, "Q": ctypes.c_uint64, "I": ctypes.c_uint32, "f": ctypes.c_float}
        if name not in self.kernels:
            self.kernels[name] = self.call("cuModuleGetFunction", self.module, name.encode())
        values = tuple(value for value, _ in arguments)
        types = tuple(letters[letter] for _, letter in arguments)
        blocks = max(1, min((count + 255) // 256, 1 << 20))
        self.call("cuLaunchKernel", self.kernels[name], blocks, 1, 1, 256, 1, 1, 0, 0, (values, types), 0)

    def fill(self, pointer, seed, scale, count):
        """Writes numbers between -scale and scale that depend on the seed and the index."""
        self.launch("init_f32", count, (pointer, "p"), (seed, "Q"), (scale, "f"), (count, "Q"))

    def product(self, out, left, right, shape, transposed=(0, 0)):
        """out = op(left) op(right), row by row; shape = (rows, columns, inner)."""
        rows, columns, inner = shape
        self.launch("matmul_f32", rows * columns, (out, "p"), (left, "p"), (right, "p"), (rows, "I"), (columns, "I"),
                    (inner, "I"), (transposed[0], "I"), (transposed[1], "I"), (0.0, "f"))


class Layer:
    """Weights, gradients and outputs of one linear layer."""

    def __init__(self, device, inputs, outputs, batch, seed):
        self.inputs, self.outputs = inputs, outputs
        self.weight = device.floats(inputs * outputs)
        self.weight_grad = device.floats(inputs * outputs)
        self.bias = device.floats(outputs)
        self.bias_grad = device.floats(outputs)
        self.result = device.floats(batch * outputs)
        self.active = device.floats(batch * outputs)
        self.grad = device.floats(batch * outputs)
        device.fill(self.weight, seed, (6.0 / inputs) ** 0.5, inputs * outputs)
        device.call("cuMemsetD8", self.bias, 0, outputs * 4)


class DriverTraining:
    """The network through the driver interface."""

    def __init__(self, sizes):
        self.sizes = sizes
        self.device = device = Device()
        batch = sizes.batch
        print(f"train: {device.name()}, {device.memory()[1] / MIB:.0f} MiB, driver interface")
        widths = [sizes.width] * sizes.layers + [sizes.classes]
        self.layers = [Layer(device, a, b, batch, seed) for seed, (a, b) in enumerate(zip(widths, widths[1:]), 1)]
        self.input = device.floats(batch * sizes.width)
        self.ones = device.floats(batch)
        self.loss = device.floats(1)
        self.labels = device.floats(batch)
        device.fill(self.input, 99, 1.0, batch * sizes.width)
        device.call("cuMemcpyHtoD", self.ones, struct.pack(f"{batch}f", *[1.0] * batch), batch * 4)
        labels = array.array("I", labels_of(batch, sizes.classes)).tobytes()
        device.call("cuMemcpyHtoD", self.labels, labels, batch * 4)

    def forward(self):
        """From the input to the loss and its gradient at the last layer."""
        device, batch = self.device, self.sizes.batch
        current = self.input
        for index, layer in enumerate(self.layers):
            device.product(layer.result, current, layer.weight, (batch, layer.outputs, layer.inputs))
            device.launch("bias_add_f32", batch * layer.outputs, (layer.result, "p"), (layer.bias, "p"), (batch, "I"),
                          (layer.outputs, "I"))
            if index + 1 < len(self.layers):
                count = batch * layer.outputs
                device.launch("relu_f32", count, (layer.active, "p"), (layer.result, "p"), (count, "Q"))
            current = layer.active
        last = self.layers[-1]
        device.launch("softmax_xent_f32", batch, (self.loss, "p"), (last.grad, "p"), (last.result, "p"),
                      (self.labels, "p"), (batch, "I"), (last.outputs, "I"))

    def backward(self):
        """Gradients of every layer, from the last to the first."""
        device, batch = self.device, self.sizes.batch
        for index in reversed(range(len(self.layers))):
            layer = self.layers[index]
            before = self.layers[index - 1] if index else None
            source = before.active if before else self.input
            device.product(layer.weight_grad, source, layer.grad, (layer.inputs, layer.outputs, batch), (1, 0))
            device.product(layer.bias_grad, self.ones, layer.grad, (1, layer.outputs, batch))
            if before:
                # `active` is needed no more: its room takes the gradient before the activation.
                device.product(before.active, layer.grad, layer.weight, (batch, layer.inputs, layer.outputs), (0, 1))
                count = batch * layer.inputs
                device.launch("relu_grad_f32", count, (before.grad, "p"), (before.active, "p"), (before.result, "p"),
                              (count, "Q"))

    def update(self):
        """One step down the gradient."""
        for layer in self.layers:
            for value, grad, count in ((layer.weight, layer.weight_grad, layer.inputs * layer.outputs),
                                       (layer.bias, layer.bias_grad, layer.outputs)):
                self.device.launch("sgd_f32", count, (value, "p"), (grad, "p"), (self.sizes.rate, "f"), (count, "Q"))

    def step(self):
        """One training step; gives its loss."""
        self.forward()
        self.backward()
        self.update()
        host = bytearray(4)
        self.device.call("cuMemcpyDtoH", host, self.loss, 4)
        return struct.unpack("f", host)[0]

    def peak(self):
        """Bytes allocated."""
        return self.device.allocated


class TorchTraining:
    """The network as a PyTorch program."""

    def __init__(self, sizes):
        import torch
        self.torch = torch
        torch.manual_seed(1)
        torch.use_deterministic_algorithms(True)
        print(f"train: {torch.cuda.get_device_name(0)}, PyTorch {torch.__version__}")
        widths = [sizes.width] * sizes.layers + [sizes.classes]
        parts = []
        for inputs, outputs in zip(widths, widths[1:]):
            layer = torch.nn.Linear(inputs, outputs, device="cuda")
            torch.nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
            torch.nn.init.zeros_(layer.bias)
            parts += [layer, torch.nn.ReLU()]
        self.model = torch.nn.Sequential(*parts[:-1])
        self.input = torch.rand(sizes.batch, sizes.width, device="cuda") * 2 - 1
        self.labels = torch.tensor(labels_of(sizes.batch, sizes.classes), device="cuda")
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=sizes.rate, foreach=False)

    def step(self):
        """One training step; gives its loss."""
        self.optimizer.zero_grad()
        loss = self.torch.nn.functional.cross_entropy(self.model(self.input), self.labels)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def peak(self):
        """Bytes allocated at the most."""
        return self.torch.cuda.max_memory_allocated()


def have_torch():
    """Whether PyTorch is here and sees a GPU."""
    # cuBLAS reads this when it starts: equal runs need it.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


def arguments():
    """The command line; each option can come from TRAIN_<NAME> too."""
    parser = argparse.ArgumentParser(description="Trains a multi-layer perceptron and prints its losses.")
    parser.add_argument("--backend", choices=["auto", "torch", "driver"],
                        default=os.environ.get("TRAIN_BACKEND", "auto"))
    for name, kind, text in (("width", int, "inputs and outputs of a layer"), ("layers", int, "number of layers"),
                             ("batch", int, "rows of a batch"), ("steps", int, "training steps"),
                             ("classes", int, "outputs of the last layer"), ("rate", float, "learning rate")):
        parser.add_argument(f"--{name}", type=kind, default=os.environ.get(f"TRAIN_{name.upper()}"), help=text)
    options = parser.parse_args()
    if options.backend == "auto":
        options.backend = "torch" if have_torch() else "driver"
    # 12 GiB of weights and gradients for a card; 1.5 GiB for a simulated one.
    large = {"width": 8192, "layers": 25, "batch": 256, "steps": 5, "classes": 1000, "rate": 0.004}
    small = {"width": 4096, "layers": 13, "batch": 16, "steps": 5, "classes": 1000, "rate": 0.004}
    for name, value in (large if options.backend == "torch" else small).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


def train(options):
    """Runs the training and prints a line for each step."""
    weights = (options.width * options.width * (options.layers - 1) + options.width * options.classes) * 4
    print(f"train: {options.layers} layers of {options.width}, batch {options.batch}: "
          f"{weights * 2 / GIB:.2f} GiB of weights and gradients", flush=True)
    job = TorchTraining(options) if options.backend == "torch" else DriverTraining(options)
    start = time.monotonic()
    for step in range(1, options.steps + 1):
        loss = job.step()
        print(f"step {step} loss {loss:.6f} {loss.hex()}", flush=True)
    took = time.monotonic() - start
    print(f"train: {options.steps} steps in {took:.1f} s, peak memory {job.peak() / GIB:.2f} GiB", flush=True)


def main():
    """Runs, and reports what went wrong in one line."""
    options = arguments()
    failures = [OutOfMemory]
    if options.backend == "torch":
        have_torch()
        import torch
        failures.append(torch.OutOfMemoryError)
    try:
        train(options)
    except tuple(failures) as error:
        print(f"train: out of memory: {str(error).splitlines()[0]}", file=sys.stderr)
        return 1
    except DriverError as error:
        print(f"train: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
