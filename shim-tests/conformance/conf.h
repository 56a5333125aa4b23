// The part of the driver interface that the conformance programs use, in our own words, and how they say what they
// found: `case NAME: fact=value ...`. Facts are codes, comparisons and checksums, never addresses, handles or times.
#ifndef VGMEM_CONFORMANCE_H
#define VGMEM_CONFORMANCE_H
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef uint64_t ptr;
typedef void *obj; // any handle

enum { MIB = 1 << 20, PAGE = 2 << 20 };
enum { OK = 0, INVALID = 1, NO_MEMORY = 2, NOT_READY = 600, ILLEGAL = 700 };
// Where memory lies, and who may use it.
struct location { int kind, id; };
enum { ON_DEVICE = 1, ON_HOST = 2, ON_NODE = 3, ON_CURRENT_NODE = 4 };
struct access { struct location location; int flags; };
enum { NO_ACCESS = 0, READ_ONLY = 1, READ_WRITE = 3 };
struct make {
    int kind, handle_types;
    struct location location;
    void *metadata;
    unsigned char compression, rdma;
    unsigned short usage;
    unsigned char reserved[4];
};
enum { PINNED = 1, AS_FD = 1 };
// What a 2D copy names; `kind` is HOST, DEVICE or UNIFIED.
enum { HOST = 1, DEVICE = 2, UNIFIED = 4 };
struct side2 { size_t x, y; int kind; void *host; ptr device; obj array; size_t pitch; };
struct copy2 { struct side2 from, to; size_t width, height; };
struct side3 {
    size_t x, y, z, lod;
    int kind;
    void *host;
    ptr device;
    obj array, context;
    size_t pitch, height;
};
struct copy3 { struct side3 from, to; size_t width, height, depth; };
struct copy_attributes { int order; struct location from, to; unsigned flags; };
struct launch_config { unsigned gx, gy, gz, bx, by, bz, shared; obj stream; void *attributes; unsigned count; };
struct kernel_node {
    obj function;
    unsigned gx, gy, gz, bx, by, bz, shared;
    void **params, **extra;
    obj kernel, context;
};
struct memset_node { ptr to; size_t pitch; unsigned value, size; size_t width, height; };
struct host_node { void (*function)(void *); void *data; };
struct update_info { int result; obj from, to; };
struct ipc { char bytes[64]; };

// X(exported symbol, parameters)
#define CORE_FUNCTIONS(X)                                                                       \
    X(cuInit, (unsigned)) X(cuDeviceGet, (int *, int)) X(cuDeviceGetCount, (int *))             \
    X(cuDeviceGetAttribute, (int *, int, int)) X(cuDeviceTotalMem_v2, (size_t *, int))          \
    X(cuDeviceGetName, (char *, int, int)) X(cuDeviceCanAccessPeer, (int *, int, int))          \
    X(cuDeviceGetP2PAttribute, (int *, int, int, int)) X(cuDriverGetVersion, (int *))           \
    X(cuDevicePrimaryCtxRetain, (obj *, int)) X(cuDevicePrimaryCtxRelease_v2, (int))            \
    X(cuDevicePrimaryCtxReset_v2, (int)) X(cuDevicePrimaryCtxGetState, (int, unsigned *, int *)) \
    X(cuCtxCreate_v2, (obj *, unsigned, int)) X(cuCtxDestroy_v2, (obj))                         \
    X(cuCtxSetCurrent, (obj)) X(cuCtxGetCurrent, (obj *)) X(cuCtxGetDevice, (int *))            \
    X(cuCtxPushCurrent_v2, (obj)) X(cuCtxPopCurrent_v2, (obj *)) X(cuCtxSynchronize, (void))    \
    X(cuCtxGetApiVersion, (obj, unsigned *)) X(cuCtxGetFlags, (unsigned *))                     \
    X(cuCtxEnablePeerAccess, (obj, unsigned)) X(cuCtxDisablePeerAccess, (obj))                  \
    X(cuGetErrorName, (int, const char **)) X(cuGetErrorString, (int, const char **))
