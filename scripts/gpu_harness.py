"""Runs programs native and preloaded and compares them: what gpu_suite.py and gpu2_suite.py have in common.

A program prints `result ...` lines (compared exactly), `time MS` (a step), `bytes N` (what it took from the GPU) and
`figure NAME VALUE` lines (measured, not compared). Each case prints one line: `ok NAME`, `FAIL NAME` or `SKIP NAME`.
"""
import argparse
import concurrent.futures
import datetime
import glob
import hashlib
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PROGRAMS = os.path.join(ROOT, "examples", "gpu")
UNITS = {"K": 10, "M": 20, "G": 30, "T": 40}
CHAOS = {"VGMEM_CHAOS": "7"}
# For programs that measure what pages give where they were placed.
STAYS = {"VGMEM_PAGING": "off"}


class Skip(Exception):
    """A case cannot run here."""


class Failure(Exception):
    """A case ran and is wrong."""


def size(text):
    """Bytes of `8G`."""
    return int(text[:-1]) << UNITS[text[-1]] if text[-1] in UNITS else int(text)


class Run:
    """What one process did."""

    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err
        lines = [line.split(" ", 1) for line in out.splitlines() if " " in line]
        self.results = [rest for word, rest in lines if word == "result"]
        numbers = {word: float(rest) for word, rest in lines if word in ("time", "bytes")}
        self.time, self.bytes = numbers.get("time"), numbers.get("bytes")
        figures = (rest.rsplit(" ", 1) for word, rest in lines if word == "figure" and " " in rest)
        self.figures = {name: float(value) for name, value in figures}

    def must_pass(self, what):
        """The run, or a failure that says how it ended."""
        if self.code != 0:
            raise Failure(f"{what} ended with {self.code}: {last_line(self)}")
        if not self.results:
            raise Failure(f"{what} printed no result")
        return self


def last_line(run):
    """What a failed program said last."""
    return (run.err.strip() or run.out.strip() or "no output").splitlines()[-1]


