// Work that is in flight, waits, or comes from several threads while memory is moved: every byte must be right.
//   adversary_time MODE SEED
#include "adversary.h"

static CUstream free_stream(void) {
    CUstream s;
    CHECK(d.cuStreamCreate(&s, 1)); // does not wait for the default stream
    return s;
}

static void write_late(struct world *w, CUstream s, const struct block *b, size_t word, uint32_t value, uint64_t us) {
    CUdeviceptr to = b->at + 4 * word;
    launch_on(w, s, write_after_us, (void *[]){&to, &value, &us});
    memcpy((char *)b->shadow + 4 * word, &value, 4);
}

// A kernel writes late; copies of the same memory wait behind it, and others' pages have to move meanwhile.
static void late_writer(struct world *w) {
    struct block *late = make(w, 8 * MIB), *copy = make(w, 8 * MIB), *source = make(w, 2 * MIB);
    CUstream s = free_stream();
    add_ballast(w, 3 * gpu_bytes);
    CHECK(d.cuCtxSynchronize());
    for (int round = 0; round < 14; round++) {
        write_late(w, s, late, below(w, late->bytes / 4), (uint32_t)(round + 7), 12000);
        CHECK(d.cuMemcpyDtoDAsync(copy->at, late->at, copy->bytes, s));
        memcpy(copy->shadow, late->shadow, copy->bytes);
        size_t at = 4 * below(w, MIB), n = 256 << 10;
        CHECK(d.cuMemcpyHtoDAsync(late->at + at, source->shadow, n, s));
        memcpy((char *)late->shadow + at, source->shadow, n);
        write_late(w, s, copy, below(w, 4096), (uint32_t)round, 5000);
        press(w, 4);
        CHECK(d.cuMemsetD32Async(late->at + 4 * MIB, (unsigned)round, 1000, s));
        for (int i = 0; i < 1000; i++) ((uint32_t *)late->shadow)[MIB + i] = (uint32_t)round;
        if (round % 3) continue;
        CHECK(d.cuStreamSynchronize(s));
        look(w, copy, 0, copy->bytes);
    }
}

// Writes the word that a persistent kernel waits for.
static void release(int how, struct block *flag, CUstream s, uint32_t value) {
    static uint32_t from;
    from = value;
    if (how == 0) CHECK(d.cuMemcpyHtoDAsync(flag->at, &from, 4, s));
    if (how == 1) CHECK(d.cuMemsetD32Async(flag->at, value, 1, s));
    memcpy(flag->shadow, &value, 4);
}

// A persistent kernel runs; other streams' work goes on, and at last a copy or memset ends it.
static void persistent(struct world *w) {
    struct block *flag = make(w, 4 * MIB);
    CUstream spinning = free_stream(), working = free_stream(), writing = free_stream();
    CHECK(d.cuMemsetD32(flag->at, 0, 1));
    memset(flag->shadow, 0, 4);
    add_ballast(w, 3 * gpu_bytes);
    for (int how = 0; how < 2; how++) {
        uint32_t value = 77 + (uint32_t)how;
        w->stream = NULL;
        press(w, 20);
        CHECK(d.cuCtxSynchronize());
        launch_on(w, spinning, spin_until_u32, (void *[]){&flag->at, &value});
        w->stream = working;
        press(w, 1); // may wait for two seconds: what is in flight may need any page
        CHECK(d.cuStreamSynchronize(working));
        printf("spins %d\n", cuStreamQuery(spinning));
        release(how, flag, writing, value);
        CHECK(d.cuStreamSynchronize(spinning));
    }
    w->stream = NULL;
    press(w, 20);
}

// The kernel began when everything still fit, before any launch was looked at.
static void persistent_early(struct world *w) {
    struct block *flag = make(w, 4 * MIB);
    CUstream spinning = free_stream(), working = free_stream(), writing = free_stream();
    uint32_t value = 77;
    CHECK(d.cuMemsetD32(flag->at, 0, 1));
    CHECK(d.cuCtxSynchronize());
    launch_on(w, spinning, spin_until_u32, (void *[]){&flag->at, &value});
    add_ballast(w, 3 * gpu_bytes);
    w->stream = working;
    press(w, 1);
    CHECK(d.cuStreamSynchronize(working));
    printf("spins %d\n", cuStreamQuery(spinning));
    release(1, flag, writing, value);
    CHECK(d.cuStreamSynchronize(spinning));
    w->stream = NULL;
    press(w, 20);
}

