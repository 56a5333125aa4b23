// Copies between the memory of two GPUs that cannot reach one another, by every function that takes plain addresses.
#include "use.h"

enum { BYTES = 4 << 20 };
typedef CUresult (*Async)(CUdeviceptr, CUdeviceptr, size_t, CUstream);
typedef CUresult (*Sync)(CUdeviceptr, CUdeviceptr, size_t);

static struct driver d;
static unsigned char bytes[BYTES];

static size_t wrong(CUcontext context, CUdeviceptr at, unsigned char want) {
    size_t count = 0;
    CHECK(d.cuCtxSetCurrent(context));
    CHECK(d.cuCtxSynchronize());
    CHECK(d.cuMemcpyDtoH(bytes, at, BYTES));
    for (int i = 0; i < BYTES; i++) count += bytes[i] != want;
    return count;
}

int main(void) {
    CUcontext contexts[2];
    CUdeviceptr memory[2];
    void *handle = need(dlopen("libcuda.so.1", RTLD_NOW), "libcuda.so.1");
    const char *names[] = {"cuMemcpy",      "cuMemcpy_ptds",      "cuMemcpyDtoD_v2",      "cuMemcpyDtoD_v2_ptds",
                           "cuMemcpyAsync", "cuMemcpyAsync_ptsz", "cuMemcpyDtoDAsync_v2", "cuMemcpyDtoDAsync_v2_ptsz"};
    find_default(&d);
    CHECK(d.cuInit(0));
    for (int gpu = 0; gpu < 2; gpu++) {
        CHECK(d.cuDevicePrimaryCtxRetain(&contexts[gpu], gpu));
        CHECK(d.cuCtxSetCurrent(contexts[gpu]));
        CHECK(d.cuMemAlloc(&memory[gpu], BYTES));
    }
    for (int i = 0; i < 8; i++)
        for (int runner = 0; runner < 2; runner++) {
            int from = runner ^ (i & 1), value = 16 * i + runner + 1;
            CHECK(d.cuCtxSetCurrent(contexts[from]));
            CHECK(d.cuMemsetD8(memory[from], value, BYTES));
            CHECK(d.cuCtxSynchronize());
            CHECK(d.cuCtxSetCurrent(contexts[runner]));
            void *function = need(dlsym(handle, names[i]), names[i]);
            int rc = i < 4 ? ((Sync)function)(memory[!from], memory[from], BYTES)
                           : ((Async)function)(memory[!from], memory[from], BYTES, NULL);
            printf("%s %d: %d, ", names[i], runner, rc);
            printf("sync %d, ", d.cuStreamSynchronize(i & 1 ? (CUstream)2 : NULL));
            CHECK(d.cuCtxSynchronize());
            printf("wrong %zu\n", wrong(contexts[!from], memory[!from], value));
        }
    return 0;
}
