"""Uses the driver through ctypes, as many Python packages do, and allocates more than one GPU has."""
import ctypes
import sys

size = int(sys.argv[2]) << 20
cuda = {"CDLL": ctypes.CDLL, "PyDLL": ctypes.PyDLL}[sys.argv[1]]("libcuda.so.1")


def check(what, rc):
    if rc:
        print("failed", what, rc)
        sys.exit(3)


context = ctypes.c_void_p()
check("init", cuda.cuInit(0))
check("retain", cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
check("current", cuda.cuCtxSetCurrent(context))
pointer = ctypes.c_uint64()
rc = cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size))
print("alloc", rc)
if rc == 0:
    data = bytes(range(256)) * 16384
    back = ctypes.create_string_buffer(len(data))
    wrong = 0
    for at in range(0, size, len(data)):
        check("in", cuda.cuMemcpyHtoD_v2(ctypes.c_uint64(pointer.value + at), data, ctypes.c_size_t(len(data))))
    for at in range(0, size, len(data)):
        check("out", cuda.cuMemcpyDtoH_v2(back, ctypes.c_uint64(pointer.value + at), ctypes.c_size_t(len(data))))
        wrong += back.raw != data
    print("wrong", wrong)
    print("free", cuda.cuMemFree_v2(pointer))

# The driver's own lookup, called through a pointer.
look = cuda["cuGetProcAddress_v2"]
found = ctypes.c_void_p()
check("lookup", look(b"cuMemAlloc", ctypes.byref(found), 12000, ctypes.c_uint64(0), None))
direct = ctypes.cast(cuda["cuMemAlloc_v2"], ctypes.c_void_p)
print("same", int(direct.value == found.value))
