// A stand-in for the management library: knows the GPUs of the driver beside it and one more.
#include "cu.h"

typedef struct { unsigned long long total, free, used; } memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory2;

int nvmlInit_v2(void) { return 0; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    *device = (void *)(uintptr_t)(index + 1);
    return 0;
}

int nvmlDeviceGetUUID(void *device, char *text, unsigned length) {
    int ordinal = (int)(uintptr_t)device - 1;
    CUresult (*ask)(CUuuid *, CUdevice) = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuDeviceGetUuid");
    CUuuid id = {{0xee}};
    if (length < 41 || !ask) return 7;
    ask(&id, ordinal);
    strcpy(text, "GPU-");
    char *at = text + 4;
    for (int i = 0; i < 16; i++) at += sprintf(at, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", id.bytes[i]);
    return 0;
}

int nvmlDeviceGetMemoryInfo(void *device, memory *m) {
    if (!m) return 2;
    *m = (memory){1000ull << 20, 900ull << 20, 100ull << 20};
    return 0;
}

int nvmlDeviceGetMemoryInfo_v2(void *device, memory2 *m) {
    if (!m) return 2;
    if (m->version != (sizeof *m | 2u << 24)) return 25;
    m->total = 1000ull << 20, m->reserved = 10ull << 20, m->free = 890ull << 20, m->used = 100ull << 20;
    return 0;
}
