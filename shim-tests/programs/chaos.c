// Random work on random memory with a copy of everything on the host: every byte read must equal the
// last one written, whatever the library moves meanwhile (VGMEM_CHAOS).
//
//   chaos SEED SEQUENCES     chooses a machine by the seed, says so on standard output, and runs
//   CHAOS_STEPS=n   steps of a sequence       CHAOS_IMAGE=file  kernels, on real hardware
//   CHAOS_SPOIL=n   writes memory at step n of each sequence that the copy does not know of
//
// The order of all work on one block is fixed: whoever uses it last hands it over by an event.
#include "use.h"
#include <malloc.h>
#include <pthread.h>
#include <stdarg.h>

#define MORE_FUNCTIONS(X)                                                                      \
    X(cuDeviceCanAccessPeer, (int *, CUdevice, CUdevice))                                      \
    X(cuEventCreate, (CUevent *, unsigned))                                                    \
    X(cuEventRecord, (CUevent, CUstream))                                                      \
    X(cuEventSynchronize, (CUevent))                                                           \
    X(cuStreamWaitEvent, (CUstream, CUevent, unsigned))                                        \
    X(cuMemsetD16Async, (CUdeviceptr, unsigned short, size_t, CUstream))                       \
    X(cuMemsetD8Async, (CUdeviceptr, unsigned char, size_t, CUstream))                         \
    X(cuMemcpyPeerAsync, (CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t, CUstream))

#define MEMBER(name, params) static CUresult(*name) params;
MORE_FUNCTIONS(MEMBER)
#undef MEMBER
static struct driver d;

enum { LANES = 4, GPUS = 2, BLOCKS = 5, THREADS = 4, KEPT = 256 };
enum { FILL, COPY, ADD, AXPY, KERNELS };
static const char *const names[KERNELS] = {"fill_u32", "copy_bytes", "add_f32", "axpy_f32"};

// What the seed chose.
static struct { uint64_t seed; unsigned gpus, threads, steps, fragile, peers, spoil; } plan;
static CUcontext contexts[GPUS];
static CUfunction kernels[GPUS][KERNELS];

// A stream of one GPU; lane 0 is the default stream.
struct lane { int gpu; CUstream stream; CUevent event; };
struct block { CUdeviceptr at; size_t bytes; unsigned char *shadow; int home, lane; };
// Bytes under way to the host, and what they must be.
struct check { unsigned char *got, *want; size_t bytes; int lane, step; };
struct world {
    uint64_t random, sequence;
    int step, checks, kept;
    char what[160];
    struct lane lanes[GPUS * LANES];
    struct block blocks[BLOCKS];
    struct check check[KEPT];
    void *keep[KEPT]; // sources of copies that may not have run yet
    uint64_t read, refused;
};

static uint64_t next(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}
static uint64_t below(struct world *w, uint64_t n) { return next(&w->random) % n; }

static void fail(struct world *w, const char *format, ...) {
    va_list list;
    va_start(list, format);
    char text[300];
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    printf("FAILED seed %llu sequence %llu step %d (%s): %s\n", (unsigned long long)plan.seed,
           (unsigned long long)w->sequence, w->step, w->what, text);
    fflush(stdout);
    _exit(5);
}

