// What a call costs: launches of an empty kernel, small copies, queries, allocations.
//
//     overhead [launches]
//
// Finds the driver as most programs do (dlopen, then dlsym) and prints nanoseconds per call as
// JSON. Runs on a GPU, where the kernel is compiled from the text below, and on the simulated
// driver, which takes a host function under the same name.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef uint64_t address;
typedef void *handle;

static const char MODULE[] = ".version 7.0\n.target sm_75\n.address_size 64\n"
                             ".visible .entry empty(.param .u64 pointer) { ret; }\n";

static handle driver;

static void *find(const char *name) {
    void *function = dlsym(driver, name);
    if (!function) {
        fprintf(stderr, "overhead: the driver has no %s\n", name);
        exit(1);
    }
    return function;
}

static void check(int code, const char *what) {
    if (code) {
        fprintf(stderr, "overhead: %s answers %d\n", what, code);
        exit(1);
    }
}

#define CALL(name, types, ...) check(((int(*) types)find(name)) (__VA_ARGS__), name)

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec * 1e9 + (double)at.tv_nsec;
}

static void empty(void **arguments) { (void)arguments; }

// The simulated driver has no compiler: it is given the kernel as a function.
static void offer_kernel(void) {
    void (*offer)(const char *, const uint32_t *, uint32_t, void (*)(void **));
    static const uint32_t sizes[] = {8};
    *(void **)&offer = dlsym(driver, "vgmem_sim_register_kernel");
    if (offer) offer("empty", sizes, 1, empty);
}

static double launches(handle kernel, address pointer, long count) {
    int (*launch)(handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **,
                  void **) = find("cuLaunchKernel");
    int (*wait)(void) = find("cuCtxSynchronize");
    void *arguments[] = {&pointer};
    double spent = 0;
    for (long done = 0; done < count; done += 500) {
        // Short bursts: the queue never fills, so this is the cost of the call alone.
        double start = now();
        for (int i = 0; i < 500; ++i)
            check(launch(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL), "cuLaunchKernel");
        spent += now() - start;
        check(wait(), "cuCtxSynchronize");
    }
    return spent / (double)((count + 499) / 500 * 500);
}

static double copies(address pointer, int count) {
    int (*copy)(address, const void *, size_t, handle) = find("cuMemcpyHtoDAsync_v2");
    int (*wait)(void) = find("cuCtxSynchronize");
    int value = 7;
    double spent = 0;
    for (int done = 0; done < count; done += 100) {
        double start = now();
        for (int i = 0; i < 100; ++i) check(copy(pointer, &value, sizeof value, NULL), "cuMemcpyHtoDAsync");
        spent += now() - start;
        check(wait(), "cuCtxSynchronize");
    }
    return spent / ((count + 99) / 100 * 100);
}

static double queries(int count) {
    int (*query)(size_t *, size_t *) = find("cuMemGetInfo_v2");
    size_t free_bytes, total;
    double start = now();
    for (int i = 0; i < count; ++i) check(query(&free_bytes, &total), "cuMemGetInfo");
    return (now() - start) / count;
}

static double allocations(size_t bytes, int count) {
    int (*take)(address *, size_t) = find("cuMemAlloc_v2");
    int (*give)(address) = find("cuMemFree_v2");
    double start = now();
    for (int i = 0; i < count; ++i) {
        address pointer;
        check(take(&pointer, bytes), "cuMemAlloc");
        check(give(pointer), "cuMemFree");
    }
    return (now() - start) / count;
}

int main(int argc, char **argv) {
    long count = argc > 1 ? atol(argv[1]) : 200000;
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) {
        fprintf(stderr, "overhead: %s\n", dlerror());
        return 1;
    }
    handle context, module, kernel;
    address pointer;
    int device;
    offer_kernel();
    double start = now();
    CALL("cuInit", (unsigned), 0);
    CALL("cuDeviceGet", (int *, int), &device, 0);
    CALL("cuDevicePrimaryCtxRetain", (handle *, int), &context, device);
    CALL("cuCtxSetCurrent", (handle), context);
    double started = now() - start;
    CALL("cuModuleLoadData", (handle *, const void *), &module, MODULE);
    CALL("cuModuleGetFunction", (handle *, handle, const char *), &kernel, module, "empty");
    CALL("cuMemAlloc_v2", (address *, size_t), &pointer, (size_t)64 << 20);
    launches(kernel, pointer, 1000);
    printf("{\"start\": %.0f, ", started);
    printf("\"launch\": %.1f, ", launches(kernel, pointer, count));
    printf("\"copy_4_bytes\": %.1f, ", copies(pointer, 10000));
    printf("\"memory_info\": %.1f, ", queries(2000));
    printf("\"alloc_free_64_mib\": %.1f, ", allocations((size_t)64 << 20, 200));
    printf("\"alloc_free_64_kib\": %.1f}\n", allocations((size_t)64 << 10, 200));
    CALL("cuMemFree_v2", (address), pointer);
    CALL("cuDevicePrimaryCtxRelease_v2", (int), device);
    return 0;
}
