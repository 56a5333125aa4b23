#!/usr/bin/env python3
"""Writes the benchmark's section of docs/RESULTS.md from docs/bench.json, the accepted runs of bench_gpu.sh.

    scripts/bench_results.py                   writes the section
    scripts/bench_results.py --check           exits with 1 if the section is not what docs/bench.json gives
    scripts/bench_results.py --accept FILE     takes the works of a bench.json first; they replace those of older runs,
                                               but for works that were measured in kinds that the new run lacks
"""
import json
import os
import sys

from bench_figures import RATIOS, goal_met, milliseconds

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BEGIN = "<!-- From docs/bench.json by scripts/bench_results.py: begin -->"
END = "<!-- From docs/bench.json by scripts/bench_results.py: end -->"
KINDS = ("native", "strict", "auto", "static")
NOTHING = "Nothing was measured yet: `./scripts/bench_gpu.sh` on a machine with a GPU."
ABOUT = """\
Milliseconds of a step, each the median of the later half of a process's steps, and of the processes where the kinds
alternated in several rounds; static and "instead", which is what a program does without the library in the memory of
the limit, ran once. Results of
native, strict, auto and static are equal bit by bit, or the work is listed as failed. The bound is the larger of native
and what exceeds the limit, once over the link as measured in the same run."""


class Wrong(Exception):
    """What was given cannot be used; says why in one line."""


def read(path):
    """A file's JSON."""
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError) as error:
        raise Wrong(f"{path}: {error}") from error


def row_of(cells):
    """A line of a table."""
    return "| " + " | ".join(cells) + " |"


def table(head, lines):
    """A table."""
    return [row_of(head), "|" + "---|" * len(head), *map(row_of, lines)]


def run_cells(number, run):
    """A run of the benchmark."""
    gpus = "; ".join(run["gpu"])
    packages = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
    library = ", ".join(part for part in (run["commit"], "SHA-256 " + run["library_sha256"][:12]) if part)
    link = "not measured: " + run["no_link"]
    if run["link"]:
        link = f"{run['link']['h2d_gb_per_s']:.1f} / {run['link']['d2h_gb_per_s']:.1f} GB/s"
    return [str(number), run["date"][:10], gpus, packages, library, link, run["host"], str(run["rounds"]),
            f"`{run['command']}`"]


def work_cells(number, entry, row):
    """A phase of a work."""
    times = row["ms"]
    cells = [f"{entry['name']}: {entry['about']}", row["phase"], f"{entry['gib']:.2f}", f"{entry['limit_gib']:.2f}"]
    cells += [milliseconds(times[kind]) if kind in times else "" for kind in KINDS]
    cells.append(", ".join(f"{milliseconds(value)} ({name})" for name, value in row["instead_ms"].items()))
    cells.append(milliseconds(times["bound"]) if "bound" in times else "")
    cells += [f"{row['ratios'][title]:.2f}" if title in row["ratios"] else "" for title, _, _ in RATIOS]
    return [*cells, str(number)]


def notes(entry):
    """What the table does not say of a work."""
    said = {"failed": "FAILED, {}: {}", "skipped": "{} not run: {}", "differs": "outputs of {} differ: {}"}
    for key, text in said.items():
        for kind, why in entry[key].items():
            yield f"- {entry['name']}: " + text.format(kind, why)
    for row in entry["rows"]:
        met = goal_met(row, entry["goal"])
        if met is not None:
            ratio = row["ratios"]["auto / native"]
            yield (f"- {entry['name']}, {row['phase']}: {ratio:.3f} of native, the goal of {entry['goal']} is "
                   f"{'met' if met else 'missed'}.")


def section(accepted):
    """The lines between the markers."""
    runs = accepted["runs"]
    if not runs:
        return [NOTHING]
    head = ["run", "date", "GPU, memory, driver", "packages", "library", "link, to the GPU / back", "host RAM", "rounds",
            "command"]
    out = [*ABOUT.splitlines(), "", *table(head, [run_cells(n, run) for n, run in enumerate(runs, 1)]), ""]
    head = ["work", "phase", "needs, GiB", "limit, GiB", *KINDS, "instead", "bound", *(title for title, _, _ in RATIOS),
            "run"]
    works = [(n, entry) for n, run in enumerate(runs, 1) for entry in run["works"]]
    out += table(head, [work_cells(n, entry, row) for n, entry in works for row in entry["rows"]])
    said = [note for _, entry in works for note in notes(entry)]
    return [*out, "", *said] if said else out


def written(text, accepted, path):
    """The document with the section that belongs in it."""
    lines = text.splitlines()
    for marker in (BEGIN, END):
        if lines.count(marker) != 1:
            raise Wrong(f"{path}: {lines.count(marker)} lines {marker!r}, not one")
    first, last = lines.index(BEGIN), lines.index(END)
    if last < first:
        raise Wrong(f"{path}: the section ends before it begins")
    return "\n".join([*lines[:first + 1], "", *section(accepted), "", *lines[last:]]) + "\n"


def kinds_of(entry):
    """The kinds that a work ran in."""
    return {kind for kind, processes in entry["kinds"].items() if processes} | set(entry["instead"])


def accept(accepted, run, path):
    """Takes the works of a run that failed, or were measured in more than the native kind. Older ones of these names
    stay only where they ran in a kind that these did not."""
    found = [entry for entry in run["works"] if entry["verdict"] != "SKIP"]
    works = [entry for entry in found if entry["failed"] or kinds_of(entry) - {"native"}]
    if not works:
        raise Wrong(f"{path}: no work was measured")
    if not run["gpu"] or run["gpu"][0].startswith("unknown"):
        raise Wrong(f"{path}: not measured on a GPU that nvidia-smi knows: {run['gpu']}")
    taken = {entry["name"]: kinds_of(entry) for entry in works}

    def stays(entry):
        return entry["name"] not in taken or kinds_of(entry) - taken[entry["name"]]

    runs = [{**old, "works": list(filter(stays, old["works"]))} for old in accepted["runs"]]
    return {"runs": [old for old in runs if old["works"]] + [{**run, "works": works}]}


def main(words, docs=os.path.join(ROOT, "docs")):
    """Writes or checks; gives the exit code."""
    accepted_path, document = os.path.join(docs, "bench.json"), os.path.join(docs, "RESULTS.md")
    check, accepting = words == ["--check"], len(words) == 2 and words[0] == "--accept"
    if words and not check and not accepting:
        print(f"bench_results: {' '.join(words)}: accepted are nothing, --check, and --accept FILE", file=sys.stderr)
        return 2
    try:
        accepted = read(accepted_path)
        if accepting:
            accepted = accept(accepted, read(words[1]), words[1])
        with open(document, encoding="utf-8") as file:
            before = file.read()
        after = written(before, accepted, document)
    except (Wrong, OSError) as error:
        print(f"bench_results: {error}", file=sys.stderr)
        return 2
    except (KeyError, TypeError, AttributeError) as error:
        print(f"bench_results: a run that bench_gpu.sh did not write: {error!r}", file=sys.stderr)
        return 2
    if check:
        if before != after:
            print(f"bench_results: {document} is not what {accepted_path} gives: run scripts/bench_results.py",
                  file=sys.stderr)
        return 1 if before != after else 0
    if accepting:
        with open(accepted_path, "w", encoding="utf-8") as file:
            json.dump(accepted, file, indent=1)
            file.write("\n")
    with open(document, "w", encoding="utf-8") as file:
        file.write(after)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
