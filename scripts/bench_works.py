"""The works of bench_gpu.py, the most important first."""
import dataclasses

from gpu_harness import nvcc, python
from gpu_paging import KINDS as SAFETIES

NATIVE, STATIC, INSTEAD = "native", "static", "instead"
# How the library is set for a kind of run.
SETTINGS = {"strict": dict(SAFETIES)["strict"], "auto": dict(SAFETIES)["auto"], STATIC: dict(SAFETIES)["off"]}
KINDS = (NATIVE, *SETTINGS, INSTEAD)
SWEEP = (1.0, 1.05, 1.1, 1.25, 1.5, 2.0, 2.5, 3.0)
# What a program that fits may take of its native time.
FITS_GOAL = 1.01


@dataclasses.dataclass(frozen=True)
class Method:
    """What a program does without the library: a method of torch_instead.py, and the module that it needs."""
    name: str
    work: str
    module: str = "torch"
    sizes: dict = dataclasses.field(default_factory=dict)
    # Where it is not the program's own arithmetic.
    differs: str = ""

    def command(self, suite):
        """How it is started; a skip where its module is missing."""
        python(suite, self.module, "torch_instead.py")
        return python(suite, "torch", "torch_instead.py")

    def environment(self, work, limit):
        """Its sizes, and the memory that it may take."""
        return {**work.sizes, **self.sizes, "METHOD": self.name, "WORK": self.work, "MEMORY": str(limit)}


@dataclasses.dataclass(frozen=True)
class Work:
    """A program, its sizes, and the memory that it gets."""
    name: str
    about: str
    program: str
    sizes: dict
    # Either the limit of GPU memory, or how many times that the program needs.
    limit: str = ""
    over: float = 0.0
    # Sizes that differ where pages stay where they were placed: that is slow. None: no such runs.
    static: dict | None = None
    instead: tuple = ()
    # What the library is told besides.
    library: dict = dataclasses.field(default_factory=dict)
    # Words of results that depend on the number of steps.
    totals: tuple = ("weights",)
    # Seconds that one process may take.
    timeout: int = 120
    # No page can move: all that there is is used by each launch, and does not fit.
    stays: bool = False
    # Runs once, beside a native run that others share.
    once: bool = False
    goal: float | None = None

    def command(self, suite):
        """How the program is started; a skip where its tools are missing."""
        name, *words = self.program.split()
        if name.endswith(".cu"):
            return [nvcc(suite, name), *words]
        return [*python(suite, "torch", name), *words]


GIB = 1 << 30
INFER = {"LAYERS": "24", "BATCH": "2048", "STEPS": "24"}
INFER_ABOUT = "MLP inference, 24 layers of 8192 x 32768 bf16, batch 2048"
TRAIN = {"LAYERS": "12", "BATCH": "2048", "STEPS": "12"}
TRAIN_ABOUT = "MLP training, 12 pairs of 8192 x 32768 bf16, batch 2048, SGD"
BATCH = {"LAYERS": "4", "BATCH": "32768", "STEPS": "8"}
LLAMA = {"LAYERS": "32", "PREFILLS": "16", "STEPS": "16"}
LLAMA_ABOUT = "shape of a Llama of 7B, prefill of 2,048 tokens, decoding one by one"
ADAMW = {"STEPS": "12"}
ADAMW_ABOUT = "transformer of 2.7B bf16 parameters, AdamW, 1,024 tokens a step"
LOOKUP = {"TABLES": "3", "LAYERS": "32", "BATCH": "2048", "STEPS": "40"}
SCANS = {"MIB": "256", "BUFFERS": "48", "ROUNDS": "10"}

ON_THE_PROCESSOR = "its optimizer runs on the processor"
FSDP_TRAIN = Method("fsdp", "train", sizes={"STEPS": "4"}, differs=ON_THE_PROCESSOR)
FSDP_ADAMW = Method("fsdp", "adamw", sizes={"STEPS": "4"}, differs=ON_THE_PROCESSOR)
ACCELERATE_INFER = Method("accelerate", "infer", "accelerate", {"STEPS": "6", "ROOM": str(2 * GIB)})
ACCELERATE_LLAMA = Method("accelerate", "llama", "accelerate",
                          {"PREFILLS": "4", "STEPS": "4", "ROOM": str(3 * GIB)})
