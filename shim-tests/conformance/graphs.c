// Capture and graphs: what may be called meanwhile, and that a graph finds what lies behind its addresses when it runs.
#include "conf.h"
#include <pthread.h>

enum { GLOBAL, THREAD_LOCAL, RELAXED };

static ptr words(void) {
    ptr p = 0;
    if (cuMemAlloc_v2(&p, 4 * MIB) || cuMemsetD32_v2(p, 0, MIB) || cuCtxSynchronize()) word("words", "none");
    return p;
}
static int ends(obj s) {
    obj graph = NULL;
    int rc = cuStreamEndCapture(s, &graph);
    fact("end", rc), fact("graph", graph != NULL);
    if (graph) cuGraphDestroy(graph);
    return rc;
}

// One call during a capture of each mode, by the thread that captures.
static int call(int which, ptr p, obj other) {
    static char bytes[64];
    static uint64_t page;
    ptr q = 0;
    void *h = NULL;
    int rc = -1;
    obj c = NULL;
    switch (which) {
    case 0: rc = cuMemAlloc_v2(&q, 8 * MIB); break;
    case 1: rc = cuMemFree_v2(0x123000); break;
    case 2: rc = cuMemAllocHost_v2(&h, 4096); break;
    case 3: rc = cuMemcpyHtoD_v2(p, bytes, 64); break;
    case 4: rc = cuMemsetD8_v2(p, 0, 64); break;
    case 5: rc = cuCtxSynchronize(); break;
    case 6: rc = cuStreamSynchronize(other); break;
    case 7: rc = cuStreamQuery(other); break;
    case 8: rc = fill(p, 1, 64, NULL); break;
    case 9: rc = create(&page, ON_DEVICE, PAGE); break;
    case 10: rc = cuMemGetInfo_v2(&(size_t){0}, &(size_t){0}); break;
    case 11: rc = cuStreamCreate(&c, 1); break;
    case 12: rc = cuModuleLoadData(&c, image_text); break;
    case 13: rc = cuMemcpyDtoHAsync_v2(bytes, p, 64, other); break;
    case 14: rc = cuPointerGetAttribute(&q, 2, p); break;
    }
    if (which == 0 && rc == 0) cuMemFree_v2(q);
    if (which == 2 && rc == 0) cuMemFreeHost(h);
    return rc;
}

static void calls_of_one_mode(int mode) {
    static const char *const names[] = {"alloc", "free", "host", "copy", "set", "sync", "stream_sync", "query",
                                        "default_stream",
                                        "create_page", "info", "stream", "module", "copy_elsewhere", "attribute"};
    ptr p = words();
    obj s = NULL, other = NULL;
    RC("streams", cuStreamCreate(&s, 1) ?: cuStreamCreate(&other, 1));
    for (int i = 0; i < 15; i++) {
        int rc = cuStreamBeginCapture_v2(s, mode);
        fact(names[i], rc ? -rc : call(i, p, other));
        ends(s);
        if (rc) break;
    }
    RC("after", cuStreamDestroy_v2(s) ?: cuStreamDestroy_v2(other) ?: cuCtxSynchronize() ?: cuMemFree_v2(p));
}
static void calls_in_global_capture(void) { calls_of_one_mode(GLOBAL); }
static void calls_in_thread_local_capture(void) { calls_of_one_mode(THREAD_LOCAL); }
static void calls_in_relaxed_capture(void) { calls_of_one_mode(RELAXED); }

static int rc_of_thread;
static void *alloc_in_a_thread(void *mode) {
    ptr q = 0;
    cuCtxSetCurrent(context);
    if (mode) cuThreadExchangeStreamCaptureMode(mode);
    rc_of_thread = cuMemAlloc_v2(&q, 8 * MIB);
    if (rc_of_thread == 0) cuMemFree_v2(q);
    return NULL;
}
static void allocations_by_another_thread(void) {
    for (int mode = GLOBAL; mode <= RELAXED; mode++)
        for (int relaxed = 0; relaxed < 2; relaxed++) {
            obj s = NULL;
            pthread_t t;
            int its = RELAXED;
            RC("stream", cuStreamCreate(&s, 1));
            RC("begin", cuStreamBeginCapture_v2(s, mode));
            if (pthread_create(&t, NULL, alloc_in_a_thread, relaxed ? &its : NULL)) return;
            pthread_join(t, NULL);
            fact("alloc", rc_of_thread);
            ends(s);
            cuStreamDestroy_v2(s);
        }
}