#define MEMORY_FUNCTIONS(X)                                                                     \
    X(cuMemAlloc_v2, (ptr *, size_t)) X(cuMemFree_v2, (ptr))                                    \
    X(cuMemAllocPitch_v2, (ptr *, size_t *, size_t, size_t, unsigned))                          \
    X(cuMemGetInfo_v2, (size_t *, size_t *)) X(cuMemGetAddressRange_v2, (ptr *, size_t *, ptr)) \
    X(cuMemAllocHost_v2, (void **, size_t)) X(cuMemHostAlloc, (void **, size_t, unsigned))      \
    X(cuMemFreeHost, (void *)) X(cuMemHostRegister_v2, (void *, size_t, unsigned))              \
    X(cuMemHostUnregister, (void *)) X(cuMemHostGetDevicePointer_v2, (ptr *, void *, unsigned)) \
    X(cuMemHostGetFlags, (unsigned *, void *))                                                  \
    X(cuMemAllocAsync, (ptr *, size_t, obj)) X(cuMemFreeAsync, (ptr, obj))                      \
    X(cuMemAddressReserve, (ptr *, size_t, size_t, ptr, unsigned long long))                    \
    X(cuMemAddressFree, (ptr, size_t)) X(cuMemCreate, (uint64_t *, size_t, const struct make *, unsigned long long)) \
    X(cuMemRelease, (uint64_t)) X(cuMemMap, (ptr, size_t, size_t, uint64_t, unsigned long long)) \
    X(cuMemUnmap, (ptr, size_t)) X(cuMemSetAccess, (ptr, size_t, const struct access *, size_t)) \
    X(cuMemGetAccess, (unsigned long long *, const struct location *, ptr))                     \
    X(cuMemGetAllocationGranularity, (size_t *, const struct make *, int))                      \
    X(cuMemGetAllocationPropertiesFromHandle, (struct make *, uint64_t))                        \
    X(cuMemRetainAllocationHandle, (uint64_t *, void *))                                        \
    X(cuMemExportToShareableHandle, (void *, uint64_t, int, unsigned long long))                \
    X(cuMemImportFromShareableHandle, (uint64_t *, void *, int))                                \
    X(cuPointerGetAttribute, (void *, int, ptr)) X(cuPointerSetAttribute, (const void *, int, ptr)) \
    X(cuPointerGetAttributes, (unsigned, int *, void **, ptr))                                  \
    X(cuIpcGetMemHandle, (struct ipc *, ptr)) X(cuIpcOpenMemHandle_v2, (ptr *, struct ipc, unsigned)) \
    X(cuIpcCloseMemHandle, (ptr)) X(cuIpcGetEventHandle, (struct ipc *, obj))                   \
    X(cuIpcOpenEventHandle, (obj *, struct ipc))
#define COPY_FUNCTIONS(X)                                                                       \
    X(cuMemcpy, (ptr, ptr, size_t)) X(cuMemcpyAsync, (ptr, ptr, size_t, obj))                   \
    X(cuMemcpyHtoD_v2, (ptr, const void *, size_t)) X(cuMemcpyHtoDAsync_v2, (ptr, const void *, size_t, obj)) \
    X(cuMemcpyDtoH_v2, (void *, ptr, size_t)) X(cuMemcpyDtoHAsync_v2, (void *, ptr, size_t, obj)) \
    X(cuMemcpyDtoD_v2, (ptr, ptr, size_t)) X(cuMemcpyDtoDAsync_v2, (ptr, ptr, size_t, obj))     \
    X(cuMemcpyPeer, (ptr, obj, ptr, obj, size_t)) X(cuMemcpyPeerAsync, (ptr, obj, ptr, obj, size_t, obj)) \
    X(cuMemcpy2D_v2, (const struct copy2 *)) X(cuMemcpy2DUnaligned_v2, (const struct copy2 *))  \
    X(cuMemcpy2DAsync_v2, (const struct copy2 *, obj)) X(cuMemcpy3D_v2, (const struct copy3 *)) \
    X(cuMemcpy3DAsync_v2, (const struct copy3 *, obj)) X(cuMemcpy3DPeer, (const struct copy3 *)) \
    X(cuMemcpy3DPeerAsync, (const struct copy3 *, obj))                                         \
    X(cuMemcpyBatchAsync_v2, (ptr *, ptr *, size_t *, size_t, struct copy_attributes *, size_t *, size_t, obj)) \
    X(cuMemcpyBatchAsync, (ptr *, ptr *, size_t *, size_t, struct copy_attributes *, size_t *, size_t, size_t *, obj)) \
    X(cuMemsetD8_v2, (ptr, unsigned char, size_t)) X(cuMemsetD16_v2, (ptr, unsigned short, size_t)) \
    X(cuMemsetD32_v2, (ptr, unsigned, size_t)) X(cuMemsetD8Async, (ptr, unsigned char, size_t, obj)) \
    X(cuMemsetD32Async, (ptr, unsigned, size_t, obj)) X(cuMemsetD2D8_v2, (ptr, size_t, unsigned char, size_t, size_t)) \
    X(cuMemsetD2D16_v2, (ptr, size_t, unsigned short, size_t, size_t))                          \
    X(cuMemsetD2D32_v2, (ptr, size_t, unsigned, size_t, size_t))
