// What the adversaries of the pager share: memory with a copy of every byte on the host, and pressure.
//
// Every kernel's effect is computed on the host as well, on the shadow of the memory; `finish` compares all of it.
// Kernels of the ballast accumulate, so a byte that is lost once stays wrong. All numbers are whole and small, or
// come from one IEEE operation each: results are exact and the same on every machine.
//   ADVERSARY_SPOIL=n   before the end, changes a byte of block n that the shadow does not know of
//   ADVERSARY_GPU=mib   how large a GPU to work for, if not as large as it is
#ifndef VGMEM_TEST_ADVERSARY_H
#define VGMEM_TEST_ADVERSARY_H
#include "use.h"
#include <pthread.h>

typedef struct vg_graph *CUgraph;
typedef struct vg_node *CUgraphNode;
typedef struct vg_exec *CUgraphExec;
struct kernel_node {
    CUfunction function;
    unsigned gx, gy, gz, bx, by, bz, shared;
    void **params, **extra;
    void *kernel;
    CUcontext context;
};
struct update_info { int result; CUgraphNode from, to; };
struct config { unsigned grid[3], block[3], shared; CUstream stream; void *attrs; unsigned count; };

#define MORE_FUNCTIONS(X)                                                                      \
    X(cuMemAllocHost_v2, (void **, size_t))                                                    \
    X(cuMemFreeHost, (void *))                                                                 \
    X(cuModuleGetGlobal_v2, (CUdeviceptr *, size_t *, CUmodule, const char *))                 \
    X(cuLaunchCooperativeKernel, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, \
                                  CUstream, void **))                                          \
    X(cuLaunchKernelEx, (const struct config *, CUfunction, void **, void **))                 \
    X(cuLaunchKernel_ptsz, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, \
                            CUstream, void **, void **))                                       \
    X(cuMemcpyHtoD_v2_ptds, (CUdeviceptr, const void *, size_t))                               \
    X(cuMemcpyDtoH_v2_ptds, (void *, CUdeviceptr, size_t))                                     \
    X(cuMemcpyDtoDAsync_v2_ptsz, (CUdeviceptr, CUdeviceptr, size_t, CUstream))                 \
    X(cuStreamSynchronize_ptsz, (CUstream))                                                    \
    X(cuEventCreate, (CUevent *, unsigned))                                                    \
    X(cuEventRecord, (CUevent, CUstream))                                                      \
    X(cuStreamWaitEvent, (CUstream, CUevent, unsigned))                                        \
    X(cuStreamQuery, (CUstream))                                                               \
    X(cuMemsetD8Async, (CUdeviceptr, unsigned char, size_t, CUstream))                         \
    X(cuStreamBeginCapture_v2, (CUstream, int))                                                \
    X(cuStreamEndCapture, (CUstream, CUgraph *))                                               \
    X(cuGraphCreate, (CUgraph *, unsigned))                                                    \
    X(cuGraphDestroy, (CUgraph))                                                               \
    X(cuGraphAddKernelNode_v2, (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const struct kernel_node *)) \
    X(cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, unsigned long long))               \
    X(cuGraphLaunch, (CUgraphExec, CUstream))                                                  \
    X(cuGraphExecDestroy, (CUgraphExec))                                                       \
    X(cuGraphExecUpdate_v2, (CUgraphExec, CUgraph, struct update_info *))                      \
    X(cuGraphExecKernelNodeSetParams_v2, (CUgraphExec, CUgraphNode, const struct kernel_node *))

#define MEMBER(name, params) static CUresult(*name) params;
MORE_FUNCTIONS(MEMBER)
#undef MEMBER
static struct driver d;
static CUmodule module;
static CUcontext context;
static size_t gpu_bytes; // what the GPU has
static size_t taken;     // bytes of all worlds

#define KERNELS(X)                                                                             \
    X(fill_u32) X(axpy_f32) X(scale_f32) X(build_table) X(table_sum_f32) X(table_add_f32) X(self_table_f32) \
    X(global_add_f32) X(global_pointer_add_f32) X(self_step_u64) X(chase_u64) X(grouped_matmul_f32) \
    X(atomic_add_u64) X(write_after_us) X(spin_until_u32) X(sleep_us)