static void states(void) {
    obj s = NULL, other = NULL, graph = NULL, e = NULL;
    int state = 7, mode = RELAXED;
    RC("open", cuStreamCreate(&s, 1) ?: cuStreamCreate(&other, 1) ?: cuEventCreate(&e, 2));
    RC("is", cuStreamIsCapturing(s, &state)), fact("state", state);
    RC("end_without_begin", cuStreamEndCapture(s, &graph));
    RC("default_stream", cuStreamBeginCapture_v2(NULL, GLOBAL));
    RC("odd_mode", cuStreamBeginCapture_v2(s, 9));
    RC("begin", cuStreamBeginCapture_v2(s, GLOBAL));
    RC("begin_again", cuStreamBeginCapture_v2(s, GLOBAL));
    RC("is", cuStreamIsCapturing(s, &state)), fact("state", state);
    RC("null", cuStreamIsCapturing(s, NULL));
    RC("default_is", cuStreamIsCapturing(NULL, &state));
    RC("query", cuStreamQuery(s));
    ends(s);
    RC("begin", cuStreamBeginCapture_v2(s, RELAXED));
    RC("sync", cuStreamSynchronize(s));
    RC("is", cuStreamIsCapturing(s, &state)), fact("state", state);
    RC("launch", sleep_on(s, 1));
    ends(s);
    RC("begin", cuStreamBeginCapture_v2(s, RELAXED));
    RC("record", cuEventRecord(e, s));
    RC("event_query", cuEventQuery(e));
    ends(s);
    RC("begin", cuStreamBeginCapture_v2(s, RELAXED));
    RC("record", cuEventRecord(e, s));
    RC("event_sync", cuEventSynchronize(e));
    ends(s);
    RC("begin", cuStreamBeginCapture_v2(s, RELAXED));
    RC("fork", cuEventRecord(e, s) ?: cuStreamWaitEvent(other, e, 0) ?: sleep_on(other, 1));
    RC("end_by_the_other", cuStreamEndCapture(other, &graph));
    RC("not_joined", cuStreamEndCapture(s, &graph));
    RC("exchange", cuThreadExchangeStreamCaptureMode(&mode)), fact("was", mode);
    RC("exchange", cuThreadExchangeStreamCaptureMode(&mode)), fact("was", mode);
    mode = 9;
    RC("exchange_odd", cuThreadExchangeStreamCaptureMode(&mode));
    mode = GLOBAL;
    RC("exchange", cuThreadExchangeStreamCaptureMode(&mode)), fact("was", mode);
    RC("destroy", cuStreamDestroy_v2(s) ?: cuStreamDestroy_v2(other) ?: cuEventDestroy_v2(e));
}

// Runs a stream's capture as a graph twice.
static void run_twice(obj s, obj *graph, obj *exec) {
    RC("end", cuStreamEndCapture(s, graph));
    size_t count = 0;
    RC("nodes", cuGraphGetNodes(*graph, NULL, &count));
    fact("count", (long long)count);
    RC("instantiate", cuGraphInstantiateWithFlags(exec, *graph, 0));
    RC("upload", cuGraphUpload(*exec, s));
    RC("launch", cuGraphLaunch(*exec, s) ?: cuGraphLaunch(*exec, s));
    RC("sync", cuStreamSynchronize(s));
}

static void captured_work(void) {
    ptr p = words(), q = words();
    obj s = NULL, t = NULL, e = NULL, f = NULL, graph = NULL, exec = NULL;
    uint64_t n = MIB, times = 5, count = 0;
    uint32_t host = 0;
    RC("open", cuStreamCreate(&s, 1) ?: cuStreamCreate(&t, 1) ?: cuEventCreate(&e, 2) ?: cuEventCreate(&f, 2));
    RC("begin", cuStreamBeginCapture_v2(s, THREAD_LOCAL));
    RC("set", cuMemsetD32Async(p, 3, MIB, s));
    RC("fork", cuEventRecord(e, s) ?: cuStreamWaitEvent(t, e, 0));
    RC("copy", cuMemcpyDtoDAsync_v2(q, p, 2 * MIB, s));
    ptr from = p + 2 * MIB, to = q + 2 * MIB;
    RC("kernel", launch(COPY, t, (void *[]){&to, &from, &n}));
    RC("join", cuEventRecord(f, t) ?: cuStreamWaitEvent(s, f, 0));
    ptr counter = q + 3 * MIB;
    RC("count", launch(ATOMIC, s, (void *[]){&counter, &times}));
    fact("nothing_ran", word_at(p));
    run_twice(s, &graph, &exec);
    fact("wrong", not_equal(q, 3, 3 * MIB));
    RC("read", cuMemcpyDtoH_v2(&count, counter, 8)), fact("counted", (long long)count);
    RC("graph_first", cuGraphDestroy(graph));
    RC("launch", cuGraphLaunch(exec, s) ?: cuStreamSynchronize(s));
    RC("read", cuMemcpyDtoH_v2(&count, counter, 8)), fact("counted", (long long)count);
    RC("launch_on_default", cuGraphLaunch(exec, NULL) ?: cuCtxSynchronize());
    RC("null_exec", cuGraphLaunch(NULL, s));
    RC("destroy", cuGraphExecDestroy(exec));
    RC("end", cuStreamDestroy_v2(s) ?: cuStreamDestroy_v2(t) ?: cuEventDestroy_v2(e) ?: cuEventDestroy_v2(f));
    fact("host", host);
    RC("free", cuMemFree_v2(p) ?: cuMemFree_v2(q));
}

