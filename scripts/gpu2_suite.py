#!/usr/bin/env python3
"""The hardware suite for two GPUs of one host: programs of examples/gpu native and preloaded. Started by gpu2.sh.

Cases whose times count run one after another; the others run beside each other at the end.
"""
import os
import sys

from gpu_harness import (CHAOS, PROGRAMS, STAYS, Failure, Suite, check_places, equal, nvcc, options, places, python,
                         read_report, size, with_nvcc, with_python)
from gpu_paging import peer_cases
from gpu_suite import utilisation

# FACTS measured a network of this size.
LARGE_INFER = {"LAYERS": "24", "BATCH": "2048"}
LARGE_TRAIN = {"LAYERS": "12", "BATCH": "2048"}
PEER = {"VGMEM_DEVICE_LIMIT": "0:8G", "VGMEM_HOST": "0"}
BOTH = {"VGMEM_DEVICE_LIMIT": "0:4G,1:4G"}
SMALL = {"VGMEM_DEVICE_LIMIT": "0:64M,1:16G", "VGMEM_HOST": "0"}
FITS = {"VGMEM_HOST": "0"}


def torchrun(suite, extra, count=2):
    """The command that starts so many ranks."""
    python(suite, "torch", "torch_ranks.py")
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}",
            os.path.join(PROGRAMS, "torch_ranks.py")], extra


def all_reduce(suite):
    """NCCL on pooled tensors: exact, and about as fast."""
    command, extra = torchrun(suite, {"WORK": "reduce"})
    folder = os.path.join(suite.work, "reduce")
    os.makedirs(folder)
    native = suite.native(command, extra)
    ours = suite.run(command, {"VGMEM_REPORT": os.path.join(folder, "launcher.json"), **FITS},
                     {**extra, "REPORTS": folder}).must_pass("preloaded")
    equal(native, ours)
    if min(read_report(os.path.join(folder, f"rank{rank}.json"))["made"] for rank in (0, 1)) == 0:
        raise Failure("a rank's pool made no allocation")
    speeds = [run.figures["bus_gb_per_s"] for run in (native, ours)]
    if speeds[1] < 0.97 * speeds[0]:
        raise Failure(f"{speeds[1]} GB/s, native {speeds[0]}")
    return {"bus_gb_per_s_native_and_ours": speeds}


def ranks_share(suite, chaos):
    """Two processes share the pool: results equal, and neither takes the other's GPU while there is host RAM."""
    command, extra = torchrun(suite, {"WORK": "train"})
    folder = os.path.join(suite.work, f"ranks{len(chaos)}")
    os.makedirs(folder)
    # Starting two ranks takes long: both runs at once.
    waiting = suite.ahead.submit(suite.native, command, extra)
    settings = {"VGMEM_DEVICE_LIMIT": suite.options.limit, "VGMEM_HOST": suite.options.host, **chaos,
                "VGMEM_REPORT": os.path.join(folder, "launcher.json")}
    ours = suite.run(command, settings, {**extra, "REPORTS": folder}).must_pass("preloaded")
    native = waiting.result()
    if native.bytes <= size(suite.options.limit):
        raise Failure(f"a rank takes {native.bytes} bytes, no more than the limit")
    equal(native, ours)
    found = {}
    for rank in (0, 1):
        pages = read_report(os.path.join(folder, f"rank{rank}.json"))
        held = places(pages)
        found[f"rank{rank}_gib"] = {tier: round(count / 2**30, 2) for tier, count in held.items()}
        if chaos and pages["moved"] == 0:
            raise Failure(f"rank {rank}: no page was moved")
        if held["host"] == 0 or (not chaos and held[f"gpu{1 - rank}"] > 0):
            raise Failure(f"rank {rank}: pages lay elsewhere than meant: {held}")
    return found


def peers(suite, settings, words):
    """Copies and kernels between two GPUs; `settings` without limits means that all fits."""
    command = [compiled_peers(suite)] + words
    native = suite.native(command)
    ours, pages = suite.preloaded(command, settings)
    equal(native, ours)
    if "VGMEM_CHAOS" in settings and pages["moved"] == 0:
        raise Failure("no page was moved")
    return {"results": len(native.results), "moved": pages["moved"], **ours.figures, "native": native.figures}


def compiled_peers(suite):
    """The program that also calls the driver by linking against it."""
    return nvcc(suite, "peers.cu", "static", ["-lcuda"])


def peers_speed(suite):
    """A peer copy of pooled memory is no slower."""
    return suite.fits([compiled_peers(suite), "256"], None, 2, 1.03)


def atomics(suite, settings, filler, gpu):
    """Two GPUs add to the same counters: all additions arrive, and the page is on the GPU that was meant."""
    command = [nvcc(suite, "shared.cu"), "atomics", filler]
    found = suite.measured(command, STAYS | settings)
    if "VGMEM_CHAOS" in settings:
        if found["report"]["moved"] == 0:
            raise Failure("no page was moved")
    elif found.get(f"gpu{gpu}_mib", 0) == 0 or found.get("host_mib", 0) > 0:
        raise Failure(f"pages lay elsewhere than meant: {found}")
    return found


def grant(suite, settings, filler):
    """What the first launch of GPU 1 on 1 GiB of GPU 0 costs."""
    command = [nvcc(suite, "shared.cu"), "grant", "1024", filler]
    return suite.measured(command, STAYS | settings, ("first_all_us", "second_all_us", "enable_us"))


