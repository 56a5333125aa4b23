#!/bin/bash
# Programs of the Rodinia 3.1 suite, native and preloaded with the pager in both forms of safety: outputs compared.
#
#   ./scripts/rodinia.sh DIR [NAME ...]     DIR holds Rodinia's sources (DIR/cuda/...); all programs, or those named
#
# Only programs that make up their own data. Nothing of Rodinia's is kept here: it is copied to a folder that is
# removed at the end, and built there. What does not build is skipped by name. Lines that tell times or
# the memory of the GPU are not compared.
# The library comes from target/release/libvgmem.so or $VGMEM_LIB; logs go to $OUT (target/rodinia).
# RODINIA_LIMIT (32M) is what the GPU may hold, RODINIA_HOST (4G) the host memory in the pool, RODINIA_TIMEOUT (120)
# the seconds that one program may take, RODINIA_ARCH (native) what is compiled for.
set -u
cd "$(dirname "$0")/.." || exit 1
. scripts/common.sh

[ $# -ge 1 ] || { sed -n '2,11p' "$0"; exit 2; }
SOURCE=$(realpath "$1") || exit 2
shift
LIBRARY=$(realpath -m "${VGMEM_LIB:-target/release/libvgmem.so}")
LOGS=$(realpath -m "${OUT:-target/rodinia}")
# The library refuses settings that it does not know.
unset VGMEM_LIB
need nvcc "the CUDA toolkit, with nvcc in PATH"
need gcc "apt-get install gcc"
need python3 "apt-get install python3"
stop_if_missing
[ -f "$LIBRARY" ] || { echo "missing: $LIBRARY. Build it with: cargo build --release --locked -p vgmem" >&2; exit 2; }
[ -d "$SOURCE/cuda" ] || { echo "missing: $SOURCE/cuda. DIR is the top folder of Rodinia 3.1" >&2; exit 2; }
mkdir -p "$LOGS"
WORK=$(mktemp -d)
trap 'rm -rf "$WORK" /dev/shm/vgmem-*-rodinia$$' EXIT

# Calls that CUDA no longer has get their successors; time() is always the same, as it seeds random numbers.
cat >"$WORK/fixed.h" <<'END'
#include <stdlib.h>
#include <time.h>
static inline time_t fixed_time(void) { return 7; }
#ifdef __CUDACC__
#include <cuda_runtime.h>
#define cudaThreadSynchronize cudaDeviceSynchronize
#define cudaThreadExit cudaDeviceReset
// Members of cudaDeviceProp that are gone and are only printed.
#define clockRate warpSize
#define deviceOverlap warpSize
#define kernelExecTimeoutEnabled warpSize
#endif
// Behind all headers: <ctime> takes the name back.
#define time(ignored) fixed_time()
END
CU="nvcc -O2 -std=c++14 -w -arch=${RODINIA_ARCH:-native} -include $WORK/fixed.h -I$SOURCE/cuda/util ${RODINIA_FLAGS:-}"
CC="gcc -O2 -std=gnu89 -w -fopenmp -include $WORK/fixed.h"

# backprop, streamcluster and hybridsort print little of what they compute.
# name | folder below cuda | how it is built there | command line | files that it writes, if any
programs() {
    cat <<END
pathfinder|pathfinder|$CU -DBENCH_PRINT pathfinder.cu -o program|./program 20000 2000 20|
nw|nw|$CU -DTRACEBACK needle.cu -o program|./program 8192 10|result.txt
srad_v2|srad/srad_v2|$CU -DGPU -DOUTPUT srad.cu -o program|./program 2048 2048 0 127 0 127 0.5 10|
gaussian|gaussian|$CU gaussian.cu -o program|./program -s 2048|
lud|lud/cuda|$CU -DGPU_TIMER -I../common lud.cu lud_kernel.cu ../common/common.c -o program|./program -s 1024 -v|
lavaMD|lavaMD|$CC -DOUTPUT -c main.c util/timer/timer.c util/num/num.c && $CU -c kernel/kernel_gpu_cuda_wrapper.cu \
util/device/device.cu && $CU *.o -o program -Xcompiler -fopenmp|./program -boxes1d 24|result.txt
particlefilter_naive|particlefilter|$CU ex_particle_CUDA_naive_seq.cu -o program|\
./program -x 128 -y 128 -z 10 -np 300000|
particlefilter_float|particlefilter|$CU ex_particle_CUDA_float_seq.cu -o program|\
./program -x 128 -y 128 -z 10 -np 100000|
backprop|backprop|$CC -c backprop.c facetrain.c imagenet.c && $CU -c backprop_cuda.cu && \
$CU *.o -o program -Xcompiler -fopenmp|./program 1048560|
streamcluster|streamcluster|$CU streamcluster_cuda_cpu.cpp streamcluster_cuda.cu streamcluster_header.cu -o program|\
./program 10 20 256 65536 65536 1000 none output.txt 1|output.txt
hybridsort|hybridsort|$CU bucketsort.cu mergesort.cu main.cu -o program|./program r|
END
}
# The others need files of data.
NEED_DATA="b+tree bfs cfd dwt2d heartwall hotspot hotspot3D huffman kmeans leukocyte mummergpu myocyte nn srad_v1"

passed=0 failed=0 skipped=0
say() { # say ok|FAIL|SKIP NAME WHY
    echo "$*"
    case $1 in ok) passed=$((passed + 1)) ;; FAIL) failed=$((failed + 1)) ;; *) skipped=$((skipped + 1)) ;; esac
}

