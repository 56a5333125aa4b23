#!/bin/bash
# Random work on random memory while the library moves pages, on simulated machines.
#
#   ./scripts/chaos.sh 100000        so many sequences, in parallel processes, from seed 1000 on
#   ./scripts/chaos.sh 100000 FROM   from another seed on
#   ./scripts/chaos.sh --seed N      one process again, as it was; says all it says
#
# VGMEM_LIB names another library than target/release/libvgmem.so (then nothing is built), VGMEM_SIMULATOR the folder
# of another simulated driver than sim. Ends with N passed, N failed, N skipped.
set -u
cd "$(dirname "$0")/.." || exit 1
. scripts/common.sh

SEQUENCES=50 # of one process: the same number makes the same run
WORK=target/chaos
mkdir -p "$WORK"

prepare() {
    need gcc "apt-get install gcc"
    [ -n "${VGMEM_LIB:-}" ] || need_rust
    stop_if_missing
    if [ -z "${VGMEM_LIB:-}" ]; then
        cargo build --quiet --release --locked -p vgmem -p vgmem-simdriver || exit 1
        install_simulator target/release/libvgmem_simdriver.so
    fi
    gcc -O2 -g -std=gnu11 -Wno-unused-function -pthread -o "$WORK/chaos" shim-tests/programs/chaos.c -ldl || exit 1
}

one() { # one SEED: a process; its report lies in $WORK/SEED.json
    local library
    library=$(realpath "${VGMEM_LIB:-target/release/libvgmem.so}")
    # The library refuses settings that it does not know.
    env -u VGMEM_LIB -u VGMEM_SIMULATOR LD_LIBRARY_PATH="${VGMEM_SIMULATOR:-$PWD/sim}" LD_PRELOAD="$library" \
        VGMEM_TEST_LEDGER="chaos-$1" VGMEM_REPORT="$PWD/$WORK/$1.json" timeout 300 "$WORK/chaos" "$1" "$SEQUENCES"
    local rc=$?
    rm -f "/dev/shm/vgmem-$(id -u)-chaos-$1"
    return $rc
}

# one process of many: silent if it passed
judged() {
    local said moved
    if ! said=$(one "$1" 2>&1); then
        echo "FAILED: ./scripts/chaos.sh --seed $1" "$(echo "$said" | grep -a FAILED | head -1)"
        return
    fi
    moved=$(sed -n 's/.*"moved": *\([0-9]*\).*/\1/p' "$WORK/$1.json" | head -1)
    rm -f "$WORK/$1.json"
    echo "passed $1 moved ${moved:-0}"
}

many() { # many COUNT FROM
    local processes=$((($1 + SEQUENCES - 1) / SEQUENCES)) log="$WORK/log"
    export WORK SEQUENCES
    export -f one judged
    seq "$2" $(($2 + processes - 1)) | xargs -P $(($(nproc) + 2)) -I{} bash -c 'judged {}' | tee "$log" | grep FAILED
    awk -v each="$SEQUENCES" '/^passed/ { passed += each; moved += $4 } /^FAILED/ { failed += each }
        END { printf "%d pages moved\n%d passed, %d failed, 0 skipped\n", moved, passed, failed
              exit failed > 0 || passed == 0 || moved == 0 }' "$log"
}

case "${1:-}" in
--seed)
    prepare
    one "${2:?a seed}"
    rc=$?
    [ -f "$WORK/$2.json" ] && cat "$WORK/$2.json"
    exit $rc
    ;;
[1-9]*)
    prepare
    many "$1" "${2:-1000}"
    ;;
*)
    sed -n '2,8p' "$0"
    exit 2
    ;;
esac
