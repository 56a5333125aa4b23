// Programs that a pager with one broken rule cannot get right; for a rule that no other adversary depends on.
//   adversary_rules MODE SEED
#include "adversary.h"

static CUstream free_stream(void) {
    CUstream s;
    CHECK(d.cuStreamCreate(&s, 1)); // does not wait for the default stream
    return s;
}

// Sends away what it can: this needs most of the GPU at once.
static void sweep(struct world *w, struct block *huge) {
    touch(w, huge);
    CHECK(d.cuStreamSynchronize(w->stream));
}

static int copied_enough;
static struct world two;
static void *press_on(void *of) {
    struct world *w = of;
    CHECK(d.cuCtxSetCurrent(context));
    while (!__atomic_load_n(&copied_enough, __ATOMIC_SEQ_CST) && w->launches < 4000) {
        sweep(w, w->blocks);
        press(w, 2);
    }
    return NULL;
}
// Copies from and to plain memory keep one thread in the driver for long, and have no marker before they are over:
// another thread's launches must not move what they work on.
static void long_calls(struct world *w) {
    pthread_t thread;
    struct block *large[2] = {make(w, gpu_bytes / 4), make(w, gpu_bytes / 4)};
    two.random = w->random + 5;
    two.stream = free_stream();
    make(&two, gpu_bytes / 4 * 3);
    add_ballast(&two, 3 * gpu_bytes);
    if (pthread_create(&thread, NULL, press_on, &two)) exit(3);
    for (int i = 0; i < 12; i++) {
        struct block *b = large[i % 2];
        touch(w, b); // comes home
        CHECK(d.cuStreamSynchronize(NULL));
        words(b)[below(w, b->bytes / 8)] = next(w) & 0x3f8000003f800000u;
        upload(w, b, 0, b->bytes);
        if (i % 3 == 0) look(w, b, 0, b->bytes);
    }
    __atomic_store_n(&copied_enough, 1, __ATOMIC_SEQ_CST);
    pthread_join(thread, NULL);
    finish(&two);
    w->wrong += two.wrong, w->read += two.read, w->launches += two.launches;
}

enum { LONG = 4, LAUNCHES = 16 };
// Kernels work on their memory for long, while a launch of another stream needs its place.
static void long_kernels(struct world *w) {
    struct block *b[LONG], *huge = make(w, gpu_bytes / 4 * 3);
    CUstream s = free_stream();
    uint64_t n = 14 * MIB / 4;
    float a = 1;
    for (int i = 0; i < LONG; i++) b[i] = make(w, 4 * n);
    add_ballast(w, 3 * gpu_bytes);
    for (int round = 0; round < 5; round++, a = -a) {
        for (int i = 0; i < LONG; i++) touch(w, b[i]);
        CHECK(d.cuCtxSynchronize());
        for (int i = 0; i < LAUNCHES; i++)
            launch_on(w, s, axpy_f32, (void *[]){&b[(i + 1) % LONG]->at, &b[i % LONG]->at, &a, &n});
        sweep(w, huge);
        for (int i = 0; i < LAUNCHES; i++) axpy_shadow(b[(i + 1) % LONG], 0, b[i % LONG], 0, a, n);
        press(w, 3);
        CHECK(d.cuStreamSynchronize(s));
    }
}

enum { CHAIN = 4, COPIES = 12 };
// Nothing but copies and memsets is in flight on a stream, for long, while a launch of another moves pages.
static void copies(struct world *w) {
    struct block *chain[CHAIN], *huge = make(w, gpu_bytes / 4 * 3);
    CUstream s = free_stream();
    for (int i = 0; i < CHAIN; i++) chain[i] = make(w, 14 * MIB);
    add_ballast(w, 3 * gpu_bytes);
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < CHAIN; i++) touch(w, chain[i]);
        CHECK(d.cuCtxSynchronize());
        uint64_t us = 60000; // until the host has given all of it
        launch_on(w, s, sleep_us, (void *[]){&us});
        for (int i = 0; i < COPIES; i++) {
            struct block *to = chain[(i + 1) % CHAIN], *from = chain[i % CHAIN];
            CHECK(d.cuMemcpyDtoDAsync(to->at, from->at, to->bytes, s));
            memcpy(to->shadow, from->shadow, to->bytes);
            uint32_t value = 0x40000000u + ((uint32_t)below(w, 4) << 22), n = 1 << 20;
            CHECK(d.cuMemsetD32Async(to->at, value, n, s));
            for (uint32_t k = 0; k < n; k++) ((uint32_t *)to->shadow)[k] = value;
        }
        sweep(w, huge);
        press(w, 3);
        CHECK(d.cuStreamSynchronize(s));
    }
}

