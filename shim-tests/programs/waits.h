// A program with twice the memory that its GPU has, and a model of it on the host (for waits.c and ends.c).
//
// Word j of a block is base + step * j, but the first word, which has its own value. Whoever submits work on a block
// changes the model; at the end every word of every block is compared with it.
#ifndef VGMEM_TEST_WAITS_H
#define VGMEM_TEST_WAITS_H
#include "use.h"
#include "vgmem.h"
#include <pthread.h>
#include <time.h>

#define MORE_FUNCTIONS(X)                                                                      \
    X(cuCtxCreate, cuCtxCreate_v2, (CUcontext *, unsigned, CUdevice))                          \
    X(cuCtxDestroy, cuCtxDestroy_v2, (CUcontext))                                              \
    X(cuEventCreate, cuEventCreate, (CUevent *, unsigned))                                     \
    X(cuEventElapsedTime, cuEventElapsedTime, (float *, CUevent, CUevent))                     \
    X(cuEventQuery, cuEventQuery, (CUevent))                                                   \
    X(cuEventRecord, cuEventRecord, (CUevent, CUstream))                                       \
    X(cuStreamWaitEvent, cuStreamWaitEvent, (CUstream, CUevent, unsigned))                     \
    X(cuMemHostAlloc, cuMemHostAlloc, (void **, size_t, unsigned))                             \
    X(cuLaunchHostFunc, cuLaunchHostFunc, (CUstream, void (*)(void *), void *))                \
    X(cuStreamWaitValue32, cuStreamWaitValue32_v2, (CUstream, CUdeviceptr, uint32_t, unsigned)) \
    X(cuStreamWriteValue32, cuStreamWriteValue32_v2, (CUstream, CUdeviceptr, uint32_t, unsigned)) \
    X(cuStreamBeginCapture, cuStreamBeginCapture_v2, (CUstream, int))                          \
    X(cuStreamEndCapture, cuStreamEndCapture, (CUstream, void **))                             \
    X(cuStreamIsCapturing, cuStreamIsCapturing, (CUstream, int *))                             \
    X(cuGraphInstantiate, cuGraphInstantiateWithFlags, (void **, void *, unsigned long long))  \
    X(cuGraphLaunch, cuGraphLaunch, (void *, CUstream))                                        \
    X(cuMemcpy2DAsync, cuMemcpy2DAsync_v2, (const void *, CUstream))                           \
    X(cuMemcpy3DAsync, cuMemcpy3DAsync_v2, (const void *, CUstream))                           \
    X(cuMemcpyBatchAsync, cuMemcpyBatchAsync_v2,                                               \
      (CUdeviceptr *, CUdeviceptr *, size_t *, size_t, void *, size_t *, size_t, CUstream))    \
    X(cuMemcpy3DPeerAsync, cuMemcpy3DPeerAsync, (const void *, CUstream))                      \
    X(cuMemcpyPeerAsync, cuMemcpyPeerAsync, (CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t, CUstream)) \
    X(cuLaunchKernelPtsz, cuLaunchKernel_ptsz, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, \
                                                unsigned, unsigned, CUstream, void **, void **)) \
    X(cuMemcpyDtoHAsyncPtsz, cuMemcpyDtoHAsync_v2_ptsz, (void *, CUdeviceptr, size_t, CUstream)) \
    X(cuStreamSynchronizePtsz, cuStreamSynchronize_ptsz, (CUstream))

#define MEMBER(name, symbol, params) static CUresult(*name) params;
MORE_FUNCTIONS(MEMBER)
#undef MEMBER

// The last block is another GPU's.
enum { BLOCKS = 64, OTHER = BLOCKS, BUSY = 600 };
#define SIZE ((size_t)8 << 20)
#define WORDS (SIZE / 4)

