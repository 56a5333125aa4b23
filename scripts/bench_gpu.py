#!/usr/bin/env python3
"""Times of programs that outgrow a GPU, beside their bound. Started by bench_gpu.sh.

Every work runs in its kinds one after another, again for each round: native, `strict`, `auto`, and in the first round
`static` and what a program does without the library. Results are compared with native's, bit by bit. The bound is the
larger of native and the overflow once over the link, whose rate is measured first. bench.json is written after each
process.
"""
import argparse
import datetime
import importlib.metadata
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys

from bench_figures import GIB, goal_met, line, medians, milliseconds, rows
from bench_works import INSTEAD, KINDS, NATIVE, SETTINGS, STATIC, WORKS, named
from gpu_harness import ROOT, Failure, Skip, Suite, equal, last_line, nvcc
from gpu_paging import figures

MIB = 1 << 20
PACKAGES = ("torch", "accelerate")
# What a program says that found no room, in the words of PyTorch.
NO_ROOM = "OutOfMemoryError"


# What is kept of a run's report.
COUNTERS = ("fetched", "evicted", "unwritten", "launches_in_place", "launches_by_parts", "graphs_by_nodes",
            "strict_exchanges", "waited_beside_us", "waited_strictly_us")


class Late(Exception):
    """No time is left to begin something."""


def labelled(run):
    """Results by their first word and how often it came before."""
    found, seen = {}, {}
    for result in run.results:
        word, _, value = result.partition(" ")
        seen[word] = seen.get(word, 0) + 1
        found[word, seen[word]] = value
    return found


def equal_steps(native, ours, totals):
    """A run of fewer steps gives what the first steps of native gave; `totals` are words that hang on their number."""
    expected, compared = labelled(native), 0
    for (word, count), value in labelled(ours).items():
        if word in totals:
            continue
        compared += 1
        if expected.get((word, count)) != value:
            raise Failure(f"{word} {count}: native gives {expected.get((word, count))!r}, this {value!r}")
    if not compared:
        raise Failure("no result to compare")