#define MEMBER(name) static CUfunction name;
KERNELS(MEMBER)
#undef MEMBER

enum { MOST = 1024, MIB = 1 << 20 };
struct block { CUdeviceptr at; size_t bytes; void *shadow; };
// Memory that one thread works on.
struct world {
    uint64_t random, read, launches, wrong;
    CUstream stream;
    int twin; // by the per-thread twins of the calls
    int count, ballasts;
    struct block blocks[MOST];
    struct block *ballast[MOST];
};
static struct world one = {.random = 1};

static uint64_t next(struct world *w) {
    uint64_t z = w->random += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}
static uint64_t below(struct world *w, uint64_t n) { return next(w) % n; }
static float *floats(const struct block *b) { return b->shadow; }
static uint64_t *words(const struct block *b) { return b->shadow; }

static void begin(const char *seed) {
    void *handle = need(dlopen("libcuda.so.1", RTLD_NOW), "libcuda.so.1");
    find_by_dlsym(&d, handle);
#define FIND(name, params) name = need(dlsym(handle, #name), #name);
    MORE_FUNCTIONS(FIND)
#undef FIND
    context = start(&d, 0);
    CHECK(d.cuModuleLoadData(&module, "image"));
#define FIND(name) CHECK(d.cuModuleGetFunction(&name, module, #name));
    KERNELS(FIND)
#undef FIND
    const char *as = getenv("ADVERSARY_GPU");
    if (as) gpu_bytes = mib(as);
    else CHECK(d.cuDeviceTotalMem(&gpu_bytes, 0));
    one.random = strtoull(seed, NULL, 10);
}

static void upload(struct world *w, struct block *b, size_t at, size_t n) {
    const char *from = (char *)b->shadow + at;
    CHECK(w->twin ? cuMemcpyHtoD_v2_ptds(b->at + at, from, n) : d.cuMemcpyHtoD(b->at + at, from, n));
}

// New memory with small whole numbers in it.
static struct block *make(struct world *w, size_t bytes) {
    struct block *b = NULL;
    for (int i = 0; i < w->count && !b; i++)
        if (w->blocks[i].bytes == 0) b = &w->blocks[i];
    if (!b) b = &w->blocks[w->count++];
    b->bytes = bytes, b->shadow = malloc(bytes);
    CHECK(d.cuMemAlloc(&b->at, bytes));
    uint64_t state = next(w) | 1;
    for (size_t i = 0; i < bytes / 4; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        floats(b)[i] = (float)(state >> 56);
    }
    upload(w, b, 0, bytes);
    __atomic_fetch_add(&taken, bytes, __ATOMIC_SEQ_CST);
    return b;
}

static void look(struct world *w, const struct block *b, size_t at, size_t n) {
    unsigned char *got = malloc(n), *want = (unsigned char *)b->shadow + at;
    memset(got, 0xEE, n);
    CHECK(w->twin ? cuMemcpyDtoH_v2_ptds(got, b->at + at, n) : d.cuMemcpyDtoH(got, b->at + at, n));
    w->read += n;
    if (memcmp(got, want, n)) {
        size_t first = 0;
        while (got[first] == want[first]) first++;
        for (size_t i = first; i < n; i++) w->wrong += got[i] != want[i];
        printf("block %d of %zu bytes: byte %zu is %02x, not %02x\n", (int)(b - w->blocks), b->bytes, at + first,
               got[first], want[first]);
    }
    free(got);
}

static void forget(struct world *w, struct block *b) {
    __atomic_fetch_sub(&taken, b->bytes, __ATOMIC_SEQ_CST);
    free(b->shadow);
    for (int i = 0; i < w->ballasts; i++)
        if (w->ballast[i] == b) w->ballast[i--] = w->ballast[--w->ballasts];
    memset(b, 0, sizeof *b);
}

static void drop(struct world *w, struct block *b) {
    CHECK(d.cuMemFree(b->at));
    forget(w, b);
}

