"""What bench_gpu.py makes of its runs: rows of medians, bounds and ratios, and the lines that say them."""
import statistics

GIB = 1 << 30
# Title, and the two figures whose ratio it is.
RATIOS = (("auto / bound", "auto", "bound"), ("auto / native", "auto", "native"),
          ("strict / bound", "strict", "bound"), ("strict / native", "strict", "native"),
          ("static / auto", "static", "auto"), ("instead / auto", "instead", "auto"))


def medians(runs):
    """Milliseconds of each phase over all runs of a kind, by its name."""
    names = [name for name in runs[0] if name.endswith("_ms")]
    return {name[:-3]: statistics.median(run[name] for run in runs) for name in names}


def rows(entry, link):
    """A row for each phase of a work. `link`: bytes a second from host to GPU, or None."""
    kinds = {kind: medians(runs) for kind, runs in entry["kinds"].items() if runs}
    methods = {name: medians(runs) for name, runs in entry["instead"].items() if runs}
    out = []
    for phase in kinds.get("native", ()):
        times = {kind: found[phase] for kind, found in kinds.items() if phase in found}
        others = {name: found[phase] for name, found in methods.items() if phase in found}
        if others:
            times["instead"] = min(others.values())
        row = {"phase": phase, "ms": times, "instead_ms": others}
        if link and "overflow" in entry:
            row["link_ms"] = round(entry["overflow"] / link * 1e3, 3)
            times["bound"] = max(times["native"], row["link_ms"])
        row["ratios"] = {title: round(times[over] / times[under], 3)
                         for title, over, under in RATIOS if over in times and under in times}
        out.append(row)
    return out


def milliseconds(value):
    """A time as it is read: three figures or whole numbers."""
    return f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"


def goal_met(row, goal):
    """Whether a program that fits is as fast as is wanted; None without a goal or a figure."""
    found = row["ratios"].get("auto / native")
    return None if goal is None or found is None else found <= goal


def line(entry, row):
    """One row in words."""
    times = row["ms"]
    text = [f"{entry['gib']:.2f} GiB in {entry['limit_gib']:.2f}"]
    text += [f"{kind} {milliseconds(times[kind])}" for kind in ("native", "strict", "auto", "static") if kind in times]
    text += [f"{name} {milliseconds(value)}" for name, value in row["instead_ms"].items()]
    if "bound" in times:
        text.append(f"bound {milliseconds(times['bound'])} (link {milliseconds(row['link_ms'])}) ms")
    else:
        text.append("bound unknown ms")
    text += [f"{title} {value:.2f}" for title, value in row["ratios"].items()]
    met = goal_met(row, entry.get("goal"))
    if met is not None:
        text.append(f"goal {entry['goal']} of native {'met' if met else 'missed'}")
    return f"{entry['name']} {row['phase']}: " + ", ".join(text)