enum { TARGETS = 20 };
// A kernel that followed nothing so far, whatever was looked at, follows a table to memory that was put away. This
// cannot be served beside other work: it has to end loudly.
static void stray(struct world *w) {
    struct block *targets[TARGETS], *table = make(w, 2 * MIB), *staged = make(w, 2 * MIB);
    struct block *huge = make(w, gpu_bytes / 4 * 3);
    uint64_t none = 0, n = TARGETS, each = 1000;
    float a = 1;
    for (int i = 0; i < TARGETS; i++) targets[i] = make(w, 2 * MIB);
    for (int i = 0; i < TARGETS; i++) words(staged)[i] = targets[i]->at;
    memset(table->shadow, 0, table->bytes);
    upload(w, table, 0, table->bytes);
    upload(w, staged, 0, 8 * n);
    add_ballast(w, 3 * gpu_bytes);
    for (int i = 0; i < 20; i++) {
        go(w, table_add_f32, (void *[]){&table->at, &a, &none, &each});
        press(w, 2);
        CHECK(d.cuCtxSynchronize());
    }
    for (int i = 0; i < TARGETS; i++) touch(w, targets[i]);
    sweep(w, huge);
    CHECK(d.cuMemcpyDtoD(table->at, staged->at, 8 * n));
    memcpy(table->shadow, staged->shadow, 8 * n);
    go(w, table_add_f32, (void *[]){&table->at, &a, &n, &each});
    for (int i = 0; i < TARGETS; i++)
        for (uint64_t k = 0; k < each; k++) floats(targets[i])[k] += a;
    press(w, 6);
}

// Memory is freed while a kernel is in flight that writes to it late, and new memory takes its place at once.
static void freed_busy(struct world *w) {
    CUstream s = free_stream();
    add_ballast(w, gpu_bytes / 2);
    for (int i = 0; i < 12; i++) {
        struct block *b = make(w, 2 * MIB);
        uint64_t us = 20000;
        uint32_t value = 0x7f000000u + (uint32_t)i;
        launch_on(w, s, write_after_us, (void *[]){&b->at, &value, &us});
        drop(w, b);
        b = make(w, 2 * MIB);
        CHECK(d.cuStreamSynchronize(s));
        look(w, b, 0, b->bytes);
        if (i % 2) drop(w, b);
    }
}

enum { FREED = 4 };
// Memory is used in a circle, so that what was used last is needed last and is on its way out. Right then it is
// freed, and new memory with other contents takes its place at once.
static void freed_early(struct world *w) {
    while (taken < 2 * gpu_bytes) w->ballast[w->ballasts++] = make(w, 2 * MIB);
    for (int i = 0; i < 6 * w->ballasts; i++) {
        touch(w, w->ballast[i % w->ballasts]);
        if (i < 2 * w->ballasts || i % 23) continue;
        struct block *freed[FREED];
        for (int k = 0; k < FREED; k++) {
            freed[k] = w->ballast[(i - k) % w->ballasts];
            CHECK(d.cuMemFree(freed[k]->at));
        }
        for (int k = 0; k < FREED; k++) CHECK(d.cuMemAlloc(&freed[k]->at, freed[k]->bytes));
        for (int k = 0; k < FREED; k++) {
            for (size_t n = 0; n < freed[k]->bytes / 4; n++) floats(freed[k])[n] = (float)((n + (size_t)i) & 255);
            upload(w, freed[k], 0, freed[k]->bytes);
        }
    }
}

enum { NODES = 8 };
// A graph whose nodes name memory that was put away, among launches that work with nothing else than they name.
static void calm_graphs(struct world *w) {
    struct block *y[NODES], *x[NODES], *huge = make(w, gpu_bytes / 4 * 3);
    CUstream s = free_stream();
    CUgraph graph;
    CUgraphExec exec;
    float a = 1;
    uint64_t n = MIB;
    for (int i = 0; i < NODES; i++) y[i] = make(w, 4 * MIB), x[i] = make(w, 4 * MIB);
    CHECK(cuStreamBeginCapture_v2(s, 2));
    for (int i = 0; i < NODES; i++) launch_on(w, s, axpy_f32, (void *[]){&y[i]->at, &x[i]->at, &a, &n});
    CHECK(cuStreamEndCapture(s, &graph));
    CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    add_ballast(w, 3 * gpu_bytes);
    for (int round = 0; round < 2; round++) {
        press(w, 50 + 40 * round); // pages move beside each other's launches again
        for (int i = 0; i < NODES; i++) touch(w, y[i]), touch(w, x[i]);
        sweep(w, huge);
        CHECK(cuGraphLaunch(exec, s));
        for (int i = 0; i < NODES; i++) axpy_shadow(y[i], 0, x[i], 0, a, n);
        press(w, 3);
        CHECK(d.cuStreamSynchronize(s));
    }
}

int main(int argc, char **argv) {
    static const struct mode modes[] = {
        {"long_calls", long_calls}, {"long_kernels", long_kernels}, {"copies", copies}, {"stray", stray},
        {"freed_busy", freed_busy}, {"freed_early", freed_early}, {"calm_graphs", calm_graphs},
    };
    return run_mode(argc, argv, modes, sizeof modes / sizeof *modes);
}
