// A plug-in that links the driver, to be loaded by `host`.
#define LINKED
#include "use.h"

void plugin_run(size_t bytes) {
    struct driver d;
    find_linked(&d);
    printf("plugin_alloc_from %s\n", library_of(d.cuMemAlloc));
    start(&d, 0);
    CUdeviceptr p = 0;
    CUresult rc = cuMemAlloc_v2(&p, bytes);
    printf("alloc %d\n", rc);
    if (rc) return;
    printf("wrong %zu\n", fill_and_check(&d, p, bytes, 11));
    printf("free %d\n", cuMemFree_v2(p));
}
