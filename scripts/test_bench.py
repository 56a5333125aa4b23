#!/usr/bin/env python3
"""Tests of the benchmark's scripts, with programs that only print: no GPU, no library.

The last line is that of a Rust test program, which test.sh adds up.
"""
import contextlib
import dataclasses
import io
import json
import os
import shutil
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True

import bench_figures
import bench_gpu
import bench_results
import bench_works

GIB = 1 << 30
LINK = {"h2d_gb_per_s": 50.0, "d2h_gb_per_s": 49.0}
# Says what a program of the benchmark says; SPOIL names what is wrong, and with which kind.
PROGRAM = """
import json, os
COUNTERS = {counters}
paging = os.environ.get("VGMEM_PAGING", "")
kind = "static" if paging == "off" else os.environ.get("VGMEM_SAFETY", "native")
kind = os.environ.get("METHOD", kind)
spoilt = dict(part.split(":") for part in os.environ.get("SPOIL", "").split(",") if part)
if spoilt.get(kind) == "room":
    raise SystemExit("torch.OutOfMemoryError: CUDA out of memory")
steps = int(os.environ["STEPS"])
for step in range(steps):
    print(f"result step{step + 1} {step * 7 + (spoilt.get(kind) == 'result' and step == 1)}")
print(f"result weights {steps}")
print("figure step_ms", {"native": 30, "strict": 200, "auto": 150, "static": 3000}.get(kind, 900))
print("time 1")
print("bytes", 12 << 30)
if kind in ("strict", "auto", "static"):
    moved = 0 if spoilt.get(kind) == "still" else 5
    report = {**dict.fromkeys(COUNTERS, 0), "made": 3, "peak": 12 << 30, "fetched": moved, "evicted": moved}
    with open(os.environ["VGMEM_REPORT"], "w") as file:
        json.dump(report, file)
""".replace("{counters}", repr(bench_gpu.COUNTERS))


class Fake(bench_works.Work):
    """A work of the program above."""

    def command(self, suite):
        return [sys.executable, self.program]


class FakeMethod(bench_works.Method):
    """A method by the program above."""

    def command(self, suite):
        return [sys.executable, suite.fake]


def quietly(function, *arguments):
    """What a function gives, or its exit code, and what it printed."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            found = function(*arguments)
        except SystemExit as end:
            found = end.code
    return found, out.getvalue()


class Folder(unittest.TestCase):
    """A folder with a fake library, a fake program, and documents."""

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="vgmem-test-bench-")
        self.addCleanup(shutil.rmtree, self.folder)
        self.file("lib.so", "")
        self.program = self.file("program.py", PROGRAM)

    def file(self, name, text):
        """Writes a file; gives its path."""
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def read(self, name):
        """A file's text."""
        with open(os.path.join(self.folder, name), encoding="utf-8") as file:
            return file.read()

    def fake(self, spoil="", **different):
        """A fake work."""
        method = FakeMethod("fsdp", "train", sizes={"STEPS": "2"})
        work = Fake("fake_8G", "a program that prints", self.program, {"STEPS": "4", "SPOIL": spoil}, "8G",
                    static={"STEPS": "2"}, instead=(method,))
        return dataclasses.replace(work, **different)

    def bench(self, work, *more):
        """Measures a work; gives what is written, what is printed and the exit code."""
        options = bench_gpu.options(["--library", os.path.join(self.folder, "lib.so"), "--out", self.folder, *more])
        bench = bench_gpu.Bench(options)
        bench.fake, bench.link, bench.gpus = self.program, LINK, ["a GPU, 1 MiB, 1.0"]

        def run():
            bench.measure(work)
            return bench.finish()

        code, text = quietly(run)
        return json.loads(self.read("bench.json")), text, code


