#!/bin/bash
# The hardware suite for four GPUs of one host or more: one program over all of them, pages interleaved on all, copies
# over every idle GPU's link, access for each further GPU, one process a GPU.
#
#   ./scripts/gpu_many.sh [NAME ...]   all cases, or those whose names contain one of the words
#
# Needs four GPUs that can reach each other, and python3; everything else as for gpu.sh. Conformance with all GPUs:
# ./scripts/conformance.sh.
set -u
cd "$(dirname "$0")/.." || exit 1
. scripts/gpu_common.sh
without_multicast
gpu_suite scripts/gpu_many_suite.py "$@"
