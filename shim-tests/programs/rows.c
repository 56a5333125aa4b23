// Memsets of rows: a block of columns at the end of an allocation, whose last row ends with it. Prints what each call
// answers, and how many words are wrong.
#include "use.h"

enum { PITCH = 65536, ROWS = 128, WIDE = 1024 };

int main(void) {
    void *handle = need(dlopen("libcuda.so.1", RTLD_NOW), "libcuda.so.1");
    CUresult (*set32)(CUdeviceptr, size_t, unsigned, size_t, size_t) = need(dlsym(handle, "cuMemsetD2D32_v2"), "set32");
    CUresult (*set8)(CUdeviceptr, size_t, unsigned char, size_t, size_t) = need(dlsym(handle, "cuMemsetD2D8_v2"), "set8");
    struct driver d;
    static uint32_t words[PITCH * ROWS / 4];
    size_t wrong = 0, at = PITCH - 4 * WIDE;
    CUdeviceptr p;
    find_by_dlsym(&d, handle);
    start(&d, 0);
    CHECK(d.cuMemAlloc(&p, sizeof words));
    CHECK(d.cuMemcpyHtoD(p, words, sizeof words));
    printf("columns %d\n", set32(p + at, PITCH, 7, WIDE, ROWS));
    printf("none %d\n", set8(p + at, PITCH, 9, WIDE, 0));
    printf("too_many %d\n", set8(p + at, PITCH, 9, 4 * WIDE, ROWS + 64));
    CHECK(d.cuMemcpyDtoH(words, p, sizeof words));
    for (size_t i = 0; i < PITCH * ROWS / 4; i++) wrong += words[i] != (i % (PITCH / 4) >= at / 4 ? 7 : 0);
    printf("wrong %zu\n", wrong);
    return 0;
}
