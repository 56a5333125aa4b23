// How memory behaves under launches, streams, contexts and other GPUs. Where all fits into one
// GPU's memory the output must be the driver's own.
//   behave MODE MIB
#include "use.h"
#include <time.h>

static struct driver d;
static size_t bytes;
static void *handle;

#define GET(type, name) type name = (type)need(dlsym(handle, #name), #name)

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static CUdeviceptr alloc(size_t size) {
    CUdeviceptr p = 0;
    CHECK(d.cuMemAlloc(&p, size));
    return p;
}

static void fill(CUdeviceptr p, float value) {
    uint64_t n = bytes / 4;
    void *params[] = {&p, &value, &n};
    launch(&d, kernel(&d, "fill_f32"), NULL, params);
}

// The number of floats that are not `value`, of a few all over the range.
static int wrong(CUdeviceptr p, float value) {
    int bad = 0;
    CHECK(d.cuCtxSynchronize());
    for (int i = 0; i <= 64; i++) {
        float f = -1;
        CHECK(d.cuMemcpyDtoH(&f, p + (bytes - 4) / 64 / 4 * 4 * (size_t)i, 4));
        bad += f != value;
    }
    return bad;
}

typedef struct { unsigned grid[3], block[3], shared; CUstream stream; void *attrs; unsigned count; } config;
typedef CUresult (*launch_ex)(const config *, CUfunction, void **, void **);
typedef CUresult (*launch_together)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                    unsigned, CUstream, void **);
typedef CUresult (*load_library)(void **, const void *, void *, void *, unsigned, void *, void *, unsigned);
typedef CUresult (*get_kernel)(CUfunction *, void *, const char *);

// Every form in which a launch passes its parameters.
static void launches(void) {
    start(&d, 0);
    struct { CUdeviceptr out, a, b; uint64_t n; } all = {0};
    all.a = alloc(bytes), all.b = alloc(bytes), all.out = alloc(bytes), all.n = bytes / 4;
    fill(all.a, 1);
    fill(all.b, 2);
    void *params[] = {&all.out, &all.a, &all.b, &all.n}, *whole[] = {&all};
    size_t size = sizeof all;
    void *extra[] = {(void *)1, &all, (void *)2, &size, NULL};
    CUfunction add = kernel(&d, "add_f32"), structure = kernel(&d, "struct_add_f32"), by_library;
    config c = {{1, 1, 1}, {256, 1, 1}, 0, NULL, NULL, 0};
    GET(launch_ex, cuLaunchKernelEx);
    GET(launch_together, cuLaunchCooperativeKernel);
    GET(load_library, cuLibraryLoadData);
    GET(get_kernel, cuLibraryGetKernel);
    void *library;
    CHECK(cuLibraryLoadData(&library, "image", NULL, NULL, 0, NULL, NULL, 0));
    CHECK(cuLibraryGetKernel(&by_library, library, "add_f32"));
    for (int form = 0; form < 8; form++) {
        fill(all.out, 0);
        CUresult rc = 0;
        if (form == 0) rc = d.cuLaunchKernel(add, 1, 1, 1, 256, 1, 1, 0, NULL, params, NULL);
        if (form == 1) rc = d.cuLaunchKernel(add, 1, 1, 1, 256, 1, 1, 0, NULL, NULL, extra);
        if (form == 2) rc = cuLaunchKernelEx(&c, add, params, NULL);
        if (form == 3) rc = cuLaunchKernelEx(&c, add, NULL, extra);
        if (form == 4) rc = cuLaunchCooperativeKernel(add, 1, 1, 1, 256, 1, 1, 0, NULL, params);
        if (form == 5) rc = d.cuLaunchKernel(by_library, 1, 1, 1, 256, 1, 1, 0, NULL, params, NULL);
        if (form == 6) rc = d.cuLaunchKernel(structure, 1, 1, 1, 256, 1, 1, 0, NULL, whole, NULL);
        if (form == 7) rc = d.cuLaunchKernel(structure, 1, 1, 1, 256, 1, 1, 0, NULL, NULL, extra);
        printf("form%d %d", form, rc);
        printf(" %d\n", wrong(all.out, 3));
    }
    printf("no kernel %d\n", d.cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    printf("both %d\n", d.cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, NULL, params, extra));
}

