// What memory of the pool does, seen by a program that knows nothing of it.
//   pool MODE MIB
#include "use.h"

static struct driver d;
static size_t bytes;

static uint32_t mix(uint64_t at, uint32_t salt) {
    uint64_t x = (at + 1) * 0x9e3779b97f4a7c15ull + salt;
    return (uint32_t)(x ^ (x >> 29));
}

// Writes a value that depends on the place, in parts that do not align with any page.
static void write_all(CUdeviceptr p, size_t size, uint32_t salt, CUstream stream) {
    size_t part = (3u << 20) + 4096 + 12;
    uint32_t *words = malloc(part);
    for (size_t at = 0; at < size; at += part) {
        size_t now = size - at < part ? size - at : part;
        for (size_t i = 0; i < now / 4; i++) words[i] = mix(at / 4 + i, salt);
        if (stream) {
            CHECK(d.cuMemcpyHtoDAsync(p + at, words, now, stream));
            CHECK(d.cuStreamSynchronize(stream));
        } else {
            CHECK(d.cuMemcpyHtoD(p + at, words, now));
        }
    }
    free(words);
}

static size_t wrong_words(CUdeviceptr p, size_t size, uint32_t salt, CUstream stream) {
    size_t part = (5u << 20) + 8192 + 20, wrong = 0;
    uint32_t *words = malloc(part);
    for (size_t at = 0; at < size; at += part) {
        size_t now = size - at < part ? size - at : part;
        if (stream) {
            CHECK(d.cuMemcpyDtoHAsync(words, p + at, now, stream));
            CHECK(d.cuStreamSynchronize(stream));
        } else {
            CHECK(d.cuMemcpyDtoH(words, p + at, now));
        }
        for (size_t i = 0; i < now / 4; i++) wrong += words[i] != mix(at / 4 + i, salt);
    }
    free(words);
    return wrong;
}

static void sets(CUdeviceptr p, size_t size) {
    uint8_t *back = malloc(size);
    size_t bad = 0;
    CHECK(d.cuMemsetD8(p, 0x11, size));
    CHECK(d.cuMemsetD8(p + 1, 0x22, size - 3));
    CHECK(d.cuMemcpyDtoH(back, p, size));
    for (size_t i = 0; i < size; i++) bad += back[i] != (i < 1 || i >= size - 2 ? 0x11 : 0x22);
    CHECK(d.cuMemsetD32(p + 4, 0x01020304, size / 4 - 2));
    CHECK(d.cuMemcpyDtoH(back, p, size));
    for (size_t i = 4; i < size - 4; i += 4) bad += memcmp(back + i, "\4\3\2\1", 4) != 0;
    printf("sets_bad %zu\n", bad);
    free(back);
}

// One allocation over several places: kernels, copies of every kind and memsets, all read back.
static void span(void) {
    CUcontext context = start(&d, 0);
    CUdeviceptr p = 0, q = 0;
    CUstream stream;
    CHECK(d.cuStreamCreate(&stream, 1));
    CUresult rc = d.cuMemAlloc(&p, bytes);
    printf("alloc %d\n", rc);
    if (rc) return;
    printf("aligned %d\n", p % 512 == 0);
    printf("kernel_wrong %zu\n", fill_and_check(&d, p, bytes, 0xfeedbeef));
    write_all(p, bytes, 1, NULL);
    printf("copy_wrong %zu\n", wrong_words(p, bytes, 1, NULL));
    write_all(p, bytes, 2, stream);
    printf("async_wrong %zu\n", wrong_words(p, bytes, 2, stream));
    CHECK(d.cuMemAlloc(&q, bytes));
    CHECK(d.cuMemcpyDtoD(q, p, bytes));
    printf("inside_wrong %zu\n", wrong_words(q, bytes, 2, NULL));
    write_all(p, bytes, 3, NULL);
    CHECK(d.cuMemcpyDtoDAsync(q, p, bytes, stream));
    CHECK(d.cuStreamSynchronize(stream));
    printf("inside_async_wrong %zu\n", wrong_words(q, bytes, 3, stream));
    write_all(p, bytes, 4, NULL);
    CHECK(d.cuMemcpy(q, p, bytes));
    printf("unified_wrong %zu\n", wrong_words(q, bytes, 4, NULL));
    write_all(p, bytes, 5, NULL);
    CHECK(d.cuMemcpyPeer(q, context, p, context, bytes));
    printf("peer_wrong %zu\n", wrong_words(q, bytes, 5, NULL));
    uint64_t n = bytes / 4;
    float a = 1;
    void *axpy[] = {&q, &p, &a, &n};
    CHECK(d.cuMemsetD32(p, 0x3f800000, n));
    CHECK(d.cuMemsetD32Async(q, 0x40000000, n, NULL));
    launch(&d, kernel(&d, "axpy_f32"), NULL, axpy);
    CHECK(d.cuCtxSynchronize());
    float last[2];
    CHECK(d.cuMemcpyDtoH(&last[0], q, 4));
    CHECK(d.cuMemcpyDtoH(&last[1], q + bytes - 4, 4));
    printf("axpy %g %g\n", last[0], last[1]);
    sets(p, bytes);
    CHECK(d.cuMemFree(q));
    CHECK(d.cuMemFree(p));
    puts("done 0");
}

