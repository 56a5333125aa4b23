"""Paged programs beside native and static placement: outputs and times. Imported by gpu_suite.py.

Every program runs native, with pages where they were placed (`off`), and paged in both safeties, one after another; all
print the same results. `step_ms` of each, its ratio to native and to static, and the pages that moved.

`soak` runs only where it is named: one program for SOAK_SECONDS (480), in which nothing may grow and every round must
give the same results.
"""
import os

from gpu_harness import Failure, equal, places, python, size

# Name, program, sizes. The bound of each is the overflow once over the link, or the native time.
PROGRAMS = (
    ("infer", "torch_infer.py", {"LAYERS": "24", "BATCH": "2048", "STEPS": "10"}),
    ("train", "torch_train.py", {"LAYERS": "12", "BATCH": "2048", "STEPS": "14"}),
    ("llama", "torch_llama.py", {"LAYERS": "32", "STEPS": "6"}),
)
KINDS = (("off", {"VGMEM_PAGING": "off"}),
         ("strict", {"VGMEM_PAGING": "auto", "VGMEM_SAFETY": "strict"}),
         ("auto", {"VGMEM_PAGING": "auto", "VGMEM_SAFETY": "auto"}))
# Steps of the static runs: they are slow, and all alike.
OFF_STEPS = {"STEPS": "4"}
# Bytes a second of the link to the host, and of that between two GPUs, one way (docs/RESULTS.md).
LINK, PEER_LINK = 55.4e9, 395e9
# What the last quarter of a soak may have more than the second one, beside 2 %.
SLACK = {"rss_kib": 32 << 10, "maps": 32, "fds": 2, "threads": 2}


def figures(run):
    """Milliseconds by name: a program says one kind of step, or several."""
    return {name: value for name, value in run.figures.items() if name.endswith("_ms")}


def wanted_kinds():
    """The kinds that run."""
    return os.environ.get("PAGING_KINDS", "off strict auto").split()


def paged(suite, program, sizes, limits=None, link=LINK):
    """One program in all its kinds; equal results, times side by side. `limits` of the pool, and what the link to
    where the rest lies carries."""
    command = python(suite, "torch", program)
    limits = limits or {"VGMEM_DEVICE_LIMIT": suite.options.limit, "VGMEM_HOST": suite.options.host}
    native = suite.native(command, sizes)
    over = (native.bytes or 0) - size(limits["VGMEM_DEVICE_LIMIT"].split(",")[0].split(":")[-1])
    if over <= 0:
        raise Failure(f"the program takes {native.bytes} bytes, no more than the limit")
    found = {"gib": round(native.bytes / 2**30, 2), "link_ms": round(over / link * 1e3, 1)}
    found.update({f"native_{name}": value for name, value in figures(native).items()})
    report = None
    for kind, settings in KINDS:
        if kind not in wanted_kinds() or (kind == "off" and "VGMEM_PATHS" in limits):
            continue  # pages that stay need no path
        of_kind = {**sizes, **OFF_STEPS} if kind == "off" else sizes
        run, report = suite.preloaded(command, {**limits, **settings}, of_kind)
        equal(suite.native(command, of_kind), run)
        found.update({f"{kind}_{name}": value for name, value in figures(run).items()})
        found.update({f"{kind}_{tier}_gib": round(held / 2**30, 2) for tier, held in places(report).items() if held})
        if kind != "off":
            found[f"{kind}_fetched"], found[f"{kind}_evicted"] = report["fetched"], report["evicted"]
            if not report["fetched"] or not report["evicted"]:
                raise Failure(f"{kind}: no page moved")
    return {**found, "report": report}


def peer_cases(suite, limits):
    """The programs on GPU 0 of several: what it has no room for lies on its peers, or, in host RAM, where they have none,
    over its own link and over those of all."""
    for name, program, sizes in PROGRAMS:
        suite.case(f"paging_{name}_over_peers", paged, suite, program, sizes, limits, PEER_LINK)
    small = ",".join(["0:8G"] + [f"{gpu}:64M" for gpu in range(1, len(suite.gpus))])
    for paths, links in (("own", 1), ("auto", len(suite.gpus))):
        settings = {"VGMEM_DEVICE_LIMIT": small, "VGMEM_HOST": suite.options.host, "VGMEM_PATHS": paths}
        name, program, sizes = PROGRAMS[0]
        suite.case(f"paging_{name}_paths_{paths}", paged, suite, program, sizes, settings, LINK * links)


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


def samples(run):
    """The `soak` lines of a run: numbers by name."""
    rows = [line.split() for line in run.out.splitlines() if line.startswith("soak ")]
    return [dict(zip(["seconds"] + row[2::2], map(float, row[1::2]))) for row in rows]


def grown(found):
    """What had more in the last quarter than in the second one: name, mean before, mean after."""
    end = found[-1]["seconds"] if found else 0
    second = [one for one in found if end / 4 < one["seconds"] <= end / 2]
    last = [one for one in found if one["seconds"] > end * 3 / 4]
    if len(second) < 2 or len(last) < 2:
        raise Failure(f"{len(found)} lines in {end} s are too few for a verdict")
    means = [(name, *(sum(one[name] for one in part) / len(part) for part in (second, last))) for name in SLACK]
    return [(name, before, after) for name, before, after in means if after > before * 1.02 + SLACK[name]]


def soak(suite):
    """One program for a long time, paged beside its work: the results of one round without us, and nothing grows."""
    command = python(suite, "torch", "torch_soak.py")
    seconds = int(os.environ.get("SOAK_SECONDS", "480"))
    native = suite.native(command, {"ROUNDS": "1"})
    if (native.bytes or 0) <= size(suite.options.limit):
        raise Failure(f"the program takes {native.bytes} bytes, no more than the limit")
    limits = {"VGMEM_DEVICE_LIMIT": suite.options.limit, "VGMEM_HOST": suite.options.host, **dict(KINDS)["auto"]}
    # Beside the rounds: the start, and a last round that began in time.
    run, report = suite.preloaded(command, limits, {"SECONDS": str(seconds)}, max(suite.options.timeout, seconds + 120))
    equal(native, run)
    lines = samples(run)
    more = grown(lines)
    first, last = lines[0], lines[-1]
    found = {"rounds": int(run.figures["rounds"]), "native_round_ms": native.time, "round_ms": run.time,
             "gib": round(native.bytes / 2**30, 2), "fetched": report["fetched"], "evicted": report["evicted"]}
    for name in SLACK:
        found[f"{name}_first_and_last"] = [int(first[name]), int(last[name])]
    if more:
        raise Failure("; ".join(f"{name} grew from {before:.0f} to {after:.0f}" for name, before, after in more)
                      + f": {found}")
    if not report["fetched"] or not report["evicted"]:
        raise Failure(f"no page moved: {found}")
    if report["lost"]:  # what PyTorch holds at the end stays live
        raise Failure(f"{report['lost']} bytes lost at exit: {found}")
    return {**found, "report": report}


def paging_cases(suite):
    """The cases; PAGING_KINDS names the kinds that run (all by default)."""
    for name, program, sizes in PROGRAMS:
        suite.case(f"paging_{name}", paged, suite, program, sizes)
    suite.case("page_sizes", page_sizes, suite)
    if any("soak" in name for name in suite.options.names):
        suite.case("soak", soak, suite)
