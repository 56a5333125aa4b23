#!/usr/bin/env python3
"""Training steps and a matrix product in JAX: losses and sums, exactly.

Sizes come from the environment: WIDTH, INNER, LAYERS (pairs), BATCH, STEPS. The defaults hold 9 GiB of float32
weights.
"""
import ctypes
import os
import time

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
# No choice of kernels by timing: it differs from run to run.
os.environ.setdefault("XLA_FLAGS", "--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0")

import jax
import jax.numpy as jnp


def number(name, default):
    """A size from the environment."""
    return int(os.environ.get(name, default))


def wait_for_gpu(driver):
    """Waits for all work, as programs do that time their steps."""
    if driver.cuCtxSynchronize() != 0:
        raise RuntimeError("cuCtxSynchronize failed")


def driver_with_context():
    """The driver interface, with the context that JAX uses."""
    driver = ctypes.CDLL("libcuda.so.1")
    context = ctypes.c_void_p()
    if driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) or driver.cuCtxSetCurrent(context):
        raise RuntimeError("no context")
    return driver


def loss_of(weights, data, target):
    """Mean squared error of a perceptron."""
    current = data
    for index, weight in enumerate(weights):
        current = current @ weight
        if index % 2 == 0:
            current = jax.nn.relu(current)
    return jnp.mean((current - target) ** 2)


def train_step(weights, data, target):
    """Plain gradient descent."""
    loss, grads = jax.value_and_grad(loss_of)(weights, data, target)
    return [weight - 1e-3 * grad for weight, grad in zip(weights, grads)], loss


def main():
    """Trains and prints."""
    if jax.devices()[0].platform not in ("gpu", "cuda"):
        raise SystemExit("jax_run: JAX sees no GPU")
    width, inner, batch = number("WIDTH", 8192), number("INNER", 16384), number("BATCH", 128)
    key = jax.random.key(1)
    weights = []
    for index in range(2 * number("LAYERS", 9)):
        shape = (width, inner) if index % 2 == 0 else (inner, width)
        key, own = jax.random.split(key)
        weights.append(jax.random.uniform(own, shape, minval=-1.0, maxval=1.0) * (3.0 / shape[0]) ** 0.5)
    data = jax.random.uniform(jax.random.key(2), (batch, width))
    target = jax.random.uniform(jax.random.key(3), (batch, width))
    driver = driver_with_context()
    step = jax.jit(train_step, donate_argnums=0)
    times = []
    for at in range(number("STEPS", 4)):
        wait_for_gpu(driver)
        start = time.perf_counter()
        weights, loss = step(weights, data, target)
        value = float(loss)
        wait_for_gpu(driver)
        times.append(time.perf_counter() - start)
        print(f"result step{at + 1} {value:.6f} {value.hex()}", flush=True)
    for index in (0, len(weights) - 1):
        print(f"result weight{index} {float(jnp.sum(weights[index] * weights[index])).hex()}")
    square = jnp.matmul(weights[0].T, weights[0])
    print(f"result product {float(jnp.sum(jnp.abs(square))).hex()}")
    later = sorted(times[1:] or times)
    print(f"time {later[len(later) // 2] * 1e3:.3f}")
    print(f"bytes {sum(weight.nbytes for weight in weights)}")


main()
