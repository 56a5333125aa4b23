// The part of the driver interface that the test programs use, in our own words.
#ifndef VGMEM_TEST_CU_H
#define VGMEM_TEST_CU_H
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct vg_ctx *CUcontext;
typedef struct vg_stream *CUstream;
typedef struct vg_module *CUmodule;
typedef struct vg_function *CUfunction;
typedef struct vg_event *CUevent;
typedef struct { unsigned char bytes[16]; } CUuuid;

enum { OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3 };

// X(result, base name, exported symbol, parameters)
#define DRIVER_FUNCTIONS(X)                                                                    \
    X(cuInit, cuInit, (unsigned))                                                              \
    X(cuDriverGetVersion, cuDriverGetVersion, (int *))                                         \
    X(cuDeviceGetCount, cuDeviceGetCount, (int *))                                             \
    X(cuDeviceGet, cuDeviceGet, (CUdevice *, int))                                             \
    X(cuDeviceTotalMem, cuDeviceTotalMem_v2, (size_t *, CUdevice))                             \
    X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))             \
    X(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, (CUdevice))                     \
    X(cuCtxSetCurrent, cuCtxSetCurrent, (CUcontext))                                           \
    X(cuCtxSynchronize, cuCtxSynchronize, (void))                                              \
    X(cuCtxEnablePeerAccess, cuCtxEnablePeerAccess, (CUcontext, unsigned))                     \
    X(cuMemAlloc, cuMemAlloc_v2, (CUdeviceptr *, size_t))                                      \
    X(cuMemAllocPitch, cuMemAllocPitch_v2, (CUdeviceptr *, size_t *, size_t, size_t, unsigned)) \
    X(cuMemFree, cuMemFree_v2, (CUdeviceptr))                                                  \
    X(cuMemGetInfo, cuMemGetInfo_v2, (size_t *, size_t *))                                     \
    X(cuMemGetAddressRange, cuMemGetAddressRange_v2, (CUdeviceptr *, size_t *, CUdeviceptr))   \
    X(cuMemcpyHtoD, cuMemcpyHtoD_v2, (CUdeviceptr, const void *, size_t))                      \
    X(cuMemcpyDtoH, cuMemcpyDtoH_v2, (void *, CUdeviceptr, size_t))                            \
    X(cuMemcpyDtoD, cuMemcpyDtoD_v2, (CUdeviceptr, CUdeviceptr, size_t))                       \
    X(cuMemcpy, cuMemcpy, (CUdeviceptr, CUdeviceptr, size_t))                                  \
    X(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2, (CUdeviceptr, const void *, size_t, CUstream))  \
    X(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, (void *, CUdeviceptr, size_t, CUstream))        \
    X(cuMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2, (CUdeviceptr, CUdeviceptr, size_t, CUstream))   \
    X(cuMemcpyPeer, cuMemcpyPeer, (CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t))    \
    X(cuMemsetD8, cuMemsetD8_v2, (CUdeviceptr, unsigned char, size_t))                         \
    X(cuMemsetD32, cuMemsetD32_v2, (CUdeviceptr, unsigned, size_t))                            \
    X(cuMemsetD32Async, cuMemsetD32Async, (CUdeviceptr, unsigned, size_t, CUstream))           \
    X(cuPointerGetAttribute, cuPointerGetAttribute, (void *, int, CUdeviceptr))                \
    X(cuStreamCreate, cuStreamCreate, (CUstream *, unsigned))                                  \
    X(cuStreamSynchronize, cuStreamSynchronize, (CUstream))                                    \
    X(cuStreamDestroy, cuStreamDestroy_v2, (CUstream))                                         \
    X(cuModuleLoadData, cuModuleLoadData, (CUmodule *, const void *))                          \
    X(cuModuleGetFunction, cuModuleGetFunction, (CUfunction *, CUmodule, const char *))        \
    X(cuLaunchKernel, cuLaunchKernel, (CUfunction, unsigned, unsigned, unsigned, unsigned,     \
                                       unsigned, unsigned, unsigned, CUstream, void **, void **))

typedef CUresult (*GetProcAddressV1)(const char *, void **, int, unsigned long long);
typedef CUresult (*GetProcAddressV2)(const char *, void **, int, unsigned long long, int *);
typedef CUresult (*GetExportTable)(const void **, const CUuuid *);

// A driver as one way of looking finds it: one pointer for each function.
struct driver {
#define FIELD(base, symbol, params) CUresult(*base) params;
    DRIVER_FUNCTIONS(FIELD)
#undef FIELD
};

#ifdef LINKED
#define DECLARE(base, symbol, params) CUresult symbol params;
DRIVER_FUNCTIONS(DECLARE)
#undef DECLARE
#endif
#endif
