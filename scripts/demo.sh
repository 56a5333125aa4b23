#!/bin/bash
# Builds the library and shows its main job: a training program that needs three times the memory
# of one GPU fails alone, trains under the preload, and gives the losses of a GPU large enough.
#
#   ./scripts/demo.sh
#
# Uses the GPU of this machine if nvidia-smi and python3's PyTorch work; otherwise a simulated
# machine of four GPUs. DEMO=gpu or DEMO=simulated chooses; DEMO_LIMIT is the size of the card
# that a real GPU stands in for (4G). Options of examples/train.py come from TRAIN_WIDTH etc.
set -u
cd "$(dirname "$0")/.." || exit 1
. scripts/common.sh

LIB=target/release/libvgmem.so
LOGS=target/demo
label=""

say() { printf '\n== %s%s\n' "$label" "$*"; }

# Prints a command line and runs it; its output is shown and kept in $LOGS/NAME.
show() { # show NAME [VARIABLE=VALUE ...] PROGRAM ...
    local name=$1
    shift
    echo "\$ $*"
    env "$@" >"$LOGS/$name.out" 2>"$LOGS/$name.err"
    local code=$?
    sed 's/^/  /' "$LOGS/$name.out"
    # The table of where pages lay comes at the end of the demo, where it is looked for.
    awk '/^vgmem: where pages lay/ { exit } { print "  " $0 }' "$LOGS/$name.err"
    return $code
}

fail() {
    echo "demo: FAILED: $*" >&2
    exit 1
}

have_gpu() {
    command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L >/dev/null 2>&1 \
        && python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' >/dev/null 2>&1
}

build() {
    if command -v cargo >/dev/null 2>&1; then
        say "Building"
        local packages="-p vgmem"
        [ "$mode" = gpu ] || packages="-p vgmem -p vgmem-simdriver"
        # Unquoted: each word is an argument.
        cargo build --release --locked $packages || exit 1
    elif [ "$mode" = gpu ] && [ -f "$LIB" ]; then
        say "No cargo here: using the $LIB built before"
    else
        need_rust
        stop_if_missing
    fi
}

# Same losses, bit by bit, and at least one of them.
compare() { # compare RUN REFERENCE
    grep '^step ' "$LOGS/$1.out" >"$LOGS/$1.losses"
    grep '^step ' "$LOGS/$2.out" >"$LOGS/$2.losses"
    [ -s "$LOGS/$1.losses" ] || fail "run $1 printed no losses"
    # Equal nonsense would prove nothing: the losses must be numbers that fall.
    awk 'NR == 1 { first = $4 } $4 !~ /^[0-9.]+$/ { bad = 1 } { last = $4 }
         END { exit bad || NR < 2 || last + 0 >= first + 0 }' "$LOGS/$1.losses" || fail "run $1 did not learn"
    if ! diff "$LOGS/$1.losses" "$LOGS/$2.losses"; then
        fail "the losses of run $1 differ from those of run $2"
    fi
    echo "  ${label}losses of run $1 and run $2 are equal, bit by bit ($(wc -l <"$LOGS/$1.losses") steps)"
}

# Alone the program must end with its own words about memory, not in some other way.
expect_out_of_memory() { # expect_out_of_memory NAME CODE
    [ "$2" -ne 0 ] || fail "run $1 was meant to run out of memory, but it trained"
    grep -q 'out of memory' "$LOGS/$1.err" || fail "run $1 failed, but not for want of memory"
    echo "  ${label}it failed for want of memory, as it should"
}

simulated() {
    local small="VGMEM_SIM=gpus=4,mem=512M" path="LD_LIBRARY_PATH=sim"
    say "(a) the program alone, on GPUs of 512 MiB: it uses one of them, and that is too small"
    show a $small $path python3 examples/train.py
    expect_out_of_memory a $?

    say "(b) the same program and the same four GPUs, under the preload"
    show b $small $path VGMEM_REPORT=stderr LD_PRELOAD=$LIB python3 examples/train.py || fail "run b did not train"

    say "(c) without us, on one GPU large enough"
    show c VGMEM_SIM=gpus=1,mem=4G $path python3 examples/train.py || fail "run c did not train"
    compare b c

    say "(d) under the preload on one GPU of 512 MiB: what has no room lies in host RAM"
    show d VGMEM_SIM=gpus=1,mem=512M $path VGMEM_REPORT=stderr LD_PRELOAD=$LIB python3 examples/train.py \
        || fail "run d did not train"
    compare d c

    say "(e) the same, with pages brought home before the launches that name them (VGMEM_PAGING=auto)"
    show e VGMEM_SIM=gpus=1,mem=512M $path VGMEM_PAGING=auto VGMEM_REPORT=stderr LD_PRELOAD=$LIB \
        python3 examples/train.py || fail "run e did not train"
    compare e c
    grep -q 'paging: [1-9]' "$LOGS/e.err" || fail "run e moved no page"
    table b "on four GPUs"
    table d "on one GPU"
}

gpu() {
    local limit=${DEMO_LIMIT:-4G}
    say "(a) the program on a card of $limit alone" \
        "(VGMEM_DEVICE_LIMIT=$limit VGMEM_HOST=0 stands in for the small card)"
    show a VGMEM_DEVICE_LIMIT="$limit" VGMEM_HOST=0 LD_PRELOAD=$LIB python3 examples/train.py
    expect_out_of_memory a $?

    say "(b) the same card with host RAM in the pool"
    show b VGMEM_DEVICE_LIMIT="$limit" VGMEM_REPORT=stderr LD_PRELOAD=$LIB python3 examples/train.py \
        || fail "run b did not train"

    say "(c) without us, on the whole card"
    show c python3 examples/train.py || fail "run c did not train"
    compare b c

    say "(d) as (b), with pages brought home before the launches that name them (VGMEM_PAGING=auto)"
    show d VGMEM_DEVICE_LIMIT="$limit" VGMEM_PAGING=auto VGMEM_REPORT=stderr LD_PRELOAD=$LIB \
        python3 examples/train.py || fail "run d did not train"
    compare d c
    table b "on a card of $limit and host RAM"
    table d "with paging"
}

table() { # table RUN WHERE
    say "Where the pages of run $1 lay ($2)"
    awk '/^vgmem: where pages lay/ { found = 1 } found { print } END { exit !found }' "$LOGS/$1.err" \
        || fail "run $1 left no report"
}

mode=${DEMO:-}
if [ -z "$mode" ]; then
    if have_gpu; then mode=gpu; else mode=simulated; fi
fi
case $mode in
    gpu | simulated) ;;
    *) fail "DEMO=$mode: it accepts gpu and simulated" ;;
esac
mkdir -p "$LOGS"
if [ "$mode" = simulated ]; then
    label="simulated: "
    need_rust
    need gcc "apt-get install gcc"
    need_venv
    stop_if_missing
    export TRAIN_BACKEND=driver
fi
build
if [ "$mode" = simulated ]; then
    install_simulator target/release/libvgmem_simdriver.so
    make_venv || fail "cuda-bindings could not be installed into .venv (.venv/bin/python3 -m pip install cuda-bindings)"
    PATH="$PWD/.venv/bin:$PATH"
    say "A machine without a GPU that PyTorch can use: everything below runs on simulated GPUs"
    simulated
else
    gpu
fi
echo
echo "demo: ${label}done"
