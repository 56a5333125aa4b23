// Ways to find a driver, and what the programs do with one.
#ifndef VGMEM_TEST_USE_H
#define VGMEM_TEST_USE_H
#include "cu.h"

static void check(CUresult rc, const char *what) {
    if (rc != 0) {
        printf("failed %s %d\n", what, rc);
        fflush(stdout);
        exit(3);
    }
}
#define CHECK(call) check((call), #call)

static void *need(void *address, const char *name) {
    if (!address) {
        printf("missing %s\n", name);
        fflush(stdout);
        exit(4);
    }
    return address;
}

// By dlsym of the exported names.
static void find_by_dlsym(struct driver *d, void *handle) {
#define FIND(base, symbol, params) d->base = need(dlsym(handle, #symbol), #symbol);
    DRIVER_FUNCTIONS(FIND)
#undef FIND
}

// Two functions changed their parameters in CUDA 13 under the same base name: ask for the form that
// this program calls.
static int version_of(const char *base, int version) {
    return !strcmp(base, "cuCtxSynchronize") && version > 12000 ? 12000 : version;
}

// By the driver's own lookup, which takes base names.
static void find_by_proc_address(struct driver *d, void *handle, int version) {
    GetProcAddressV2 get = need(dlsym(handle, "cuGetProcAddress_v2"), "cuGetProcAddress_v2");
    void *found = NULL;
    int status = -1;
#define FIND(base, symbol, params)                                                             \
    found = NULL;                                                                              \
    CHECK(get(#base, &found, version_of(#base, version), 0, &status));                                           \
    d->base = need(found, #base);
    DRIVER_FUNCTIONS(FIND)
#undef FIND
}

static void find_by_old_proc_address(struct driver *d, void *handle, int version) {
    GetProcAddressV1 get = need(dlsym(handle, "cuGetProcAddress"), "cuGetProcAddress");
    void *found = NULL;
#define FIND(base, symbol, params)                                                             \
    found = NULL;                                                                              \
    CHECK(get(#base, &found, version_of(#base, version), 0));                                          \
    d->base = need(found, #base);
    DRIVER_FUNCTIONS(FIND)
#undef FIND
}

#ifdef LINKED
static void find_linked(struct driver *d) {
#define FIND(base, symbol, params) d->base = symbol;
    DRIVER_FUNCTIONS(FIND)
#undef FIND
}
#endif

static void find_default(struct driver *d) {
    find_by_dlsym(d, need(dlopen("libcuda.so.1", RTLD_NOW), "libcuda.so.1"));
}

// Last part of the path of the library that an address lies in.
static const char *library_of(const void *address) {
    Dl_info info;
    if (!address || !dladdr(address, &info) || !info.dli_fname) return "nowhere";
    const char *slash = strrchr(info.dli_fname, '/');
    return slash ? slash + 1 : info.dli_fname;
}

static CUcontext start(const struct driver *d, int ordinal) {
    CUdevice device;
    CUcontext context;
    CHECK(d->cuInit(0));
    CHECK(d->cuDeviceGet(&device, ordinal));
    CHECK(d->cuDevicePrimaryCtxRetain(&context, device));
    CHECK(d->cuCtxSetCurrent(context));
    return context;
}

static CUfunction kernel(const struct driver *d, const char *name) {
    CUmodule module;
    CUfunction function;
    CHECK(d->cuModuleLoadData(&module, "image"));
    CHECK(d->cuModuleGetFunction(&function, module, name));
    return function;
}

static void launch(const struct driver *d, CUfunction f, CUstream stream, void **params) {
    CHECK(d->cuLaunchKernel(f, 1, 1, 1, 256, 1, 1, 0, stream, params, NULL));
}

// Writes `bytes` of memory by a kernel and reads all of it back: the number of wrong words.
static size_t fill_and_check(const struct driver *d, CUdeviceptr p, size_t bytes, uint32_t value) {
    uint64_t n = bytes / 4;
    void *params[] = {&p, &value, &n};
    launch(d, kernel(d, "fill_u32"), NULL, params);
    CHECK(d->cuCtxSynchronize());
    size_t wrong = 0, part = 4u << 20;
    uint32_t *words = malloc(part);
    for (size_t at = 0; at < bytes; at += part) {
        size_t size = bytes - at < part ? bytes - at : part;
        CHECK(d->cuMemcpyDtoH(words, p + at, size));
        for (size_t i = 0; i < size / 4; i++) wrong += words[i] != value;
    }
    free(words);
    return wrong;
}

static size_t mib(const char *text) { return strtoull(text, NULL, 10) << 20; }
#endif
