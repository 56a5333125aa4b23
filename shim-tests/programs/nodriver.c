// A machine without a driver: what a careful program sees.
//   nodriver open|link
#include "use.h"

#ifdef UNRESOLVED
CUresult cuInit(unsigned);
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t);
CUresult cuMemFree_v2(CUdeviceptr);
CUresult cuMemGetInfo_v2(size_t *, size_t *);
#endif

int main(int argc, char **argv) {
#ifdef UNRESOLVED
    CUdeviceptr p = 0;
    size_t a, b;
    printf("init %d\n", cuInit(0));
    printf("alloc %d\n", cuMemAlloc_v2(&p, 1 << 20));
    printf("free %d\n", cuMemFree_v2(p));
    printf("info %d\n", cuMemGetInfo_v2(&a, &b));
#else
    const char *names[] = {"libcuda.so.1", "libcuda.so", "/nowhere/libcuda.so.1"};
    for (int i = 0; i < 3; i++) {
        void *handle = dlopen(names[i], RTLD_NOW);
        printf("%s %d %s\n", names[i], handle != NULL, handle ? "" : dlerror());
    }
    // A program that only asks whether CUDA is there must not find it through us.
    printf("visible %d\n", dlsym(RTLD_DEFAULT, "cuDriverGetVersion") != NULL);
    char *maps = malloc(1 << 20);
    FILE *file = fopen("/proc/self/maps", "r");
    maps[fread(maps, 1, (1 << 20) - 1, file)] = 0;
    printf("mapped %d\n", strstr(maps, "libcuda") != NULL);
#endif
    return 0;
}