// Sizes of all kinds, over and over: everything comes back.
static void loops(void) {
    start(&d, 0);
    size_t first, now, total, least = SIZE_MAX;
    CUdeviceptr p[24];
    CHECK(d.cuMemAlloc(&p[0], 1 << 20));
    CHECK(d.cuMemFree(p[0]));
    CHECK(d.cuMemGetInfo(&first, &total));
    uint32_t seed = 1;
    for (int round = 0; round < 60; round++) {
        for (int i = 0; i < 24; i++) {
            seed = seed * 1664525 + 1013904223;
            size_t size = (seed >> 8) % (round % 3 ? 3u << 20 : 200000) + 1;
            CHECK(d.cuMemAlloc(&p[i], size));
            CHECK(d.cuMemsetD8(p[i], (unsigned char)i, size));
        }
        CHECK(d.cuMemGetInfo(&now, &total));
        if (now < least) least = now;
        for (int i = 0; i < 24; i++) {
            unsigned char byte;
            int k = (i * 7) % 24;
            CHECK(d.cuMemcpyDtoH(&byte, p[k], 1));
            if (byte != k) printf("mixed %d %d\n", k, byte);
            CHECK(d.cuMemFree(p[k]));
        }
    }
    CHECK(d.cuMemGetInfo(&now, &total));
    printf("lost %lld\n", (long long)first - (long long)now);
    printf("used %d\n", least < first);
}

// Fills the pool to the end, twice.
static void exhaust(void) {
    start(&d, 0);
    static CUdeviceptr p[4096];
    for (int round = 0; round < 2; round++) {
        int n = 0;
        CUresult rc;
        CUdeviceptr untouched = 0x5a5a;
        while (n < 4096 && (rc = d.cuMemAlloc(&p[n], bytes)) == 0) n++;
        printf("count%d %d\n", round, n);
        printf("rc%d %d\n", round, rc);
        rc = d.cuMemAlloc(&untouched, bytes);
        printf("again%d %d %d\n", round, rc, untouched == 0x5a5a);
        for (int i = 0; i < n; i++) {
            uint32_t v = (uint32_t)i;
            CHECK(d.cuMemcpyHtoD(p[i] + bytes - 4, &v, 4));
        }
        int bad = 0;
        for (int i = 0; i < n; i++) {
            uint32_t v;
            CHECK(d.cuMemcpyDtoH(&v, p[i] + bytes - 4, 4));
            bad += v != (uint32_t)i;
            CHECK(d.cuMemFree(p[i]));
        }
        printf("bad%d %d\n", round, bad);
    }
}

// What is reported, at each step.
static void info(void) {
    start(&d, 0);
    size_t available, total, device_total;
    for (int step = 0; step < 4; step++) {
        CHECK(d.cuMemGetInfo(&available, &total));
        CHECK(d.cuDeviceTotalMem(&device_total, 0));
        printf("step%d %zu %zu %zu\n", step, available, total, device_total);
        CUdeviceptr p;
        if (step < 3) printf("alloc%d %d\n", step, d.cuMemAlloc(&p, bytes));
    }
}

// One answer a line: C does not say in which order arguments are evaluated.
static void say(const char *what, long long answer) { printf("%s: %lld\n", what, answer); }

static void edges_of(size_t size) {
    CUdeviceptr q, base = 0;
    size_t a = 0;
    printf("size %zu\n", size);
    CHECK(d.cuMemAlloc(&q, size));
    say("free of an interior address", d.cuMemFree(q + 4));
    say("free of the last byte", d.cuMemFree(q + size - 1));
    say("range", d.cuMemGetAddressRange(&base, &a, q + size / 2));
    say("base", base == q);
    say("bytes", (long long)a);
    say("range without base", d.cuMemGetAddressRange(NULL, &a, q));
    say("range without size", d.cuMemGetAddressRange(&base, NULL, q));
    say("range of the end", d.cuMemGetAddressRange(&base, &a, q + size - 1));
    say("free", d.cuMemFree(q));
    say("free again", d.cuMemFree(q));
    if (size >= 1 << 20) {
        say("copy after free", d.cuMemcpyDtoH(&a, q, 8));
        say("set after free", d.cuMemsetD8(q, 1, 8));
        say("range after free", d.cuMemGetAddressRange(&base, &a, q));
    }
}