class Measuring(Folder):
    """bench_gpu.py."""

    def test_all_kinds(self):
        found, text, code = self.bench(self.fake())
        entry, = found["works"]
        row, = entry["rows"]
        self.assertEqual((code, entry["verdict"], entry["failed"], entry["skipped"]), (0, "ok", {}, {}), text)
        self.assertEqual({kind: len(runs) for kind, runs in entry["kinds"].items()},
                         {"native": 2, "strict": 2, "auto": 2, "static": 1})
        # 4 GiB at 50 GB/s.
        self.assertEqual((row["ms"]["bound"], row["ms"]["instead"]), (85.899, 900))
        self.assertEqual(row["ratios"], {"auto / bound": 1.746, "auto / native": 5, "strict / bound": 2.328,
                                         "strict / native": 6.667, "static / auto": 20, "instead / auto": 6})
        for said in ("auto / bound 1.75", "static / auto 20.00", "instead / auto 6.00", "1 measured, 0 failed"):
            self.assertIn(said, text)

    def test_kinds_that_were_asked_for(self):
        found, text, _ = self.bench(self.fake(), "--kinds", "native,auto", "--rounds", "1")
        entry, = found["works"]
        self.assertEqual((list(entry["kinds"]), entry["instead"]), (["native", "auto"], {}), text)

    def test_wrong_results(self):
        for kind in ("strict", "auto", "static"):
            found, text, code = self.bench(self.fake(f"{kind}:result"))
            entry, = found["works"]
            self.assertEqual((code, entry["verdict"], list(entry["failed"])), (1, "FAIL", [kind]), text)
            self.assertIn("step2", entry["failed"][kind])
            self.assertNotIn(kind, entry["kinds"])
            self.assertEqual(len(entry["kinds"]), 3, "the other kinds are measured")

    def test_pages_that_stay(self):
        found, _, code = self.bench(self.fake("auto:still"))
        self.assertEqual((code, found["works"][0]["failed"]), (1, {"auto": "no page moved"}))

    def test_methods_that_do_not_fit_or_differ(self):
        found, text, code = self.bench(self.fake("fsdp:room"))
        self.assertEqual((code, found["works"][0]["skipped"]), (0, {"fsdp": "out of memory within the limit"}), text)
        found, _, code = self.bench(self.fake("fsdp:result"))
        self.assertEqual((code, list(found["works"][0]["differs"])), (0, ["fsdp"]))

    def test_limits(self):
        found, _, _ = self.bench(self.fake(limit="", over=1.5))
        self.assertEqual((found["works"][0]["limit"], found["works"][0]["overflow"]), ("8192M", 4 * GIB))
        found, text, code = self.bench(self.fake(limit="", over=0.75, goal=1.01))
        self.assertEqual((found["works"][0]["overflow"], found["works"][0]["rows"][0]["ms"]["bound"]), (0, 30))
        self.assertIn("goal 1.01 of native missed", text)
        found, _, code = self.bench(self.fake(limit="16G"))
        self.assertEqual(code, 1)
        self.assertIn("no more than the limit", found["works"][0]["failed"]["native"])

    def test_no_time(self):
        options = bench_gpu.options(["--library", os.path.join(self.folder, "lib.so"), "--out", self.folder,
                                     "--seconds", "1"])
        bench = bench_gpu.Bench(options)
        bench.start -= 2
        _, text = quietly(bench.measure, self.fake())
        quietly(bench.finish)
        self.assertIn("not begun within 1 s", text)

    def test_what_is_not_accepted(self):
        accepted = "accepted are native, strict, auto, static, instead"
        given = ((("--rounds", "0"), "BENCH_ROUNDS='0' is no whole number of 1 or more"),
                 (("--kinds", "auto"), "BENCH_KINDS='auto' lacks native"),
                 (("--kinds", "native,fast"), f"BENCH_KINDS: 'fast' is no kind; {accepted}"),
                 (("--host", "much"), "GPU_HOST='much' is no size like 24G"),
                 (("--seconds", "soon"), "GPU_SECONDS='soon' is no whole number of 0 or more"),
                 (("nothing_like_it",), "'nothing_like_it' is in no name; the works are infer_8G, "))
        for words, said in given:
            code, text = quietly(bench_gpu.options, ["--library", "x", "--out", "y", *words])
            self.assertEqual((code, text.count("\n")), (2, 1), text)
            self.assertIn(said, text)

    def test_works(self):
        names = [work.name for work in bench_works.WORKS]
        self.assertEqual(len(set(names)), len(names))
        programs = os.path.join(bench_gpu.ROOT, "examples", "gpu")
        for work in bench_works.WORKS:
            self.assertNotEqual(bool(work.limit), bool(work.over), work.name)
            self.assertTrue(os.path.exists(os.path.join(programs, work.program.split()[0])), work.program)


