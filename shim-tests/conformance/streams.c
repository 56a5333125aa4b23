// The order of work: streams of all kinds, events, host functions, values in memory, and frees.
#include "conf.h"
#include <pthread.h>

static ptr words(void) {
    ptr p = 0;
    if (cuMemAlloc_v2(&p, 4 * MIB) || cuMemsetD32_v2(p, 0, MIB) || cuCtxSynchronize()) word("words", "none");
    return p;
}
static int write_later(ptr to, uint32_t value, uint64_t us, obj stream) {
    return launch(WRITE_AFTER, stream, (void *[]){&to, &value, &us});
}
static int copy_word(ptr to, ptr from, obj stream) {
    uint64_t n = 4;
    return launch(COPY, stream, (void *[]){&to, &from, &n});
}

static void in_one_stream(void) {
    ptr p = words();
    obj s = NULL;
    RC("stream", cuStreamCreate(&s, 1));
    RC("write", write_later(p, 7, 100000, s));
    RC("copy", copy_word(p + 4, p, s));
    RC("set", cuMemsetD32Async(p, 9, 1, s));
    RC("copy", cuMemcpyDtoDAsync_v2(p + 8, p, 4, s));
    RC("query", cuStreamQuery(s));
    RC("wait", cuStreamSynchronize(s));
    RC("query", cuStreamQuery(s));
    fact("first", word_at(p + 4)), fact("second", word_at(p + 8));
    RC("end", cuStreamDestroy_v2(s) ?: cuMemFree_v2(p));
}

static void events(void) {
    ptr p = words();
    obj s = NULL, t = NULL, e = NULL, begin = NULL;
    float ms = -1;
    RC("streams", cuStreamCreate(&s, 1) ?: cuStreamCreate(&t, 1) ?: cuEventCreate(&e, 0) ?: cuEventCreate(&begin, 0));
    RC("begin", cuEventRecord(begin, s));
    RC("write", write_later(p, 7, 200000, s));
    RC("record", cuEventRecord(e, s));
    RC("wait", cuStreamWaitEvent(t, e, 0));
    RC("copy", copy_word(p + 4, p, t));
    RC("event", cuEventQuery(e));
    RC("other_stream", cuStreamQuery(t));
    RC("elapsed_early", cuEventElapsedTime(&ms, begin, e));
    RC("sync", cuEventSynchronize(e));
    RC("event", cuEventQuery(e));
    RC("elapsed", cuEventElapsedTime(&ms, begin, e));
    fact("long", ms > 150 && ms < 2000);
    RC("sync", cuStreamSynchronize(t));
    fact("copied", word_at(p + 4));
    // A second record: who waited for the first is not held.
    RC("record", cuEventRecord(e, s) ?: cuStreamWaitEvent(t, e, 0));
    RC("record", write_later(p, 8, 300000, s) ?: cuEventRecord(e, s));
    RC("sync", cuStreamSynchronize(t));
    RC("first_stream", cuStreamQuery(s));
    RC("destroy_while_pending", cuEventDestroy_v2(e));
    RC("end", cuStreamSynchronize(s) ?: cuStreamDestroy_v2(s) ?: cuStreamDestroy_v2(t));
    RC("end", cuEventDestroy_v2(begin) ?: cuMemFree_v2(p));
}

// The legacy default stream holds blocking streams up, and only those.
static void the_default_stream(void) {
    ptr p = words();
    obj blocking = NULL, free_one = NULL;
    RC("streams", cuStreamCreate(&blocking, 0) ?: cuStreamCreate(&free_one, 1));
    static const char *const names[] = {"behind_blocking", "behind_free",   "blocking_behind",
                                        "free_behind",     "thread_behind", "behind_thread"};
    obj const thread = (obj)2, legacy = (obj)1;
    obj first[] = {blocking, free_one, NULL, NULL, legacy, thread};
    obj second[] = {NULL, NULL, blocking, free_one, thread, legacy};
    for (int i = 0; i < 6; i++) {
        int rc = cuMemsetD32_v2(p, 0, 16) ?: cuCtxSynchronize() ?: write_later(p, 7, 150000, first[i]);
        rc |= copy_word(p + 4, p, second[i]);
        rc |= cuCtxSynchronize();
        fact(names[i], rc);
        fact("saw", word_at(p + 4));
    }
    unsigned flags = 9;
    obj c = NULL;
    RC("flags", cuStreamGetFlags(free_one, &flags)), fact("are", flags);
    RC("flags", cuStreamGetFlags(NULL, &flags)), fact("are", flags);
    RC("flags", cuStreamGetFlags(thread, &flags)), fact("are", flags);
    RC("context", cuStreamGetCtx(blocking, &c)), fact("ours", c == context);
    RC("null", cuStreamGetFlags(blocking, NULL));
    RC("end", cuStreamDestroy_v2(blocking) ?: cuStreamDestroy_v2(free_one) ?: cuMemFree_v2(p));
}

