#!/bin/bash
# Times of programs that outgrow a GPU, beside their bound: native, with the library in both safeties, with pages that
# stay where they were placed ("static"), and by what a program does without the library ("instead").
#
#   ./scripts/bench_gpu.sh [NAME ...]  all works, or those whose names contain one of the words
#
# Needs a GPU and python3; works and methods whose tools are missing (PyTorch, accelerate, nvcc) are skipped by name.
# Nothing is built but the test programs, and nothing is fetched: the library comes from
# target/release/libvgmem.so or $VGMEM_LIB. The log and bench.json go to $OUT (target/bench);
# scripts/bench_results.py --accept FILE takes a bench.json into docs/RESULTS.md.
# BENCH_ROUNDS (2): so often the kinds alternate; static and instead, which are slow, run in the first round only.
# BENCH_KINDS (native,strict,auto,static,instead): the kinds that run; native is one of them.
# GPU_HOST (24G): the host memory in the pool. GPU_SECONDS (0: no limit): no process begins later than this.
set -u
cd "$(dirname "$0")/.." || exit 1
. scripts/gpu_common.sh
find_library
exec python3 scripts/bench_gpu.py --library "$library" --out "${OUT:-target/bench}" --host "${GPU_HOST:-24G}" \
    --rounds "${BENCH_ROUNDS:-2}" --kinds "${BENCH_KINDS:-native,strict,auto,static,instead}" \
    --seconds "${GPU_SECONDS:-0}" "$@"
