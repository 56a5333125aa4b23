// What refused calls leave alone: memory of a primary context that cuCtxDestroy refuses, and the neighbour of an
// allocation that a copy or memset would run over.
#include "use.h"

int main(void) {
    struct driver d;
    CUcontext context = NULL;
    CUdeviceptr a = 0, b = 0;
    const size_t size = (size_t)4 << 20;
    static unsigned char bytes[4 << 20];
    find_default(&d);
    CHECK(d.cuInit(0));
    CHECK(d.cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(d.cuCtxSetCurrent(context));
    CHECK(d.cuMemAlloc(&a, size));
    CHECK(d.cuMemAlloc(&b, size));
    CHECK(d.cuMemsetD8(a, 3, size));
    CHECK(d.cuMemsetD8(b, 7, size));
    CUresult (*destroy)(CUcontext) = need(dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuCtxDestroy_v2"), "destroy");
    printf("destroy %d\n", destroy(context));
    CHECK(d.cuCtxSetCurrent(context));
    printf("memset %d\n", d.cuMemsetD8(a, 1, size + (2 << 20)));
    printf("copy %d\n", d.cuMemcpyDtoD(a + size / 2, b, size));
    printf("in %d\n", d.cuMemcpyHtoD(a + 1, bytes, size));
    printf("out %d\n", d.cuMemcpyDtoH(bytes, a + size - 1, 2));
    CHECK(d.cuCtxSynchronize());
    for (int which = 0; which < 2; which++) {
        size_t wrong = 0;
        CHECK(d.cuMemcpyDtoH(bytes, which ? b : a, size));
        for (size_t i = 0; i < size; i++) wrong += bytes[i] != (which ? 7 : 3);
        printf("wrong%d %zu\n", which, wrong);
    }
    CHECK(d.cuMemFree(a));
    CHECK(d.cuMemFree(b));
    return 0;
}
