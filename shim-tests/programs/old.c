// What a program finds of an old driver, and that the calls it has still work.
//   old NAMES_FILE
#include "use.h"

int main(int argc, char **argv) {
    void *handle = need(dlopen("libcuda.so.1", RTLD_NOW), "libcuda.so.1");
    FILE *file = need(fopen(argv[1], "r"), argv[1]);
    char name[256];
    while (fgets(name, sizeof name, file)) {
        name[strcspn(name, "\n")] = 0;
        if (dlsym(handle, name)) printf("has %s\n", name);
    }
    fclose(file);
    CUresult (*init)(unsigned) = dlsym(handle, "cuInit");
    CUresult (*alloc)(CUdeviceptr *, size_t) = dlsym(handle, "cuMemAlloc_v2");
    CUresult (*release)(CUdeviceptr) = dlsym(handle, "cuMemFree_v2");
    CUdeviceptr p = 0;
    printf("init %d\n", init(0));
    printf("alloc %d\n", alloc(&p, 8 << 20));
    printf("address %llx\n", p);
    printf("free %d\n", release(p));
    return 0;
}
