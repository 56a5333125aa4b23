// Graphs of all kinds of plain nodes among pressure: what they do is the same, whole or node by node.
//   graph_nodes MODE SEED
#include "adversary.h"

struct memset_node { CUdeviceptr at; size_t pitch; unsigned value, unit; size_t width, height; };

#define GRAPH_FUNCTIONS(X)                                                                     \
    X(cuMemsetD32Async, (CUdeviceptr, unsigned, size_t, CUstream))                             \
    X(cuMemsetD2D32Async, (CUdeviceptr, size_t, unsigned, size_t, size_t, CUstream))           \
    X(cuMemcpyDtoDAsync_v2, (CUdeviceptr, CUdeviceptr, size_t, CUstream))                      \
    X(cuMemcpyDtoHAsync_v2, (void *, CUdeviceptr, size_t, CUstream))                           \
    X(cuGraphAddMemsetNode, (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const struct memset_node *, CUcontext)) \
    X(cuGraphExecMemsetNodeSetParams, (CUgraphExec, CUgraphNode, const struct memset_node *, CUcontext)) \
    X(cuGraphNodeSetEnabled, (CUgraphExec, CUgraphNode, unsigned))
#define MEMBER(name, params) static CUresult(*name) params;
GRAPH_FUNCTIONS(MEMBER)
#undef MEMBER

static void find_more(void) {
    void *handle = need(dlopen("libcuda.so.1", RTLD_NOW), "libcuda.so.1");
#define FIND(name, params) name = need(dlsym(handle, #name), #name);
    GRAPH_FUNCTIONS(FIND)
#undef FIND
}

static unsigned bits(float value) {
    unsigned word;
    memcpy(&word, &value, 4);
    return word;
}
static CUstream free_stream(void) {
    CUstream s;
    CHECK(d.cuStreamCreate(&s, 1)); // does not wait for the default stream
    return s;
}

enum { BLOCK = 8 * MIB, PITCH = 4096, WIDE = 500, ROWS = 900 };
// What one graph works on; half and minus are its factors.
struct work { struct block *y[3], *x[3], *z; float half, minus, three; uint64_t n; };

static void make_work(struct world *w, struct work *k) {
    *k = (struct work){.half = 0.5f, .minus = -1, .three = 3, .n = BLOCK / 4};
    for (int i = 0; i < 3; i++) k->y[i] = make(w, BLOCK), k->x[i] = make(w, BLOCK);
    k->z = make(w, BLOCK);
}

// Two branches that meet: memsets, a copy, launches of either kind.
static CUgraph capture(struct world *w, struct work *k, CUstream s, CUstream t) {
    CUgraph graph;
    CUevent fork, join;
    CHECK(cuEventCreate(&fork, 2));
    CHECK(cuEventCreate(&join, 2));
    CHECK(cuStreamBeginCapture_v2(s, 2));
    CHECK(cuMemsetD32Async(k->z->at, bits(2), k->n, s));
    CHECK(cuEventRecord(fork, s));
    CHECK(cuStreamWaitEvent(t, fork, 0));
    launch_on(w, s, axpy_f32, (void *[]){&k->y[0]->at, &k->x[0]->at, &k->half, &k->n});
    CHECK(cuLaunchCooperativeKernel(scale_f32, 16, 1, 1, 256, 1, 1, 0, s, (void *[]){&k->y[0]->at, &k->minus, &k->n}));
    CHECK(cuMemcpyDtoDAsync_v2(k->y[1]->at + 4096, k->x[1]->at, BLOCK - 4096, t));
    CHECK(cuMemsetD2D32Async(k->y[2]->at, PITCH, bits(7), WIDE, ROWS, t));
    CHECK(cuMemsetD8Async(k->y[2]->at + BLOCK / 2, 0, 1024, t));
    CHECK(cuEventRecord(join, t));
    CHECK(cuStreamWaitEvent(s, join, 0));
    launch_on(w, s, axpy_f32, (void *[]){&k->y[0]->at, &k->y[1]->at, &k->half, &k->n});
    launch_on(w, s, axpy_f32, (void *[]){&k->y[2]->at, &k->z->at, &k->half, &k->n});
    launch_on(w, s, axpy_f32, (void *[]){&k->x[2]->at, &k->y[2]->at, &k->minus, &k->n});
    CHECK(cuStreamEndCapture(s, &graph));
    return graph;
}
static void shadow(struct work *k) {
    for (uint64_t i = 0; i < k->n; i++) floats(k->z)[i] = 2;
    axpy_shadow(k->y[0], 0, k->x[0], 0, k->half, k->n);
    for (uint64_t i = 0; i < k->n; i++) floats(k->y[0])[i] *= k->minus;
    memcpy((char *)k->y[1]->shadow + 4096, k->x[1]->shadow, BLOCK - 4096);
    for (int row = 0; row < ROWS; row++)
        for (int i = 0; i < WIDE; i++) floats(k->y[2])[row * (PITCH / 4) + i] = 7;
    memset((char *)k->y[2]->shadow + BLOCK / 2, 0, 1024);
    axpy_shadow(k->y[0], 0, k->y[1], 0, k->half, k->n);
    axpy_shadow(k->y[2], 0, k->z, 0, k->half, k->n);
    axpy_shadow(k->x[2], 0, k->y[2], 0, k->minus, k->n);
}

