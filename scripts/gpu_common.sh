# Shared by gpu.sh, gpu2.sh, gpu_many.sh and bench_gpu.sh; sourced, never run.
. scripts/common.sh

# Sets `library` to the one that was built before.
find_library() {
    library=${VGMEM_LIB:-target/release/libvgmem.so}
    need python3 "apt-get install python3"
    stop_if_missing
    # The library refuses settings that it does not know.
    unset VGMEM_LIB
    if [ ! -f "$library" ]; then
        echo "missing: $library. Build it with: cargo build --release --locked -p vgmem (or name it in VGMEM_LIB)" >&2
        exit 2
    fi
}

# NVLink multicast is for whoever owns the whole machine: leave it off.
without_multicast() {
    export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1
}

# Runs a suite.
gpu_suite() { # gpu_suite PROGRAM [NAME ...]
    local program=$1
    shift
    find_library
    exec python3 "$program" --library "$library" --out "${OUT:-target/gpu}" --limit "${GPU_LIMIT:-8G}" \
        --host "${GPU_HOST:-24G}" --jobs "${GPU_JOBS:-4}" --seconds "${GPU_SECONDS:-0}" \
        --timeout "${GPU_TIMEOUT:-150}" "$@"
}