// A graph of another stream is launched while the kernel runs: it leaves no marker.
static void persistent_beside_a_graph(struct world *w) {
    struct block *flag = make(w, 4 * MIB), *y = make(w, 4 * MIB), *x = make(w, 4 * MIB);
    CUstream spinning = free_stream(), working = free_stream(), writing = free_stream();
    CUgraph graph;
    CUgraphExec exec;
    uint32_t value = 77;
    float a = 1;
    uint64_t n = MIB;
    CHECK(d.cuMemsetD32(flag->at, 0, 1));
    add_ballast(w, 3 * gpu_bytes);
    press(w, 20);
    CHECK(cuStreamBeginCapture_v2(working, 2));
    launch_on(w, working, axpy_f32, (void *[]){&y->at, &x->at, &a, &n});
    CHECK(cuStreamEndCapture(working, &graph));
    CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    CHECK(d.cuCtxSynchronize());
    launch_on(w, spinning, spin_until_u32, (void *[]){&flag->at, &value});
    CHECK(cuGraphLaunch(exec, working));
    axpy_shadow(y, 0, x, 0, a, n);
    w->stream = working;
    press(w, 1);
    CHECK(d.cuStreamSynchronize(working));
    printf("spins %d\n", cuStreamQuery(spinning));
    release(0, flag, writing, value);
    CHECK(d.cuStreamSynchronize(spinning));
    w->stream = NULL;
    press(w, 20);
}

// Launches in every form, cooperative ones among them.
static void cooperative(struct world *w) {
    add_ballast(w, 3 * gpu_bytes);
    struct { CUdeviceptr y, x; float a; uint64_t n; } packed;
    size_t size = sizeof packed;
    void *extra[] = {(void *)1, &packed, (void *)2, &size, NULL};
    struct config c = {{64, 1, 1}, {256, 1, 1}, 0, NULL, NULL, 0};
    for (int i = 0; i < 90; i++) {
        struct block *y = w->ballast[below(w, (uint64_t)w->ballasts)];
        struct block *x = w->ballast[below(w, (uint64_t)w->ballasts)];
        uint64_t n = (x->bytes < y->bytes ? x->bytes : y->bytes) / 4;
        float a = i % 2 ? 1 : -0.5f;
        packed.y = y->at, packed.x = x->at, packed.a = a, packed.n = n;
        void *params[] = {&y->at, &x->at, &a, &n};
        if (i % 3 == 0) CHECK(cuLaunchCooperativeKernel(axpy_f32, 64, 1, 1, 256, 1, 1, 0, NULL, params));
        if (i % 3 == 1) CHECK(cuLaunchKernelEx(&c, axpy_f32, params, NULL));
        if (i % 3 == 2) CHECK(d.cuLaunchKernel(axpy_f32, 64, 1, 1, 256, 1, 1, 0, NULL, NULL, extra));
        axpy_shadow(y, 0, x, 0, a, n);
    }
}

// Many launches of several streams add to counters that lie on many pages.
static void atomics(struct world *w) {
    struct block *counters = make(w, 16 * MIB);
    CUstream streams[4];
    for (int i = 0; i < 4; i++) streams[i] = free_stream();
    memset(counters->shadow, 0, counters->bytes);
    upload(w, counters, 0, counters->bytes);
    add_ballast(w, 3 * gpu_bytes);
    CHECK(d.cuCtxSynchronize());
    for (int i = 0; i < 600; i++) {
        size_t which = below(w, 8) * (counters->bytes / 8) + 8 * below(w, 2);
        CUdeviceptr at = counters->at + which;
        uint64_t n = 1 + below(w, 5000);
        launch_on(w, streams[i % 4], atomic_add_u64, (void *[]){&at, &n});
        words(counters)[which / 8] += n;
        if (i % 10 == 9) press(w, 1);
    }
}