// y += a * x with the parameters in one piece, as cuBLAS gives them.
static void packed_axpy(CUstream s, struct block *y, struct block *x, float a, uint64_t n) {
    struct { CUdeviceptr y, x; float a; uint64_t n; } all = {y->at, x->at, a, n};
    size_t size = sizeof all;
    void *list[] = {(void *)1, &all, (void *)2, &size, NULL};
    CHECK(d.cuLaunchKernel(axpy_f32, 16, 1, 1, 256, 1, 1, 0, s, NULL, list));
}

// The same in a chain.
static CUgraph capture_chain(struct world *w, struct work *k, CUstream s) {
    CUgraph graph;
    CHECK(cuStreamBeginCapture_v2(s, 2));
    CHECK(cuMemsetD32Async(k->z->at, bits(2), k->n, s));
    launch_on(w, s, axpy_f32, (void *[]){&k->y[0]->at, &k->x[0]->at, &k->half, &k->n});
    CHECK(cuLaunchCooperativeKernel(scale_f32, 16, 1, 1, 256, 1, 1, 0, s, (void *[]){&k->y[0]->at, &k->minus, &k->n}));
    CHECK(cuMemcpyDtoDAsync_v2(k->y[1]->at + 4096, k->x[1]->at, BLOCK - 4096, s));
    CHECK(cuMemsetD2D32Async(k->y[2]->at, PITCH, bits(7), WIDE, ROWS, s));
    CHECK(cuMemsetD8Async(k->y[2]->at + BLOCK / 2, 0, 1024, s));
    launch_on(w, s, axpy_f32, (void *[]){&k->y[0]->at, &k->y[1]->at, &k->half, &k->n});
    packed_axpy(s, k->y[2], k->z, k->half, k->n);
    launch_on(w, s, axpy_f32, (void *[]){&k->x[2]->at, &k->y[2]->at, &k->minus, &k->n});
    CHECK(cuStreamEndCapture(s, &graph));
    return graph;
}

// Launches on two streams by turns: only the graph itself keeps them in order.
static void all_kinds(struct world *w, int in_a_chain) {
    struct work k[2];
    CUgraphExec exec[2];
    CUstream s = free_stream(), t = free_stream();
    for (int i = 0; i < 2; i++) make_work(w, &k[i]);
    add_ballast(w, 3 * gpu_bytes);
    for (int i = 0; i < 2; i++) {
        CUgraph graph = in_a_chain ? capture_chain(w, &k[i], s) : capture(w, &k[i], s, t);
        CHECK(cuGraphInstantiateWithFlags(&exec[i], graph, 0));
        CHECK(cuGraphDestroy(graph)); // what it does is known all the same
    }
    for (int round = 0; round < 10; round++)
        for (int i = 0; i < 2; i++) {
            uint64_t us = 3000;
            CUstream on = (round + i) % 3 ? s : t;
            // The first launch goes by nodes only into an idle stream.
            if (round == 0) CHECK(d.cuStreamSynchronize(on));
            else launch_on(w, on, sleep_us, (void *[]){&us});
            CHECK(cuGraphLaunch(exec[i], on));
            shadow(&k[i]);
            press(w, 4);
        }
    for (int i = 0; i < 2; i++) CHECK(cuGraphExecDestroy(exec[i])); // while they run
    CHECK(d.cuCtxSynchronize());
}
static void chain(struct world *w) { all_kinds(w, 1); }
static void branches(struct world *w) { all_kinds(w, 0); }

