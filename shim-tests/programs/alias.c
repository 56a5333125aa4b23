// A driver that has one function for both stream variants, as some do where the stream is NULL or
// does not matter: two names, two ways to ask, one address.
#include "cu.h"

CUresult cuInit(unsigned flags) { return 0; }
CUresult cuDriverGetVersion(int *version) {
    *version = 12000;
    return 0;
}
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes) { return bytes == 77 ? 55 : 0; }
CUresult cuMemcpyHtoD_v2_ptds(CUdeviceptr, const void *, size_t) __attribute__((alias("cuMemcpyHtoD_v2")));

CUresult cuGetProcAddress_v2(const char *name, void **found, int version, unsigned long long flags, int *status) {
    if (!name || !found || flags > 3) return 1;
    *found = NULL;
    if (!strcmp(name, "cuMemcpyHtoD")) *found = (void *)(flags & 2 ? cuMemcpyHtoD_v2_ptds : cuMemcpyHtoD_v2);
    if (status) *status = !*found;
    return 0;
}

CUresult cuGetProcAddress(const char *name, void **found, int version, unsigned long long flags) {
    void *address = NULL;
    CUresult rc = cuGetProcAddress_v2(name, &address, version, flags, NULL);
    if (rc || !address) return rc ? rc : 500;
    *found = address;
    return 0;
}
