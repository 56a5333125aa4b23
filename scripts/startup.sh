#!/bin/bash
# What the preload costs a process that uses no GPU: /bin/true with and without it, alternated.
#
#   ./scripts/startup.sh [--json] [LIBRARY]
#
# RUNS (500) pairs are made; the medians and their difference are printed, with the number of
# symbols that the library exports.
set -u
cd "$(dirname "$0")/.." || exit 1
. scripts/common.sh
need python3 "apt-get install python3"
need nm "apt-get install binutils"
stop_if_missing

json=no
if [ "${1:-}" = --json ]; then
    json=yes
    shift
fi
library=$(realpath "${1:-target/release/libvgmem.so}")
if [ ! -f "$library" ]; then
    echo "missing: $library. Build it with: cargo build --release --locked -p vgmem" >&2
    exit 2
fi
symbols=$(nm -D --defined-only "$library" | wc -l)
python3 - "$library" "${RUNS:-500}" "$symbols" "$json" <<'PY'
import json
import os
import statistics
import sys
import time

library, runs, symbols, as_json = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "yes"
bare = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD" and not name.startswith("VGMEM_")}
program = "/bin/true"


def once(env):
    """Microseconds from the start of the process to its end."""
    start = time.perf_counter_ns()
    child = os.posix_spawn(program, [program], env)
    _, status = os.waitpid(child, 0)
    if status:
        sys.exit(f"startup: {program} ended with {status}")
    return (time.perf_counter_ns() - start) / 1e3


times = {"native": [], "preloaded": []}
for turn in range(runs + 20):
    for name, env in (("native", bare), ("preloaded", {**bare, "LD_PRELOAD": library})):
        took = once(env)
        # The first turns fill the caches of the machine.
        if turn >= 20:
            times[name].append(took)
native, preloaded = (statistics.median(times[name]) for name in ("native", "preloaded"))
found = {"native_us": round(native, 1), "preloaded_us": round(preloaded, 1), "cost_us": round(preloaded - native, 1),
         "runs": runs, "exported_symbols": symbols, "library_bytes": os.path.getsize(library)}
if as_json:
    print(json.dumps(found))
else:
    print(f"{program}: {found['native_us']} us alone, {found['preloaded_us']} us preloaded: "
          f"{found['cost_us']} us more (medians of {runs} runs each, alternated)")
    print(f"{os.path.basename(library)}: {symbols} exported symbols, {found['library_bytes']} bytes")
PY
