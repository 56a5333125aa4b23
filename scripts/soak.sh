#!/bin/bash
# One process works for long with three times the memory that its simulated GPU has: nothing may grow, no byte be wrong.
#
#   ./scripts/soak.sh [--minutes N] [--safety strict|auto] [--seed N] [--host SIZE]      60, auto, 1, 2G
#
# VGMEM_LIB names another library than target/release/libvgmem.so (then nothing is built), VGMEM_SIMULATOR the folder
# of another simulated driver than sim. Ends with a verdict: `flat` means that memory, mappings, open files and threads
# were in the last quarter what they were in the second: their mean, or the least of them where they go up and down (the
# pager keeps spare memory of the host up to SIZE, then gives all of it back). Exit status 0 if all is well.
set -u
cd "$(dirname "$0")/.." || exit 1
. scripts/common.sh

MINUTES=60 SAFETY=auto SEED=1 GPU=136 HOST=2G
WORK=target/soak
while [ $# -gt 1 ]; do
    case "$1" in
    --minutes) MINUTES=$2 ;;
    --safety) SAFETY=$2 ;;
    --seed) SEED=$2 ;;
    --host) HOST=$2 ;;
    *) break ;;
    esac
    shift 2
done
if [ $# -gt 0 ]; then
    sed -n '2,9p' "$0"
    exit 2
fi
mkdir -p "$WORK"

need gcc "apt-get install gcc"
need python3 "apt-get install python3"
[ -n "${VGMEM_LIB:-}" ] || need_rust
stop_if_missing
if [ -z "${VGMEM_LIB:-}" ]; then
    cargo build --quiet --release --locked -p vgmem -p vgmem-simdriver || exit 1
    install_simulator target/release/libvgmem_simdriver.so
fi
gcc -O2 -g -std=gnu11 -Wno-unused-function -pthread -o "$WORK/soak.$$" shim-tests/programs/soak.c -ldl || exit 1

NAME="$SAFETY-$SEED-$$" # of this run: its output and its report
REPORT="$PWD/$WORK/$NAME.json"
SECONDS_OF_WORK=$(awk -v m="$MINUTES" 'BEGIN { print m * 60 }')
# Short runs say as many lines as the verdict needs.
EVERY=$(awk -v s="$SECONDS_OF_WORK" 'BEGIN { print s < 240 ? s / 24 : 10 }')
WILD=20
[ "$SAFETY" = strict ] && WILD=100 # nothing leads the library away from what it does anyway
# The library refuses settings that it does not know.
env -u VGMEM_LIB -u VGMEM_SIMULATOR LD_LIBRARY_PATH="${VGMEM_SIMULATOR:-$PWD/sim}" \
    LD_PRELOAD="$(realpath "${VGMEM_LIB:-target/release/libvgmem.so}")" \
    VGMEM_SIM="gpus=1,mem=${GPU}M,host=4G" VGMEM_PAGE_SIZE=2M VGMEM_HOST="$HOST" VGMEM_PAGING=auto \
    VGMEM_SAFETY="$SAFETY" VGMEM_REPORT="$REPORT" VGMEM_TEST_LEDGER="soak-$$" ADVERSARY_GPU="$GPU" \
    "$WORK/soak.$$" "$SECONDS_OF_WORK" "$SEED" "$EVERY" "$WILD" 2>&1 | tee "$WORK/$NAME.log"
RC=${PIPESTATUS[0]}
rm -f "$WORK/soak.$$" "/dev/shm/vgmem-$(id -u)-soak-$$"

python3 - "$WORK/$NAME.log" "$REPORT" "$RC" <<'END'
import json
import sys

log, report, rc = sys.argv[1], sys.argv[2], int(sys.argv[3])
with open(log, errors="replace") as f:
    rows = [line.split() for line in f if line.startswith("soak ")]
samples = [dict(zip(["seconds"] + row[2::2], map(float, row[1::2]))) for row in rows]
problems = [] if rc == 0 else [f"the program ended with {rc}"]

# What may be added to 2 %: blocks come and go.
SLACK = {"rss_kib": 4096, "maps": 24, "fds": 1, "threads": 1}
end = samples[-1]["seconds"] if samples else 0
second = [s for s in samples if end / 4 < s["seconds"] <= end / 2]
last = [s for s in samples if s["seconds"] > end * 3 / 4]
if len(second) < 3 or len(last) < 3:
    problems.append("too few lines for a verdict")
else:
    for what, slack in SLACK.items():
        grows = []
        for kind, of in (("mean", lambda all: sum(all) / len(all)), ("least", min), ("most", max)):
            before, after = (of([s[what] for s in part]) for part in (second, last))
            grows.append(after > before * 1.02 + slack)
            print(f"verdict {what} {kind} {before:.1f} -> {after:.1f}, at most {before * 1.02 + slack:.1f}")
        # What comes to stay raises the least as well.
        print(f"verdict {what} {'GROWS' if grows[0] and grows[1] else 'flat'}")
        if grows[0] and grows[1]:
            problems.append(f"{what} grows")
try:
    with open(report) as f:
        told = json.load(f)
    names = ("live", "lost", "refused", "fetched", "evicted", "launches_beside", "strict_exchanges", "missed_deadlines")
    print("verdict report", *(f"{name} {told[name]}" for name in names))
    problems += [f"{name} is {told[name]}" for name in ("live", "lost") if told[name] != 0]
    problems += [f"nothing was {name}" for name in ("fetched", "evicted") if told[name] == 0]
except (OSError, ValueError, KeyError) as error:
    problems.append(f"no report: {error!r}")
print("verdict", "FAILED: " + ", ".join(problems) if problems else f"well: {samples[-1]['steps']:.0f} steps")
sys.exit(bool(problems))
END