def bandwidth(suite, gpus, settings, where):
    """c = a + b by one or both GPUs, with pages in all the places of `where`."""
    found = suite.measured([nvcc(suite, "bandwidth.cu"), "1024", str(gpus)], STAYS | settings, ("gb_per_s",))
    held = {tier for tier in ("gpu0", "gpu1", "host") if found.get(f"{tier}_mib", 0) > 150}
    if held != set(where):
        raise Failure(f"pages lay elsewhere than meant: {found}")
    return found


def fits_on_one(suite, command, extra, settings, where):
    """As `over`, where the limit of GPU 0 alone is outgrown; both GPUs hold pages of their own."""
    native = suite.native(command, extra)
    ours, pages = suite.preloaded(command, settings, extra)
    equal(native, ours)
    if "VGMEM_CHAOS" in settings:
        if pages["moved"] == 0:
            raise Failure("no page was moved")
    else:
        check_places(pages, size("1T"), where)
    return {"results": len(native.results), "moved": pages["moved"],
            **{tier: round(count / 2**30, 2) for tier, count in places(pages).items()}}


def timed(suite):
    """One after another: overflow to the peer and to both, then what must be no slower."""
    for name, program, extra in (("torch_infer", "torch_infer.py", LARGE_INFER),
                                 ("torch_train", "torch_train.py", LARGE_TRAIN),
                                 ("torch_llama", "torch_llama.py", None)):
        suite.case(f"{name}_over_peer", with_python, suite, "torch", program, suite.over, extra, PEER, ("gpu1",))
    suite.case("torch_infer_over_both", with_python, suite, "torch", "torch_infer.py", suite.over, LARGE_INFER, BOTH,
               ("gpu1", "host"))
    peer_cases(suite, PEER)
    for name, gpus, settings, where in (
            ("own", 1, FITS, ("gpu0",)), ("peer", 1, SMALL, ("gpu1",)),
            ("interleaved", 1, FITS | {"VGMEM_PLACEMENT": "interleave"}, ("gpu0", "gpu1")),
            ("interleaved_by_both", 2, FITS | {"VGMEM_PLACEMENT": "interleave"}, ("gpu0", "gpu1")),
            ("own_by_both", 2, FITS, ("gpu0",)),
            ("host_by_both", 2, {"VGMEM_DEVICE_LIMIT": "64M", "VGMEM_HOST": "8G"}, ("host",))):
        suite.case(f"bandwidth_{name}", bandwidth, suite, gpus, settings, where)
    suite.case("grant_own", grant, suite, FITS, "0")
    suite.case("grant_host", grant, suite, {"VGMEM_DEVICE_LIMIT": "0:64M,1:64M", "VGMEM_HOST": "8G"}, "64")
    suite.case("peers_fits", peers_speed, suite)
    suite.case("torch_copies_fits", with_python, suite, "torch", "torch_copies.py", suite.fits, None, 1, 1.03)
    suite.case("all_reduce_fits", all_reduce, suite)
    suite.case("torch_two_fits", with_python, suite, "torch", "torch_two.py", suite.fits, None, 1, 1.03)


def together(suite):
    """Beside each other: what must be right."""
    suite.later("ranks_share", ranks_share, suite, {})
    suite.later("ranks_share_chaos", ranks_share, suite, CHAOS)
    small = {"VGMEM_DEVICE_LIMIT": "0:192M,1:8G", "VGMEM_HOST": "0"}
    host = {"VGMEM_DEVICE_LIMIT": "64M", "VGMEM_HOST": "8G"}
    for name, settings in (("on_peer", small), ("on_host", host), ("chaos", FITS | CHAOS),
                           # Pages that both GPUs named stay out of host RAM: there must be room on GPUs to move.
                           ("host_chaos", {"VGMEM_DEVICE_LIMIT": "320M", "VGMEM_HOST": "8G"} | CHAOS)):
        suite.later(f"peers_{name}", peers, suite, settings, ["256"])
    suite.later("atomics_own", atomics, suite, FITS, "0", 0)
    suite.later("atomics_peer", atomics, suite, SMALL, "256", 1)
    suite.later("atomics_chaos", atomics, suite, FITS | CHAOS, "0", 0)
    for name, settings in (("on_peer", {"VGMEM_DEVICE_LIMIT": "0:1G", "VGMEM_HOST": "0"}), ("chaos", FITS | CHAOS)):
        suite.later(f"torch_copies_{name}",
                    lambda settings=settings: fits_on_one(suite, python(suite, "torch", "torch_copies.py"), None,
                                                          settings, ("gpu1",)))
    suite.later("torch_two_chaos",
                lambda: fits_on_one(suite, python(suite, "torch", "torch_two.py"), None, FITS | CHAOS, ("gpu1",)))
    for name, program, extra in (("torch_infer", "torch_infer.py", LARGE_INFER),
                                 ("torch_train", "torch_train.py", None),
                                 ("torch_graphs", "torch_graphs.py", None)):
        suite.later(f"{name}_over_peer_chaos", with_python, suite, "torch", program, suite.over, extra, PEER | CHAOS,
                    ("gpu1",))
    suite.later("utilisation_pool", utilisation, suite,
                {"VGMEM_DEVICE_LIMIT": "4G", "VGMEM_HOST": "2G", "VGMEM_ADVERTISE": "pool"})


def main():
    """Runs the cases that were asked for."""
    suite = Suite(options(__doc__))
    if len(suite.gpus) < 2:
        print(f"SKIP all this machine has no two GPUs: {suite.gpus}")
        return 2
    for build in (lambda: nvcc(suite, "bandwidth.cu"), lambda: nvcc(suite, "shared.cu"), lambda: compiled_peers(suite)):
        suite.ahead.submit(build)
    timed(suite)
    together(suite)
    return suite.finish()


if __name__ == "__main__":
    sys.exit(main())
