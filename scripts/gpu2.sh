#!/bin/bash
# The hardware suite for two GPUs of one host: pages on the peer, peer copies, two-GPU programs, NCCL.
#
#   ./scripts/gpu2.sh [NAME ...]       all cases, or those whose names contain one of the words
#
# Needs two GPUs that can reach each other, and python3; everything else as for gpu.sh.
set -u
cd "$(dirname "$0")/.." || exit 1
. scripts/gpu_common.sh
without_multicast
gpu_suite scripts/gpu2_suite.py "$@"