#define WORK_FUNCTIONS(X)                                                                       \
    X(cuModuleLoadData, (obj *, const void *)) X(cuModuleUnload, (obj))                     \
    X(cuModuleGetFunction, (obj *, obj, const char *))                                          \
    X(cuModuleGetGlobal_v2, (ptr *, size_t *, obj, const char *))                               \
    X(cuLibraryLoadData, (obj *, const void *, void *, void *, unsigned, void *, void *, unsigned)) \
    X(cuLibraryUnload, (obj)) X(cuLibraryGetKernel, (obj *, obj, const char *)) X(cuKernelGetFunction, (obj *, obj)) \
    X(cuKernelGetParamInfo, (obj, size_t, size_t *, size_t *))                                  \
    X(cuFuncGetParamInfo, (obj, size_t, size_t *, size_t *))                                    \
    X(cuFuncGetAttribute, (int *, int, obj)) X(cuFuncGetName, (const char **, obj)) X(cuFuncGetModule, (obj *, obj)) \
    X(cuFuncLoad, (obj)) X(cuFuncIsLoaded, (int *, obj))                                        \
    X(cuLaunchKernel, (obj, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, obj, void **, \
                       void **))                                                                \
    X(cuLaunchCooperativeKernel, (obj, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, obj, \
                                  void **))                                                     \
    X(cuLaunchKernelEx, (const struct launch_config *, obj, void **, void **))                  \
    X(cuLaunchHostFunc, (obj, void (*)(void *), void *))                                        \
    X(cuStreamCreate, (obj *, unsigned)) X(cuStreamCreateWithPriority, (obj *, unsigned, int))      \
    X(cuStreamDestroy_v2, (obj))                                                                \
    X(cuStreamSynchronize, (obj)) X(cuStreamQuery, (obj)) X(cuStreamWaitEvent, (obj, obj, unsigned)) \
    X(cuStreamGetFlags, (obj, unsigned *)) X(cuStreamGetCtx, (obj, obj *))                  \
    X(cuStreamAddCallback, (obj, void (*)(obj, int, void *), void *, unsigned))                 \
    X(cuStreamWaitValue32_v2, (obj, ptr, uint32_t, unsigned))                                    \
    X(cuStreamWriteValue32_v2, (obj, ptr, uint32_t, unsigned))                                  \
    X(cuStreamWaitValue64_v2, (obj, ptr, uint64_t, unsigned))                                    \
    X(cuStreamWriteValue64_v2, (obj, ptr, uint64_t, unsigned))                                  \
    X(cuEventCreate, (obj *, unsigned)) X(cuEventDestroy_v2, (obj)) X(cuEventRecord, (obj, obj)) \
    X(cuEventSynchronize, (obj)) X(cuEventQuery, (obj)) X(cuEventElapsedTime, (float *, obj, obj)) \
    X(cuEventRecordWithFlags, (obj, obj, unsigned))