// Whether a call did its work. A machine with faults may refuse any call, but then nothing happened.
static int done(struct world *w, CUresult rc, const char *what) {
    if (rc == 0) return 1;
    if (!plan.fragile) fail(w, "%s answered %d", what, rc);
    w->refused++;
    return 0;
}
#define DONE(call) done(w, (call), #call)
// For calls that order or end work: asked again until they do.
#define SURELY(call)                                                                           \
    for (int tries = 0; !DONE(call); tries++)                                                  \
    if (tries > 20) fail(w, "%s is refused for ever", #call)

static void on(struct world *w, int gpu) { SURELY(d.cuCtxSetCurrent(contexts[gpu])); }

static void compare(struct world *w, const struct check *c) {
    w->read += c->bytes;
    if (memcmp(c->got, c->want, c->bytes) == 0) return;
    size_t first = 0, wrong = 0;
    while (c->got[first] == c->want[first]) first++;
    for (size_t i = first; i < c->bytes; i++) wrong += c->got[i] != c->want[i];
    fail(w, "read of step %d: byte %zu of %zu is %02x, not %02x; %zu bytes are wrong", c->step, first, c->bytes,
         c->got[first], c->want[first], wrong);
}

// Checks what has arrived: of one lane, or of all (-1), after a wait for it.
static void arrived(struct world *w, int lane) {
    int left = 0;
    for (int i = 0; i < w->checks; i++) {
        struct check *c = &w->check[i];
        if (lane >= 0 && c->lane != lane) {
            w->check[left++] = *c;
            continue;
        }
        compare(w, c);
        free(c->got), free(c->want);
    }
    w->checks = left;
}

static void wait_lane(struct world *w, int lane) {
    on(w, w->lanes[lane].gpu);
    SURELY(d.cuStreamSynchronize(w->lanes[lane].stream));
    arrived(w, lane);
}

static void wait_all(struct world *w) {
    for (unsigned gpu = 0; gpu < plan.gpus; gpu++) {
        on(w, (int)gpu);
        SURELY(d.cuCtxSynchronize());
    }
    arrived(w, -1);
    while (w->kept > 0) free(w->keep[--w->kept]);
}

// Lets a lane use a block after all that was done with it.
static void hand_over(struct world *w, struct block *b, int lane) {
    struct lane *from = &w->lanes[b->lane], *to = &w->lanes[lane];
    if (from != to) {
        on(w, from->gpu);
        SURELY(cuEventRecord(from->event, from->stream));
        on(w, to->gpu);
        SURELY(cuStreamWaitEvent(to->stream, from->event, 0));
        b->lane = lane;
    }
    on(w, to->gpu);
}

static int a_lane(struct world *w, const struct block *b) {
    int gpu = plan.peers ? (int)below(w, plan.gpus) : b->home;
    return gpu * LANES + (int)below(w, LANES);
}

// A random part of a block; some are tiny, some all of it.
static size_t part(struct world *w, const struct block *b, size_t *at, size_t unit) {
    size_t units = b->bytes / unit, n = 1 + below(w, units);
    if (below(w, 2)) n = 1 + below(w, n < 70000 ? n : 70000);
    *at = below(w, units - n + 1) * unit;
    return n * unit;
}

// Whether a range holds only numbers whose sums stay finite and are the same on every machine.
static int plain(const unsigned char *bytes, size_t n) {
    for (size_t i = 0; i + 4 <= n; i += 4) {
        uint32_t word;
        memcpy(&word, bytes + i, 4);
        if (((word >> 23) & 255) > 250) return 0;
    }
    return 1;
}

static void scribble(struct world *w, unsigned char *to, size_t n) {
    uint64_t state = next(&w->random);
    for (size_t i = 0; i < n; i += 8) {
        uint64_t word = next(&state) & 0xbfffffffbfffffffu; // no NaN among them
        memcpy(to + i, &word, n - i < 8 ? n - i : 8);
    }
}

static void keep(struct world *w, void *memory) {
    w->keep[w->kept++] = memory;
    if (w->kept == KEPT) wait_all(w);
}

static void upload(struct world *w, struct block *b, size_t at, size_t n, int lane) {
    unsigned char *source = malloc(n);
    scribble(w, source, n);
    hand_over(w, b, lane);
    struct lane *l = &w->lanes[lane];
    int ok = l->stream ? DONE(d.cuMemcpyHtoDAsync(b->at + at, source, n, l->stream))
                       : DONE(d.cuMemcpyHtoD(b->at + at, source, n));
    if (ok) memcpy(b->shadow + at, source, n);
    keep(w, source);
}

static void download(struct world *w, struct block *b, size_t at, size_t n, int lane) {
    struct check c = {malloc(n), malloc(n), n, lane, w->step};
    memset(c.got, 0xEE, n);
    memcpy(c.want, b->shadow + at, n);
    hand_over(w, b, lane);
    struct lane *l = &w->lanes[lane];
    int ok = l->stream ? DONE(d.cuMemcpyDtoHAsync(c.got, b->at + at, n, l->stream))
                       : DONE(d.cuMemcpyDtoH(c.got, b->at + at, n));
    if (ok && l->stream) {
        w->check[w->checks++] = c;
        if (w->checks == KEPT) wait_all(w);
        return;
    }
    if (ok) compare(w, &c);
    keep(w, c.got), free(c.want);
}

// Launches and says whether it was accepted.
static int launched(struct world *w, int kernel, int lane, void **params) {
    struct lane *l = &w->lanes[lane];
    return done(w, d.cuLaunchKernel(kernels[l->gpu][kernel], 64, 1, 1, 256, 1, 1, 0, l->stream, params, NULL),
                names[kernel]);
}

static void set(struct world *w, struct block *b, size_t at, size_t n, int lane, int how) {
    uint32_t value = (uint32_t)next(&w->random) & 0xbfffffffu;
    hand_over(w, b, lane);
    struct lane *l = &w->lanes[lane];
    CUdeviceptr p = b->at + at;
    uint64_t words = n / 4;
    int ok = 0;
    if (how == 0) ok = launched(w, FILL, lane, (void *[]){&p, &value, &words});
    if (how == 1 && l->stream) ok = DONE(d.cuMemsetD32Async(p, value, words, l->stream));
    if (how == 1 && !l->stream) ok = DONE(d.cuMemsetD32(p, value, words));
    if (how == 2) value = (value & 63) * 0x01010101u;
    if (how == 2) ok = DONE(cuMemsetD8Async(p, (unsigned char)value, n, l->stream));
    if (how == 3) value = (value & 0x3fff) * 0x00010001u;
    if (how == 3) ok = DONE(cuMemsetD16Async(p, (unsigned short)value, n / 2, l->stream));
    if (!ok) return;
    for (size_t i = 0; i < n; i += 4) memcpy(b->shadow + at + i, &value, 4);
}

static void duplicate(struct world *w, struct block *to, struct block *from) {
    size_t here, there, n = part(w, to, &here, 1);
    if (n > from->bytes) n = from->bytes;
    there = below(w, from->bytes - n + 1);
    if (to == from && here < there + n && there < here + n) return; // overlapping copies are not defined
    int lane = a_lane(w, to), how = (int)below(w, 4);
    if (!plan.peers && to->home != from->home) return;
    hand_over(w, from, lane), hand_over(w, to, lane);
    struct lane *l = &w->lanes[lane];
    CUdeviceptr a = to->at + here, b = from->at + there;
    uint64_t bytes = n;
    int ok;
    if (how == 0) ok = launched(w, COPY, lane, (void *[]){&a, &b, &bytes});
    else if (how == 1) ok = DONE(cuMemcpyPeerAsync(a, contexts[to->home], b, contexts[from->home], n, l->stream));
    else if (l->stream) ok = DONE(d.cuMemcpyDtoDAsync(a, b, n, l->stream));
    else ok = how == 2 ? DONE(d.cuMemcpyDtoD(a, b, n)) : DONE(d.cuMemcpy(a, b, n));
    if (ok) memmove(to->shadow + here, from->shadow + there, n);
}

static void calculate(struct world *w, struct block *to, struct block *one, struct block *other) {
    size_t at, n = part(w, to, &at, 4);
    if (n > one->bytes) n = one->bytes / 4 * 4;
    if (n > other->bytes) n = other->bytes / 4 * 4;
    if (!plan.peers && (to->home != one->home || to->home != other->home)) return;
    if (n == 0 || ((to == one || to == other) && at != 0 && at < n)) return;
    if (!plain(to->shadow + at, n) || !plain(one->shadow, n) || !plain(other->shadow, n)) return;
    int lane = a_lane(w, to), axpy = (int)below(w, 2), ok;
    hand_over(w, to, lane), hand_over(w, one, lane), hand_over(w, other, lane);
    CUdeviceptr y = to->at + at, x = one->at, z = other->at;
    uint64_t count = n / 4;
    float a = 0.5f;
    if (axpy) ok = launched(w, AXPY, lane, (void *[]){&y, &x, &a, &count});
    else ok = launched(w, ADD, lane, (void *[]){&y, &x, &z, &count});
    float *out = (float *)(to->shadow + at), *p = (float *)one->shadow, *q = (float *)other->shadow;
    for (uint64_t i = 0; ok && i < count; i++) out[i] = axpy ? out[i] + a * p[i] : p[i] + q[i];
}

static void drop(struct world *w, struct block *b, int look) {
    if (look) download(w, b, 0, b->bytes, a_lane(w, b));
    // cuMemFree waits for work of its own GPU; what the other one does is for the program to end.
    if (w->lanes[b->lane].gpu != b->home || w->lanes[b->lane].stream == NULL) wait_lane(w, b->lane);
    on(w, b->home);
    DONE(d.cuMemFree(b->at));
    free(b->shadow);
    memset(b, 0, sizeof *b);
}

static size_t a_size(struct world *w) {
    uint64_t kind = below(w, 32);
    if (kind < 10) return (4 << 10) + below(w, 1 << (11 + kind));
    return (2 << 20) + below(w, kind == 31 ? 22 << 20 : 2 << 20);
}

static void take(struct world *w, struct block *b, int home) {
    b->bytes = a_size(w) & ~(size_t)3;
    on(w, home);
    CUresult rc = d.cuMemAlloc(&b->at, b->bytes);
    if (rc != OUT_OF_MEMORY && !done(w, rc, "cuMemAlloc")) rc = OUT_OF_MEMORY;
    if (rc == OUT_OF_MEMORY) {
        memset(b, 0, sizeof *b);
        return;
    }
    b->home = home, b->lane = home * LANES;
    b->shadow = malloc(b->bytes);
    // What is in new memory is not defined: it is written before it is read.
    for (int tries = 0; tries < 20; tries++) {
        uint64_t before = w->refused;
        set(w, b, 0, b->bytes, a_lane(w, b), (int)below(w, 4));
        if (w->refused == before) return;
    }
    fail(w, "new memory cannot be written");
}

static void wait_somehow(struct world *w) {
    int lane = (int)below(w, plan.gpus * LANES), how = (int)below(w, 3);
    if (how == 0) return wait_all(w);
    if (how == 1) return wait_lane(w, lane);
    struct lane *l = &w->lanes[lane];
    on(w, l->gpu);
    SURELY(cuEventRecord(l->event, l->stream));
    SURELY(cuEventSynchronize(l->event));
    arrived(w, lane);
}

static void step(struct world *w) {
    struct block *b = &w->blocks[below(w, BLOCKS)], *c = &w->blocks[below(w, BLOCKS)];
    struct block *e = &w->blocks[below(w, BLOCKS)];
    size_t at, n;
    uint64_t what = below(w, 16);
    snprintf(w->what, sizeof w->what, "operation %d on blocks %d %d %d", (int)what, (int)(b - w->blocks),
             (int)(c - w->blocks), (int)(e - w->blocks));
    if (!b->at) return take(w, b, (int)below(w, plan.gpus));
    if (what < 1) return drop(w, b, (int)below(w, 2));
    n = part(w, b, &at, what < 5 ? 1 : 4);
    if (what < 3) upload(w, b, at, n, a_lane(w, b));
    else if (what < 5) download(w, b, at, n, a_lane(w, b));
    else if (what < 7) set(w, b, at, n, a_lane(w, b), (int)below(w, 4));
    else if (what < 9 && c->at) duplicate(w, b, c);
    else if (what >= 9 && what < 12 && c->at && e->at) calculate(w, b, c, e);
    else if (what >= 12) wait_somehow(w);
}

// What a page that moved wrongly would do.
static void spoil(struct world *w, struct block *b) {
    if (!b->at) return;
    uint32_t kept;
    memcpy(&kept, b->shadow, 4);
    set(w, b, 0, 4, b->home * LANES, 0);
    memcpy(b->shadow, &kept, 4);
}

static void sequence(struct world *w) {
    for (w->step = 1; w->step <= (int)plan.steps; w->step++) {
        step(w);
        for (int i = 0; i < BLOCKS && w->step == (int)plan.spoil; i++) spoil(w, &w->blocks[i]);
    }
    snprintf(w->what, sizeof w->what, "the end");
    wait_all(w);
    for (int i = 0; i < BLOCKS; i++)
        if (w->blocks[i].at) drop(w, &w->blocks[i], 1);
    wait_all(w);
}

static void open_lanes(struct world *w) {
    for (unsigned i = 0; i < plan.gpus * LANES; i++) {
        struct lane *l = &w->lanes[i];
        l->gpu = (int)i / LANES;
        on(w, l->gpu);
        // Lane 0 is the default stream, lane 3 does not wait for it.
        if (i % LANES) SURELY(d.cuStreamCreate(&l->stream, i % LANES == 3));
        SURELY(cuEventCreate(&l->event, 2));
    }
}

struct job { pthread_t thread; uint64_t index, sequences, read, refused; };

static void *work(void *argument) {
    struct job *job = argument;
    struct world *w = calloc(1, sizeof *w);
    open_lanes(w);
    for (uint64_t i = 0; i < job->sequences; i++) {
        w->sequence = i * plan.threads + job->index;
        uint64_t mixed = plan.seed * 1000003 + w->sequence;
        w->random = next(&mixed);
        sequence(w);
    }
    job->read = w->read, job->refused = w->refused;
    free(w);
    return NULL;
}

static char *image(void) {
    const char *path = getenv("CHAOS_IMAGE");
    if (!path) return strdup("image");
    FILE *file = need(fopen(path, "rb"), path);
    char *text = calloc(1, 16 << 20);
    if (fread(text, 1, (16 << 20) - 1, file) == 0) exit(4);
    fclose(file);
    return text;
}

static void begin(void) {
    void *handle = need(dlopen("libcuda.so.1", RTLD_NOW), "libcuda.so.1");
    find_by_dlsym(&d, handle);
#define FIND(name, params) name = need(dlsym(handle, #name), #name);
    MORE_FUNCTIONS(FIND)
#undef FIND
    int count = 0, one = 0, other = 0;
    CHECK(d.cuInit(0));
    CHECK(d.cuDeviceGetCount(&count));
    plan.gpus = count < GPUS ? (unsigned)count : GPUS;
    char *text = image();
    for (unsigned gpu = 0; gpu < plan.gpus; gpu++) {
        CUmodule module;
        CHECK(d.cuDevicePrimaryCtxRetain(&contexts[gpu], (int)gpu));
        CHECK(d.cuCtxSetCurrent(contexts[gpu]));
        CHECK(d.cuModuleLoadData(&module, text));
        for (int k = 0; k < KERNELS; k++) CHECK(d.cuModuleGetFunction(&kernels[gpu][k], module, names[k]));
    }
    free(text);
    if (plan.gpus < 2) return;
    CHECK(cuDeviceCanAccessPeer(&one, 0, 1));
    CHECK(cuDeviceCanAccessPeer(&other, 1, 0));
    plan.peers = one && other;
    for (int gpu = 0; plan.peers && gpu < 2; gpu++) {
        CHECK(d.cuCtxSetCurrent(contexts[gpu]));
        CHECK(d.cuCtxEnablePeerAccess(contexts[1 - gpu], 0));
    }
}

// Faults of a machine: single calls that are refused, far enough apart that a rollback succeeds.
static void faults(char *text, size_t size, uint64_t *random) {
    static const char *const calls[] = {"cuMemCreate",        "cuMemMap",         "cuMemSetAccess",
                                        "cuMemcpyDtoDAsync_v2", "cuMemcpyHtoD_v2", "cuLaunchKernel",
                                        "cuStreamSynchronize", "cuMemcpyAsync",    "cuMemUnmap",
                                        "cuCtxSynchronize"};
    size_t used = strlen(text);
    for (unsigned i = 0; i < sizeof calls / sizeof *calls; i++)
        for (unsigned nth = 40, k = 0; k < 4; k++) {
            nth += 20 + (unsigned)(next(random) % 60);
            used += (size_t)snprintf(text + used, size - used, "%s%s#%u:%d", i + k ? "+" : ",fault=", calls[i], nth,
                                     next(random) % 2 ? 2 : 999);
        }
}

// The first run of the program: chooses the machine and starts itself on it.
static void choose(char **argv) {
    uint64_t random = plan.seed;
    char sim[4096], number[32], limit[32];
    unsigned size = 16 << next(&random) % 3;
    unsigned kind = (unsigned)(plan.seed % 4);
    snprintf(sim, sizeof sim, "gpus=%d,mem=%uM,host=512M,seed=%llu,link=%s", 2 + (int)(next(&random) % 2),
             size, (unsigned long long)plan.seed, kind == 2 ? "none" : "nvlink4");
    if (kind == 3) faults(sim, sizeof sim, &random);
    static const char *const placements[] = {"home", "interleave", "balance"};
    static const char *const pages[] = {"2M", "4M", "auto"};
    snprintf(number, sizeof number, "%llu", (unsigned long long)plan.seed);
    setenv("VGMEM_SIM", sim, 1);
    setenv("VGMEM_CHAOS", number, 1);
    setenv("VGMEM_HOST", "96M", 1);
    snprintf(limit, sizeof limit, "%uM", size);
    setenv("VGMEM_DEVICE_LIMIT", limit, 1);
    setenv("VGMEM_PLACEMENT", placements[next(&random) % 3], 1);
    setenv("VGMEM_PAGE_SIZE", pages[next(&random) % 3], 1);
    setenv("VGMEM_LOG", kind == 3 ? "off" : "warn", 0);
    setenv("CHAOS_THREADS", kind == 1 ? "4" : "1", 1);
    setenv("CHAOS_FRAGILE", kind == 3 ? "1" : "0", 1);
    printf("machine %s placement %s pages %s threads %s\n", sim, getenv("VGMEM_PLACEMENT"), getenv("VGMEM_PAGE_SIZE"),
           getenv("CHAOS_THREADS"));
    fflush(stdout);
    execv("/proc/self/exe", argv);
    exit(4);
}

static unsigned setting(const char *name, unsigned otherwise) {
    const char *text = getenv(name);
    return text ? (unsigned)strtoul(text, NULL, 10) : otherwise;
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    plan.seed = strtoull(argv[1], NULL, 10);
    uint64_t sequences = strtoull(argv[2], NULL, 10), read = 0, refused = 0;
    if (!getenv("CHAOS_THREADS")) choose(argv);
    plan.threads = setting("CHAOS_THREADS", 1);
    plan.fragile = setting("CHAOS_FRAGILE", 0);
    plan.steps = setting("CHAOS_STEPS", 24);
    plan.spoil = setting("CHAOS_SPOIL", 0);
    // Copies of large blocks come and go: no system call for each.
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    if (plan.threads < 1 || plan.threads > THREADS) return 2;
    begin();
    struct job jobs[THREADS];
    for (unsigned t = 0; t < plan.threads; t++) {
        jobs[t] = (struct job){.index = t, .sequences = (sequences + plan.threads - 1 - t) / plan.threads};
        if (pthread_create(&jobs[t].thread, NULL, work, &jobs[t])) return 4;
    }
    for (unsigned t = 0; t < plan.threads; t++) {
        pthread_join(jobs[t].thread, NULL);
        read += jobs[t].read, refused += jobs[t].refused;
    }
    printf("read %llu\nrefused %llu\nsequences %llu\n", (unsigned long long)read, (unsigned long long)refused,
           (unsigned long long)sequences);
    return 0;
}