// Memory for `press` until this much is taken in all.
static void add_ballast(struct world *w, size_t until) {
    static const size_t sizes[] = {2 * MIB, 4 * MIB, 6 * MIB, 3 * MIB + 4096, 12 * MIB};
    while (taken < until && w->count < MOST) {
        size_t bytes = sizes[below(w, sizeof sizes / sizeof *sizes)];
        w->ballast[w->ballasts++] = make(w, bytes);
    }
}

static void launch_on(struct world *w, CUstream stream, CUfunction f, void **params) {
    CHECK((w->twin ? cuLaunchKernel_ptsz : d.cuLaunchKernel)(f, 64, 1, 1, 256, 1, 1, 0, stream, params, NULL));
    w->launches++;
}
static void go(struct world *w, CUfunction f, void **params) { launch_on(w, w->stream, f, params); }

// y[i] += a * x[i] on the host, for parts of two blocks.
static void axpy_shadow(const struct block *y, size_t there, const struct block *x, size_t here, float a, uint64_t n) {
    float *to = floats(y) + there, *from = floats(x) + here;
    for (uint64_t i = 0; i < n; i++) to[i] += a * from[i];
}
static void axpy(struct world *w, struct block *y, size_t there, struct block *x, size_t here, float a, uint64_t n) {
    CUdeviceptr to = y->at + 4 * there, from = x->at + 4 * here;
    go(w, axpy_f32, (void *[]){&to, &from, &a, &n});
    axpy_shadow(y, there, x, here, a, n);
}

// Launches that need other memory at home: parts of the ballast go away and come back.
static void press(struct world *w, int times) {
    static const float factors[] = {1, -1, 0.5f, -0.5f};
    for (int i = 0; i < times; i++) {
        struct block *y = w->ballast[below(w, (uint64_t)w->ballasts)];
        struct block *x = w->ballast[below(w, (uint64_t)w->ballasts)];
        if (x == y) continue;
        size_t n = (x->bytes < y->bytes ? x->bytes : y->bytes) / 4;
        axpy(w, y, below(w, y->bytes / 4 - n + 1), x, below(w, x->bytes / 4 - n + 1), factors[below(w, 4)], n);
        if (i % 8 == 7) {
            struct block *b = w->ballast[below(w, (uint64_t)w->ballasts)];
            look(w, b, b->bytes / 2, b->bytes < 8192 ? b->bytes / 2 : 4096);
        }
    }
}

// Names a block in a launch, so that it comes home; whole numbers stay whole.
static void touch(struct world *w, struct block *b) {
    float a = -1;
    uint64_t n = b->bytes / 4;
    go(w, scale_f32, (void *[]){&b->at, &a, &n});
    for (uint64_t i = 0; i < n; i++) floats(b)[i] *= a;
}

static void spoil(struct world *w) {
    const char *text = getenv("ADVERSARY_SPOIL");
    if (!text || w->count == 0) return;
    struct block *b = &w->blocks[strtoul(text, NULL, 10) % (unsigned long)w->count];
    if (b->bytes) CHECK(d.cuMemsetD8(b->at + b->bytes - 3, *((unsigned char *)b->shadow + b->bytes - 3) ^ 1, 1));
}

// Compares every byte and gives the memory back.
static void finish(struct world *w) {
    CHECK(d.cuCtxSynchronize());
    spoil(w);
    CHECK(d.cuCtxSynchronize());
    for (int i = 0; i < w->count; i++)
        if (w->blocks[i].bytes) look(w, &w->blocks[i], 0, w->blocks[i].bytes);
    for (int i = 0; i < w->count; i++)
        if (w->blocks[i].bytes) drop(w, &w->blocks[i]);
}

struct mode { const char *name; void (*run)(struct world *); };

static int run_mode(int argc, char **argv, const struct mode *modes, size_t count) {
    if (argc < 3) return 2;
    for (size_t i = 0; i < count; i++) {
        if (strcmp(argv[1], modes[i].name)) continue;
        begin(argv[2]);
        modes[i].run(&one);
        finish(&one);
        printf("launches %llu\nread %llu\nwrong %llu\n", (unsigned long long)one.launches,
               (unsigned long long)one.read, (unsigned long long)one.wrong);
        return one.wrong ? 5 : 0;
    }
    return 2;
}
#endif