// Wrong arguments; the output must be the driver's own.
static void edges(void) {
    size_t a = 0, b = 0;
    CUdeviceptr p = 0x5a5a, q, base;
    say("alloc before init", d.cuMemAlloc(&p, 4096));
    say("free before init", d.cuMemFree(4096));
    say("info before init", d.cuMemGetInfo(&a, &b));
    CHECK(d.cuInit(0));
    say("alloc without context", d.cuMemAlloc(&p, 8 << 20));
    say("free without context", d.cuMemFree(8 << 20));
    say("info without context", d.cuMemGetInfo(&a, &b));
    say("copy without context", d.cuMemcpyDtoH(&a, 8 << 20, 8));
    say("set without context", d.cuMemsetD8(8 << 20, 0, 8));
    say("untouched", p == 0x5a5a);
    start(&d, 0);
    say("size 0", d.cuMemAlloc(&p, 0));
    say("no place", d.cuMemAlloc(NULL, 4096));
    say("no place for much", d.cuMemAlloc(NULL, 8 << 20));
    say("no place, size 0", d.cuMemAlloc(NULL, 0));
    say("huge", d.cuMemAlloc(&p, SIZE_MAX));
    say("half as huge", d.cuMemAlloc(&p, SIZE_MAX / 2));
    say("a terabyte", d.cuMemAlloc(&p, 1ull << 40));
    say("untouched", p == 0x5a5a);
    say("free NULL", d.cuMemFree(0));
    say("free unknown", d.cuMemFree(0x123456789000));
    say("free of the stack", d.cuMemFree((CUdeviceptr)&a));
    size_t sizes[] = {100, 4096, 1 << 20, 2 << 20, (2 << 20) + 1, 4 << 20, 9 << 20};
    for (int i = 0; i < 7; i++) edges_of(sizes[i]);
    say("range of unknown", d.cuMemGetAddressRange(&base, &a, 0x123456789000));
    CHECK(d.cuMemAlloc(&q, 4 << 20));
    say("copy in past the end", d.cuMemcpyHtoD(q + (4 << 20) - 4, &sizes, 8));
    say("copy out past the end", d.cuMemcpyDtoH(&sizes, q + (4 << 20) - 4, 8));
    say("set past the end", d.cuMemsetD8(q + (4 << 20) - 4, 0, 8));
    say("copy of nothing", d.cuMemcpyHtoD(q, &a, 0));
    say("copy of nothing back", d.cuMemcpyDtoH(&a, q, 0));
    say("attribute to nowhere", d.cuPointerGetAttribute(NULL, 2, q));
    say("wrong words", (long long)fill_and_check(&d, q, 4 << 20, 1));
    say("info without free", d.cuMemGetInfo(NULL, &a));
    say("info without total", d.cuMemGetInfo(&a, NULL));
    say("info to nowhere", d.cuMemGetInfo(NULL, NULL));
    say("total to nowhere", d.cuDeviceTotalMem(NULL, 0));
    say("total of no GPU", d.cuDeviceTotalMem(&a, 99));
    CHECK(d.cuMemFree(q));
}

// Pointer attributes of an allocation and of an address inside it, relative to the allocation.
static void queries(void) {
    CUcontext context = start(&d, 0), seen;
    size_t sizes[] = {bytes, 4096};
    for (int i = 0; i < 2; i++) {
        CUdeviceptr p, at;
        CHECK(d.cuMemAlloc(&p, sizes[i]));
        for (at = p; at < p + sizes[i]; at += sizes[i] / 2) {
            for (int attribute = 0; attribute <= 21; attribute++) {
                // Ids differ from run to run; tokens are for third parties.
                if (attribute == 5 || attribute == 7 || attribute == 20) continue;
                unsigned char answer[16];
                memset(answer, 0x5a, sizeof answer);
                CUresult rc = d.cuPointerGetAttribute(answer, attribute, at);
                uint64_t value;
                memcpy(&value, answer, 8);
                if (value == p) value = 1000;
                if (value == at) value = 2000;
                memcpy(&seen, answer, 8);
                if (seen == context) value = 3000;
                printf("%zu+%d attribute %d: %d %llx\n", sizes[i], at != p, attribute, rc, (unsigned long long)value);
            }
        }
        CHECK(d.cuMemFree(p));
    }
}

static void pitch(void) {
    start(&d, 0);
    size_t widths[] = {1, 31, 512, 1000, 100003, 0};
    unsigned elements[] = {4, 8, 16, 3, 0};
    for (int w = 0; w < 6; w++)
        for (int e = 0; e < 5; e++)
            for (int h = 0; h < 3; h++) {
                CUdeviceptr p = 0x5a5a;
                size_t pitch = 77, height = (size_t[]){0, 1, 300}[h];
                CUresult rc = d.cuMemAllocPitch(&p, &pitch, widths[w], height, elements[e]);
                printf("%zux%zu of %u: %d pitch %zu %d\n", widths[w], height, elements[e], rc, pitch,
                       p == 0x5a5a);
                if (rc == 0) CHECK(d.cuMemFree(p));
            }
    size_t pitch = 77;
    CUdeviceptr p;
    printf("no place %d\n", d.cuMemAllocPitch(NULL, &pitch, 4096, 4096, 4));
    printf("no pitch %d\n", d.cuMemAllocPitch(&p, NULL, 4096, 4096, 4));
}

