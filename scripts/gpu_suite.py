#!/usr/bin/env python3
"""The hardware suite for one GPU: programs of examples/gpu native and preloaded. Started by gpu.sh.

Cases whose times count run one after another; the others run beside each other at the end.
"""
import ctypes
import json
import os
import sys

from gpu_adversary import FILES, adversary_cases, program
from gpu_paging import paging_cases
from gpu_harness import CHAOS, STAYS, Failure, Skip, Suite, compiled, nvcc, options, python, with_nvcc, with_python

# Sizes for runs that fit: small enough to be quick, large enough that a step is mostly GPU work. Three rounds of
# two processes make more than 30 alternated steps each.
FITS = {
    "torch_train": {"LAYERS": "2", "STEPS": "13", "BATCH": "2048"},
    "torch_infer": {"LAYERS": "12", "STEPS": "20", "BATCH": "2048"},
    "cupy": {"BLOCKS": "8", "STEPS": "13"},
}
# Programs over the limit: name, module that must be there, file, settings.
OVER = (
    ("torch_train", "torch", "torch_train.py", {}),
    ("torch_infer", "torch", "torch_infer.py", {}),
    ("cupy", "cupy", "cupy_run.py", {}),
    ("torch_graphs", "torch", "torch_graphs.py", {}),
    ("torch_compile", "torch", "torch_compile.py", {}),
    ("triton", "triton", "triton_run.py", {}),
    ("numba", "numba.cuda", "numba_run.py", {}),
    # JAX takes a part of the total that it is shown: it must be shown the pool.
    ("jax", "jax", "jax_run.py", {"VGMEM_ADVERTISE": "pool"}),
    ("driver", "cuda.bindings.driver", "driver_run.py", {}),
)
# Those of them whose times are always taken; the others' only with one job at a time.
TIMED = ("torch_train", "torch_infer")
VECTORS_OVER, VECTORS_FIT = ["1024", "10", "3"], ["512", "8", "20"]
LAUNCH_NS, FREE_PART = 100, 1.05


def startup(suite):
    """Start-up cost of a process that uses no GPU, and the number of exported symbols."""
    run = suite.run(["bash", "scripts/startup.sh", "--json", suite.library])
    if run.code != 0:
        raise Failure(f"ended with {run.code}: {run.err.strip()}")
    return json.loads(run.out)


