# Shared by the scripts of this folder; sourced, never run.

# Says what is missing and which command installs it; counts it in `missing`.
missing=0
need() { # need TOOL HOW-TO-INSTALL
    if ! command -v "$1" >/dev/null 2>&1; then
        echo "missing: $1. Install it with: $2" >&2
        missing=$((missing + 1))
    fi
}

# Ends the script if `need` found something missing.
stop_if_missing() {
    if [ "$missing" -gt 0 ]; then
        exit 2
    fi
}

CARGO_HINT="apt-get install rustup && rustup default stable"

# The Rust this workspace needs; an older one fails with less clear words.
need_rust() {
    need cargo "$CARGO_HINT"
    command -v cargo >/dev/null 2>&1 || return 0
    local version minor
    version=$(cargo --version | cut -d' ' -f2)
    minor=$(echo "$version" | cut -d. -f2)
    if [ "$(echo "$version" | cut -d. -f1)" -eq 1 ] && [ "$minor" -lt 89 ]; then
        echo "missing: cargo 1.89 or newer (this is $version). Update it with: rustup update stable" >&2
        missing=$((missing + 1))
    fi
}

# Whether python3 can make virtual environments with pip in them.
need_venv() {
    need python3 "apt-get install python3"
    command -v python3 >/dev/null 2>&1 || return 0
    if ! python3 -c 'import venv, ensurepip' >/dev/null 2>&1; then
        echo "missing: python3 -m venv. Install it with: apt-get install python3-venv" >&2
        missing=$((missing + 1))
    fi
}

# Puts the simulated driver where programs find it by its name.
install_simulator() { # install_simulator LIBRARY
    mkdir -p sim
    # A new file renamed over the old one: a program that still runs keeps the old one whole.
    cp "$1" "sim/.libcuda.so.$$" && mv "sim/.libcuda.so.$$" sim/libcuda.so.1
    ln -sf libcuda.so.1 sim/libcuda.so
}

# Makes .venv with the driver interface for Python in it.
make_venv() {
    if [ -x .venv/bin/python3 ] && .venv/bin/python3 -c 'from cuda.bindings import driver' >/dev/null 2>&1; then
        return 0
    fi
    python3 -m venv .venv || return 1
    .venv/bin/python3 -m pip install --quiet --disable-pip-version-check "cuda-bindings>=13,<14"
}
