#!/usr/bin/env python3
"""The driver interface from Python (PyPI's cuda-bindings): a module of its own, launches, copies, memsets.

BLOCKS arrays of BLOCK_MIB MiB each: 10 x 1 GiB by default. Also runs on the simulated driver, which offers kernels
of the same names.
"""
import array
import ctypes
import os
import time

from cuda.bindings import driver

MODULE = b"""
.version 7.0
.target sm_75
.address_size 64

.visible .entry fill_f32(.param .u64 to, .param .f32 what, .param .u64 count)
{
    .reg .pred %p<3>; .reg .f32 %f<2>; .reg .b32 %r<5>; .reg .b64 %rd<9>;
    ld.param.u64 %rd1, [to]; ld.param.f32 %f1, [what]; ld.param.u64 %rd2, [count];
    mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mov.u32 %r4, %nctaid.x;
    mul.wide.u32 %rd3, %r1, %r2; cvt.u64.u32 %rd4, %r3; add.s64 %rd3, %rd3, %rd4; mul.wide.u32 %rd5, %r4, %r2;
    cvta.to.global.u64 %rd1, %rd1;
NEXT_FILL:
    setp.ge.u64 %p1, %rd3, %rd2;
    @%p1 bra END_FILL;
    shl.b64 %rd6, %rd3, 2; add.s64 %rd7, %rd1, %rd6; st.global.f32 [%rd7], %f1;
    add.s64 %rd3, %rd3, %rd5;
    bra NEXT_FILL;
END_FILL:
    ret;
}

.visible .entry add_f32(.param .u64 to, .param .u64 left, .param .u64 right, .param .u64 count)
{
    .reg .pred %p<3>; .reg .f32 %f<4>; .reg .b32 %r<5>; .reg .b64 %rd<13>;
    ld.param.u64 %rd1, [to]; ld.param.u64 %rd8, [left]; ld.param.u64 %rd9, [right]; ld.param.u64 %rd2, [count];
    mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mov.u32 %r4, %nctaid.x;
    mul.wide.u32 %rd3, %r1, %r2; cvt.u64.u32 %rd4, %r3; add.s64 %rd3, %rd3, %rd4; mul.wide.u32 %rd5, %r4, %r2;
    cvta.to.global.u64 %rd1, %rd1; cvta.to.global.u64 %rd8, %rd8; cvta.to.global.u64 %rd9, %rd9;
NEXT_ADD:
    setp.ge.u64 %p1, %rd3, %rd2;
    @%p1 bra END_ADD;
    shl.b64 %rd6, %rd3, 2;
    add.s64 %rd10, %rd8, %rd6; ld.global.f32 %f1, [%rd10];
    add.s64 %rd11, %rd9, %rd6; ld.global.f32 %f2, [%rd11];
    add.f32 %f3, %f1, %f2;
    add.s64 %rd7, %rd1, %rd6; st.global.f32 [%rd7], %f3;
    add.s64 %rd3, %rd3, %rd5;
    bra NEXT_ADD;
END_ADD:
    ret;
}
\0"""


def call(name, *arguments):
    """Calls a driver function; gives its results, or raises what its code says."""
    code, *results = getattr(driver, name)(*arguments)
    if code != driver.CUresult.CUDA_SUCCESS:
        raise SystemExit(f"driver_run: {name} failed: {code.name}")
    return results[0] if len(results) == 1 else results


def launch(kernel, *arguments):
    """Starts a kernel; `arguments` are pairs of a value and a type of ctypes."""
    values, types = zip(*arguments)
    call("cuLaunchKernel", kernel, 1024, 1, 1, 256, 1, 1, 0, 0, (values, types), 0)


def ends(pointer, count):
    """Some of an array's numbers: at its ends, at its middle and between pages."""
    host = array.array("f", [0.0])
    seen = []
    for at in sorted({0, count // 3, count // 2, count - 1, *range(0, count, 1 << 23)}):
        call("cuMemcpyDtoH", host.buffer_info()[0], pointer + at * 4, 4)
        seen.append(host[0])
    return seen


def main():
    """Fills, adds, copies and prints."""
    count = int(os.environ.get("BLOCK_MIB", 1024)) * (1 << 20) // 4
    blocks = int(os.environ.get("BLOCKS", 10))
    call("cuInit", 0)
    context = call("cuDevicePrimaryCtxRetain", call("cuDeviceGet", 0))
    call("cuCtxSetCurrent", context)
    module = call("cuModuleLoadData", MODULE)
    fill = call("cuModuleGetFunction", module, b"fill_f32")
    add = call("cuModuleGetFunction", module, b"add_f32")
    pointer, number, size = ctypes.c_void_p, ctypes.c_float, ctypes.c_uint64
    arrays = [int(call("cuMemAlloc", count * 4)) for _ in range(blocks)]
    for index, block in enumerate(arrays):
        launch(fill, (block, pointer), (index + 1.0, number), (count, size))
    times = []
    for step in range(int(os.environ.get("STEPS", 3))):
        call("cuCtxSynchronize")
        start = time.perf_counter()
        for first, second, third in zip(arrays, arrays[1:], arrays[2:]):
            launch(add, (third, pointer), (first, pointer), (second, pointer), (count, size))
        call("cuCtxSynchronize")
        times.append(time.perf_counter() - start)
        print(f"result step{step + 1} {ends(arrays[-1], count)[0]}", flush=True)
    call("cuMemsetD32", arrays[0] + 4096, 0x40490FDB, count // 2)
    call("cuMemcpyDtoD", arrays[1], arrays[0], count * 4)
    for index, block in enumerate(arrays):
        print(f"result block{index} {sorted(set(ends(block, count)))}")
    for block in arrays:
        call("cuMemFree", block)
    later = sorted(times[1:] or times)
    print(f"time {later[len(later) // 2] * 1e3:.3f}")
    print(f"bytes {count * 4 * blocks}")


main()