// A graph that takes a while, and what it does would show if two launches overlapped.
static CUgraphExec slow(struct world *w, struct work *k, CUstream s) {
    static uint64_t us = 10000;
    CUgraph graph;
    CUgraphExec exec;
    CHECK(cuStreamBeginCapture_v2(s, 2));
    launch_on(w, s, sleep_us, (void *[]){&us});
    launch_on(w, s, axpy_f32, (void *[]){&k->y[0]->at, &k->x[0]->at, &k->half, &k->n});
    launch_on(w, s, scale_f32, (void *[]){&k->y[0]->at, &k->minus, &k->n});
    CHECK(cuStreamEndCapture(s, &graph));
    CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    return exec;
}
static void launch_slow(struct work *k, CUgraphExec exec, CUstream s) {
    CHECK(cuGraphLaunch(exec, s));
    axpy_shadow(k->y[0], 0, k->x[0], 0, k->half, k->n);
    for (uint64_t i = 0; i < k->n; i++) floats(k->y[0])[i] *= k->minus;
}

// Launches of one graph on two streams with nothing else between them, the first ones before there is pressure.
static void order(struct world *w) {
    struct work k;
    CUstream s = free_stream(), t = free_stream();
    make_work(w, &k);
    CHECK(d.cuCtxSynchronize());
    CUgraphExec exec = slow(w, &k, s);
    for (int i = 0; i < 14; i++) {
        if (i == 2) {
            add_ballast(w, 3 * gpu_bytes);
            press(w, 20);
        }
        launch_slow(&k, exec, i % 2 ? t : s);
    }
    CHECK(d.cuCtxSynchronize());
    press(w, 20);
}

// Two threads launch it by turns, each on its own default stream.
static struct turns { pthread_mutex_t lock; pthread_cond_t next; int turn; struct work k; CUgraphExec exec; } turns = {
    .lock = PTHREAD_MUTEX_INITIALIZER, .next = PTHREAD_COND_INITIALIZER};
static void *take_turns(void *me) {
    CHECK(d.cuCtxSetCurrent(context));
    pthread_mutex_lock(&turns.lock);
    while (turns.turn < 12) {
        if (turns.turn % 2 == (int)(uintptr_t)me) {
            launch_slow(&turns.k, turns.exec, (CUstream)2);
            turns.turn++;
            pthread_cond_broadcast(&turns.next);
        } else {
            pthread_cond_wait(&turns.next, &turns.lock);
        }
    }
    pthread_mutex_unlock(&turns.lock);
    return NULL;
}
static void threads(struct world *w) {
    pthread_t other;
    make_work(w, &turns.k);
    add_ballast(w, 3 * gpu_bytes);
    press(w, 20);
    CHECK(d.cuCtxSynchronize());
    turns.exec = slow(w, &turns.k, free_stream());
    if (pthread_create(&other, NULL, take_turns, (void *)1)) exit(3);
    take_turns((void *)0);
    pthread_join(other, NULL);
    CHECK(d.cuCtxSynchronize());
    press(w, 20);
}

// One node waits for what another one does that may run beside it.
static void spin(struct world *w) {
    CUgraph graph;
    CUgraphExec exec;
    CUgraphNode nodes[2];
    CUstream s = free_stream();
    struct block *flag = make(w, 4 * MIB);
    uint32_t want = 77;
    uint64_t n = 1;
    add_ballast(w, 3 * gpu_bytes);
    press(w, 20);
    CHECK(d.cuCtxSynchronize());
    struct kernel_node waits = {spin_until_u32, 1, 1, 1, 1, 1, 1, 0, (void *[]){&flag->at, &want}, NULL, NULL, NULL};
    struct kernel_node tells = {fill_u32, 1, 1, 1, 1, 1, 1, 0, (void *[]){&flag->at, &want, &n}, NULL, NULL, NULL};
    CHECK(cuGraphCreate(&graph, 0));
    CHECK(cuGraphAddKernelNode_v2(&nodes[0], graph, NULL, 0, &waits));
    CHECK(cuGraphAddKernelNode_v2(&nodes[1], graph, NULL, 0, &tells));
    CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    CHECK(cuGraphLaunch(exec, s));
    CHECK(d.cuStreamSynchronize(s));
    *(uint32_t *)flag->shadow = want;
    press(w, 20);
}

