#!/usr/bin/env python3
"""Writes and checks the rows of src/abi/table/ from the vendor's public headers.

What a header states is a fact: names, the CUDA version each ABI came with, per-thread twins,
types. Those columns are generated. The two words at the start of a row are ours and are kept:

    hook sim cuMemAlloc: cuMemAlloc_v2@3020 (a: *mut CUdeviceptr, b: usize);
    |    |   |           |             |     types of the parameters, in order
    |    |   |           |             CUDA version of this ABI
    |    |   base name   exported symbol [ / per-thread twin @ its version ]
    |    `sim`: the simulated driver implements it; `none`: it answers NOT_SUPPORTED
    `hook`: ours answers; `observe`: the driver answers and we look; `submit`: it answers, no page moves
    meanwhile; `retry`: it answers, a second time after out of memory; `wait`: it answers, and then the program
    has waited for a GPU; `look`: it answers, every page is mapped meanwhile; `forward`: we export nothing

Usage:
    scripts/driver_table.py                  rewrite the table from the newest headers
    scripts/driver_table.py --check          print every difference, exit 1 if there is one
    scripts/driver_table.py --include DIR    use cuda.h and cudaTypedefs.h of DIR, fetch nothing
"""
import argparse
import glob
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TABLE = os.path.join(ROOT, "src", "abi", "table")
PACKAGE = "nvidia-cuda-runtime"
NEW_ROWS_GO_TO = "context"

ROW = re.compile(r"^\s*(hook|observe|submit|retry|wait|look|forward) (sim|none) (\w+): (\w+)@(\d+)"
                 r"(?: / (\w+)@(\d+))? \((.*)\);$")

SCALARS = {
    "size_t": "usize", "int": "c_int", "unsigned int": "c_uint", "unsigned": "c_uint",
    "float": "f32", "unsigned char": "u8", "unsigned short": "u16",
    "unsigned long long": "u64", "cuuint32_t": "u32", "cuuint64_t": "u64",
    "char": "c_char", "void": "c_void",
    "CUdevice": "CUdevice", "CUdevice_v1": "CUdevice",
    "CUdeviceptr": "CUdeviceptr", "CUdeviceptr_v2": "CUdeviceptr", "CUdeviceptr_v1": "u32",
    "CUresult": "CUresult",
    "CUmemGenericAllocationHandle": "CUmemHandle", "CUmemGenericAllocationHandle_v1": "CUmemHandle",
    "CUtexObject_v1": "u64", "CUsurfObject_v1": "u64", "CUgraphConditionalHandle": "u64",
    "CUlogicalEndpointId": "u32", "CUlogIterator": "c_uint",
}
# Opaque handles and callbacks: one pointer each.
POINTERS = """CUarray CUasyncCallback CUasyncCallbackHandle CUdevResourceDesc CUcheckpointOperationHandle CUcontext CUcoredumpCallbackHandle
CUcoredumpStatusCallback CUevent CUexternalMemory CUexternalSemaphore CUfunction CUgraph CUgraphExec
CUgraphNode CUgraphRecaptureCallback CUgraphicsResource CUgreenCtx CUhostFn CUkernel CUlibrary
CUlinkState CUlogsCallback CUlogsCallbackHandle CUmemoryPool CUmipmappedArray CUmodule
CUoccupancyB2DSize CUstream CUstreamCallback CUsurfref CUtexref CUuserObject""".split()
# Structures that src/abi/types.rs lays out; a pointer to any other one is a pointer to void.
STRUCTS = {
    "CUmemLocation": "CUmemLocation", "CUmemLocation_v1": "CUmemLocation",
    "CUipcMemHandle_v1": "CUipcMemHandle", "CUipcEventHandle_v1": "CUipcEventHandle",
    "CUmemAllocationProp_v1": "CUmemAllocationProp", "CUmemAccessDesc_v1": "CUmemAccessDesc",
    "CUDA_MEMCPY2D_v2": "CUDA_MEMCPY2D", "CUDA_MEMCPY3D_v2": "CUDA_MEMCPY3D",
    "CUDA_MEMCPY3D_PEER_v1": "CUDA_MEMCPY3D_PEER", "CUlaunchConfig": "CUlaunchConfig",
    "CUuuid": "CUuuid", "CUDA_KERNEL_NODE_PARAMS_v2": "CUDA_KERNEL_NODE_PARAMS",
    "CUDA_LAUNCH_PARAMS_v1": "CUDA_LAUNCH_PARAMS",
}


def base_type(name):
    if name in SCALARS:
        return SCALARS[name]
    if name in STRUCTS:
        return STRUCTS[name]
    if name in POINTERS:
        return name
    return None


def rust_type(text, enums):
    """The Rust spelling of one C parameter type."""
    text = re.sub(r"\s+", " ", text).strip()
    const = text.startswith("const ")
    text = text.removeprefix("const ")
    stars = text.count("*")
    name = text.replace("*", "").strip()
    found = base_type(name)
    if found is None:
        if name in enums:
            found = "c_int"
        elif stars:
            found = "c_void"
        else:
            sys.exit(f"driver_table.py: no Rust type for {name!r}: add it to SCALARS, POINTERS or STRUCTS")
    for level in range(stars):
        found = ("*const " if const and level == 0 else "*mut ") + found
    return found


def headers(include):
    """Folder with cuda.h: the one given, or the newest package's."""
    if include:
        return include
    into = os.path.join(tempfile.gettempdir(), "vgmem-headers")
    found = glob.glob(into + "/nvidia/*/include/cuda.h")
    if not found:
        subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", into, PACKAGE],
                       check=True)
        found = glob.glob(into + "/nvidia/*/include/cuda.h")
    return os.path.dirname(found[0])