def driver_program(suite, name):
    """A C program that finds the driver itself."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise Skip(f"no driver here: {error}") from error
    return compiled(suite, name, name + ".c", ["gcc"], ["-O2", "-ldl"])


def overhead(suite, rounds=7):
    """Cost of single calls, native and preloaded alternated: the best of all rounds, which noise hardly touches."""
    command = [driver_program(suite, "overhead")]
    native, ours = [], []
    for _ in range(rounds):
        for runs, settings in ((native, None), (ours, {"VGMEM_HOST": "0"})):
            run = suite.run(command, settings)
            if run.code != 0:
                raise Failure(f"ended with {run.code}: {run.err.strip()}")
            runs.append(json.loads(run.out))
    found = {}
    for key in native[0]:
        before, after = (min(run[key] for run in runs) for runs in (native, ours))
        found[f"{key}_ns"] = [before, after, round(after - before, 1)]
    if os.environ.get("VGMEM_SIM"):
        return found  # times of simulated GPUs say nothing
    if found["launch_ns"][2] > LAUNCH_NS:
        raise Failure(f"a launch costs {found['launch_ns'][2]} ns more: {found}")
    before, after, _ = found["alloc_free_64_mib_ns"]
    if after > before * FREE_PART:
        raise Failure(f"allocating and freeing 64 MiB takes {after} ns, native {before}: {found}")
    return found


def out_of_memory(suite, command):
    """No room at all: the program sees its usual error and reports it itself."""
    run = suite.run(command, {"VGMEM_DEVICE_LIMIT": suite.options.limit, "VGMEM_HOST": "0"})
    if run.code == 0:
        raise Failure("the program ran, but there is not that much memory")
    if run.code < 0:
        raise Failure(f"the program died of signal {-run.code}")
    if "out of memory" not in run.err and "OutOfMemory" not in run.err:
        raise Failure(f"the program said something else: {(run.err.strip() or 'nothing').splitlines()[-1]}")
    return {"code": run.code}


def utilisation(suite, settings):
    """What is promised can be had and written: at least 99 % of it."""
    found = suite.measured([driver_program(suite, "utilisation")], settings, ("promised_mib", "had_mib", "part"))
    if found["part"] < 0.99:
        raise Failure(f"only {found['had_mib']} of {found['promised_mib']} MiB")
    return found


def bandwidth(suite, command, settings, place):
    """c = a + b where the pages lie in one place; natively if there are no settings."""
    if settings is None:
        run = suite.run(command).must_pass("native")
        if run.results != ["wrong 0"]:
            raise Failure(f"wrong values: {run.results}")
        return run.figures
    found = suite.measured(command, STAYS | settings, ("gb_per_s",))
    held = {name: found[name] for name in found if name.endswith("_mib")}
    if not held or held.get(f"{place}_mib", 0) < 0.95 * sum(held.values()):
        raise Failure(f"pages lay elsewhere than meant: {held}")
    return found


def grants(suite):
    """What calls of the driver take while copies are under way, without the library."""
    run = suite.run([nvcc(suite, "grants.cu", more=["-lcuda"])]).must_pass("native")
    if run.results != ["wrong 0"]:
        raise Failure(f"it did not end: {run.results}")
    return run.figures


def over_cases(suite):
    """Programs that need more than the limit, as they are and with pages moved at random."""
    for name, module, program, settings in OVER:
        now = suite.case if name in TIMED else suite.later
        now(f"{name}_over", with_python, suite, module, program, suite.over, None, settings)
        suite.later(f"{name}_over_chaos", with_python, suite, module, program, suite.over, None, settings | CHAOS)
    for kind in ("static", "shared"):
        suite.later(f"cuda_{kind}_over", with_nvcc, suite, "vectors.cu", kind, suite.over, VECTORS_OVER)
        suite.later(f"cuda_{kind}_over_chaos", with_nvcc, suite, "vectors.cu", kind, suite.over, VECTORS_OVER, None,
                    CHAOS)
    suite.later("torch_out_of_memory",
                lambda: out_of_memory(suite, python(suite, "torch", "torch_infer.py")))
    suite.later("cuda_out_of_memory", with_nvcc, suite, "vectors.cu", "static",
                lambda command: out_of_memory(suite, command), VECTORS_OVER)


def fits_cases(suite):
    """Programs that fit: no slower."""
    for name, module, program, _ in OVER:
        if name in FITS:
            suite.case(f"{name}_fits", with_python, suite, module, program, suite.fits, FITS[name])
    suite.case("cuda_static_fits", with_nvcc, suite, "vectors.cu", "static", suite.fits, VECTORS_FIT)


def main():
    """Runs the cases that were asked for."""
    suite = Suite(options(__doc__))
    suite.optional = {"torch_compile.py", "triton_run.py", "numba_run.py", "jax_run.py"}
    for source, cudart in (("bandwidth.cu", "static"), ("vectors.cu", "static"), ("vectors.cu", "shared")):
        suite.ahead.submit(nvcc, suite, source, cudart)
    for source in FILES:
        suite.ahead.submit(program, suite, source)
    suite.case("startup", startup, suite)
    suite.case("overhead", overhead, suite)
    suite.case("grants", grants, suite)
    places = ((None, "gpu0"), ({"VGMEM_HOST": "0"}, "gpu0"),
              ({"VGMEM_DEVICE_LIMIT": "64M", "VGMEM_HOST": "8G"}, "host"))
    for name, (settings, place) in zip(("native", "own", "host"), places):
        suite.case(f"bandwidth_{name}", with_nvcc, suite, "bandwidth.cu", "static",
                   lambda command, settings=settings, place=place: bandwidth(suite, command, settings, place), ["1024"])
    suite.later("utilisation", utilisation, suite,
                {"VGMEM_DEVICE_LIMIT": "4G", "VGMEM_HOST": "2G", "VGMEM_ADVERTISE": "pool"})
    paging_cases(suite)
    over_cases(suite)
    fits_cases(suite)
    adversary_cases(suite)
    return suite.finish()


if __name__ == "__main__":
    sys.exit(main())
