/* Takes everything that is reported free, in blocks of 64 MiB and then of 2 MiB; writes and reads all of it.
 *
 *     gcc -O2 -o utilisation examples/gpu/utilisation.c -ldl && ./utilisation [GPU]
 *
 * `promised` is what cuMemGetInfo said to be free at the start, `had` what could be allocated; seconds of taking it, of
 * writing and reading all of it back, and of giving it back.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { OUT_OF_MEMORY = 2, MOST = 1 << 20 };
static const size_t LARGE = (size_t)64 << 20, SMALL = (size_t)2 << 20;

typedef uint64_t address;

static void *driver;
static address blocks[MOST];
static size_t sizes[MOST];
static unsigned held;

static double seconds(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}

static void *find(const char *name) {
    void *function = dlsym(driver, name);
    if (!function) {
        fprintf(stderr, "utilisation: the driver has no %s\n", name);
        exit(1);
    }
    return function;
}

static void check(int code, const char *what) {
    if (code) {
        fprintf(stderr, "utilisation: %s answers %d\n", what, code);
        exit(1);
    }
}

#define CALL(name, types, ...) check(((int(*) types)find(name)) (__VA_ARGS__), name)

/* Allocates until there is no room; gives the bytes. */
static size_t take_all(size_t bytes) {
    int (*take)(address *, size_t) = find("cuMemAlloc_v2");
    size_t had = 0;
    while (held < MOST) {
        int code = take(&blocks[held], bytes);
        if (code == OUT_OF_MEMORY) break;
        check(code, "cuMemAlloc");
        sizes[held++] = bytes;
        had += bytes;
    }
    return had;
}

/* Words of all blocks that are not what was written. */
static uint64_t wrong_words(void) {
    int (*set)(address, unsigned, size_t) = find("cuMemsetD32_v2");
    int (*copy)(void *, address, size_t) = find("cuMemcpyDtoH_v2");
    uint32_t *host = malloc(LARGE);
    uint64_t wrong = 0;
    if (!host) check(OUT_OF_MEMORY, "malloc");
    for (unsigned i = 0; i < held; ++i) {
        size_t half = sizes[i] / 2;
        check(set(blocks[i], 2 * i + 1, half / 4), "cuMemsetD32");
        check(set(blocks[i] + half, 2 * i + 2, half / 4), "cuMemsetD32");
    }
    for (unsigned i = 0; i < held; ++i) {
        check(copy(host, blocks[i], sizes[i]), "cuMemcpyDtoH");
        size_t words = sizes[i] / 4;
        for (size_t at = 0; at < words; ++at) wrong += host[at] != 2 * i + 1 + (at >= words / 2);
    }
    free(host);
    return wrong;
}

int main(int argc, char **argv) {
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) {
        fprintf(stderr, "utilisation: %s\n", dlerror());
        return 1;
    }
    int device;
    void *context;
    size_t free_bytes, total, late_free;
    CALL("cuInit", (unsigned), 0);
    CALL("cuDeviceGet", (int *, int), &device, argc > 1 ? atoi(argv[1]) : 0);
    CALL("cuDevicePrimaryCtxRetain", (void **, int), &context, device);
    CALL("cuCtxSetCurrent", (void *), context);
    CALL("cuMemGetInfo_v2", (size_t *, size_t *), &free_bytes, &total);
    double start = seconds();
    size_t had = take_all(LARGE);
    had += take_all(SMALL);
    printf("figure take_s %.3f\n", seconds() - start);
    CALL("cuMemGetInfo_v2", (size_t *, size_t *), &late_free, &total);
    start = seconds();
    printf("result wrong %llu\n", (unsigned long long)wrong_words());
    printf("figure use_s %.3f\n", seconds() - start);
    printf("figure promised_mib %.1f\n", (double)free_bytes / (1 << 20));
    printf("figure had_mib %.1f\n", (double)had / (1 << 20));
    printf("figure free_when_full_mib %.1f\n", (double)late_free / (1 << 20));
    printf("figure part %.5f\n", (double)had / (double)free_bytes);
    start = seconds();
    for (unsigned i = 0; i < held; ++i) CALL("cuMemFree_v2", (address), blocks[i]);
    printf("figure give_s %.3f\n", seconds() - start);
    CALL("cuDevicePrimaryCtxRelease_v2", (int), device);
    return 0;
}
