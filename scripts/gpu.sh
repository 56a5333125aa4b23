#!/bin/bash
# The hardware suite: programs of every kind, native and preloaded, compared bit by bit.
#
#   ./scripts/gpu.sh [NAME ...]        all cases, or those whose names contain one of the words
#
# Needs a GPU and python3; cases whose tools are missing (PyTorch, CuPy, nvcc) are skipped by name.
# Nothing is built but the test programs, and nothing is fetched: the library comes from
# target/release/libvgmem.so or $VGMEM_LIB. Logs and summary.json go to $OUT (target/gpu).
# Sizes: GPU_LIMIT (8G) is the limit the programs outgrow, GPU_HOST (24G) the host memory in the pool.
set -u
cd "$(dirname "$0")/.." || exit 1
. scripts/common.sh
need python3 "apt-get install python3"
stop_if_missing

library=${VGMEM_LIB:-target/release/libvgmem.so}
# The library refuses settings that it does not know.
unset VGMEM_LIB
if [ ! -f "$library" ]; then
    echo "missing: $library. Build it with: cargo build --release --locked -p vgmem (or name it in VGMEM_LIB)" >&2
    exit 2
fi
exec python3 scripts/gpu_suite.py --library "$library" --out "${OUT:-target/gpu}" \
    --limit "${GPU_LIMIT:-8G}" --host "${GPU_HOST:-24G}" "$@"