static struct world two;
static void *evict_the_other(void *of) {
    struct world *w = of;
    CHECK(d.cuCtxSetCurrent(context));
    for (int i = 0; i < 10; i++) {
        press(w, 6);
        struct block *b = w->ballast[below(w, (uint64_t)w->ballasts)], *c = w->ballast[0];
        size_t n = b->bytes < c->bytes ? b->bytes : c->bytes;
        if (b == c) continue;
        CHECK(cuMemcpyDtoDAsync_v2_ptsz(c->at, b->at, n, NULL));
        memcpy(c->shadow, b->shadow, n);
        for (int k = 0; k < 3; k++) { // calls that take a while, when the other moves pages
            b = w->ballast[below(w, (uint64_t)w->ballasts)];
            upload(w, b, 0, b->bytes);
            look(w, b, 0, b->bytes);
        }
    }
    CHECK(cuStreamSynchronize_ptsz(NULL));
    return NULL;
}
// Two threads with default streams of their own, each with more than half of what the GPU holds.
static void two_threads(struct world *w) {
    pthread_t thread;
    two.random = w->random + 5;
    w->twin = two.twin = 1;
    add_ballast(w, 3 * gpu_bytes / 2);
    add_ballast(&two, 3 * gpu_bytes);
    if (pthread_create(&thread, NULL, evict_the_other, &two)) exit(3);
    evict_the_other(w);
    pthread_join(thread, NULL);
    finish(&two);
    w->wrong += two.wrong, w->read += two.read, w->launches += two.launches;
}

static int freed_enough;
static void *press_on(void *of) {
    struct world *w = of;
    CHECK(d.cuCtxSetCurrent(context));
    while (!__atomic_load_n(&freed_enough, __ATOMIC_SEQ_CST) && w->launches < 4000) press(w, 1);
    return NULL;
}
// Memory is freed while work is in flight and another thread's launches move pages; new memory of the same size
// takes its place at once, with other contents.
static void free_and_again(struct world *w) {
    pthread_t thread;
    CUstream s = free_stream(), other = free_stream();
    struct block *kept[6] = {NULL}, *near = make(w, 2 * MIB);
    static const size_t sizes[] = {2 * MIB, 6 * MIB, 10 * MIB, 3 * MIB};
    two.random = w->random + 5;
    two.stream = other;
    add_ballast(w, gpu_bytes);
    add_ballast(&two, 3 * gpu_bytes);
    CHECK(d.cuCtxSynchronize());
    if (pthread_create(&thread, NULL, press_on, &two)) exit(3);
    for (int i = 0; i < 40; i++) {
        struct block **b = &kept[i % 6];
        size_t size = sizes[below(w, 4)];
        if (*b) {
            write_late(w, s, *b, 17, 3, 2000);
            write_late(w, s, near, below(w, 1000), (uint32_t)i, 1000);
            drop(w, *b);
        }
        *b = make(w, size);
        if (i % 3 == 0) touch(w, *b);
        if (i % 5 == 0) press(w, 1);
        if (kept[(i + 3) % 6]) look(w, kept[(i + 3) % 6], 0, 2 * MIB);
    }
    __atomic_store_n(&freed_enough, 1, __ATOMIC_SEQ_CST);
    pthread_join(thread, NULL);
    finish(&two);
    w->wrong += two.wrong, w->read += two.read, w->launches += two.launches;
}

