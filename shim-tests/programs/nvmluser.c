// Reads the memory numbers of the management library and of the driver, as schedulers do.
//   nvmluser MIB
#include "use.h"

typedef struct { unsigned long long total, free, used; } memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory2;
static int (*handle)(unsigned, void **), (*info)(void *, memory *), (*info2)(void *, memory2 *);

static void show(const char *when, unsigned gpu) {
    void *device;
    memory m = {1, 1, 1};
    memory2 n = {sizeof n | 2u << 24, 1, 1, 1, 1};
    CHECK(handle(gpu, &device));
    CHECK(info(device, &m));
    CHECK(info2(device, &n));
    printf("%s%u %llu %llu %d\n", when, gpu, m.total >> 20, m.free >> 20, m.used == m.total - m.free);
    printf("%s%u_v2 %llu %llu %d\n", when, gpu, n.total >> 20, n.free >> 20, n.total >= n.free + n.used);
}

int main(int argc, char **argv) {
    void *library = need(dlopen("libnvidia-ml.so.1", RTLD_NOW), "libnvidia-ml.so.1");
    handle = dlsym(library, "nvmlDeviceGetHandleByIndex_v2");
    info = dlsym(library, "nvmlDeviceGetMemoryInfo");
    info2 = dlsym(library, "nvmlDeviceGetMemoryInfo_v2");
    printf("from %s\n", library_of((void *)info));
    show("before", 0);
    struct driver d;
    find_default(&d);
    start(&d, 0);
    CUdeviceptr p;
    size_t available, total;
    CHECK(d.cuMemAlloc(&p, mib(argv[1])));
    CHECK(d.cuMemGetInfo(&available, &total));
    printf("cuda %zu %zu\n", total >> 20, available >> 20);
    show("after", 0);
    show("after", 1);
    show("after", 7);
    printf("no place %d", info((void *)1, NULL));
    printf(" %d\n", info2((void *)1, NULL));
    memory2 wrong = {0};
    printf("wrong version %d\n", info2((void *)1, &wrong));
    return 0;
}
