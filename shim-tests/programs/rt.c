// A stand-in for the CUDA runtime: finds the driver as the real one does (dlopen, dlsym of
// cuGetProcAddress_v2, base names) and exports a few of its functions. Built twice, with different
// names and symbol versions, each with its own MARK.
#include "use.h"

#define JOIN_(a, b, c) a##b##c
#define JOIN(a, b, c) JOIN_(a, b, c)

static struct driver d;
static int ready, calls;

static void wake(void) {
    if (ready) return;
    void *handle = need(dlopen("libcuda.so.1", RTLD_NOW), "libcuda.so.1");
    find_by_proc_address(&d, handle, MARK * 1000);
    start(&d, 0);
    ready = 1;
}

int cudaMalloc(void **out, size_t bytes) {
    wake();
    calls++;
    CUdeviceptr p = 0;
    int rc = d.cuMemAlloc(&p, bytes);
    if (rc == 0) *out = (void *)p;
    return rc;
}

int cudaFree(void *p) {
    wake();
    calls++;
    return d.cuMemFree((CUdeviceptr)p);
}

// kind: 1 to the device, 2 from it, 3 within it
int cudaMemcpy(void *to, const void *from, size_t bytes, int kind) {
    wake();
    calls++;
    if (kind == 1) return d.cuMemcpyHtoD((CUdeviceptr)to, from, bytes);
    if (kind == 2) return d.cuMemcpyDtoH(to, (CUdeviceptr)from, bytes);
    return d.cuMemcpyDtoD((CUdeviceptr)to, (CUdeviceptr)from, bytes);
}

int cudaMemset(void *p, int value, size_t bytes) {
    wake();
    calls++;
    return d.cuMemsetD8((CUdeviceptr)p, (unsigned char)value, bytes);
}

int cudaMemGetInfo(size_t *available, size_t *total) {
    wake();
    calls++;
    return d.cuMemGetInfo(available, total);
}

// How many calls this runtime got, whoever else is in the process.
int JOIN(rt, MARK, _calls)(void) { return calls; }