// A graph with kernel, copy and set nodes on pages that move after it was made.
static void pages_that_moved(void) {
    struct range r;
    obj s = NULL, graph = NULL, exec = NULL;
    uint64_t other[2] = {0, 0}, n = PAGE / 2;
    RC("open", range_open(&r, "dd") ?: cuStreamCreate(&s, 1));
    ptr from = r.at, middle = r.at + PAGE, last = r.at + PAGE + PAGE / 2;
    RC("begin", cuStreamBeginCapture_v2(s, THREAD_LOCAL));
    RC("set", cuMemsetD32Async(r.at, 0x11, PAGE / 4, s));
    RC("kernel", launch(COPY, s, (void *[]){&middle, &from, &n}));
    RC("copy", cuMemcpyDtoDAsync_v2(last, middle, n, s));
    run_twice(s, &graph, &exec);
    fact("wrong", not_equal(r.at, 0x11, r.bytes));
    for (int round = 0; round < 2; round++) {
        int rc = 0;
        for (int i = 0; i < 2; i++) {
            if (rc == 0) rc = create(&other[i], round == 0 ? ON_NODE : ON_DEVICE, PAGE);
            if (rc == 0) rc = cuMemUnmap(r.at + (size_t)i * PAGE, PAGE) ?: cuMemRelease(r.handle[i]);
            if (rc == 0) rc = cuMemMap(r.at + (size_t)i * PAGE, PAGE, 0, other[i], 0);
            if (rc == 0) rc = grant(r.at + (size_t)i * PAGE, PAGE, 0, READ_WRITE);
            r.handle[i] = other[i];
        }
        fact("moved", rc);
        RC("wipe", cuMemsetD32_v2(r.at, 0, r.bytes / 4) ?: cuCtxSynchronize());
        RC("launch", cuGraphLaunch(exec, s) ?: cuStreamSynchronize(s));
        fact("wrong", not_equal(r.at, 0x11, r.bytes));
    }
    RC("end", cuGraphExecDestroy(exec) ?: cuGraphDestroy(graph) ?: cuStreamDestroy_v2(s));
    range_close(&r);
}

// VMM calls, also by another thread's stream, leave a capture as it is.
static void pages_during_capture(void) {
    struct range r;
    obj s = NULL, graph = NULL, exec = NULL;
    ptr p = words();
    RC("stream", cuStreamCreate(&s, 1));
    RC("begin", cuStreamBeginCapture_v2(s, GLOBAL));
    RC("pages", range_open(&r, "dn"));
    RC("unmap", cuMemUnmap(r.at, PAGE) ?: cuMemMap(r.at, PAGE, 0, r.handle[0], 0) ?: grant(r.at, PAGE, 0, READ_WRITE));
    RC("kernel", fill(r.at, 6, r.bytes, s) ?: fill(p, 6, 64, s));
    run_twice(s, &graph, &exec);
    fact("wrong", not_equal(r.at, 6, r.bytes)), fact("word", word_at(p));
    RC("end", cuGraphExecDestroy(exec) ?: cuGraphDestroy(graph) ?: cuStreamDestroy_v2(s) ?: cuMemFree_v2(p));
    range_close(&r);
}

static volatile int called;
static void on_host(void *data) { called += *(int *)data; }

static struct kernel_node fill_node(void **params) {
    return (struct kernel_node){.function = function[FILL], .gx = 8, .gy = 1, .gz = 1, .bx = 256, .by = 1, .bz = 1,
                                .params = params};
}

