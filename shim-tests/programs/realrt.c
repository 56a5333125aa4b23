// A real CUDA runtime on a driver that is none of NVIDIA's: it looks everything up and then refuses
// to work. Says how many hooks it was handed on the way.
//   realrt LIBCUDART
#include "use.h"

int main(int argc, char **argv) {
    void *runtime = dlopen(argv[1], RTLD_NOW);
    if (!runtime) {
        printf("%s\n", dlerror());
        return 4;
    }
    unsigned long long (*given)(void) = (unsigned long long (*)(void))dlsym(RTLD_DEFAULT, "vgmem_hooks_given");
    unsigned long long (*calls)(const char *) =
        (unsigned long long (*)(const char *))dlsym(dlopen("libcuda.so.1", RTLD_NOW), "vgmem_sim_calls");
    unsigned long long before = given ? given() : 0;
    int (*allocate)(void **, size_t) = (int (*)(void **, size_t))need(dlsym(runtime, "cudaMalloc"), "cudaMalloc");
    printf("malloc_from %s\n", library_of((void *)allocate));
    void *p = NULL;
    printf("malloc %d\n", allocate(&p, 1 << 20));
    printf("given %llu\n", given ? given() - before : 0);
    printf("lookups %llu\n", calls ? calls("cuGetProcAddress_v2") : 0);
    return 0;
}