static struct driver d;
static CUcontext context;
static CUfunction fill_f, copy_f, write_f, spin_f, sleep_f, lazy_f;
static struct block { CUdeviceptr at; uint32_t base, step, first; int taken; } blocks[BLOCKS + 1];
static volatile uint32_t *flag; // pinned memory of the host
static int (*page_of)(unsigned long long, vgmem_page *);

static void say(const char *what, int right) {
    printf("%s %d\n", what, right);
    fflush(stdout);
}
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}
static CUdeviceptr flag_at(void) { return (CUdeviceptr)(uintptr_t)flag; }
static void tell(uint32_t value) { __atomic_store_n(flag, value, __ATOMIC_SEQ_CST); }

static CUstream stream(void) {
    CUstream s;
    CHECK(d.cuStreamCreate(&s, 1));
    return s;
}
static CUevent event(void) {
    CUevent e;
    CHECK(cuEventCreate(&e, 0));
    return e;
}

// Pages of a block that are not on its GPU. Without the library none ever is.
static int away(int i) {
    int count = 0;
    vgmem_page page;
    for (size_t at = 0; page_of && at < SIZE; at += page.bytes) {
        if (!page_of(blocks[i].at + at, &page)) return -1;
        count += page.gpu != page.home;
    }
    return count;
}

// A block that nobody uses yet, all of it at home or all of it elsewhere.
static int take(int home) {
    for (int n = 0; n < BLOCKS; n++) {
        int i = home ? n : BLOCKS - 1 - n, pages = away(i);
        if (blocks[i].taken || (page_of && (home ? pages != 0 : pages < 1))) continue;
        blocks[i].taken = 1;
        return i;
    }
    printf("no block is %s\n", home ? "at home" : "away");
    exit(6);
}
static int at_home(void) { return take(1); }
static int elsewhere(void) { return take(0); }

static void fill(int i, uint32_t value, CUstream s) {
    uint64_t n = WORDS;
    void *params[] = {&blocks[i].at, &value, &n};
    launch(&d, fill_f, s, params);
    blocks[i].base = blocks[i].first = value, blocks[i].step = 0;
}
static void copied(int to, int from) {
    struct block *t = &blocks[to], *f = &blocks[from];
    t->base = f->base, t->step = f->step, t->first = f->first;
}
static void copy_by(CUfunction f, int to, int from, uint64_t n, CUstream s) {
    void *params[] = {&blocks[to].at, &blocks[from].at, &n};
    launch(&d, f, s, params);
    copied(to, from);
}
static void copy(int to, int from, CUstream s) { copy_by(copy_f, to, from, SIZE, s); }
// Uses all blocks at home but one, and changes nothing: that one was used longest ago, and is sent away first, after
// what is left of a block that lies in both places. Two launches that need pages send all of it away.
static void use_all_but(int i, CUstream s) {
    uint64_t n = 1;
    for (int other = 0; other < BLOCKS; other++) {
        void *params[] = {&blocks[other].at, &blocks[other].first, &n};
        if (other != i && !blocks[other].taken && away(other) == 0) launch(&d, fill_f, s, params);
    }
}
// Copies the first word alone.
static void copy_word(int to, int from, CUstream s) {
    uint64_t n = 4;
    void *params[] = {&blocks[to].at, &blocks[from].at, &n};
    launch(&d, copy_f, s, params);
    blocks[to].first = blocks[from].first;
}
// Writes a word at the end of its time.
static void write_late(CUdeviceptr p, uint32_t value, uint64_t us, CUstream s) {
    void *params[] = {&p, &value, &us};
    launch(&d, write_f, s, params);
}
static void first_late(int i, uint32_t value, uint64_t us, CUstream s) {
    write_late(blocks[i].at, value, us, s);
    blocks[i].first = value;
}
// Runs until the word has the value.
static void spin(CUdeviceptr p, uint32_t value, CUstream s) {
    void *params[] = {&p, &value};
    launch(&d, spin_f, s, params);
}