enum { NODES = 12 };
// A chain of launches: y[i] += a * x[i] for each pair.
struct chain { struct block *y[NODES], *x[NODES]; float a; uint64_t n; };
static void chain_shadow(const struct chain *c) {
    for (int i = 0; i < NODES; i++) axpy_shadow(c->y[i], 0, c->x[i], 0, c->a, c->n);
}
static struct kernel_node node_of(void **params) {
    return (struct kernel_node){axpy_f32, 64, 1, 1, 256, 1, 1, 0, params, NULL, NULL, NULL};
}
static CUgraph graph_of(struct chain *c, CUgraphNode *nodes) {
    CUgraph graph;
    CHECK(cuGraphCreate(&graph, 0));
    for (int i = 0; i < NODES; i++) {
        struct kernel_node node = node_of((void *[]){&c->y[i]->at, &c->x[i]->at, &c->a, &c->n});
        CHECK(cuGraphAddKernelNode_v2(&nodes[i], graph, i ? &nodes[i - 1] : NULL, i > 0, &node));
    }
    return graph;
}
static CUgraph captured_graph(struct world *w, struct chain *c, CUstream s) {
    CUgraph graph;
    CHECK(cuStreamBeginCapture_v2(s, 2));
    for (int i = 0; i < NODES; i++) launch_on(w, s, axpy_f32, (void *[]){&c->y[i]->at, &c->x[i]->at, &c->a, &c->n});
    CHECK(cuStreamEndCapture(s, &graph));
    return graph;
}
static void shuffle(struct world *w, struct chain *c) {
    for (int i = 0; i < NODES; i++) {
        int k = (int)below(w, NODES);
        struct block *b = c->y[i];
        c->y[i] = c->x[k], c->x[k] = b;
    }
    c->a = c->a == 1 ? -0.5f : 1;
}
static void run_graph(struct world *w, CUgraphExec exec, const struct chain *c, int times, CUstream s) {
    uint64_t us = 40000; // the graph still runs when the next launches come
    for (int i = 0; i < times; i++) {
        launch_on(w, s, sleep_us, (void *[]){&us});
        CHECK(cuGraphLaunch(exec, s));
        chain_shadow(c);
        press(w, 3);
    }
}
// Graphs whose nodes need more than fits, among plain launches, and after their nodes were given other memory. The
// blocks of the graphs are ballast, too.
static void graphs(struct world *w) {
    static struct chain c = {.a = 1, .n = 2 * MIB};
    CUgraphNode nodes[NODES];
    CUgraphExec exec, captured;
    CUstream s;
    struct update_info info;
    CHECK(d.cuStreamCreate(&s, 0)); // in order with the default stream
    for (int i = 0; i < NODES; i++) {
        w->ballast[w->ballasts++] = c.y[i] = make(w, 8 * MIB);
        w->ballast[w->ballasts++] = c.x[i] = make(w, 8 * MIB);
    }
    add_ballast(w, 3 * gpu_bytes);
    CUgraph graph = graph_of(&c, nodes);
    CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    run_graph(w, exec, &c, 3, NULL);
    for (int round = 0; round < 3; round++) {
        shuffle(w, &c);
        for (int i = 0; i < NODES; i++) {
            struct kernel_node node = node_of((void *[]){&c.y[i]->at, &c.x[i]->at, &c.a, &c.n});
            CHECK(cuGraphExecKernelNodeSetParams_v2(exec, nodes[i], &node));
        }
        run_graph(w, exec, &c, 2, round % 2 ? s : NULL);
        shuffle(w, &c);
        CUgraphNode others[NODES];
        CUgraph other = graph_of(&c, others);
        CHECK(cuGraphExecUpdate_v2(exec, other, &info));
        run_graph(w, exec, &c, 2, NULL);
        CHECK(cuGraphDestroy(other));
        CUgraph third = captured_graph(w, &c, s);
        CHECK(cuGraphInstantiateWithFlags(&captured, third, 0));
        run_graph(w, captured, &c, 2, s);
        CHECK(d.cuCtxSynchronize());
        CHECK(cuGraphExecDestroy(captured));
        CHECK(cuGraphDestroy(third));
    }
}

int main(int argc, char **argv) {
    static const struct mode modes[] = {
        {"late_writer", late_writer}, {"persistent", persistent}, {"persistent_early", persistent_early},
        {"persistent_beside_a_graph", persistent_beside_a_graph}, {"cooperative", cooperative},
        {"atomics", atomics}, {"two_threads", two_threads}, {"free_and_again", free_and_again}, {"graphs", graphs},
    };
    return run_mode(argc, argv, modes, sizeof modes / sizeof *modes);
}
