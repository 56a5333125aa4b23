"""The adversarial programs under the pager: a process for each mode, strict and auto. Used by gpu_suite.py.

In auto a program may end with a CUDA error if the library says why and names VGMEM_SAFETY=strict; such a case is
reported as `loud`. A wrong result never passes.
"""
import os

from gpu_harness import PROGRAMS, Failure, Skip, check_places, equal, last_line, nvcc, read_report, size

GIB = "6"
LIMITS = {"VGMEM_PAGING": "auto", "VGMEM_DEVICE_LIMIT": "2G", "VGMEM_HOST": "8G"}
# Modes of other sizes: GiB, what differs in LIMITS.
SIZES = {"one_buffer": ("10", {"VGMEM_HOST": "12G"}),
         "just_over": ("4.04", {"VGMEM_DEVICE_LIMIT": "4G"})}
# Modes that run once more with other settings.
WHOLE = ("whole", {"VGMEM_GRAPHS": "whole"})
AGAIN = {mode: WHOLE for mode in ("graph_captured", "graph_built", "graph_chain")}
# Of these the graph is a chain: it is launched node by node unless that is turned off. Others are launched whole.
CHAINS = ("graph_chain",)
# What the programs answer when a CUDA call fails.
CUDA_FAILED = 6
LOUD = "VGMEM_SAFETY=strict"
PARTS = ("common", "pointers", "streams", "waits", "launches", "views", "classic", "load")
# Files of a program, and what it is linked with.
FILES = {
    "adversary.cu": [f"adversary_{part}.cu" for part in PARTS],
    "adversary_cublas.cu": ["adversary_common.cu", "-lcublas"],
}
MODES = {
    "adversary.cu": (
        "table_copied_read", "table_copied_write", "table_built_read", "table_built_write", "table_own_read",
        "table_own_write", "table_after_trust", "list_read", "list_write", "own_address", "globals_read",
        "globals_write", "writer_across_copy", "threads", "free_while_moving", "stream_ordered", "full_queue",
        "polling", "persistent", "host_callback", "wait_value_host", "wait_value_device", "cooperative", "atomics",
        "grouped_gemm", "graph_captured", "graph_built", "graph_chain", "lazy_loading", "local_memory", "textures",
        "tensor_maps_read", "tensor_maps_write", "stored_maps_read", "stored_maps_write", "bfs", "hotspot",
        "pathfinder", "lud", "needle", "one_buffer", "huge_operands", "allocations", "many_sizes", "just_over"),
    "adversary_cublas.cu": ("sgemm", "sgemm_batched", "sgemm_grouped"),
}


def program(suite, source):
    """Builds a program of several files."""
    more = [name if name.startswith("-") else os.path.join(PROGRAMS, name) for name in FILES[source]]
    return nvcc(suite, source, more=["-t", "0", *more])


def all_modes(suite, source):
    """The modes that the program has are those that have cases."""
    listed = suite.run([program(suite, source), "list"]).out.split()
    if sorted(listed) != sorted(MODES[source]):
        raise Failure(f"these modes are not in both lists: {sorted(set(listed) ^ set(MODES[source]))}")
    return {"modes": len(listed)}


def said_so(run):
    """Whether a failed program's library told its user what to do."""
    return run.code == CUDA_FAILED and any(LOUD in line for line in run.err.splitlines())


def adversary(suite, source, mode, safety, more=None):
    """One mode: the native results, with pages that came and went; or, in auto, a loud end."""
    gib, settings = SIZES.get(mode, (GIB, {}))
    command = [program(suite, source), mode, gib]
    native = suite.native(command)
    limits = {**LIMITS, **settings, **(more or {})}
    limit = size(limits["VGMEM_DEVICE_LIMIT"])
    if any(result.startswith("SKIP ") for result in native.out.splitlines()):
        raise Skip(f"not on this GPU: {native.out.splitlines()[0]}")
    least = limit if mode in SIZES else 2 * limit
    if native.bytes is None or native.bytes <= least:
        raise Failure(f"the program takes {native.bytes} bytes, no more than {least}, with a limit of {limit}")
    report = os.path.join(suite.work, f"report{suite.number()}.json")
    ours = suite.run(command, {"VGMEM_REPORT": report, "VGMEM_SAFETY": safety, **limits})
    wrong = [result for result in ours.results if " wrong " in result]
    if wrong:
        raise Failure(f"wrong values: {wrong[0]}")
    if safety == "auto" and said_so(ours):
        return {"ended": "loud", "said": last_line(ours)}
    equal(native, ours.must_pass("preloaded"))
    pages = read_report(report)
    check_places(pages, limit, ("host",))
    if pages["fetched"] == 0 or pages["evicted"] == 0:
        raise Failure(f"no paging: {pages['fetched']} pages fetched, {pages['evicted']} evicted")
    by_nodes = mode in CHAINS and limits.get("VGMEM_GRAPHS") != "whole"
    if (pages["graphs_by_nodes"] > 0) != by_nodes:
        raise Failure(f"{pages['graphs_by_nodes']} graphs were launched node by node, expected were "
                      f"{'some' if by_nodes else 'none'}")
    return {"fetched": pages["fetched"], "evicted": pages["evicted"], "report": pages}


def adversary_cases(suite):
    """Every mode in both forms of safety, and a check that no mode is forgotten."""
    for source, modes in MODES.items():
        suite.later(f"{source[:-3]}_modes", all_modes, suite, source)
        for mode in modes:
            for safety in ("strict", "auto"):
                suite.later(f"adversary_{mode}_{safety}", adversary, suite, source, mode, safety)
                if mode in AGAIN:
                    name, settings = AGAIN[mode]
                    suite.later(f"adversary_{mode}_{name}_{safety}", adversary, suite, source, mode, safety, settings)