// Addresses that the GPU finds in memory, not in parameters.
static void tables(void) {
    start(&d, 0);
    uint64_t n = 16, each = bytes / 4 / 16, stride = bytes / 16;
    CUdeviceptr data = alloc(bytes), table = alloc(4096), sum = alloc(4096);
    fill(data, 1);
    void *build[] = {&table, &data, &stride, &n}, *add[] = {&sum, &table, &n, &each};
    launch(&d, kernel(&d, "build_table"), NULL, build);
    launch(&d, kernel(&d, "table_sum_f32"), NULL, add);
    CHECK(d.cuCtxSynchronize());
    float total;
    CHECK(d.cuMemcpyDtoH(&total, sum, 4));
    printf("sum %d\n", total == (float)(bytes / 4));
    // A chain of pointers through all of the data.
    uint64_t steps = 64;
    for (uint64_t i = 0; i < steps; i++) {
        CUdeviceptr next = data + (i + 1) * (bytes / 128);
        CHECK(d.cuMemcpyHtoD(data + i * (bytes / 128), &next, 8));
    }
    void *chase[] = {&sum, &data, &steps};
    launch(&d, kernel(&d, "chase_u64"), NULL, chase);
    CHECK(d.cuCtxSynchronize());
    uint64_t end;
    CHECK(d.cuMemcpyDtoH(&end, sum, 8));
    printf("chase %d\n", end == data + steps * (bytes / 128));
}

// One GPU's kernels on another's memory, named in parameters and found in memory.
static void peers(void) {
    CUcontext first = start(&d, 0);
    CUdeviceptr x = alloc(bytes);
    fill(x, 4);
    CHECK(d.cuCtxSynchronize());
    start(&d, 1);
    CUdeviceptr y = alloc(bytes), table = alloc(4096);
    printf("enable %d\n", d.cuCtxEnablePeerAccess(first, 0));
    printf("enable again %d\n", d.cuCtxEnablePeerAccess(first, 0));
    printf("enable itself %d\n", d.cuCtxEnablePeerAccess(NULL, 0));
    // Found in memory first: naming an address in a launch may give access by itself.
    uint64_t n = bytes / 4, one = 1;
    void *sum[] = {&y, &table, &one, &n};
    CHECK(d.cuMemcpyHtoD(table, &x, 8));
    launch(&d, kernel(&d, "table_sum_f32"), NULL, sum);
    CHECK(d.cuCtxSynchronize());
    float total;
    CHECK(d.cuMemcpyDtoH(&total, y, 4));
    printf("found %d\n", total == 4.0f * (float)n);
    void *add[] = {&y, &x, &x, &n};
    launch(&d, kernel(&d, "add_f32"), NULL, add);
    printf("named %d\n", wrong(y, 8));
    // Made after access was enabled.
    CHECK(d.cuCtxSetCurrent(first));
    CUdeviceptr z = alloc(bytes);
    fill(z, 6);
    CHECK(d.cuCtxSynchronize());
    start(&d, 1);
    void *copy[] = {&y, &z, &n};
    CHECK(d.cuMemcpyHtoD(table, &z, 8));
    launch(&d, kernel(&d, "table_sum_f32"), NULL, sum);
    CHECK(d.cuCtxSynchronize());
    CHECK(d.cuMemcpyDtoH(&total, y, 4));
    printf("found_later %d\n", total == 6.0f * (float)n);
    launch(&d, kernel(&d, "copy_f32"), NULL, copy);
    printf("later %d\n", wrong(y, 6));
}

