#!/usr/bin/env python3
"""Runs the programs of examples/gpu native and preloaded and compares them. Started by gpu.sh.

A program prints `result ...` lines (compared exactly), `time MS` (a step) and `bytes N` (what it
took from the GPU). Each case prints one line: `ok NAME`, `FAIL NAME` or `SKIP NAME`.
"""
import argparse
import ctypes
import datetime
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PROGRAMS = os.path.join(ROOT, "examples", "gpu")
UNITS = {"K": 10, "M": 20, "G": 30, "T": 40}
# Sizes for runs that fit: small enough to be quick, large enough that a step is mostly GPU work.
FITS = {
    "torch_train": {"LAYERS": "2", "STEPS": "12", "BATCH": "2048"},
    "torch_infer": {"LAYERS": "12", "STEPS": "20", "BATCH": "2048"},
    "cupy": {"BLOCKS": "8", "STEPS": "8"},
}


class Skip(Exception):
    """A case cannot run here."""


class Failure(Exception):
    """A case ran and is wrong."""


def size(text):
    """Bytes of `8G`."""
    return int(text[:-1]) << UNITS[text[-1]] if text[-1] in UNITS else int(text)


class Run:
    """What one process did."""

    def __init__(self, code, out, err, took):
        self.code, self.out, self.err, self.took = code, out, err, took
        lines = [line.split(" ", 1) for line in out.splitlines() if " " in line]
        self.results = [rest for word, rest in lines if word == "result"]
        numbers = {word: float(rest) for word, rest in lines if word in ("time", "bytes")}
        self.time, self.bytes = numbers.get("time"), numbers.get("bytes")

    def must_pass(self, what):
        """The run, or a failure that says how it ended."""
        if self.code != 0:
            last = (self.err.strip() or self.out.strip() or "no output").splitlines()[-1]
            raise Failure(f"{what} ended with {self.code}: {last}")
        if not self.results:
            raise Failure(f"{what} printed no result")
        return self