wanted() { # wanted NAME "$@"
    local name=$1 word
    shift
    [ $# -eq 0 ] && return 0
    for word in "$@"; do [ "$word" = "$name" ] && return 0; done
    return 1
}

# A checksum of what a run printed and wrote, less lines that tell times.
digest_of() { # digest_of FOLDER OUTPUT
    (cd "$1" && cat stdout $2) | grep -a -v -i -E '[0-9] s, +[0-9.]+ %|Global Memory|time|took|exec|send|elapsed|^ *[0-9.]+ s$|MB/s' |
        sha256sum | cut -d' ' -f1
}

run_in() { # run_in KIND COMMAND OUTPUT [NAME=VALUE ...]: runs the program of this folder; leaves kind.digest
    local kind=$1 command=$2 output=$3
    shift 3
    [ -n "$output" ] && rm -f $output
    env "$@" timeout "${RODINIA_TIMEOUT:-120}" $command >stdout 2>"$LOGS/$name.$kind.err" </dev/null
    local rc=$?
    if [ $rc -eq 0 ] && [ -n "$output" ] && [ ! -s "$output" ]; then
        echo "$name wrote no $output" >&2
        rc=99
    fi
    digest_of . "$output" >"$kind.digest" 2>/dev/null
    [ $rc -eq 0 ] && return 0
    tail -n 1 "$LOGS/$name.$kind.err" >&2
    return "$rc"
}

field() { # field WORD: a number of the report of the last run
    python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))[sys.argv[2]])' report.json "$1" 2>/dev/null ||
        echo none
}

one() { # one NAME FOLDER BUILD COMMAND OUTPUT
    local name=$1 folder=$2 build=$3 command=$4 output=$5 safety rc pages
    [ -d "$SOURCE/cuda/$folder" ] || { say SKIP "$name" "no folder cuda/$folder"; return; }
    # With its neighbours: some programs include files of theirs.
    cp -r "$SOURCE/cuda/${folder%%/*}" "$WORK/" && cd "$WORK/$folder" || { say FAIL "$name" "cannot copy"; return; }
    rm -f program ./*.o
    if ! eval "$build" >"$LOGS/$name.build" 2>&1; then
        say SKIP "$name" "does not build: $(grep -m 1 error "$LOGS/$name.build" | cut -c 1-120)"
        return
    fi
    run_in native "$command" "$output" || { say SKIP "$name" "does not run natively: code $?"; return; }
    # A program whose own output changes from run to run says nothing.
    cp native.digest first.digest
    run_in native "$command" "$output" || { say SKIP "$name" "does not run natively: code $?"; return; }
    cmp -s native.digest first.digest || { say SKIP "$name" "its output differs between two native runs"; return; }
    for safety in strict auto; do
        rm -f report.json
        run_in "$safety" "$command" "$output" VGMEM_PAGING=auto VGMEM_SAFETY=$safety LD_PRELOAD="$LIBRARY" \
            VGMEM_DEVICE_LIMIT="${RODINIA_LIMIT:-32M}" VGMEM_HOST="${RODINIA_HOST:-4G}" VGMEM_REPORT="$PWD/report.json" \
            VGMEM_TEST_LEDGER="rodinia$$"
        rc=$?
        pages="fetched $(field fetched), evicted $(field evicted)"
        if [ $safety = auto ] && [ $rc -ne 0 ] && grep -q VGMEM_SAFETY=strict "$LOGS/$name.auto.err"; then
            say ok "${name}_auto" "loud: ended with $rc"
        elif [ $rc -ne 0 ]; then
            say FAIL "${name}_$safety" "ended with $rc"
        elif [ "$(field made)" = none ] || [ "$(field made)" = 0 ]; then
            # A program that does not look at errors would print the same without a GPU.
            say FAIL "${name}_$safety" "the pool made no allocation"
        elif cmp -s native.digest "$safety.digest"; then
            say ok "${name}_$safety" "$pages"
        else
            say FAIL "${name}_$safety" "another output than natively; $pages"
        fi
    done
}

while IFS='|' read -r name folder build command output; do
    wanted "$name" "$@" && one "$name" "$folder" "$build" "$command" "$output"
done < <(programs)
for name in $NEED_DATA; do
    wanted "$name" "$@" && say SKIP "$name" "needs files of data"
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
