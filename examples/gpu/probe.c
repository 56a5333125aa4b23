/* Asks the driver questions whose answers docs/DRIVER_FACTS.md records. Run it native and preloaded: the lines
 * about answers should be the same, but for addresses, contexts and buffer numbers.
 *
 *   gcc -O1 -o probe examples/gpu/probe.c -ldl && ./probe
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef uint64_t ptr;
typedef int (*fn)();
static void *driver;

static fn find(const char *name) {
    fn found = (fn)dlsym(driver, name);
    if (!found) printf("the driver has no %s\n", name);
    return found;
}
#define CALL(name) find(#name)

/* How many bytes a call wrote into a buffer that was filled with one pattern and then with another. */
static int written(const unsigned char *first, const unsigned char *second, int size) {
    int count = 0;
    for (int i = 0; i < size; i++)
        if (first[i] != 0xAA || second[i] != 0x55) count = i + 1;
    return count;
}

static void attributes(const char *what, ptr address) {
    fn one = CALL(cuPointerGetAttribute), many = CALL(cuPointerGetAttributes);
    for (int attribute = 1; attribute <= 20; attribute++) {
        unsigned char a[80], b[80];
        void *target;
        uint64_t value = 0;
        memset(a, 0xAA, 80), memset(b, 0x55, 80);
        int rc = one(a, attribute, address);
        one(b, attribute, address);
        int bytes = written(a, b, 80);
        memcpy(&value, a, bytes < 8 ? bytes : 8);
        printf("%s attribute %2d: rc %d, %2d bytes, %llx", what, attribute, rc, bytes, (unsigned long long)value);
        memset(a, 0xAA, 80), memset(b, 0x55, 80);
        target = a, rc = many(1, &attribute, &target, address);
        target = b, many(1, &attribute, &target, address);
        bytes = written(a, b, 80), value = 0;
        memcpy(&value, a, bytes < 8 ? bytes : 8);
        printf("; in a list: rc %d, %2d bytes, %llx\n", rc, bytes, (unsigned long long)value);
    }
    ptr base = 7;
    size_t bytes = 7;
    int rc = CALL(cuMemGetAddressRange_v2)(&base, &bytes, address);
    printf("%s range: rc %d, address is base + %lld, %zu bytes\n", what, rc, (long long)(address - base), bytes);
}

static void allocations(void) {
    fn alloc = CALL(cuMemAlloc_v2), release = CALL(cuMemFree_v2), pitched = CALL(cuMemAllocPitch_v2);
    ptr a = 0, out = 0xdead;
    size_t pitch = 0xdead;
    int rc = alloc(&out, (size_t)0);
    printf("alloc of 0 bytes: rc %d, wrote %d\n", rc, out != 0xdead);
    printf("alloc to NULL: rc %d\n", alloc(NULL, (size_t)8 << 20));
    out = 0xdead, rc = alloc(&out, (size_t)1 << 50);
    printf("alloc of 2^50: rc %d, wrote %d\n", rc, out != 0xdead);
    out = 0xdead, rc = alloc(&out, (size_t)-1);
    printf("alloc of 2^64-1: rc %d, wrote %d\n", rc, out != 0xdead);
    out = 0xdead, rc = pitched(&out, &pitch, (size_t)1000, (size_t)8000, 4u);
    printf("pitched 1000 x 8000: rc %d, pitch %zu\n", rc, pitch);
    release(out);
    pitch = out = 0xdead, rc = pitched(&out, &pitch, (size_t)1000, (size_t)8000, 3u);
    printf("pitched, element 3: rc %d, wrote %d %d\n", rc, out != 0xdead, pitch != 0xdead);
    printf("pitched, width 0: rc %d\n", pitched(&out, &pitch, (size_t)0, (size_t)8000, 4u));
    printf("pitched, height 0: rc %d\n", pitched(&out, &pitch, (size_t)1000, (size_t)0, 4u));
    alloc(&a, (size_t)8 << 20);
    printf("free inside: rc %d\n", release(a + 512));
    printf("free at 2 MiB inside: rc %d\n", release(a + (2 << 20)));
    printf("free of a host address: rc %d\n", release((ptr)(uintptr_t)&a));
    printf("free of 0: rc %d\n", release((ptr)0));
    printf("free: rc %d\n", release(a));
    printf("free again: rc %d\n", release(a));
    alloc(&a, (size_t)8 << 20);
    printf("free in stream order: rc %d\n", CALL(cuMemFreeAsync)(a, NULL));
    void *context = NULL;
    alloc(&a, (size_t)8 << 20);
    CALL(cuCtxPopCurrent_v2)(&context);
    out = 0xdead, rc = alloc(&out, (size_t)8 << 20);
    printf("alloc without a context: rc %d, wrote %d\n", rc, out != 0xdead);
    printf("free without a context: rc %d\n", release(a));
    CALL(cuCtxPushCurrent_v2)(context);
    printf("free with one: rc %d\n", release(a));
}