class Suite:
    """The cases and what they found."""

    def __init__(self, options):
        self.options = options
        self.library = os.path.abspath(options.library)
        self.out = os.path.abspath(options.out)
        self.work = tempfile.mkdtemp(prefix="vgmem-gpu-")
        os.makedirs(self.out, exist_ok=True)
        self.log = open(os.path.join(self.out, "gpu.log"), "w", encoding="utf-8")
        self.cases = []
        self.modules = {}
        self.gpus = gpu_names()
        with open(self.library, "rb") as file:
            self.digest = hashlib.sha256(file.read()).hexdigest()

    def run(self, command, settings=None, extra=None, timeout=120):
        """Runs a program; preloaded if `settings` is a dict."""
        env = {name: value for name, value in os.environ.items()
               if not name.startswith("VGMEM_") or name.startswith("VGMEM_SIM")}
        env.update(extra or {})
        env["PYTHONUNBUFFERED"] = "1"
        shown = list(command)
        if settings is not None:
            before = env.get("LD_PRELOAD", "")
            env["LD_PRELOAD"] = self.library + (":" + before if before else "")
            env.update(settings)
            shown = [f"{name}={value}" for name, value in settings.items()] + ["LD_PRELOAD=" + self.library] + shown
        self.log.write("$ " + " ".join(shown) + "\n")
        self.log.flush()
        start = time.monotonic()
        process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   cwd=ROOT, errors="replace")
        try:
            out, err = process.communicate(timeout=timeout)
            code = process.returncode
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            code, err = -1, err + f"\nno end within {timeout} s"
        took = time.monotonic() - start
        self.log.write(f"{out}{err}-- code {code}, {took:.1f} s\n")
        self.log.flush()
        return Run(code, out, err, took)

    def case(self, name, function, *arguments):
        """Runs one case and prints its line."""
        if self.options.names and not any(word in name for word in self.options.names):
            return
        entry = {"name": name}
        start = time.monotonic()
        try:
            entry.update(function(*arguments) or {})
            entry["verdict"] = "ok"
        except Skip as error:
            entry.update(verdict="SKIP", why=str(error))
        except Failure as error:
            entry.update(verdict="FAIL", why=str(error))
        entry["seconds"] = round(time.monotonic() - start, 1)
        self.cases.append(entry)
        shown = {key: value for key, value in entry.items() if key not in ("name", "verdict", "report", "native_runs",
                                                                           "preloaded_runs")}
        text = entry.get("why") or ", ".join(f"{key} {value}" for key, value in shown.items())
        print(f"{entry['verdict']} {name} {text}", flush=True)
        # Written after each case: a run that is cut short leaves what it found.
        self.summary()

    def over(self, command, extra=None):
        """More memory than the limit: equal results, and pages outside the GPU."""
        limit = size(self.options.limit)
        native = self.run(command, None, extra).must_pass("native")
        if native.bytes is None or native.bytes <= limit:
            raise Failure(f"the program takes {native.bytes} bytes, no more than the limit of {limit}")
        report = os.path.join(self.work, "report.json")
        settings = {"VGMEM_DEVICE_LIMIT": self.options.limit, "VGMEM_HOST": self.options.host, "VGMEM_REPORT": report}
        ours = self.run(command, settings, extra).must_pass("preloaded")
        equal(native, ours)
        pages = read_report(report)
        self.log.write(json.dumps(pages) + "\n")
        outside = pages["host"]["at_peak"] + sum(gpu["at_peak"] for gpu in pages["gpus"][1:])
        if pages["gpus"][0]["at_peak"] > limit or outside == 0:
            raise Failure(f"pages lay elsewhere than meant: {pages['gpus']}, host {pages['host']}")
        return {"native_ms": native.time, "preloaded_ms": ours.time, "results": len(native.results),
                "gib": round(native.bytes / 2**30, 2), "limit": self.options.limit,
                "outside_gib": round(outside / 2**30, 2), "report": pages}

    def fits(self, command, extra=None, rounds=3):
        """Everything fits: equal results and about equal time, runs alternated."""
        native, ours = [], []
        for _ in range(rounds):
            native.append(self.run(command, None, extra).must_pass("native"))
            report = os.path.join(self.work, "report.json")
            settings = {"VGMEM_HOST": "0", "VGMEM_REPORT": report}
            ours.append(self.run(command, settings, extra).must_pass("preloaded"))
            equal(native[-1], ours[-1])
            # A library that did nothing would be as fast.
            if read_report(report)["made"] == 0:
                raise Failure("the pool made no allocation")
            os.remove(report)
        times = [[run.time for run in runs] for runs in (native, ours)]
        medians = [statistics.median(values) for values in times]
        return {"native_ms": medians[0], "preloaded_ms": medians[1], "ratio": round(medians[1] / medians[0], 4),
                "native_runs": times[0], "preloaded_runs": times[1]}

    def out_of_memory(self, command, words, extra=None):
        """No room at all: the program sees its usual error and reports it itself."""
        run = self.run(command, {"VGMEM_DEVICE_LIMIT": self.options.limit, "VGMEM_HOST": "0"}, extra)
        if run.code == 0:
            raise Failure("the program ran, but there is not that much memory")
        if run.code < 0:
            raise Failure(f"the program died of signal {-run.code}")
        if not any(word in run.err for word in words):
            raise Failure(f"the program said something else: {(run.err.strip() or 'nothing').splitlines()[-1]}")
        return {"code": run.code}

    def overhead(self, command, rounds=5):
        """Cost of single calls, native and preloaded alternated, medians."""
        native, ours = [], []
        for _ in range(rounds):
            for runs, settings in ((native, None), (ours, {"VGMEM_HOST": "0"})):
                run = self.run(command, settings)
                if run.code != 0:
                    raise Failure(f"ended with {run.code}: {run.err.strip()}")
                runs.append(json.loads(run.out))
        found = {}
        for key in native[0]:
            before, after = (statistics.median(run[key] for run in runs) for runs in (native, ours))
            found[f"{key}_ns"] = [before, after, round(after - before, 1)]
        return found

    def startup(self):
        """Start-up cost of a process that uses no GPU, and the number of exported symbols."""
        run = self.run(["bash", "scripts/startup.sh", "--json", self.library])
        if run.code != 0:
            raise Failure(f"ended with {run.code}: {run.err.strip()}")
        return json.loads(run.out)

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
        """Prints the closing line; gives the exit code."""
        self.log.close()
        shutil.rmtree(self.work, ignore_errors=True)
        print(f"{self.count('ok')} passed, {self.count('FAIL')} failed, {self.count('SKIP')} skipped")
        return 1 if self.count("FAIL") or not self.count("ok") else 0


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
    if module not in suite.modules:
        suite.modules[module] = suite.run([sys.executable, "-c", f"import {module}"]).code == 0
    if not suite.modules[module]:
        raise Skip(f"python3 has no {module}")
    return [sys.executable, os.path.join(PROGRAMS, program)]