static void pattern(int i) {
    static uint32_t words[WORDS];
    struct block *b = &blocks[i];
    b->base = 1000003u * (uint32_t)i + 17, b->step = 2654435761u + 2 * (uint32_t)i, b->first = b->base;
    for (size_t j = 0; j < WORDS; j++) words[j] = b->base + b->step * (uint32_t)j;
    CHECK(d.cuMemcpyHtoD(b->at, words, SIZE));
}

static void load_kernels(void) {
    fill_f = kernel(&d, "fill_u32"), copy_f = kernel(&d, "copy_bytes"), write_f = kernel(&d, "write_after_us");
    spin_f = kernel(&d, "spin_until_u32"), sleep_f = kernel(&d, "sleep_us"), lazy_f = kernel(&d, "copy_f32");
}

static void begin(void) {
    void *handle = need(dlopen("libcuda.so.1", RTLD_NOW), "libcuda.so.1"), *pinned;
    find_by_dlsym(&d, handle);
#define FIND(name, symbol, params) name = need(dlsym(handle, #symbol), #symbol);
    MORE_FUNCTIONS(FIND)
#undef FIND
    page_of = dlsym(RTLD_DEFAULT, "vgmem_page_of");
    context = start(&d, 0);
    load_kernels();
    CHECK(cuMemHostAlloc(&pinned, 4096, 0));
    flag = pinned, *flag = 0;
}

// Memory for twice the GPU: the last blocks do not fit.
static void allocate(void) {
    for (int i = 0; i < BLOCKS; i++) {
        if (blocks[i].at) continue;
        CHECK(d.cuMemAlloc(&blocks[i].at, SIZE));
        pattern(i);
    }
}

// Launches that make pages move, one after the other: from now on everything has markers. Each kernel but the lazy one
// is loaded.
static void warm(void) {
    for (int i = 0; i < 3; i++) fill(BLOCKS - 1 - i, 5 + (uint32_t)i, NULL);
    copy(BLOCKS - 1, BLOCKS - 4, NULL);
    first_late(BLOCKS - 1, 12, 0, NULL);
    spin(blocks[BLOCKS - 1].at, 12, NULL);
    uint64_t us = 0;
    void *params[] = {&us};
    launch(&d, sleep_f, NULL, params);
    CHECK(d.cuCtxSynchronize());
    if (page_of) say("pages came", away(BLOCKS - 1) == 0 && away(BLOCKS - 2) == 0);
    else say("pages came", 1);
}

static size_t wrong(int i) {
    static uint32_t words[WORDS];
    const struct block *b = &blocks[i];
    size_t bad = 0;
    CHECK(d.cuMemcpyDtoH(words, b->at, SIZE));
    for (size_t j = 0; j < WORDS; j++) bad += words[j] != (j ? b->base + b->step * (uint32_t)j : b->first);
    return bad;
}

static void compare(void) {
    size_t bad = 0;
    CHECK(d.cuCtxSynchronize());
    for (int i = 0; i < BLOCKS; i++) bad += wrong(i);
    printf("wrong %zu\n", bad);
}

static pthread_t go(void *(*work)(void *), void *arg) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, work, arg)) exit(8);
    return thread;
}
static void end(pthread_t thread) { pthread_join(thread, NULL); }

// A thread that fills its own blocks one after the other: far more than fit, again and again. It lets its work end now
// and then, or (beside a capture, where some waits are not allowed) gives it time.
struct toucher { int from, count, rounds; uint32_t value; volatile int stop; CUstream stream; useconds_t pause; };
static void *touch(void *arg) {
    struct toucher *t = arg;
    CHECK(d.cuCtxSetCurrent(context));
    for (int i = 0; i < t->rounds && !t->stop; i++) {
        fill(t->from + i % t->count, t->value + (uint32_t)i, t->stream);
        if (t->pause) usleep(t->pause);
        else if (i % 8 == 7) CHECK(d.cuStreamSynchronize(t->stream));
    }
    CHECK(d.cuStreamSynchronize(t->stream));
    return NULL;
}
#endif