#define GRAPH_FUNCTIONS(X)                                                                      \
    X(cuStreamBeginCapture_v2, (obj, int)) X(cuStreamEndCapture, (obj, obj *)) X(cuStreamIsCapturing, (obj, int *)) \
    X(cuThreadExchangeStreamCaptureMode, (int *))                                               \
    X(cuGraphCreate, (obj *, unsigned)) X(cuGraphDestroy, (obj)) X(cuGraphGetNodes, (obj, obj *, size_t *)) \
    X(cuGraphAddKernelNode_v2, (obj *, obj, const obj *, size_t, const struct kernel_node *))   \
    X(cuGraphAddMemcpyNode, (obj *, obj, const obj *, size_t, const struct copy3 *, obj))       \
    X(cuGraphAddMemsetNode, (obj *, obj, const obj *, size_t, const struct memset_node *, obj)) \
    X(cuGraphAddHostNode, (obj *, obj, const obj *, size_t, const struct host_node *))          \
    X(cuGraphAddEmptyNode, (obj *, obj, const obj *, size_t))                                  \
    X(cuGraphAddDependencies, (obj, const obj *, const obj *, size_t))                          \
    X(cuGraphAddChildGraphNode, (obj *, obj, const obj *, size_t, obj)) X(cuGraphClone, (obj *, obj)) \
    X(cuGraphNodeGetType, (obj, int *)) X(cuGraphKernelNodeGetParams_v2, (obj, struct kernel_node *)) \
    X(cuGraphInstantiateWithFlags, (obj *, obj, unsigned long long)) X(cuGraphLaunch, (obj, obj)) \
    X(cuGraphUpload, (obj, obj)) X(cuGraphExecDestroy, (obj))                                 \
    X(cuGraphExecUpdate_v2, (obj, obj, struct update_info *))                                   \
    X(cuGraphExecKernelNodeSetParams_v2, (obj, obj, const struct kernel_node *))
#define ALL_FUNCTIONS(X)                                                                        \
    CORE_FUNCTIONS(X) MEMORY_FUNCTIONS(X) COPY_FUNCTIONS(X) WORK_FUNCTIONS(X) GRAPH_FUNCTIONS(X)

#define POINTER(name, params) extern int(*name) params;
ALL_FUNCTIONS(POINTER)
#undef POINTER

enum kernel { FILL, COPY, ADD, AXPY, ATOMIC, SLEEP, WRITE_AFTER, SPIN, STRUCT_ADD, CHASE, BUILD, SUM, KERNELS };

// A case: its body says facts. `alone`: in a process of its own, for errors that stay.
struct a_case { const char *name; void (*body)(void); int alone; };
extern const struct a_case cases[];
extern const int case_count;
#define CASES(...)                                                                              \
    const struct a_case cases[] = {__VA_ARGS__};                                                \
    const int case_count = sizeof cases / sizeof *cases

// What every case finds: the first GPU's primary context is current, its kernels are loaded.
extern obj context, module, function[KERNELS];
extern int gpus;
extern char *image_text;

void fact(const char *name, long long value);
void word(const char *name, const char *value);
void checksum(const char *name, const void *bytes, size_t n);
// Launches with as many threads as fill a GPU; for kernels that one thread does as well.
int launch(enum kernel k, obj stream, void **params);
int fill(ptr to, uint32_t value, size_t bytes, obj stream);
int sleep_on(obj stream, uint64_t us);
// Words of device memory that are not `value`; -1 if they cannot be read.
long long not_equal(ptr from, uint32_t value, size_t bytes);
uint32_t word_at(ptr from);
// The bytes of a fixed pattern, and how many bytes of a buffer are not those of the pattern that starts at `first`.
void pattern(void *to, size_t n, unsigned first);
long long unlike(const void *bytes, size_t n, unsigned first);
long long unlike_at(ptr from, size_t n, unsigned first);
double seconds(void);
// Physical memory of one kind; `place` is ON_DEVICE, ON_HOST or ON_NODE.
struct make how(int place);
int create(uint64_t *handle, int place, size_t bytes);
int grant(ptr at, size_t bytes, int gpu, int flags);
// A reserved range of pages: 'd' on the device, 'h' in host RAM, 'n' on the host's node, '.' none; accessible.
struct range { ptr at; size_t bytes; uint64_t handle[8]; char kinds[9]; };
int range_open(struct range *r, const char *kinds);
void range_close(struct range *r);
#define RC(name, call) fact(name, (call))
#endif