// y += x for each pair behind a memset of z, in a chain.
static CUgraph chain_of(struct work *k, CUgraphNode nodes[4]) {
    CUgraph graph;
    struct memset_node set = {k->z->at, 0, bits(5), 4, k->n, 1};
    CHECK(cuGraphCreate(&graph, 0));
    CHECK(cuGraphAddMemsetNode(&nodes[0], graph, NULL, 0, &set, context));
    for (int i = 0; i < 3; i++) {
        struct kernel_node node = {axpy_f32, 64, 1, 1, 256, 1, 1, 0,
                                   (void *[]){&k->y[i]->at, i ? &k->x[i]->at : &k->z->at, &k->half, &k->n}, NULL, NULL, NULL};
        CHECK(cuGraphAddKernelNode_v2(&nodes[i + 1], graph, &nodes[i], 1, &node));
    }
    return graph;
}
static void chain_shadow(struct work *k, int set, float value, int first, float a) {
    for (uint64_t i = 0; set && i < k->n; i++) floats(k->z)[i] = value;
    for (int i = first; i < 3; i++) axpy_shadow(k->y[i], 0, i ? k->x[i] : k->z, 0, i == 2 ? a : k->half, k->n);
}

// Nodes are changed one by one, left out, and all anew.
static void changes(struct world *w) {
    struct work k;
    CUgraphExec exec;
    CUgraphNode nodes[4], others[4];
    struct update_info info;
    make_work(w, &k);
    add_ballast(w, 3 * gpu_bytes);
    CUgraph graph = chain_of(&k, nodes);
    CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
#define RUN(...)                                                                               \
    for (int i = 0; i < 2; i++) {                                                              \
        CHECK(cuGraphLaunch(exec, NULL));                                                      \
        chain_shadow(&k, __VA_ARGS__);                                                         \
        press(w, 8);                                                                           \
    }
    RUN(1, 5, 0, k.half)
    struct memset_node set = {k.z->at, 0, bits(9), 4, k.n, 1};
    CHECK(cuGraphExecMemsetNodeSetParams(exec, nodes[0], &set, context));
    RUN(1, 9, 0, k.half)
    struct kernel_node last = {axpy_f32, 64, 1, 1, 256, 1, 1, 0,
                               (void *[]){&k.y[2]->at, &k.x[2]->at, &k.minus, &k.n}, NULL, NULL, NULL};
    CHECK(cuGraphExecKernelNodeSetParams_v2(exec, nodes[3], &last));
    RUN(1, 9, 0, k.minus)
    struct block *was = k.x[1];
    k.x[1] = k.x[0];
    CUgraph other = chain_of(&k, others);
    CHECK(cuGraphExecUpdate_v2(exec, other, &info));
    RUN(1, 5, 0, k.half)
    CUgraph small;
    CHECK(cuGraphCreate(&small, 0));
    if (cuGraphExecUpdate_v2(exec, small, &info) == 0) exit(3); // not alike: nothing has changed
    RUN(1, 5, 0, k.half)
    CHECK(cuGraphExecUpdate_v2(exec, other, &info));
    CHECK(cuGraphNodeSetEnabled(exec, nodes[0], 0));
    RUN(0, 0, 0, k.half)
    CHECK(cuGraphExecUpdate_v2(exec, other, &info)); // still left out
    RUN(0, 0, 0, k.half)
    CHECK(cuGraphNodeSetEnabled(exec, nodes[1], 0));
    RUN(0, 0, 1, k.half)
    k.x[1] = was;
    CHECK(d.cuCtxSynchronize());
    CHECK(cuGraphExecDestroy(exec));
}

// A graph that copies to the host has a node that is not plain: it goes whole.
static void to_the_host(struct world *w) {
    struct work k;
    CUgraph graph;
    CUgraphExec exec;
    CUstream s = free_stream();
    float *seen;
    CHECK(cuMemAllocHost_v2((void **)&seen, BLOCK));
    make_work(w, &k);
    add_ballast(w, 3 * gpu_bytes);
    CHECK(d.cuCtxSynchronize());
    CHECK(cuStreamBeginCapture_v2(s, 2));
    launch_on(w, s, axpy_f32, (void *[]){&k.y[0]->at, &k.x[0]->at, &k.half, &k.n});
    CHECK(cuMemcpyDtoHAsync_v2(seen, k.y[0]->at, BLOCK, s));
    CHECK(cuStreamEndCapture(s, &graph));
    CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    for (int round = 0; round < 6; round++) {
        CHECK(cuGraphLaunch(exec, s));
        axpy_shadow(k.y[0], 0, k.x[0], 0, k.half, k.n);
        CHECK(d.cuStreamSynchronize(s));
        w->wrong += memcmp(seen, k.y[0]->shadow, BLOCK) != 0;
        press(w, 8);
    }
}

int main(int argc, char **argv) {
    static const struct mode modes[] = {
        {"chain", chain}, {"branches", branches}, {"order", order}, {"threads", threads}, {"spin", spin},
        {"changes", changes}, {"to_the_host", to_the_host},
    };
    find_more();
    return run_mode(argc, argv, modes, sizeof modes / sizeof *modes);
}
