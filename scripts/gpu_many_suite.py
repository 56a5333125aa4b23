#!/usr/bin/env python3
"""The hardware suite for four GPUs of one host or more: programs of examples/gpu native and preloaded. Started by
gpu_many.sh. Cases run one after another.
"""
import os
import sys

from gpu2_suite import torchrun
from gpu_harness import STAYS, Failure, Suite, equal, nvcc, options, places, read_report, size
from gpu_paging import peer_cases
from gpu_suite import utilisation

LEAST = 4


def bandwidth(suite, by_all):
    """c = a + b over pages interleaved on all GPUs, by one GPU or by all."""
    count = len(suite.gpus)
    settings = {"VGMEM_HOST": "0", "VGMEM_PLACEMENT": "interleave"}
    # Each array has at least one page of the largest size on every GPU.
    found = suite.measured([nvcc(suite, "bandwidth.cu"), "2048", str(count if by_all else 1)], settings,
                           ("gb_per_s",))
    bare = [gpu for gpu in range(count) if not found.get(f"gpu{gpu}_mib")]
    if bare:
        raise Failure(f"no page on GPUs {bare}: {found}")
    return found


def grants(suite, settings, filler):
    """What the first launch of each further GPU on 1 GiB costs."""
    figures = [f"gpu{gpu}_all_us" for gpu in range(1, len(suite.gpus))]
    return suite.measured([nvcc(suite, "shared.cu"), "grants", "1024", filler], STAYS | settings, figures)


def ranks(suite, work, settings):
    """A process for each GPU, all in one pool: results equal, totals that agree."""
    count = len(suite.gpus)
    command, extra = torchrun(suite, {"WORK": work}, count)
    folder = os.path.join(suite.work, f"{work}{count}")
    os.makedirs(folder)
    native = suite.native(command, extra)
    if "VGMEM_DEVICE_LIMIT" in settings and native.bytes <= size(settings["VGMEM_DEVICE_LIMIT"]):
        raise Failure(f"a rank takes {native.bytes} bytes, no more than the limit")
    settings = {**settings, "VGMEM_REPORT": os.path.join(folder, "launcher.json")}
    ours = suite.run(command, settings, {**extra, "REPORTS": folder}).must_pass("preloaded")
    equal(native, ours)
    reports = [read_report(os.path.join(folder, f"rank{rank}.json")) for rank in range(count)]
    idle = [rank for rank, report in enumerate(reports) if report["made"] == 0]
    if idle:
        raise Failure(f"the pools of ranks {idle} made no allocation")
    held = [{tier: round(bytes_there / 2**30, 2) for tier, bytes_there in places(report).items() if bytes_there}
            for report in reports]
    return {"ranks": count, "native_ms": native.time, "ours_ms": ours.time, "held_gib": held,
            **{f"{name}_native_and_ours": [value, ours.figures.get(name)] for name, value in native.figures.items()}}


def main():
    """Runs the cases that were asked for."""
    suite = Suite(options(__doc__))
    if len(suite.gpus) < LEAST:
        print(f"SKIP all this machine has no {LEAST} GPUs: {suite.gpus}")
        return 2
    for source in ("bandwidth.cu", "shared.cu"):
        suite.ahead.submit(nvcc, suite, source)
    limit, host = suite.options.limit, suite.options.host
    suite.case("bandwidth_interleaved", bandwidth, suite, False)
    suite.case("bandwidth_interleaved_by_all", bandwidth, suite, True)
    suite.case("grants_own", grants, suite, {"VGMEM_HOST": "0"}, "0")
    small = ",".join(f"{gpu}:64M" for gpu in range(len(suite.gpus)))
    suite.case("grants_host", grants, suite, {"VGMEM_DEVICE_LIMIT": small, "VGMEM_HOST": "8G"}, "64")
    suite.case("utilisation_pool", utilisation, suite,
               {"VGMEM_DEVICE_LIMIT": limit, "VGMEM_HOST": "2G", "VGMEM_ADVERTISE": "pool"})
    peer_cases(suite, {"VGMEM_DEVICE_LIMIT": limit, "VGMEM_HOST": host})
    suite.case("ranks_reduce", ranks, suite, "reduce", {"VGMEM_HOST": "0"})
    suite.case("ranks_train", ranks, suite, "train", {"VGMEM_DEVICE_LIMIT": limit, "VGMEM_HOST": host})
    return suite.finish()


if __name__ == "__main__":
    sys.exit(main())
