#!/bin/bash
# Builds everything and runs every test that needs no GPU.
#
#   ./scripts/test.sh
#
# Ends with the sums of all test programs: N passed, N failed, N skipped.
set -u
cd "$(dirname "$0")/.." || exit 1
. scripts/common.sh

need_rust
need gcc "apt-get install gcc"
need nm "apt-get install binutils"
need_venv
stop_if_missing

LOG=target/test.log
mkdir -p target
: >"$LOG"

# What all test programs together did.
sums() {
    awk '/^test result:/ { passed += $4; failed += $6; ignored += $8 } /^ *SKIP / { skipped++ }
         END { printf "%d passed, %d failed, %d skipped\n", passed, failed, ignored + skipped }' "$LOG"
}

step() { # step NAME COMMAND ...
    local name=$1 start=$SECONDS
    shift
    echo "== $name: $*"
    if ! "$@" 2>&1 | tee -a "$LOG"; then
        sums
        echo "test: FAILED: $name" >&2
        exit 1
    fi
    echo "== $name took $((SECONDS - start)) s"
}
set -o pipefail

syntax() {
    local file
    for file in scripts/*.sh .ci/run; do bash -n "$file" || return 1; done
    gcc -std=gnu11 -Wall -Wextra -Werror -fsyntax-only examples/gpu/*.c || return 1
    # Compiled in memory: nothing is left behind.
    python3 - $(find examples scripts shim-tests -name '*.py') <<'PY'
import sys
for name in sys.argv[1:]:
    with open(name, encoding="utf-8") as file:
        compile(file.read(), name, "exec")
PY
}

# The library and the simulated driver as users get them: one artefact is built, tested and measured.
artefacts() {
    cargo build --release --locked -p vgmem -p vgmem-simdriver && cargo build --release --locked -p vgmem-cli \
        && install_simulator target/release/libvgmem_simdriver.so
}

step "scripts" syntax
step "the benchmark's scripts" python3 scripts/test_bench.py
if cargo fmt --version >/dev/null 2>&1; then
    step "format" cargo fmt --all --check
else
    echo "== format: skipped, no rustfmt (rustup component add rustfmt)"
fi
step "release build" artefacts
if cargo clippy --version >/dev/null 2>&1; then
    step "lints" cargo clippy --workspace --all-targets --locked -- -D warnings
else
    echo "== lints: skipped, no clippy (rustup component add clippy)"
fi
make_venv || echo "SKIP cuda-bindings could not be installed: tests of the Python driver interface say so themselves"
step "tests" env VGMEM_TEST_BUILT=1 cargo test --workspace --locked --no-fail-fast
step "the demo, small" env DEMO=simulated TRAIN_STEPS=2 TRAIN_BATCH=4 ./scripts/demo.sh
SIMULATED="LD_LIBRARY_PATH=sim VGMEM_SIM=gpus=2,mem=1G"
step "the doctor, simulated" env $SIMULATED target/release/vgmem doctor
step "the hardware suite where it needs no GPU, simulated" env $SIMULATED OUT=target/gpu-simulated RUNS=100 \
    ./scripts/gpu.sh overhead startup

sums