static void memory_information(void) {
    fn info = CALL(cuMemGetInfo_v2);
    size_t free_bytes = 0, total = 0, of_device = 0;
    printf("info with free NULL: rc %d, total NULL: rc %d\n", info(NULL, &total), info(&free_bytes, NULL));
    printf("info: rc %d", info(&free_bytes, &total));
    CALL(cuDeviceTotalMem_v2)(&of_device, 0);
    printf(", total equals the device's: %d, free below total: %d\n", total == of_device, free_bytes <= total);
}

static void capture(void) {
    fn alloc = CALL(cuMemAlloc_v2), release = CALL(cuMemFree_v2), begin = CALL(cuStreamBeginCapture_v2);
    void *stream = NULL, *graph = NULL;
    CALL(cuStreamCreate)(&stream, 1);
    for (int mode = 0; mode <= 2; mode++) {
        ptr before = 0, during = 0;
        alloc(&before, (size_t)8 << 20);
        int rc = begin(stream, mode);
        printf("capture mode %d: begin %d", mode, rc);
        printf(", alloc %d", alloc(&during, (size_t)8 << 20));
        printf(", free %d", release(before));
        graph = NULL, rc = CALL(cuStreamEndCapture)(stream, &graph);
        printf(", end %d, graph %d\n", rc, graph != NULL);
        if (during) release(during);
    }
}

static void lookups(void) {
    const char *names[] = {"cuMemAlloc", "cuMemFree", "cuMemcpyHtoD", "cuMemcpyAsync", "cuLaunchKernel",
                           "cuMemGetInfo", "cuGetProcAddress", "cuLaunchKernelEx", "cuPointerGetAttribute"};
    fn ask = CALL(cuGetProcAddress_v2);
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
        for (uint64_t flags = 0; flags <= 2; flags += 2) {
            void *found = NULL;
            int status = 9, rc = ask(names[i], &found, 12000, flags, &status);
            Dl_info info = {0};
            dladdr(found, &info);
            const char *symbol = info.dli_sname ? info.dli_sname : "?";
            printf("lookup %s flags %d: rc %d, status %d, %s, as dlsym gives: %d\n", names[i], (int)flags, rc, status,
                   symbol, found == dlsym(driver, symbol));
        }
}

int main(void) {
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) {
        printf("no driver: %s\n", dlerror());
        return 1;
    }
    ptr reserved = 0, big = 0, small = 0;
    void *context = NULL;
    printf("init: rc %d\n", CALL(cuInit)(0));
    printf("reserve before any context: rc %d\n",
           CALL(cuMemAddressReserve)(&reserved, (size_t)1 << 30, (size_t)0, (ptr)0, (uint64_t)0));
    printf("context: rc %d\n", CALL(cuCtxCreate_v2)(&context, 0, 0));
    memory_information();
    CALL(cuMemAlloc_v2)(&big, ((size_t)8 << 20) + 12345);
    CALL(cuMemAlloc_v2)(&small, (size_t)1000);
    attributes("large", big + 5);
    attributes("small", small);
    attributes("null", 0);
    attributes("host", (ptr)(uintptr_t)&big);
    allocations();
    capture();
    lookups();
    return 0;
}