class Results(Folder):
    """bench_results.py."""

    def setUp(self):
        super().setUp()
        self.file("RESULTS.md", f"# Before\n\n{bench_results.BEGIN}\n{bench_results.END}\n\n# After\n")
        self.empty = {"runs": []}
        self.accepted(self.empty)

    def accepted(self, runs):
        """Writes the accepted runs."""
        self.file("bench.json", json.dumps(runs))

    def results(self, *words):
        """The exit code and what was printed."""
        return quietly(bench_results.main, list(words), self.folder)

    def measured(self):
        """A file with a measured run."""
        found, _, _ = self.bench(self.fake())
        self.accepted(self.empty)
        return self.file("run.json", json.dumps(found)), found

    def test_nothing_measured(self):
        self.assertEqual(self.results("--check")[0], 1)
        self.assertEqual(self.results(), (0, ""))
        self.assertEqual(self.results("--check"), (0, ""))
        text = self.read("RESULTS.md")
        self.assertIn(bench_results.NOTHING, text)
        self.assertTrue(text.startswith("# Before\n") and text.endswith("# After\n"))

    def test_check_sees_every_difference(self):
        path, _ = self.measured()
        self.assertEqual(self.results("--accept", path), (0, ""))
        self.assertEqual(self.results("--check"), (0, ""))
        text = self.read("RESULTS.md")
        self.assertIn("| fake_8G: a program that prints | step | 12.00 | 8.00 | 30.0 | 200.0 | 150.0 | 3,000 | "
                      "900.0 (fsdp) | 85.9 | 1.75 | 5.00 | 2.33 | 6.67 | 20.00 | 6.00 | 1 |", text)
        self.file("RESULTS.md", text.replace("150.0", "140.0"))
        code, said = self.results("--check")
        self.assertEqual(code, 1)
        self.assertIn("run scripts/bench_results.py", said)
        self.file("RESULTS.md", text)
        self.accepted(self.empty)
        self.assertEqual(self.results("--check")[0], 1)

    def test_newer_works_replace_older_ones(self):
        path, found = self.measured()
        self.results("--accept", path)
        found["works"].append({**found["works"][0], "name": "other", "failed": {"auto": "no page moved"}})
        found["date"] = "2030-01-01"
        self.results("--accept", self.file("run.json", json.dumps(found)))
        runs = json.loads(self.read("bench.json"))["runs"]
        self.assertEqual([(run["date"], len(run["works"])) for run in runs], [("2030-01-01", 2)])
        self.assertIn("- other: FAILED, auto: no page moved", self.read("RESULTS.md"))

    def test_older_works_stay_for_kinds_that_the_newer_lack(self):
        path, found = self.measured()
        self.results("--accept", path)
        entry = found["works"][0]
        few = {kind: entry["kinds"][kind] for kind in ("native", "auto")}
        natively = {**entry, "name": "cut off", "kinds": {"native": few["native"]}, "instead": {}}
        found["works"] = [{**entry, "kinds": few, "instead": {}}, natively]
        self.results("--accept", self.file("few.json", json.dumps({**found, "date": "2030-01-01"})))
        kept = [[work["name"] for work in run["works"]] for run in json.loads(self.read("bench.json"))["runs"]]
        self.assertEqual(kept, [[entry["name"]], [entry["name"]]])
        self.results("--accept", path)
        self.assertEqual(len(json.loads(self.read("bench.json"))["runs"]), 1)

    def test_what_is_not_accepted(self):
        path, found = self.measured()
        unknown = self.file("unknown.json", json.dumps({**found, "gpu": ["unknown: nvidia-smi gave no answer"]}))
        skipped = [{**found["works"][0], "verdict": "SKIP"}]
        skipped += [{**found["works"][0], "kinds": {"native": [{"step_ms": 1.0}]}, "instead": {}}]
        nothing = self.file("nothing.json", json.dumps({**found, "works": skipped}))
        other = self.file("other.json", json.dumps({"cases": []}))
        broken = self.file("broken.json", "{")
        for words, said in ((("--accept", unknown), "not measured on a GPU"), (("--accept", nothing), "no work was"),
                            (("--accept", other), "did not write"), (("--accept", broken), "broken.json"),
                            (("--accept", "gone.json"), "gone.json"), (("--what",), "accepted are nothing, --check")):
            code, text = self.results(*words)
            self.assertEqual((code, text.count("\n")), (2, 1), text)
            self.assertIn(said, text)
        self.assertEqual(json.loads(self.read("bench.json")), self.empty)
        self.file("RESULTS.md", "no markers\n")
        self.assertEqual(self.results("--check")[0], 2)


class Figures(unittest.TestCase):
    """bench_figures.py."""

    def test_without_a_link(self):
        entry = {"name": "x", "gib": 2.0, "limit_gib": 1.0, "overflow": GIB, "goal": None, "instead": {},
                 "kinds": {"native": [{"step_ms": 3.0}, {"step_ms": 5.0}], "auto": [{"step_ms": 8.0}]}}
        row, = bench_figures.rows(entry, None)
        self.assertEqual((row["ms"], row["ratios"]), ({"native": 4.0, "auto": 8.0}, {"auto / native": 2.0}))
        self.assertIn("bound unknown", bench_figures.line(entry, row))
        self.assertEqual(bench_figures.rows({**entry, "kinds": {}}, 1e9), [])

    def test_native_is_the_bound_where_it_is_slower(self):
        entry = {"overflow": 10 ** 6, "kinds": {"native": [{"a_ms": 9.0}]}, "instead": {}}
        row, = bench_figures.rows(entry, 1e9)
        self.assertEqual((row["ms"]["bound"], row["link_ms"]), (9.0, 1.0))


class Document(unittest.TestCase):
    """The document of this checkout."""

    def test_is_what_its_figures_give(self):
        self.assertEqual(quietly(bench_results.main, ["--check"]), (0, ""))


if __name__ == "__main__":
    outcome = unittest.main(exit=False, verbosity=0).result
    wrong = len(outcome.failures) + len(outcome.errors)
    print(f"test result: {'FAILED' if wrong else 'ok'}. {outcome.testsRun - wrong - len(outcome.skipped)} passed; "
          f"{wrong} failed; {len(outcome.skipped)} ignored")
    sys.exit(1 if wrong else 0)