def read_symbols(include):
    """Every exported driver symbol of the header, all ABI versions."""
    out = subprocess.run(["gcc", "-E", "-P", "-D__CUDA_API_VERSION_INTERNAL", "-x", "c",
                          os.path.join(include, "cuda.h"), "-I" + include],
                         check=True, capture_output=True, text=True).stdout
    return set(re.findall(r"\bCUresult\s+(?:__attribute__\(\([a-z_]+\)\)\s+)?(cu[A-Za-z0-9_]+)\s*\(", out)), out


def read_abis(include):
    """base -> ([(version, params)], [(version, params)]): legacy and per-thread ABIs, oldest first."""
    text = open(os.path.join(include, "cudaTypedefs.h")).read()
    abis = {}
    for base, version, pt, params in re.findall(
            r"typedef CUresult\s*\(\s*CUDAAPI \*\s*PFN_(\w+?)_v(\d+)(_ptds|_ptsz)?\)\s*\((.*?)\);", text, re.S):
        params = [p.strip() for p in params.split(",") if p.strip() not in ("", "void")]
        pair = abis.setdefault(base, ([], []))
        pair[1 if pt else 0].append((int(version), params, pt))
    return abis


def strip_name(param):
    array = "*" if param.endswith("]") else ""
    param = re.sub(r"\[\d*\]$", "", param)
    return re.sub(r"\b\w+$", "", param) + array if re.search(r"[\s*]\w+$", param) else param


def generate(include):
    """symbol -> (base, version, twin or None, twin version, parameter text)."""
    symbols, source = read_symbols(include)
    enums = set(re.findall(r"typedef enum\s*\w*\s*\{[^}]*\}\s*(\w+);", source))
    enums |= set(re.findall(r"typedef enum \w+ (\w+);", source))
    # "typedef A B;" where A is an enum
    for old, new in re.findall(r"typedef (\w+) (\w+);", source):
        if old in enums:
            enums.add(new)
    rows = {}
    for base, (plain, threaded) in read_abis(include).items():
        suffixes = sorted(s[len(base):] for s in symbols if re.fullmatch(re.escape(base) + r"(_v\d+)?", s))
        plain.sort(key=lambda abi: abi[0])
        if len(suffixes) != len(plain):
            sys.exit(f"driver_table.py: {base}: {len(plain)} ABIs but symbols {suffixes}")
        for suffix, (version, params, _) in zip(suffixes, plain):
            symbol = base + suffix
            twin, twin_version = None, None
            for pt in ("_ptds", "_ptsz"):
                if symbol + pt in symbols:
                    twin = symbol + pt
                    every = [v for v, _, q in threaded if q == pt]
                    same = [v for v, p, q in threaded if q == pt and p == params]
                    # A twin came with its ABI, or later, when per-thread streams came.
                    twin_version = version if version in every else max(same or every)
            names = "abcdefghijklmnop"
            types = [rust_type(strip_name(p), enums) for p in params]
            text = ", ".join(f"{n}: {t}" for n, t in zip(names, types))
            rows[symbol] = (base, version, twin, twin_version, text)
            symbols.discard(symbol)
            symbols.discard(twin)
    if symbols:
        sys.exit(f"driver_table.py: symbols without an ABI: {sorted(symbols)}")
    return rows


def read_table():
    """group -> {symbol: row match}, in the order of the files."""
    groups = {}
    for path in sorted(glob.glob(TABLE + "/*.rs")):
        group = os.path.splitext(os.path.basename(path))[0]
        if group in ("mod", "nvml", "runtime"):
            continue
        lines = [ROW.match(line) for line in open(path)]
        groups[group] = {m.group(4): m for m in lines if m}
    return groups


def line(action, sim, symbol, row):
    base, version, twin, twin_version, text = row
    pair = f" / {twin}@{twin_version}" if twin else ""
    return f"        {action} {sim} {base}: {symbol}@{version}{pair} ({text});\n"


def write_group(group, rows):
    path = os.path.join(TABLE, group + ".rs")
    head = []
    for text in open(path):
        if ROW.match(text):
            break
        head.append(text)
    tail = ["    }};\n", "}\n"]
    open(path, "w").writelines(head + rows + tail)


def main():
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--check", action="store_true")
    ask.add_argument("--include")
    args = ask.parse_args()
    facts = generate(headers(args.include))
    groups = read_table()
    ours = {s: (g, m) for g, rows in groups.items() for s, m in rows.items()}
    differences = []
    for symbol in sorted(set(facts) | set(ours)):
        if symbol not in ours:
            differences.append(f"missing: {line('forward', 'none', symbol, facts[symbol]).strip()}")
        elif symbol not in facts:
            differences.append(f"no such symbol in the headers: {symbol}")
        else:
            m = ours[symbol][1]
            want = line(m.group(1), m.group(2), symbol, facts[symbol]).strip()
            if m.group(0).strip() != want:
                differences.append(f"is:        {m.group(0).strip()}\nshould be: {want}")
    if args.check:
        print("\n".join(differences) or f"the table agrees with the headers: {len(ours)} rows")
        sys.exit(1 if differences else 0)
    for group, rows in groups.items():
        out = []
        mine = set(rows) | ({s for s in facts if s not in ours} if group == NEW_ROWS_GO_TO else set())
        for symbol in sorted(mine & set(facts)):
            m = rows.get(symbol)
            out.append(line(m.group(1) if m else "forward", m.group(2) if m else "none", symbol, facts[symbol]))
        write_group(group, out)
    print(f"{len(facts)} rows, {len(differences)} changed")


if __name__ == "__main__":
    main()
