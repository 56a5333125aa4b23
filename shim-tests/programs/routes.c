// One program for every way of finding the driver: allocates more than one GPU has, writes and
// reads it, and says where the functions came from.
//   routes linked|open:FILE|default|proc:VERSION|oldproc:VERSION|next MIB
#include "use.h"

int main(int argc, char **argv) {
    const char *route = argv[1];
    size_t bytes = mib(argv[2]);
    struct driver d;
    char *colon = strchr(route, ':');
    if (!strcmp(route, "linked")) {
#ifdef LINKED
        find_linked(&d);
#endif
    } else if (!strncmp(route, "open:", 5)) {
        find_by_dlsym(&d, need(dlopen(colon + 1, RTLD_NOW | RTLD_LOCAL), colon + 1));
    } else if (!strcmp(route, "global")) {
        need(dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL), "libcuda.so.1");
        find_by_dlsym(&d, RTLD_DEFAULT);
    } else if (!strncmp(route, "proc:", 5)) {
        void *handle = need(dlopen("libcuda.so.1", RTLD_NOW), "libcuda.so.1");
        find_by_proc_address(&d, handle, atoi(colon + 1));
    } else if (!strncmp(route, "oldproc:", 8)) {
        void *handle = need(dlopen("libcuda.so.1", RTLD_NOW), "libcuda.so.1");
        find_by_old_proc_address(&d, handle, atoi(colon + 1));
    } else if (!strcmp(route, "again")) {
        // Opened, looked up, closed, and all of it once more.
        for (int i = 0; i < 3; i++) {
            void *handle = need(dlopen("libcuda.so.1", RTLD_NOW), "libcuda.so.1");
            find_by_dlsym(&d, handle);
            if (i < 2) dlclose(handle);
        }
    } else {
        return 2;
    }
    printf("alloc_from %s\n", library_of(d.cuMemAlloc));
    printf("version_from %s\n", library_of(d.cuDriverGetVersion));
    start(&d, 0);
    CUdeviceptr p = 0;
    CUresult rc = d.cuMemAlloc(&p, bytes);
    printf("alloc %d\n", rc);
    if (rc) return 0;
    printf("wrong %zu\n", fill_and_check(&d, p, bytes, 0x5eed1234));
    printf("free %d\n", d.cuMemFree(p));
    return 0;
}
