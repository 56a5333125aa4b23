// A tool that is preloaded too and wraps two driver functions by asking for the next ones.
#include "cu.h"
#include "use.h"

static __thread int depth;
static int calls, deepest;

CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes) {
    CUresult (*next)(CUdeviceptr *, size_t) = dlsym(RTLD_NEXT, "cuMemAlloc_v2");
    calls++;
    if (++depth > deepest) deepest = depth;
    if (depth > 8 || !next) return 12345;
    CUresult rc = next(out, bytes);
    depth--;
    return rc;
}

CUresult cuMemFree_v2(CUdeviceptr p) {
    CUresult (*next)(CUdeviceptr) = dlsym(RTLD_NEXT, "cuMemFree_v2");
    calls++;
    if (++depth > deepest) deepest = depth;
    if (depth > 8 || !next) return 12345;
    CUresult rc = next(p);
    depth--;
    return rc;
}

// Asks twice for one name: some hooks lose their place after the first time.
void wrap_ask(void) {
    void *first = dlsym(RTLD_NEXT, "cuMemAlloc_v2");
    void *second = dlsym(RTLD_NEXT, "cuMemAlloc_v2");
    printf("first %s\n", library_of(first));
    printf("same %d\n", first == second);
    printf("itself %d\n", first == (void *)cuMemAlloc_v2);
    void *libc = dlsym(RTLD_NEXT, "malloc");
    printf("malloc %s\n", library_of(libc));
}

void wrap_report(void) {
    printf("calls %d\n", calls);
    printf("deepest %d\n", deepest);
}