// A free waits for kernels that use the memory, and for others of the GPU.
static void waits(void) {
    start(&d, 0);
    CUstream stream;
    CHECK(d.cuStreamCreate(&stream, 1));
    CUfunction late = kernel(&d, "write_after_us");
    for (int other = 0; other < 2; other++) {
        CUdeviceptr p = alloc(bytes), q = alloc(bytes);
        uint64_t us = 600000;
        uint32_t value = 77;
        void *params[] = {&p, &value, &us};
        double begin = now();
        launch(&d, late, stream, params);
        printf("launched at once %d\n", now() - begin < 0.4);
        CHECK(d.cuMemFree(other ? q : p));
        printf("waited %d\n", now() - begin > 0.5);
        CUdeviceptr next = alloc(bytes);
        uint32_t word = 1;
        CHECK(d.cuMemsetD32(next, 5, bytes / 4));
        CHECK(d.cuCtxSynchronize());
        CHECK(d.cuMemcpyDtoH(&word, next, 4));
        printf("word %u\n", word);
        CHECK(d.cuMemFree(other ? p : q));
        CHECK(d.cuMemFree(next));
    }
}

static int count_all(void) {
    static CUdeviceptr p[1024];
    int n = 0;
    while (n < 1024 && d.cuMemAlloc(&p[n], 4 << 20) == 0) n++;
    for (int i = 0; i < n; i++) CHECK(d.cuMemFree(p[i]));
    return n;
}

typedef CUresult (*create_context)(CUcontext *, unsigned, CUdevice);
typedef CUresult (*destroy_context)(CUcontext);
typedef CUresult (*reset_device)(CUdevice);

// The end of a context frees its memory.
static void contexts(void) {
    start(&d, 0);
    GET(reset_device, cuDevicePrimaryCtxReset_v2);
    GET(create_context, cuCtxCreate_v2);
    GET(destroy_context, cuCtxDestroy_v2);
    int all = count_all();
    CUdeviceptr p = alloc(bytes), small = alloc(4096), base;
    size_t size;
    CHECK(cuDevicePrimaryCtxReset_v2(0));
    printf("free after reset %d", d.cuMemFree(p));
    printf(" %d\n", d.cuMemFree(small));
    start(&d, 0);
    printf("range after reset %d\n", d.cuMemGetAddressRange(&base, &size, p));
    printf("all back after reset %d\n", count_all() == all);
    CUcontext own;
    CHECK(cuCtxCreate_v2(&own, 0, 0));
    p = alloc(bytes);
    CHECK(d.cuMemsetD8(p, 1, bytes));
    CHECK(cuCtxDestroy_v2(own));
    start(&d, 0);
    printf("range after destroy %d\n", d.cuMemGetAddressRange(&base, &size, p));
    printf("free after destroy %d\n", d.cuMemFree(p));
    printf("all back after destroy %d\n", count_all() == all);
    // Freed by a thread that has another context current.
    CHECK(cuCtxCreate_v2(&own, 0, 0));
    p = alloc(bytes);
    CUcontext primary = start(&d, 0);
    printf("free in another context %d\n", d.cuMemFree(p));
    CHECK(cuCtxDestroy_v2(own));
    CHECK(d.cuCtxSetCurrent(primary));
    printf("all back at last %d\n", count_all() == all);
}

// A kernel that goes astray ends the context; every call says so from then on.
static void sticky(void) {
    start(&d, 0);
    CUdeviceptr p = alloc(bytes), q, past = 0x123456789000, small = alloc(4096);
    uint32_t value = 1;
    uint64_t n = 4;
    void *params[] = {&past, &value, &n};
    launch(&d, kernel(&d, "fill_u32"), NULL, params);
    printf("sync %d\n", d.cuCtxSynchronize());
    printf("alloc %d\n", d.cuMemAlloc(&q, bytes));
    printf("small %d\n", d.cuMemAlloc(&q, 4096));
    printf("copy %d\n", d.cuMemcpyDtoH(&value, p, 4));
    printf("set %d\n", d.cuMemsetD8(p, 0, 4));
    printf("free %d\n", d.cuMemFree(p));
    printf("free small %d\n", d.cuMemFree(small));
}