SAVE_ON_CPU = Method("save_on_cpu", "train", sizes={"STEPS": "4"})


def llama(name, instead=(), **memory):
    """Both phases of the Llama shape."""
    return Work(f"llama_{name}", LLAMA_ABOUT, "torch_llama.py", LLAMA, static={"PREFILLS": "2", "STEPS": "3"},
                instead=instead, **memory)


def train(limit):
    """Training under a limit."""
    return Work(f"train_{limit}", TRAIN_ABOUT, "torch_train.py", TRAIN, limit, static={"STEPS": "2"},
                instead=(FSDP_TRAIN,), timeout=150)


def adamw(limit):
    """Training with a large optimizer under a limit."""
    return Work(f"adamw_{limit}", ADAMW_ABOUT, "torch_adamw.py", ADAMW, limit, static={"STEPS": "3"},
                instead=(FSDP_ADAMW,), timeout=150)


def scan(mode, about, stays=False):
    """A mode of scans.cu."""
    return Work(f"{mode}_8G", about, f"scans.cu {mode}", SCANS, "8G", static={}, stays=stays)


def fits(name, about, program, sizes):
    """A limit above what the program needs."""
    return Work(f"fits_{name}", about, program, sizes, over=0.8, goal=FITS_GOAL)


WORKS = (
    Work("infer_8G", INFER_ABOUT, "torch_infer.py", INFER, "8G", static={"STEPS": "3"}, instead=(ACCELERATE_INFER,)),
    train("8G"),
    llama("8G", (ACCELERATE_LLAMA,), limit="8G"),
    adamw("16G"),
    fits("infer", INFER_ABOUT, "torch_infer.py", {**INFER, "STEPS": "40"}),
    fits("train", TRAIN_ABOUT, "torch_train.py", {**TRAIN, "STEPS": "20"}),
    scan("scan", "48 buffers of 256 MiB, read in the same order each round"),
    scan("add", "c = a + b over 48 buffers of 256 MiB"),
    scan("random", "48 buffers of 256 MiB, read in another order each round"),
    scan("gather", "one buffer of 12 GiB, words anywhere in it, one launch a round", stays=True),
    scan("stencil", "two grids of 24 bands of 256 MiB, from one to the other in turn"),
    adamw("10G"),
    train("14G"),
    train("20G"),
    llama("1.5x", over=1.5),
    llama("1.1x", over=1.1),
    llama("3x", over=3.0),
    Work("batch_16G", "MLP training, 4 pairs of 8192 x 32768 bf16, batch 32768, SGD", "torch_train.py", BATCH, "16G",
         static={"STEPS": "2"}, instead=(SAVE_ON_CPU,), timeout=150),
    Work("buffer_8G", f"{INFER_ABOUT}, all matrices in one allocation", "torch_infer.py",
         {**INFER, "FORM": "buffer"}, "8G", static={"STEPS": "3"}),
    Work("graph_8G", f"{INFER_ABOUT}, a step as a CUDA graph", "torch_infer.py", {**INFER, "FORM": "graph"}, "8G",
         static={"STEPS": "3"}),
    Work("whole_8G", f"{INFER_ABOUT}, a step as a CUDA graph launched whole", "torch_infer.py",
         {**INFER, "FORM": "graph"}, "8G", library={"VGMEM_GRAPHS": "whole"}),
    Work("lookup_8G", "2,048 lookups in each of 3 tables of 2 GiB, 32 layers of 8192 x 8192 bf16 behind them",
         "torch_lookup.py", LOOKUP, "8G", static={"STEPS": "6"}),
    *(Work(f"sweep_{over}", INFER_ABOUT, "torch_infer.py", INFER, over=over, once=True) for over in SWEEP),
)


def named(words):
    """The works whose names contain one of the words; all without words. What no name contains comes second."""
    unknown = [word for word in words if not any(word in work.name for work in WORKS)]
    return [work for work in WORKS if not words or any(word in work.name for word in words)], unknown
