#!/bin/bash
# The conformance programs on this machine's driver, native and with the library, compared with what hardware answered.
#
#   ./scripts/conformance.sh [NAME ...]      all programs, or those named (vmm copies queries errors ...)
#   ./scripts/conformance.sh --record        writes the native answers into shim-tests/conformance/expected
#   SIMULATED=1 ./scripts/conformance.sh     on the simulated driver as last built (its known gaps are left out)
#
# Needs gcc and, with a GPU, nvcc. The library is target/release/libvgmem.so or $VGMEM_LIB; nothing of it is built here.
# What each program said lies in $OUT/conformance (target/conformance). Ends with N passed, N failed, N skipped.
set -u
cd "$(dirname "$0")/.." || exit 1
. scripts/common.sh

SOURCES=shim-tests/conformance
EXPECTED=$SOURCES/expected
PROGRAMS="vmm copies queries errors streams graphs launches ipc peers"
FOLDER=${OUT:-target}/conformance
library=$(realpath "${VGMEM_LIB:-target/release/libvgmem.so}")
unset VGMEM_LIB # the library refuses settings that it does not know
record=
if [ "${1:-}" = --record ]; then
    record=1
    shift
fi
[ $# -gt 0 ] && PROGRAMS="$*"

need gcc "apt-get install gcc"
[ -n "${SIMULATED:-}" ] || need nvcc "the CUDA toolkit (apt-get install nvidia-cuda-toolkit)"
stop_if_missing
mkdir -p "$FOLDER/bin" "$FOLDER/native" "$FOLDER/preload"

build() {
    local program capability image=$FOLDER/bin/kernels.cubin
    for program in $PROGRAMS; do
        gcc -O1 -g -std=gnu11 -Wall -Wextra -Werror -Wno-missing-field-initializers -Wno-unused-parameter -pthread \
            -o "$FOLDER/bin/$program" "$SOURCES/$program.c" "$SOURCES/conf.c" -ldl || return 1
    done
    if [ -n "${SIMULATED:-}" ]; then
        install_simulator target/release/libvgmem_simdriver.so || return 1
        export LD_LIBRARY_PATH=$PWD/sim VGMEM_SIM=${VGMEM_SIM:-gpus=1,mem=24G,host=8G}
        IMAGE=-
        return 0
    fi
    capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | tr -d .)
    nvcc -cubin "-arch=sm_${capability:-90}" -fmad=false -o "$image" $SOURCES/kernels.cu || return 1
    IMAGE=$image
}

said() { # said PROGRAM KIND: runs it; its lines go to a file
    local program=$1 preload=
    [ "$2" = preload ] && preload=$library
    LD_PRELOAD=$preload timeout 150 "$FOLDER/bin/$program" "$IMAGE" \
        >"$FOLDER/$2/$program.txt" 2>"$FOLDER/$2/$program.err"
    local rc=$?
    # 3: some case ended its process, which is an answer like any other.
    [ $rc -eq 0 ] || [ $rc -eq 3 ] || echo "$2 $program: ended with $rc: $(head -3 "$FOLDER/$2/$program.err")"
}

# Compares the lines of a kind of run with the expected ones; differences are printed, sums kept in `$FOLDER/sums`.
judge() { # judge PROGRAM KIND
    awk -v program="$1" -v kind="$2" -v simulated="${SIMULATED:-}" '
        function facts(line) { sub(/^case [^:]*: */, "", line); return line }
        function name(line) { sub(/^case /, "", line); sub(/:.*/, "", line); return program "/" line }
        FILENAME ~ /preload-differences.txt$/ {
            if (kind == "preload" && split($0, part, " [|] ") == 3) other[part[1]] = part[3]
            next
        }
        FILENAME ~ /simulator-gaps.txt$/ { if (simulated && split($0, part, ": ") > 1) gap[part[1]] = 1; next }
        FILENAME ~ /\/expected\// { expected[name($0)] = facts($0); next }
        /^case / {
            key = name($0); got = facts($0); seen[key] = 1
            want = key in other ? other[key] : expected[key]
            if (!(key in expected) || want == "SKIP" || got == "SKIP" || key in gap) {
                skipped++
                print "SKIP " kind " " key
                next
            }
            if (got == want) { passed++; next }
            failed++
            printf "FAILED %s %s\n  expected %s\n  got      %s\n", kind, key, want, got
        }
        END {
            for (key in expected) if (!(key in seen)) { failed++; print "FAILED " kind " " key ": not run" }
            print passed + 0, failed + 0, skipped + 0 >> sums
        }' sums="$FOLDER/sums" $EXPECTED/preload-differences.txt $EXPECTED/simulator-gaps.txt "$EXPECTED/$1.txt" \
        "$FOLDER/$2/$1.txt"
}

build || exit 1
rm -f "$FOLDER/sums"
mkdir -p $EXPECTED
touch $EXPECTED/preload-differences.txt $EXPECTED/simulator-gaps.txt
for program in $PROGRAMS; do
    said "$program" native
    [ -n "$record" ] && cp "$FOLDER/native/$program.txt" "$EXPECTED/$program.txt"
    [ -f "$EXPECTED/$program.txt" ] || continue
    judge "$program" native
    if [ -f "$library" ]; then
        said "$program" preload
        judge "$program" preload
    else
        echo "SKIP preload $program: there is no $library"
        echo "0 0 1" >>"$FOLDER/sums"
    fi
done
awk '{ passed += $1; failed += $2; skipped += $3 }
    END { printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped; exit failed > 0 || passed == 0 }' \
    "$FOLDER/sums"