// Small allocations go on when the GPU is full.
static void small(void) {
    start(&d, 0);
    static CUdeviceptr big[64], tiny[2000];
    int n = 0, m = 0, bad = 0;
    while (n < 64 && d.cuMemAlloc(&big[n], bytes) == 0) n++;
    CUresult rc = 0;
    for (; m < 2000 && (rc = d.cuMemAlloc(&tiny[m], 5000)) == 0; m++) CHECK(d.cuMemsetD32(tiny[m], (unsigned)m, 1250));
    for (int i = 0; i < m; i++) {
        unsigned ends[2];
        CHECK(d.cuMemcpyDtoH(&ends[0], tiny[i], 4));
        CHECK(d.cuMemcpyDtoH(&ends[1], tiny[i] + 4996, 4));
        bad += ends[0] != (unsigned)i || ends[1] != (unsigned)i || tiny[i] % 512 != 0;
    }
    CUdeviceptr base;
    size_t size = 0;
    if (m) CHECK(d.cuMemGetAddressRange(&base, &size, tiny[m - 1] + 100));
    printf("big %d\n", n);
    printf("small %d %d\n", m, rc);
    printf("bad %d\n", bad);
    printf("range %d %zu\n", m > 0 && base == tiny[m - 1], size);
    for (int i = 0; i < m; i++) CHECK(d.cuMemFree(tiny[i]));
    for (int i = 0; i < n; i++) CHECK(d.cuMemFree(big[i]));
    int again = 0;
    while (again < 64 && d.cuMemAlloc(&big[again], bytes) == 0) again++;
    printf("again %d\n", again == n);
}

typedef CUresult (*launch_kernel)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                  unsigned, CUstream, void **, void **);
typedef CUresult (*copy_out)(void *, CUdeviceptr, size_t);

// The per-thread twins are ordered among themselves, and do not wait for the legacy stream.
static void twins(void) {
    start(&d, 0);
    GET(launch_kernel, cuLaunchKernel_ptsz);
    GET(copy_out, cuMemcpyDtoH_v2_ptds);
    CUdeviceptr p = alloc(bytes), flag = alloc(bytes);
    CHECK(d.cuMemsetD32(p, 0, bytes / 4));
    CHECK(d.cuMemsetD32(flag, 0, bytes / 4));
    CHECK(d.cuCtxSynchronize());
    uint32_t value = 9, word = 0;
    uint64_t us = 150000;
    void *params[] = {&p, &value, &us};
    CHECK(cuLaunchKernel_ptsz(kernel(&d, "write_after_us"), 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    CHECK(cuMemcpyDtoH_v2_ptds(&word, p, 4));
    printf("ordered %u\n", word);
    // A kernel in a non-blocking stream waits for a word that the per-thread copy writes: were the
    // twin sent to the legacy stream of a busy context, nobody would come to write it.
    CUstream stream;
    CHECK(d.cuStreamCreate(&stream, 1));
    void *spin[] = {&flag, &value};
    launch(&d, kernel(&d, "spin_until_u32"), stream, spin);
    typedef CUresult (*copy_in)(CUdeviceptr, const void *, size_t);
    GET(copy_in, cuMemcpyHtoD_v2_ptds);
    CHECK(cuMemcpyHtoD_v2_ptds(flag, &value, 4));
    CHECK(d.cuStreamSynchronize(stream));
    puts("released 0");
}

int main(int argc, char **argv) {
    static const struct { const char *name; void (*run)(void); } modes[] = {
        {"launches", launches}, {"tables", tables}, {"peers", peers}, {"waits", waits}, {"contexts", contexts},
        {"sticky", sticky},     {"small", small},   {"twins", twins},
    };
    handle = need(dlopen("libcuda.so.1", RTLD_NOW), "libcuda.so.1");
    find_default(&d);
    bytes = mib(argv[2]);
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        if (!strcmp(argv[1], modes[i].name)) {
            modes[i].run();
            return 0;
        }
    return 2;
}