class Suite:
    """The cases and what they found."""

    def __init__(self, options):
        self.options = options
        self.library = os.path.abspath(options.library)
        self.out = os.path.abspath(options.out)
        self.work = tempfile.mkdtemp(prefix="vgmem-gpu-")
        os.makedirs(self.out, exist_ok=True)
        self.log = open(os.path.join(self.out, "gpu.log"), "w", encoding="utf-8")
        self.start = time.monotonic()
        self.cases, self.queue = [], []
        self.known, self.keys = {}, {}
        # Programs that need more than their module, such as a compiler: skipped where they do not run natively.
        self.optional = set()
        self.ahead = concurrent.futures.ThreadPoolExecutor(2)
        self.numbers = 0
        self.together = False
        self.lock = threading.RLock()
        self.gpus = gpu_names()
        with open(self.library, "rb") as file:
            self.digest = hashlib.sha256(file.read()).hexdigest()

    def number(self):
        """A number that no other run of this suite has."""
        with self.lock:
            self.numbers += 1
            return self.numbers

    def write(self, text):
        """Adds to the log; runs beside one another do not mix."""
        with self.lock:
            self.log.write(text)
            self.log.flush()

    def run(self, command, settings=None, extra=None, timeout=None):
        """Runs a program; preloaded if `settings` is a dict. `timeout` in seconds, if not that of all."""
        timeout = timeout or self.options.timeout
        env = {name: value for name, value in os.environ.items()
               if not name.startswith("VGMEM_") or name.startswith("VGMEM_SIM")}
        env.update(extra or {})
        env["PYTHONUNBUFFERED"] = "1"
        shown = [f"{name}={value}" for name, value in (extra or {}).items()] + list(command)
        if settings is not None:
            before = env.get("LD_PRELOAD", "")
            env["LD_PRELOAD"] = self.library + (":" + before if before else "")
            if self.together:
                # Cases beside one another stand for programs on machines of their own.
                settings = {"VGMEM_TEST_LEDGER": f"suite{os.getpid()}x{self.number()}", **settings}
            env.update(settings)
            shown = [f"{name}={value}" for name, value in settings.items()] + ["LD_PRELOAD=" + self.library] + shown
        start = time.monotonic()
        process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   cwd=ROOT, errors="replace", start_new_session=True)
        try:
            out, err = process.communicate(timeout=timeout)
            code = process.returncode
        except subprocess.TimeoutExpired:
            # Its children too, or they would hold the pipes open.
            os.killpg(process.pid, 9)
            out, err = process.communicate()
            code, err = -1, err + f"\nno end within {timeout} s"
        self.write(f"$ {' '.join(shown)}\n{out}{err}-- code {code}, {time.monotonic() - start:.1f} s\n")
        return Run(code, out, err)

    def native(self, command, extra=None):
        """A run without the library; one run serves all cases that compare with it."""
        key = (tuple(command), tuple(sorted((extra or {}).items())))
        with self.lock:
            own = self.keys.setdefault(key, threading.Lock())
        with own:
            if key not in self.known:
                self.known[key] = self.run(command, None, extra)
        run = self.known[key]
        if run.code != 0 and os.path.basename(command[-1]) in self.optional:
            raise Skip(f"does not run here without the library either: {last_line(run)}")
        return run.must_pass("native")

    def preloaded(self, command, settings, extra=None, timeout=None):
        """A run with the library, and its exit report."""
        report = os.path.join(self.work, f"report{self.number()}.json")
        run = self.run(command, {"VGMEM_REPORT": report, **settings}, extra, timeout)
        run.must_pass("preloaded")
        pages = read_report(report)
        self.write(json.dumps(pages) + "\n")
        return run, pages

    def late(self):
        """Whether no time is left to begin something."""
        return self.options.seconds > 0 and time.monotonic() - self.start > self.options.seconds

    def case(self, name, function, *arguments):
        """Runs one case at once and prints its line."""
        if self.options.names and not any(word in name for word in self.options.names):
            return
        entry = {"name": name}
        start = time.monotonic()
        try:
            if self.late():
                raise Skip(f"not begun within {self.options.seconds} s")
            entry.update(function(*arguments) or {})
            entry["verdict"] = "ok"
        except Skip as error:
            entry.update(verdict="SKIP", why=str(error))
        except Failure as error:
            entry.update(verdict="FAIL", why=str(error))
        except Exception as error:  # a fault of the suite must not hide what the other cases find
            entry.update(verdict="FAIL", why=f"the suite itself: {error!r}")
        entry["seconds"] = round(time.monotonic() - start, 1)
        hidden = ("name", "verdict", "report", "native_runs", "preloaded_runs")
        text = entry.get("why") or ", ".join(f"{key} {value}" for key, value in entry.items() if key not in hidden)
        with self.lock:
            self.cases.append(entry)
            print(f"{entry['verdict']} {name} {text}", flush=True)
            # Written after each case: a run that is cut short leaves what it found.
            self.summary()

    def later(self, name, function, *arguments):
        """A case that measures no time: runs beside others, at the end."""
        self.queue.append((name, function, *arguments))

    def over(self, command, extra=None, settings=None, where=("host",)):
        """More memory than the limit of GPU 0: equal results, and pages in all the places of `where`."""
        limits = {"VGMEM_DEVICE_LIMIT": self.options.limit, "VGMEM_HOST": self.options.host, **(settings or {})}
        limit = size(limits["VGMEM_DEVICE_LIMIT"].split(",")[0].split(":")[-1])
        native = self.native(command, extra)
        if native.bytes is None or native.bytes <= limit:
            raise Failure(f"the program takes {native.bytes} bytes, no more than the limit of {limit}")
        ours, pages = self.preloaded(command, limits, extra)
        equal(native, ours)
        outside_pool = pages["peak"] < limit and "cuMemCreate" in pages["reached"]
        if os.path.basename(command[-1]) in self.optional and outside_pool:
            raise Skip("results are equal, but the program makes its memory by cuMemCreate, outside the pool")
        check_places(pages, limit, where)
        found = {"results": len(native.results), "gib": round(native.bytes / 2**30, 2),
                 "limit": limits["VGMEM_DEVICE_LIMIT"]}
        found.update({f"{tier}_gib": round(held / 2**30, 2) for tier, held in places(pages).items() if held})
        if "VGMEM_CHAOS" in limits:
            if pages["moved"] == 0:
                raise Failure("no page was moved")
            found["moved"] = pages["moved"]
        elif not self.together:
            found.update({"native_ms": native.time, "preloaded_ms": ours.time})
            found.update({f"{name}_native_and_ours": [value, ours.figures.get(name)]
                          for name, value in native.figures.items()})
        return {**found, "report": pages}

    def fits(self, command, extra=None, rounds=3, most=1.01, settings=None):
        """Everything fits: equal results, and at most `most` times the time, runs alternated."""
        native, ours = [], []
        found = {}
        # Two more rounds where the first ones say no: a neighbour's work is no fault of the library.
        for more in (rounds, 2):
            for _ in range(more):
                native.append(self.run(command, None, extra).must_pass("native"))
                run, pages = self.preloaded(command, {"VGMEM_HOST": "0", **(settings or {})}, extra)
                ours.append(run)
                equal(native[-1], ours[-1])
                # A library that did nothing would be as fast.
                if pages["made"] == 0:
                    raise Failure("the pool made no allocation")
            times = [[run.time for run in runs] for runs in (native, ours)]
            medians = [statistics.median(values) for values in times]
            found = {"native_ms": medians[0], "preloaded_ms": medians[1], "ratio": round(medians[1] / medians[0], 4),
                     "native_runs": times[0], "preloaded_runs": times[1]}
            for name in native[0].figures:
                found[f"{name}_native_and_ours"] = [statistics.median(run.figures[name] for run in runs)
                                                    for runs in (native, ours)]
            if found["ratio"] <= most:
                return found
            if self.late():
                break
        raise Failure(f"{found['ratio']} times native, more than {most}: {times}")

    def measured(self, command, settings, figures=(), extra=None):
        """A preloaded program that checks itself: its figures."""
        run, pages = self.preloaded(command, settings, extra)
        if any(rest.startswith("wrong ") and rest != "wrong 0" for rest in run.results):
            raise Failure(f"wrong values: {run.results}")
        missing = [name for name in figures if name not in run.figures]
        if missing:
            raise Failure(f"no figure {', '.join(missing)}")
        return {**run.figures, "report": pages}

    def count(self, verdict):
        """How many cases ended so."""
        return sum(case["verdict"] == verdict for case in self.cases)

    def summary(self):
        """Writes what is known so far."""
        summary = {"date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                   "gpu": self.gpus, "library_sha256": self.digest, "limit": self.options.limit,
                   "host": self.options.host, "cases": self.cases, "passed": self.count("ok"),
                   "failed": self.count("FAIL"), "skipped": self.count("SKIP")}
        with open(os.path.join(self.out, "summary.json"), "w", encoding="utf-8") as file:
            json.dump(summary, file, indent=1)

    def finish(self):
        """Runs the cases that wait, prints the closing line; gives the exit code."""
        self.together = self.options.jobs > 1
        with concurrent.futures.ThreadPoolExecutor(self.options.jobs) as pool:
            for result in [pool.submit(self.case, *waiting) for waiting in self.queue]:
                result.result()
        self.log.close()
        shutil.rmtree(self.work, ignore_errors=True)
        for ledger in glob.glob(f"/dev/shm/vgmem-*-suite{os.getpid()}x*"):
            os.remove(ledger)
        print(f"{self.count('ok')} passed, {self.count('FAIL')} failed, {self.count('SKIP')} skipped")
        return 1 if self.count("FAIL") or not self.count("ok") else 0


