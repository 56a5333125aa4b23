// A call that the driver refuses for want of memory is made again once the pool has given back what it keeps.
//   again keep|none
#include "use.h"

int main(int count, char **words) {
    struct driver d;
    CUcontext context = NULL;
    CUstream stream = NULL;
    CUdeviceptr a = 0;
    void *handle = need(dlopen("libcuda.so.1", RTLD_NOW), "libcuda.so.1");
    uint64_t (*calls)(const char *) = need(dlsym(handle, "vgmem_sim_calls"), "vgmem_sim_calls");
    find_default(&d);
    CHECK(d.cuInit(0));
    CHECK(d.cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(d.cuCtxSetCurrent(context));
    if (count > 1 && !strcmp(words[1], "keep")) {
        CHECK(d.cuMemAlloc(&a, 8 << 20));
        CHECK(d.cuMemFree(a));
    }
    uint64_t before = calls("cuStreamCreate");
    printf("rc %d\n", d.cuStreamCreate(&stream, 0));
    printf("calls %d\n", (int)(calls("cuStreamCreate") - before));
    return 0;
}