// How often each function that makes memory was called in the driver so far.
static void counts(const char *when) {
    static const char *const names[] = {"cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess",
                                        "cuMemUnmap", "cuMemRelease", "cuMemAddressFree", "cuMemAlloc_v2"};
    unsigned long long (*calls)(const char *) =
        (unsigned long long (*)(const char *))dlsym(dlopen("libcuda.so.1", RTLD_NOW), "vgmem_sim_calls");
    for (int i = 0; i < 8; i++) printf("%s:%s %llu\n", when, names[i], calls(names[i]));
}

// An allocation that may fail, then what is left: everything must still be there.
static void once(void) {
    CUdeviceptr p = 0x5a5a, all[64];
    CUdevice device;
    CUcontext context;
    CHECK(d.cuInit(0));
    CHECK(d.cuDeviceGet(&device, 0));
    CHECK(d.cuDevicePrimaryCtxRetain(&context, device));
    CHECK(d.cuCtxSetCurrent(context));
    puts("begin 0");
    counts("before");
    CUresult rc = d.cuMemAlloc(&p, bytes);
    printf("alloc %d %d\n", rc, p == 0x5a5a);
    if (rc == 0) {
        rc = d.cuMemFree(p);
        printf("free %d\n", rc);
        // The fault is spent: a second try must work unless the first already did.
        if (rc) printf("free_again %d\n", d.cuMemFree(p));
    }
    counts("after");
    int n = 0;
    while (n < 64 && (rc = d.cuMemAlloc(&all[n], 4 << 20)) == 0) n++;
    printf("count %d\n", n);
    printf("end %d\n", rc);
}

// Allocates on every GPU in turn, and uses the memory of the others.
static void devices(void) {
    int count;
    CHECK(d.cuInit(0));
    CHECK(d.cuDeviceGetCount(&count));
    CUdeviceptr p[8];
    for (int i = 0; i < count; i++) {
        start(&d, i);
        CUresult rc = d.cuMemAlloc(&p[i], bytes);
        int ordinal = -1;
        if (rc == 0) CHECK(d.cuPointerGetAttribute(&ordinal, 9, p[i]));
        printf("gpu%d %d %d\n", i, rc, ordinal);
        printf("gpu%d_wrong %zu\n", i, fill_and_check(&d, p[i], bytes, 100u + (uint32_t)i));
    }
    start(&d, 0);
    for (int i = 1; i < count; i++) {
        CHECK(d.cuMemcpyDtoD(p[0], p[i], bytes));
        uint32_t last;
        CHECK(d.cuMemcpyDtoH(&last, p[0] + bytes - 4, 4));
        printf("copied%d %u\n", i, last);
    }
}

// Up to eight allocations, each written whole and read back; the report tells where they lay.
static void pieces(void) {
    start(&d, 0);
    CUdeviceptr p[8];
    size_t wrong = 0;
    uint32_t n = 0;
    CUresult rc = 0;
    while (n < 8 && (rc = d.cuMemAlloc(&p[n], bytes)) == 0) {
        write_all(p[n], bytes, n, NULL);
        n++;
    }
    for (uint32_t i = 0; i < n; i++) wrong += wrong_words(p[i], bytes, i, NULL);
    for (uint32_t i = 0; i < n; i++) CHECK(d.cuMemFree(p[i]));
    printf("pieces %u\n", n);
    printf("rc %d\n", rc);
    printf("wrong %zu\n", wrong);
}

// One allocation, written by a kernel and read back.
static void keep(void) {
    start(&d, 0);
    CUdeviceptr p;
    CUresult rc = d.cuMemAlloc(&p, bytes);
    printf("alloc %d\n", rc);
    if (rc == 0) printf("wrong %zu\n", fill_and_check(&d, p, bytes, 5));
}

int main(int argc, char **argv) {
    static const struct { const char *name; void (*run)(void); } modes[] = {
        {"span", span}, {"loops", loops}, {"exhaust", exhaust}, {"info", info},       {"edges", edges},
        {"queries", queries}, {"pitch", pitch}, {"once", once}, {"devices", devices}, {"keep", keep},
        {"pieces", pieces},
    };
    find_default(&d);
    bytes = mib(argv[2]);
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        if (!strcmp(argv[1], modes[i].name)) {
            modes[i].run();
            return 0;
        }
    return 2;
}