static void a_stream_destroyed_while_busy(void) {
    ptr p = words();
    obj s = NULL;
    RC("stream", cuStreamCreate(&s, 1));
    RC("write", write_later(p, 7, 200000, s));
    double start = seconds();
    RC("destroy", cuStreamDestroy_v2(s));
    fact("waited", seconds() - start > 0.1);
    RC("sync", cuCtxSynchronize());
    fact("word", word_at(p));
    RC("free", cuMemFree_v2(p));
}

static volatile int called, inner;
static void on_host(void *data) {
    called += *(int *)data;
    inner = cuMemFree_v2(0x1000);
}
static void on_callback(obj stream, int status, void *data) {
    (void)stream;
    called += *(int *)data + (status == 0 ? 100 : 1000);
}
static void host_functions(void) {
    ptr p = words();
    obj s = NULL;
    int five = 5, pinned_flag = 0;
    called = inner = 0;
    RC("stream", cuStreamCreate(&s, 1));
    RC("write", write_later(p, 7, 200000, s));
    RC("host", cuLaunchHostFunc(s, on_host, &five));
    fact("not_yet", called);
    RC("write", cuMemsetD32Async(p + 4, 8, 1, s));
    RC("sync", cuStreamSynchronize(s));
    fact("called", called), fact("calls_inside_answer", inner), fact("word", word_at(p + 4));
    RC("callback", cuStreamAddCallback(s, on_callback, &five, 0));
    RC("sync", cuStreamSynchronize(s));
    fact("called", called);
    RC("callback_flags", cuStreamAddCallback(s, on_callback, &pinned_flag, 3));
    RC("callback_null", cuStreamAddCallback(s, NULL, &pinned_flag, 0));
    RC("end", cuStreamDestroy_v2(s) ?: cuMemFree_v2(p));
}

static void values(void) {
    ptr p = words();
    obj s = NULL, t = NULL;
    RC("streams", cuStreamCreate(&s, 1) ?: cuStreamCreate(&t, 1));
    int rc = cuStreamWaitValue32_v2(s, p, 5, 1);
    RC("wait", rc);
    if (rc == 0) {
        RC("set", cuMemsetD32Async(p + 64, 3, 1, s));
        RC("query", cuStreamQuery(s));
        RC("other_goes_on", cuMemsetD32Async(p + 128, 4, 1, t) ?: cuStreamSynchronize(t));
        RC("write", cuStreamWriteValue32_v2(t, p, 5, 0));
        RC("sync", cuStreamSynchronize(s));
        fact("after", word_at(p + 64));
    }
    RC("greater", cuStreamWaitValue32_v2(s, p, 4, 0) ?: cuStreamSynchronize(s));
    RC("and", cuStreamWaitValue32_v2(s, p, 4, 2) ?: cuStreamSynchronize(s));
    RC("wide", cuStreamWriteValue64_v2(s, p + 8, 1ull << 40, 0) ?: cuStreamWaitValue64_v2(s, p + 8, 1ull << 40, 1));
    RC("sync", cuStreamSynchronize(s));
    fact("half", word_at(p + 12));
    RC("odd_address", cuStreamWriteValue32_v2(s, p + 2, 5, 0));
    RC("odd_flags", cuStreamWaitValue32_v2(s, p, 5, 99));
    RC("null", cuStreamWriteValue32_v2(s, 0, 5, 0));
    RC("end", cuStreamDestroy_v2(s) ?: cuStreamDestroy_v2(t) ?: cuMemFree_v2(p));
}

// cuMemFree waits for what runs; memory that was freed is not written by what was queued before.
static void a_free_waits(void) {
    ptr p = words(), other = words(), q = 0;
    obj s = NULL, t = NULL;
    RC("streams", cuStreamCreate(&s, 1) ?: cuStreamCreate(&t, 1));
    RC("write", write_later(p, 7, 300000, s));
    double start = seconds();
    RC("free", cuMemFree_v2(p));
    fact("waited", seconds() - start > 0.15);
    RC("query", cuStreamQuery(s));
    RC("alloc", cuMemAlloc_v2(&q, 4 * MIB) ?: cuMemsetD32Async(q, 5, MIB, t) ?: cuStreamSynchronize(t));
    fact("wrong", not_equal(q, 5, 4 * MIB));
    RC("sleep", sleep_on(s, 300000));
    start = seconds();
    RC("free_of_another", cuMemFree_v2(other));
    fact("waited", seconds() - start > 0.15);
    RC("sync", cuCtxSynchronize());
    ptr small = 0;
    RC("small", cuMemAlloc_v2(&small, 1000));
    RC("sleep", sleep_on(s, 300000));
    start = seconds();
    RC("free_small", cuMemFree_v2(small));
    fact("waited", seconds() - start > 0.15);
    RC("sleep", sleep_on(s, 300000));
    start = seconds();
    RC("alloc", cuMemAlloc_v2(&small, 4 * MIB));
    fact("waited", seconds() - start > 0.15);
    start = seconds();
    RC("free_null", cuMemFree_v2(0));
    fact("waited", seconds() - start > 0.15);
    RC("end", cuMemFree_v2(small) ?: cuMemFree_v2(q) ?: cuStreamDestroy_v2(s) ?: cuStreamDestroy_v2(t));
}