static void nodes_by_hand(void) {
    ptr p = words(), q = words();
    obj graph = NULL, copy = NULL, exec = NULL, kernel = NULL, set = NULL, copied = NULL, host = NULL;
    obj empty = NULL, child = NULL, inner = NULL, in_child = NULL;
    uint64_t n = 1000;
    uint32_t value = 5;
    int two = 2, type = 77;
    RC("create", cuGraphCreate(&graph, 0));
    struct memset_node m = {.to = p, .value = 9, .size = 4, .width = 2000, .height = 1};
    RC("set", cuGraphAddMemsetNode(&set, graph, NULL, 0, &m, context));
    struct kernel_node k = fill_node((void *[]){&p, &value, &n});
    RC("kernel", cuGraphAddKernelNode_v2(&kernel, graph, &set, 1, &k));
    struct copy3 c = {.from = {.kind = DEVICE, .device = p, .pitch = 8000, .height = 1},
                      .to = {.kind = DEVICE, .device = q, .pitch = 8000, .height = 1},
                      .width = 8000, .height = 1, .depth = 1};
    RC("copy", cuGraphAddMemcpyNode(&copied, graph, &kernel, 1, &c, context));
    struct host_node h = {on_host, &two};
    RC("host", cuGraphAddHostNode(&host, graph, &copied, 1, &h));
    RC("empty", cuGraphAddEmptyNode(&empty, graph, NULL, 0));
    RC("edge", cuGraphAddDependencies(graph, &empty, &set, 1));
    RC("inner", cuGraphCreate(&inner, 0));
    struct memset_node late = {.to = q + MIB, .value = 4, .size = 4, .width = 10, .height = 1};
    RC("inner_set", cuGraphAddMemsetNode(&in_child, inner, NULL, 0, &late, context));
    RC("child", cuGraphAddChildGraphNode(&child, graph, &host, 1, inner));
    RC("type", cuGraphNodeGetType(kernel, &type)), fact("is", type);
    RC("type", cuGraphNodeGetType(copied, &type)), fact("is", type);
    RC("type", cuGraphNodeGetType(child, &type)), fact("is", type);
    RC("clone", cuGraphClone(&copy, graph));
    RC("instantiate", cuGraphInstantiateWithFlags(&exec, copy, 0));
    called = 0;
    RC("launch", cuGraphLaunch(exec, NULL) ?: cuCtxSynchronize());
    fact("called", called), fact("front", not_equal(q, 5, 4000)), fact("rest", not_equal(q + 4000, 9, 4000));
    fact("inner", not_equal(q + MIB, 4, 40));
    RC("edge_back", cuGraphAddDependencies(graph, &child, &set, 1));
    RC("cycle", cuGraphInstantiateWithFlags(&(obj){0}, graph, 0));
    RC("null_graph", cuGraphInstantiateWithFlags(&(obj){0}, NULL, 0));
    RC("end", cuGraphExecDestroy(exec) ?: cuGraphDestroy(copy) ?: cuGraphDestroy(graph) ?: cuGraphDestroy(inner));
    RC("free", cuMemFree_v2(p) ?: cuMemFree_v2(q));
}

static void updates(void) {
    ptr p = words(), q = words();
    obj graph = NULL, exec = NULL, kernel = NULL, other = NULL, its = NULL, more = NULL;
    uint64_t n = 1000;
    uint32_t value = 5;
    struct update_info info = {77, NULL, NULL};
    RC("create", cuGraphCreate(&graph, 0));
    struct kernel_node k = fill_node((void *[]){&p, &value, &n});
    RC("kernel", cuGraphAddKernelNode_v2(&kernel, graph, NULL, 0, &k));
    RC("instantiate", cuGraphInstantiateWithFlags(&exec, graph, 0));
    RC("launch", cuGraphLaunch(exec, NULL) ?: cuCtxSynchronize()), fact("wrong", not_equal(p, 5, 4000));
    value = 6;
    k.params = (void *[]){&q, &value, &n};
    RC("set_params", cuGraphExecKernelNodeSetParams_v2(exec, kernel, &k));
    RC("launch", cuGraphLaunch(exec, NULL) ?: cuCtxSynchronize()), fact("wrong", not_equal(q, 6, 4000));
    value = 7;
    RC("other", cuGraphCreate(&other, 0) ?: cuGraphAddKernelNode_v2(&its, other, NULL, 0, &k));
    RC("update", cuGraphExecUpdate_v2(exec, other, &info)), fact("result", info.result);
    RC("launch", cuGraphLaunch(exec, NULL) ?: cuCtxSynchronize()), fact("wrong", not_equal(q, 7, 4000));
    RC("more", cuGraphAddKernelNode_v2(&more, other, &its, 1, &k));
    RC("update", cuGraphExecUpdate_v2(exec, other, &info)), fact("result", info.result);
    struct kernel_node got = {0};
    RC("get", cuGraphKernelNodeGetParams_v2(kernel, &got));
    fact("grid", got.gx), fact("same", got.function == function[FILL] || got.kernel != NULL);
    RC("end", cuGraphExecDestroy(exec) ?: cuGraphDestroy(graph) ?: cuGraphDestroy(other));
    RC("free", cuMemFree_v2(p) ?: cuMemFree_v2(q));
}

CASES({"calls_in_global_capture", calls_in_global_capture},
      {"calls_in_thread_local_capture", calls_in_thread_local_capture},
      {"calls_in_relaxed_capture", calls_in_relaxed_capture},
      {"allocations_by_another_thread", allocations_by_another_thread}, {"states", states},
      {"captured_work", captured_work}, {"pages_that_moved", pages_that_moved},
      {"pages_during_capture", pages_during_capture}, {"nodes_by_hand", nodes_by_hand}, {"updates", updates});
