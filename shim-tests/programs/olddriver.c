// A driver from before virtual memory management: few functions, each with an answer of its own.
#include "cu.h"

CUresult cuInit(unsigned flags) { return flags ? 1 : 0; }
CUresult cuDriverGetVersion(int *version) {
    *version = 9000;
    return 0;
}
CUresult cuDeviceGetCount(int *count) {
    *count = 1;
    return 0;
}
CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    *device = ordinal;
    return ordinal ? 101 : 0;
}
CUresult cuMemAlloc_v2(CUdeviceptr *p, size_t size) {
    *p = 0x7000 + size;
    return 0;
}
CUresult cuMemFree_v2(CUdeviceptr p) { return p == 0x7000 + (8 << 20) ? 0 : 1; }