def places(pages):
    """Bytes at the peak by tier."""
    held = {f"gpu{index}": gpu["at_peak"] for index, gpu in enumerate(pages["gpus"])}
    return {**held, "host": pages["host"]["at_peak"]}


def check_places(pages, limit, where):
    """GPU 0 holds no more than its limit; the rest lies where it was meant to, and nowhere else."""
    held = places(pages)
    outside = {tier for tier, count in held.items() if count > 0 and tier != "gpu0"}
    if held["gpu0"] > limit or outside != set(where):
        raise Failure(f"pages lay elsewhere than meant: {held}, not {where}")


def equal(native, ours):
    """The same results, in the same order."""
    if native.results == ours.results:
        return
    for before, after in zip(native.results, ours.results):
        if before != after:
            raise Failure(f"native gives {before!r}, preloaded {after!r}")
    raise Failure(f"native gives {len(native.results)} results, preloaded {len(ours.results)}")


def read_report(path):
    """The exit report of a run: there must be one."""
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError) as error:
        raise Failure(f"no readable report at exit: {error}") from error


def gpu_names():
    """What nvidia-smi calls the GPUs and their driver."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip().splitlines()
    except (OSError, subprocess.CalledProcessError):
        return ["unknown: nvidia-smi gave no answer"]


def python(suite, module, program):
    """The command of a Python program, or a skip if its library is missing."""
    with suite.lock:
        if module not in suite.known:
            try:
                suite.known[module] = importlib.util.find_spec(module) is not None
            except ImportError:
                suite.known[module] = False
    if not suite.known[module]:
        raise Skip(f"python3 has no {module}")
    return [sys.executable, os.path.join(PROGRAMS, program)]


def compiled(suite, name, source, compiler, flags):
    """Builds a program once; gives its path."""
    if shutil.which(compiler[0]) is None:
        raise Skip(f"no {compiler[0]} here")
    target = os.path.join(suite.work, name)
    with suite.lock:
        own = suite.keys.setdefault(target, threading.Lock())
    with own:
        if not os.path.exists(target):
            run = suite.run(compiler + ["-o", target, os.path.join(PROGRAMS, source)] + flags)
            if run.code != 0:
                raise Failure(f"{compiler[0]} could not build {source}: {run.err.strip().splitlines()[-1:]}")
    return target


def nvcc(suite, source, cudart="static", more=()):
    """A program that nvcc builds, with the runtime of that kind."""
    home = os.path.dirname(os.path.dirname(os.path.realpath(shutil.which("nvcc") or "nvcc")))
    flags = ["-O2", "-std=c++17", "-arch=native", "-cudart", cudart, "-ldl", *more]
    # What links against the driver is linked against the stub.
    flags += ["-L" + os.path.join(home, folder, "stubs") for folder in ("lib64", "lib")]
    # The shared runtime lies beside the compiler, not always where the loader looks.
    for folder in ("lib64", "lib", os.path.join("targets", "x86_64-linux", "lib")):
        flags += ["-Xlinker", "-rpath", "-Xlinker", os.path.join(home, folder)]
    return compiled(suite, f"{source}_{cudart}", source, ["nvcc"], flags)


def with_python(suite, module, program, method, *arguments):
    """A case whose program is Python's."""
    return method(python(suite, module, program), *arguments)


def with_nvcc(suite, source, cudart, method, words, *arguments):
    """A case whose program nvcc builds."""
    return method([nvcc(suite, source, cudart)] + words, *arguments)


def options(about):
    """The command line of a suite."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--library", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--limit", default="8G")
    parser.add_argument("--host", default="24G")
    parser.add_argument("--jobs", type=int, default=4, help="cases at a time where no time is measured")
    parser.add_argument("--seconds", type=int, default=0, help="begin no case later than this (0: no limit)")
    parser.add_argument("--timeout", type=int, default=150, help="seconds that one program may take")
    parser.add_argument("names", nargs="*")
    return parser.parse_args()