class Bench(Suite):
    """The works and what they took."""

    def __init__(self, options):
        super().__init__(options)
        self.entries, self.link, self.no_link = [], None, ""
        self.host = {"versions": versions(), "commit": commit(), "command": command_line(options.names)}

    def measure_link(self):
        """The rate of copies between pinned host memory and the GPU."""
        try:
            run = self.run([nvcc(self, "scans.cu"), "link"]).must_pass("the rate of the link")
            if run.results != ["wrong 0"]:
                raise Failure(f"the rate of the link: wrong values: {run.results}")
            self.link = dict(run.figures)
            print(f"link: {self.link['h2d_gb_per_s']:.1f} GB/s to the GPU, {self.link['d2h_gb_per_s']:.1f} back",
                  flush=True)
        except (Skip, Failure) as error:
            self.no_link = str(error)
            print(f"link: not measured, so that no bound is known: {error}", flush=True)

    def measure(self, work):
        """Runs a work in all its kinds, prints its lines; what was measured stays where a kind fails."""
        entry = {"name": work.name, "about": work.about, "verdict": "ok", "goal": work.goal, "kinds": {}, "instead": {},
                 "pages": {}, "failed": {}, "skipped": {}, "differs": {}, "rows": []}
        self.entries.append(entry)
        try:
            self.rounds(work, entry, work.command(self))
        except Skip as error:
            entry["skipped"][NATIVE] = str(error)
        except Late as error:
            entry["skipped"]["the rest"] = str(error)
        except Failure as error:
            entry["failed"][NATIVE] = str(error)
        if entry["failed"]:
            entry["verdict"] = "FAIL"
        elif not any(kind in entry["kinds"] for kind in SETTINGS):
            entry["verdict"] = "SKIP"
        self.summary()
        for row in entry["rows"]:
            print(f"{entry['verdict']} {line(entry, row)}", flush=True)
        for what in ("failed", "skipped", "differs"):
            for kind, why in entry[what].items():
                print(f"{entry['verdict']} {work.name}: {kind} {what}: {why}", flush=True)

    def rounds(self, work, entry, command):
        """All kinds, one after another, as often as they alternate."""
        native = None
        for number in range(1 if work.once else self.options.rounds):
            self.not_late()
            run = self.native_run(work, command)
            if native:
                equal(native, run)
            else:
                native = run
                self.take_sizes(work, entry, native)
            self.took(entry, entry["kinds"], NATIVE, run, number)
            for kind in self.kinds_of(work, number):
                if kind in entry["failed"]:
                    continue
                self.not_late()
                try:
                    self.ours(work, entry, command, kind, native, number)
                except Failure as error:
                    entry["failed"][kind] = str(error)
            if number == 0 and INSTEAD in self.options.kinds:
                for method in work.instead:
                    self.not_late()
                    self.without(work, entry, method, native)

    def not_late(self):
        """Nothing begins when its time is over."""
        if self.late():
            raise Late(f"not begun within {self.options.seconds} s")

    def kinds_of(self, work, number):
        """The kinds of the library that run in this round."""
        for kind in SETTINGS:
            slow = kind == STATIC
            if kind in self.options.kinds and not (slow and (work.static is None or number > 0)):
                yield kind

    def native_run(self, work, command):
        """A run without the library."""
        if work.once:
            return self.native(command, work.sizes)
        return self.run(command, None, work.sizes, work.timeout).must_pass("native")

    def take_sizes(self, work, entry, native):
        """What the program needs, and what it gets."""
        if native.bytes is None:
            raise Failure("the program does not say its bytes")
        limit = self.limit(work, native.bytes)
        entry.update(gib=round(native.bytes / GIB, 3), limit_gib=round(limit / GIB, 3), limit=f"{limit // MIB}M",
                     overflow=max(0, int(native.bytes) - limit))
        if work.limit and entry["overflow"] == 0:
            raise Failure(f"the program takes {entry['gib']} GiB, no more than the limit of {entry['limit_gib']}")

    @staticmethod
    def limit(work, taken):
        """Bytes of GPU memory, whole mebibytes."""
        if work.limit:
            return int(work.limit[:-1]) * GIB
        return int(taken / work.over) // MIB * MIB

    def ours(self, work, entry, command, kind, native, number):
        """One run with the library: equal results, and what it took."""
        sizes = {**work.sizes, **(work.static if kind == STATIC else {})}
        settings = {"VGMEM_DEVICE_LIMIT": entry["limit"], "VGMEM_HOST": self.options.host, **SETTINGS[kind],
                    **work.library}
        run, report = self.preloaded(command, settings, sizes, work.timeout)
        if sizes == work.sizes:
            equal(native, run)
        else:
            equal_steps(native, run, work.totals)
        if not report["made"]:
            raise Failure("the pool made no allocation")
        if kind != STATIC:
            entry["pages"][kind] = {name: report[name] for name in COUNTERS}
            over = report["peak"] > int(entry["limit"][:-1]) * MIB and not work.stays
            if over and not (report["fetched"] and report["evicted"]):
                raise Failure("no page moved")
        self.took(entry, entry["kinds"], kind, run, number)

    def without(self, work, entry, method, native):
        """One run of what a program does without the library, in the memory of the limit."""
        try:
            command = method.command(self)
        except Skip as error:
            entry["skipped"][method.name] = str(error)
            return
        environment = method.environment(work, int(entry["limit"][:-1]) * MIB)
        run = self.run(command, None, environment, work.timeout)
        if run.code != 0 or not figures(run):
            no_room = NO_ROOM in run.err
            entry["skipped"][method.name] = ("out of memory within the limit" if no_room else
                                             f"ended with {run.code}: {last_line(run)}")
            return
        try:
            equal_steps(native, run, work.totals)
        except Failure as error:
            entry["differs"][method.name] = method.differs or str(error)
        self.took(entry, entry["instead"], method.name, run, 0)

    def took(self, entry, group, name, run, number):
        """Keeps what a run measured, and writes what is known."""
        found = figures(run)
        if not found:
            raise Failure(f"{name} printed no figure of milliseconds")
        group.setdefault(name, []).append(found)
        entry["rows"] = rows(entry, self.link["h2d_gb_per_s"] * 1e9 if self.link else None)
        text = ", ".join(f"{phase} {milliseconds(value)} ms" for phase, value in medians([found]).items())
        print(f"   {entry['name']} {name} round {number + 1}: {text}", flush=True)
        self.summary()

    def summary(self):
        """Writes what is known so far."""
        found = {"date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), "gpu": self.gpus,
                 "library_sha256": self.digest, **self.host, "host": self.options.host, "rounds": self.options.rounds,
                 "link": self.link, "no_link": self.no_link, "works": self.entries}
        target = os.path.join(self.out, "bench.json")
        with open(target + ".new", "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)
            file.write("\n")
        os.replace(target + ".new", target)

    def verdict(self):
        """The closing lines; gives the exit code."""
        verdicts = [entry["verdict"] for entry in self.entries]
        missed = [entry["name"] for entry in self.entries
                  if any(goal_met(row, entry["goal"]) is False for row in entry["rows"])]
        if missed:
            print(f"goal missed: {', '.join(missed)}")
        over = [row["ratios"]["auto / bound"] for entry in self.entries for row in entry["rows"]
                if "auto / bound" in row["ratios"]]
        if over:
            print(f"auto / bound: median {statistics.median(over):.2f}, worst {max(over):.2f} of {len(over)}")
        print(f"{verdicts.count('ok')} measured, {verdicts.count('FAIL')} failed, {verdicts.count('SKIP')} skipped")
        return 1 if "FAIL" in verdicts or "ok" not in verdicts else 0

    def finish(self):
        """Closes the log; gives the exit code."""
        self.log.close()
        shutil.rmtree(self.work, ignore_errors=True)
        return self.verdict()


def versions():
    """Of the packages whose programs are measured, where they are installed."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            pass
    return found


def commit():
    """The commit of this checkout; nothing where it is none."""
    command = ["git", "-C", ROOT, "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def command_line(names):
    """What starts this run again."""
    told = [f"{name}={shlex.quote(os.environ[name])}" for name in
            ("BENCH_ROUNDS", "BENCH_KINDS", "GPU_HOST", "GPU_SECONDS") if name in os.environ]
    return " ".join([*told, "./scripts/bench_gpu.sh", *map(shlex.quote, names)])


def whole(name, least):
    """Reads a whole number of at least that."""
    def read(text):
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{name}={text!r} is no whole number of {least} or more")
        return int(text)
    return read


def memory(text):
    """Reads a size, which is handed to the library as it is."""
    if not text[:-1].isdecimal() or text[-1] not in "MGT":
        raise argparse.ArgumentTypeError(f"GPU_HOST={text!r} is no size like 24G")
    return text


def kinds(text):
    """Reads the kinds that run."""
    found = text.split(",")
    unknown = [kind for kind in found if kind not in KINDS]
    if unknown:
        raise argparse.ArgumentTypeError(f"BENCH_KINDS: {unknown[0]!r} is no kind; accepted are {', '.join(KINDS)}")
    if NATIVE not in found:
        raise argparse.ArgumentTypeError(f"BENCH_KINDS={text!r} lacks {NATIVE}, with which the others are compared")
    return found


class Parser(argparse.ArgumentParser):
    """One clear line says what is wrong."""

    def error(self, message):
        print(f"bench_gpu: {message}", file=sys.stderr)
        sys.exit(2)


def options(words):
    """The command line."""
    parser = Parser(description=__doc__)
    parser.add_argument("--library", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--host", type=memory, default="24G", help="host memory in the pool")
    parser.add_argument("--rounds", type=whole("BENCH_ROUNDS", 1), default=2, help="so often the kinds alternate")
    parser.add_argument("--kinds", type=kinds, default=list(KINDS), help="the kinds that run")
    parser.add_argument("--seconds", type=whole("GPU_SECONDS", 0), default=0,
                        help="no process begins later than this (0: no limit)")
    # What a compiler may take, and a native run that works share.
    parser.set_defaults(timeout=150)
    parser.add_argument("names", nargs="*", help="words in the names of the works that run")
    found = parser.parse_args(words)
    found.works, unknown = named(found.names)
    if unknown:
        parser.error(f"{unknown[0]!r} is in no name; the works are {', '.join(work.name for work in WORKS)}")
    return found


def main(words):
    """Measures the works that were asked for."""
    bench = Bench(options(words))
    bench.measure_link()
    for work in bench.options.works:
        bench.measure(work)
    return bench.finish()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