def compiled(suite, name, source, compiler, flags):
    """Builds a program once; gives its path."""
    tool = shutil.which(compiler[0])
    if tool is None:
        raise Skip(f"no {compiler[0]} here")
    target = os.path.join(suite.work, name)
    if not os.path.exists(target):
        run = suite.run(compiler + ["-o", target, os.path.join(PROGRAMS, source)] + flags)
        if run.code != 0:
            raise Failure(f"{compiler[0]} could not build {source}: {run.err.strip().splitlines()[-1:]}")
    return target


def with_python(suite, module, program, method, *arguments):
    """A case whose program is Python's."""
    return method(python(suite, module, program), *arguments)


def with_nvcc(suite, cudart, method, sizes, *arguments):
    """A case whose program nvcc builds, with the runtime of that kind."""
    home = os.path.dirname(os.path.dirname(os.path.realpath(shutil.which("nvcc") or "nvcc")))
    flags = ["-O2", "-arch=native", "-cudart", cudart]
    # The shared runtime lies beside the compiler, not always where the loader looks.
    for folder in ("lib64", "lib", os.path.join("targets", "x86_64-linux", "lib")):
        flags += ["-Xlinker", "-rpath", "-Xlinker", os.path.join(home, folder)]
    program = compiled(suite, f"vectors_{cudart}", "vectors.cu", ["nvcc"], flags)
    return method([program] + sizes, *arguments)


def with_gcc(suite, method):
    """The overhead probe."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise Skip(f"no driver here: {error}") from error
    program = compiled(suite, "overhead", "overhead.c", ["gcc"], ["-O2", "-ldl"])
    return method([program])


def main():
    """Runs the cases that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--limit", default="8G")
    parser.add_argument("--host", default="24G")
    parser.add_argument("names", nargs="*")
    suite = Suite(parser.parse_args())
    torch, cupy, oom = "torch", "cupy", ["out of memory", "OutOfMemory"]
    suite.case("startup", suite.startup)
    suite.case("overhead", with_gcc, suite, suite.overhead)
    suite.case("torch_train_over", with_python, suite, torch, "torch_train.py", suite.over)
    suite.case("torch_infer_over", with_python, suite, torch, "torch_infer.py", suite.over)
    for kind in ("static", "shared"):
        suite.case(f"cuda_{kind}_over", with_nvcc, suite, kind, suite.over, ["1024", "10", "3"])
    suite.case("cupy_over", with_python, suite, cupy, "cupy_run.py", suite.over)
    suite.case("torch_out_of_memory", with_python, suite, torch, "torch_infer.py", suite.out_of_memory, oom)
    suite.case("cuda_out_of_memory", with_nvcc, suite, "static", suite.out_of_memory, ["1024", "10", "3"], oom)
    suite.case("torch_train_fits", with_python, suite, torch, "torch_train.py", suite.fits, FITS["torch_train"])
    suite.case("torch_infer_fits", with_python, suite, torch, "torch_infer.py", suite.fits, FITS["torch_infer"])
    suite.case("cuda_static_fits", with_nvcc, suite, "static", suite.fits, ["512", "8", "20"])
    suite.case("cupy_fits", with_python, suite, cupy, "cupy_run.py", suite.fits, FITS["cupy"])
    return suite.finish()


if __name__ == "__main__":
    sys.exit(main())
