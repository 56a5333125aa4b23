#!/bin/bash
# The hardware suite for one GPU: programs of every kind, native and preloaded, compared bit by bit.
#
#   ./scripts/gpu.sh [NAME ...]        all cases, or those whose names contain one of the words
#   ./scripts/gpu.sh soak              ten minutes of one program, only where it is named (SOAK_SECONDS, 480)
#
# Needs a GPU and python3; cases whose tools are missing (PyTorch, CuPy, nvcc, ...) are skipped by name.
# Nothing is built but the test programs, and nothing is fetched: the library comes from
# target/release/libvgmem.so or $VGMEM_LIB. Logs and summary.json go to $OUT (target/gpu).
# GPU_LIMIT (8G) is the limit the programs outgrow, GPU_HOST (24G) the host memory in the pool.
# GPU_JOBS (4) cases run beside each other where times do not count; with 1, times of all are taken.
# GPU_SECONDS (0: no limit): no case begins later than this; GPU_TIMEOUT (150): one program may take so long.
set -u
cd "$(dirname "$0")/.." || exit 1
. scripts/gpu_common.sh
gpu_suite scripts/gpu_suite.py "$@"