// Memory in stream order.
static void stream_ordered(void) {
    ptr p = 0, q = 0, plain = words();
    obj s = NULL;
    RC("stream", cuStreamCreate(&s, 1));
    int rc = cuMemAllocAsync(&p, 4 * MIB, s);
    RC("alloc", rc);
    if (rc == 0) {
        RC("set", cuMemsetD32Async(p, 3, MIB, s) ?: cuStreamSynchronize(s));
        fact("wrong", not_equal(p, 3, 4 * MIB));
        RC("free", cuMemFreeAsync(p, s));
        RC("again", cuMemFreeAsync(p, s));
        RC("sync", cuStreamSynchronize(s));
        RC("alloc", cuMemAllocAsync(&q, MIB, s) ?: cuStreamSynchronize(s));
        RC("free_plainly", cuMemFree_v2(q));
        RC("nothing", cuMemAllocAsync(&q, 0, s));
        RC("null", cuMemAllocAsync(NULL, 16, s));
        RC("huge", cuMemAllocAsync(&q, (size_t)1 << 50, s));
    }
    RC("plain", cuMemFreeAsync(plain, s));
    RC("sync", cuStreamSynchronize(s));
    RC("plain_again", cuMemFree_v2(plain));
    RC("unknown", cuMemFreeAsync(12345, s));
    RC("end", cuStreamDestroy_v2(s));
}

// A kernel that polls memory ends when another stream writes it.
static void a_persistent_kernel(void) {
    ptr p = words();
    obj s = NULL, t = NULL;
    uint32_t seven = 7;
    RC("streams", cuStreamCreate(&s, 1) ?: cuStreamCreate(&t, 1));
    RC("spin", launch(SPIN, s, (void *[]){&p, &seven}));
    usleep(50000);
    RC("running", cuStreamQuery(s));
    RC("write", cuMemsetD32Async(p, 7, 1, t) ?: cuStreamSynchronize(t));
    RC("ended", cuStreamSynchronize(s));
    RC("end", cuStreamDestroy_v2(s) ?: cuStreamDestroy_v2(t) ?: cuMemFree_v2(p));
}

static ptr shared;
static void *in_a_thread(void *result) {
    int rc = cuCtxSetCurrent(context);
    for (uint32_t i = 0; i < 50 && rc == 0; i++) {
        ptr p = 0;
        uint64_t n = 4096;
        rc = cuMemAlloc_v2(&p, 3 * MIB);
        if (rc == 0) rc = fill(p, i, 3 * MIB, (obj)2);
        if (rc == 0) rc = launch(COPY, (obj)2, (void *[]){&p, &shared, &n});
        if (rc == 0 && not_equal(p + 4096, i, 4096) != 0) rc = 9999;
        if (rc == 0) rc = cuMemFree_v2(p);
    }
    *(int *)result = rc;
    return NULL;
}
static void threads(void) {
    pthread_t t[4];
    int rc[4] = {7, 7, 7, 7};
    shared = words();
    for (int i = 0; i < 4; i++)
        if (pthread_create(&t[i], NULL, in_a_thread, &rc[i])) return;
    for (int i = 0; i < 4; i++) pthread_join(t[i], NULL), fact("thread", rc[i]);
    RC("free", cuMemFree_v2(shared));
}

static void many_launches(void) {
    ptr p = words();
    uint64_t one = 1, count = 0;
    int rc = 0;
    for (int i = 0; i < 3000 && rc == 0; i++) rc = launch(ATOMIC, NULL, (void *[]){&p, &one});
    RC("launch", rc);
    RC("read", cuMemcpyDtoH_v2(&count, p, 8));
    fact("count", (long long)count);
    RC("free", cuMemFree_v2(p));
}

CASES({"in_one_stream", in_one_stream}, {"events", events}, {"the_default_stream", the_default_stream},
      {"a_stream_destroyed_while_busy", a_stream_destroyed_while_busy}, {"host_functions", host_functions},
      {"values", values}, {"a_free_waits", a_free_waits}, {"stream_ordered", stream_ordered},
      {"a_persistent_kernel", a_persistent_kernel}, {"threads", threads}, {"many_launches", many_launches});
