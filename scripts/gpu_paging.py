"""Paged programs beside native and static placement: outputs and times. Imported by gpu_suite.py.

Every program runs native, with pages where they were placed (`off`), and paged in both safeties, one after another; all
print the same results. `step_ms` of each, its ratio to native and to static, and the pages that moved.
"""
import os

from gpu_harness import Failure, equal, python

# Name, program, sizes. The bound of each is the overflow once over the link, or the native time.
PROGRAMS = (
    ("infer", "torch_infer.py", {"LAYERS": "24", "BATCH": "2048", "STEPS": "10"}),
    ("train", "torch_train.py", {"LAYERS": "12", "BATCH": "2048", "STEPS": "14"}),
    ("llama", "torch_llama.py", {"LAYERS": "32", "STEPS": "6"}),
)
KINDS = (("off", {"VGMEM_PAGING": "off"}),
         ("strict", {"VGMEM_PAGING": "auto", "VGMEM_SAFETY": "strict"}),
         ("auto", {"VGMEM_PAGING": "auto", "VGMEM_SAFETY": "auto"}))
# Bytes a second of the link, one way (docs/RESULTS.md).
LINK = 55.4e9


def figures(run):
    """Milliseconds by name: a program has one kind of step, or says several."""
    found = {name: value for name, value in run.figures.items() if name.endswith("_ms")}
    return found or {"step_ms": run.time}


def paged(suite, program, sizes, kinds):
    """One program in all its kinds; equal results, times side by side."""
    command = python(suite, "torch", program)
    limits = {"VGMEM_DEVICE_LIMIT": suite.options.limit, "VGMEM_HOST": suite.options.host}
    native = suite.native(command, sizes)
    over = (native.bytes or 0) - (int(suite.options.limit[:-1]) << 30)
    if over <= 0:
        raise Failure(f"the program takes {native.bytes} bytes, no more than the limit")
    found = {"gib": round(native.bytes / 2**30, 2), "bound_ms": round(over / LINK * 1e3, 1)}
    found.update({f"native_{name}": value for name, value in figures(native).items()})
    report = None
    for kind, settings in KINDS:
        if kind not in kinds:
            continue
        run, report = suite.preloaded(command, {**limits, **settings}, sizes)
        equal(native, run)
        found.update({f"{kind}_{name}": value for name, value in figures(run).items()})
        if kind != "off":
            found[f"{kind}_fetched"], found[f"{kind}_evicted"] = report["fetched"], report["evicted"]
            if not report["fetched"] or not report["evicted"]:
                raise Failure(f"{kind}: no page moved")
    return {**found, "report": report}


def page_sizes(suite):
    """Inference with pages of each size: what mapping costs against what the link gives."""
    command = python(suite, "torch", "torch_infer.py")
    sizes = {"LAYERS": "24", "BATCH": "512", "STEPS": "8"}
    native, found = suite.native(command, sizes), {}
    for page in ("4M", "8M", "16M", "32M", "64M"):
        for kind, settings in KINDS[1:]:
            limits = {"VGMEM_DEVICE_LIMIT": suite.options.limit, "VGMEM_HOST": suite.options.host, **settings}
            run, report = suite.preloaded(command, {**limits, "VGMEM_PAGE_SIZE": page}, sizes)
            equal(native, run)
            found[f"{page}_{kind}_ms"] = run.time
            found[f"{page}_{kind}_fetched"] = report["fetched"]
    return found


def paging_cases(suite):
    """The cases; PAGING_KINDS names the kinds that run (all by default)."""
    kinds = os.environ.get("PAGING_KINDS", "off strict auto").split()
    for name, program, sizes in PROGRAMS:
        suite.case(f"paging_{name}", paged, suite, program, sizes, kinds)
    suite.case("page_sizes", page_sizes, suite)
