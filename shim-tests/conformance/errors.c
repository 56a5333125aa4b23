// Wrong calls and what they answer. Errors that stay have processes of their own.
#include "conf.h"
#include <pthread.h>

static ptr memory(size_t bytes) {
    ptr p = 0;
    if (cuMemAlloc_v2(&p, bytes)) word("memory", "none");
    return p;
}

static void grids(void) {
    ptr p = memory(4096);
    uint64_t n = 16;
    uint32_t v = 1;
    void *params[] = {&p, &v, &n};
    RC("grid_zero", cuLaunchKernel(function[FILL], 0, 1, 1, 32, 1, 1, 0, NULL, params, NULL));
    RC("block_zero", cuLaunchKernel(function[FILL], 1, 1, 1, 0, 1, 1, 0, NULL, params, NULL));
    RC("block_2048", cuLaunchKernel(function[FILL], 1, 1, 1, 2048, 1, 1, 0, NULL, params, NULL));
    RC("block_32_32_2", cuLaunchKernel(function[FILL], 1, 1, 1, 32, 32, 2, 0, NULL, params, NULL));
    RC("grid_y_70000", cuLaunchKernel(function[FILL], 1, 70000, 1, 32, 1, 1, 0, NULL, params, NULL));
    RC("shared_1g", cuLaunchKernel(function[FILL], 1, 1, 1, 32, 1, 1, 1 << 30, NULL, params, NULL));
    RC("shared_60k", cuLaunchKernel(function[FILL], 1, 1, 1, 32, 1, 1, 60 << 10, NULL, params, NULL));
    RC("no_params", cuLaunchKernel(function[FILL], 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
    size_t size = 24;
    struct { ptr p; uint32_t v; uint64_t n; } all = {p, v, n};
    void *extra[] = {(void *)1, &all, (void *)2, &size, NULL};
    RC("params_and_extra", cuLaunchKernel(function[FILL], 1, 1, 1, 32, 1, 1, 0, NULL, params, extra));
    RC("null_function", cuLaunchKernel(NULL, 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL));
    RC("good_after_all", cuLaunchKernel(function[FILL], 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL));
    RC("wait", cuCtxSynchronize());
    fact("wrong", not_equal(p, 1, 64));
    RC("free", cuMemFree_v2(p));
}

static void modules(void) {
    obj m = NULL, f = NULL;
    ptr p = 0;
    size_t bytes = 0;
    RC("null_image", cuModuleLoadData(&m, NULL));
    RC("null_out", cuModuleLoadData(NULL, image_text));
    RC("no_such_kernel", cuModuleGetFunction(&f, module, "no_such_kernel"));
    RC("null_name", cuModuleGetFunction(&f, module, NULL));
    RC("null_function_out", cuModuleGetFunction(NULL, module, "fill_u32"));
    RC("null_module", cuModuleGetFunction(&f, NULL, "fill_u32"));
    RC("global", cuModuleGetGlobal_v2(&p, &bytes, module, "sim_global_u64"));
    fact("bytes", (long long)bytes);
    RC("no_such_global", cuModuleGetGlobal_v2(&p, &bytes, module, "no_such_global"));
    RC("global_null_size", cuModuleGetGlobal_v2(&p, NULL, module, "sim_global_u64"));
    RC("global_null_both", cuModuleGetGlobal_v2(NULL, NULL, module, "sim_global_u64"));
    RC("null_unload", cuModuleUnload(NULL));
}

static void streams_and_events(void) {
    obj s = NULL, e = NULL, f = NULL;
    float ms = 0;
    RC("stream_null", cuStreamCreate(NULL, 0));
    RC("stream_flags", cuStreamCreate(&s, 2));
    RC("event_null", cuEventCreate(NULL, 0));
    RC("event_flags", cuEventCreate(&e, 64));
    RC("interprocess_with_timing", cuEventCreate(&e, 4));
    RC("destroy_null_stream", cuStreamDestroy_v2(NULL));
    RC("destroy_null_event", cuEventDestroy_v2(NULL));
    RC("record_null", cuEventRecord(NULL, NULL));
    RC("wait_null", cuStreamWaitEvent(NULL, NULL, 0));
    RC("events", cuEventCreate(&e, 0) ?: cuEventCreate(&f, 2));
    RC("wait_flags", cuStreamWaitEvent(NULL, e, 7));
    RC("never_recorded_query", cuEventQuery(e));
    RC("never_recorded_wait", cuEventSynchronize(e));
    RC("never_recorded_time", cuEventElapsedTime(&ms, e, e));
    RC("record", cuEventRecord(e, NULL) ?: cuEventRecord(f, NULL) ?: cuCtxSynchronize());
    RC("time_without_timing", cuEventElapsedTime(&ms, e, f));
    RC("time_null", cuEventElapsedTime(NULL, e, e));
    RC("time", cuEventElapsedTime(&ms, e, e));
    fact("zero", ms == 0);
    RC("record_odd_flags", cuEventRecordWithFlags(e, NULL, 64));
    RC("host_null", cuLaunchHostFunc(NULL, NULL, NULL));
    RC("end", cuEventDestroy_v2(e) ?: cuEventDestroy_v2(f));
}

static void contexts(void) {
    obj c = NULL, other = NULL;
    int device = 7;
    RC("create_nobody", cuCtxCreate_v2(&c, 0, 77));
    RC("create_null", cuCtxCreate_v2(NULL, 0, 0));
    RC("retain_nobody", cuDevicePrimaryCtxRetain(&c, 77));
    RC("retain_null", cuDevicePrimaryCtxRetain(NULL, 0));
    RC("release_nobody", cuDevicePrimaryCtxRelease_v2(77));
    RC("current_null", cuCtxGetCurrent(NULL));
    RC("device_null", cuCtxGetDevice(NULL));
    RC("device", cuCtxGetDevice(&device));
    fact("is", device);
    RC("pop", cuCtxPopCurrent_v2(&other));
    fact("ours", other == context);
    RC("pop_again", cuCtxPopCurrent_v2(&other));
    RC("push_null", cuCtxPushCurrent_v2(NULL));
    RC("push", cuCtxPushCurrent_v2(context));
    RC("destroy_null", cuCtxDestroy_v2(NULL));
    RC("destroy_primary", cuCtxDestroy_v2(context));
    RC("still", cuCtxSynchronize());
    RC("flags_of_state", cuDevicePrimaryCtxGetState(0, NULL, NULL));
    RC("init_flags", cuInit(5));
    RC("init_again", cuInit(0));
}

static void without_a_context(void) {
    ptr p = memory(4 * MIB), q = 7;
    size_t a = 0, b = 0;
    char bytes[16];
    obj s = NULL, e = NULL, c = context;
    void *h = NULL;
    RC("none", cuCtxSetCurrent(NULL));
    RC("alloc", cuMemAlloc_v2(&q, 4 * MIB));
    fact("written", q != 7);
    RC("small", cuMemAlloc_v2(&q, 16));
    RC("pitch", cuMemAllocPitch_v2(&q, &a, 100, 100, 4));
    RC("host", cuMemAllocHost_v2(&h, 16));
    RC("info", cuMemGetInfo_v2(&a, &b));
    RC("to", cuMemcpyHtoD_v2(p, bytes, 16));
    RC("from", cuMemcpyDtoH_v2(bytes, p, 16));
    RC("set", cuMemsetD8_v2(p, 0, 16));
    RC("launch", fill(p, 1, 16, NULL));
    RC("sync", cuCtxSynchronize());
    RC("stream", cuStreamCreate(&s, 0));
    RC("event", cuEventCreate(&e, 0));
    RC("device", cuCtxGetDevice(&(int){0}));
    RC("attribute", cuPointerGetAttribute(&a, 2, p));
    RC("range", cuMemGetAddressRange_v2(&q, &a, p));
    RC("stream_sync", cuStreamSynchronize(NULL));
    RC("module", cuModuleLoadData(&s, image_text));
    RC("free", cuMemFree_v2(p));
    RC("current", cuCtxGetCurrent(&c));
    fact("null", c == NULL);
    uint64_t page = 0;
    RC("create", create(&page, ON_DEVICE, PAGE));
    RC("release", cuMemRelease(page));
    RC("back", cuCtxSetCurrent(context));
    RC("free_again", cuMemFree_v2(p));
}

static void *in_a_thread(void *unused) {
    ptr p = 0;
    RC("thread_alloc", cuMemAlloc_v2(&p, 4 * MIB));
    RC("thread_current", cuCtxSetCurrent(context));
    RC("thread_alloc", cuMemAlloc_v2(&p, 4 * MIB));
    RC("thread_free", cuMemFree_v2(p));
    return unused;
}
static void in_another_thread(void) {
    pthread_t t;
    if (pthread_create(&t, NULL, in_a_thread, NULL) == 0) pthread_join(t, NULL);
}

// Memory of one context while another is current, and after its end.
static void another_context(void) {
    obj c = NULL, s = NULL;
    ptr p = 0, q = memory(4 * MIB);
    obj of = NULL;
    RC("create", cuCtxCreate_v2(&c, 0, 0));
    RC("alloc", cuMemAlloc_v2(&p, 4 * MIB));
    RC("context_of", cuPointerGetAttribute(&of, 1, p));
    fact("its", of == c);
    RC("set", cuMemsetD32_v2(p, 5, MIB));
    RC("copy", cuMemcpyDtoD_v2(q, p, 4 * MIB));
    RC("sync", cuCtxSynchronize());
    RC("stream", cuStreamCreate(&s, 0));
    RC("back", cuCtxSetCurrent(context));
    fact("wrong", not_equal(q, 5, 4 * MIB));
    RC("set_other", cuMemsetD32_v2(p, 6, MIB));
    RC("free_other", cuMemFree_v2(p));
    RC("alloc_in_it", cuCtxPushCurrent_v2(c) ?: cuMemAlloc_v2(&p, 4 * MIB) ?: cuCtxPopCurrent_v2(&of));
    RC("its_stream", cuMemsetD8Async(q, 1, 16, s));
    RC("destroy", cuCtxDestroy_v2(c));
    RC("memory_after", cuMemsetD8_v2(p, 1, 16));
    RC("free_after", cuMemFree_v2(p));
    RC("range_after", cuMemGetAddressRange_v2(NULL, NULL, p));
    RC("free", cuMemFree_v2(q));
}

static void use_of_a_destroyed_context(void) {
    obj c = NULL;
    ptr p = 0;
    RC("create", cuCtxCreate_v2(&c, 0, 0));
    RC("alloc", cuMemAlloc_v2(&p, 4 * MIB));
    RC("destroy", cuCtxDestroy_v2(c));
    obj now = (obj)7;
    RC("current", cuCtxGetCurrent(&now));
    fact("null", now == NULL);
    RC("set_current", cuCtxSetCurrent(c));
    RC("alloc", cuMemAlloc_v2(&p, 4 * MIB));
}

static void after_a_reset(void) {
    ptr p = memory(4 * MIB), q = memory(100), r = 7;
    RC("reset", cuDevicePrimaryCtxReset_v2(0));
    RC("alloc", cuMemAlloc_v2(&r, 4 * MIB));
    RC("free", cuMemFree_v2(p));
    RC("free_small", cuMemFree_v2(q));
    RC("launch", fill(p, 1, 16, NULL));
    RC("sync", cuCtxSynchronize());
    obj c = NULL;
    RC("retain", cuDevicePrimaryCtxRetain(&c, 0));
    RC("current", cuCtxSetCurrent(c));
    RC("alloc", cuMemAlloc_v2(&r, 4 * MIB));
    RC("free_old", cuMemFree_v2(p == r ? 0 : p));
    RC("free", cuMemFree_v2(r));
}

static void after_the_last_release(void) {
    ptr p = memory(4 * MIB);
    RC("release", cuDevicePrimaryCtxRelease_v2(0));
    RC("again", cuDevicePrimaryCtxRelease_v2(0));
    RC("alloc", cuMemAlloc_v2(&p, 4 * MIB));
}

// What calls answer once the context is lost.
static void all_calls(ptr p) {
    ptr q = 0;
    size_t a = 0, b = 0;
    char bytes[16];
    obj s = NULL, e = NULL;
    uint64_t page = 0;
    RC("sync", cuCtxSynchronize());
    RC("again", cuCtxSynchronize());
    RC("stream_sync", cuStreamSynchronize(NULL));
    RC("query", cuStreamQuery(NULL));
    RC("alloc", cuMemAlloc_v2(&q, 4 * MIB));
    RC("small", cuMemAlloc_v2(&q, 16));
    RC("to", cuMemcpyHtoD_v2(p, bytes, 16));
    RC("from", cuMemcpyDtoH_v2(bytes, p, 16));
    RC("set", cuMemsetD8_v2(p, 0, 16));
    RC("launch", fill(p, 1, 16, NULL));
    RC("stream", cuStreamCreate(&s, 0));
    RC("event", cuEventCreate(&e, 0));
    RC("info", cuMemGetInfo_v2(&a, &b));
    RC("attribute", cuPointerGetAttribute(&a, 2, p));
    RC("range", cuMemGetAddressRange_v2(&q, &a, p));
    RC("create", create(&page, ON_DEVICE, PAGE));
    RC("free", cuMemFree_v2(p));
    RC("device", cuCtxGetDevice(&(int){0}));
    RC("init", cuInit(0));
    RC("reset", cuDevicePrimaryCtxReset_v2(0));
}

static void lost_by_a_null_write(void) {
    ptr p = memory(4 * MIB);
    RC("launch", fill(16, 1, 16, NULL));
    all_calls(p);
}
static void lost_by_a_far_write(void) {
    ptr p = memory(4 * MIB);
    RC("launch", fill(p + ((size_t)1 << 44), 1, 16, NULL));
    all_calls(p);
}
static void lost_by_a_freed_block(void) {
    ptr p = memory(4 * MIB), q = memory(64 * MIB);
    RC("free", cuMemFree_v2(q));
    RC("launch", fill(q, 1, 64 * MIB, NULL));
    all_calls(p);
}
static void lost_by_an_odd_address(void) {
    ptr p = memory(4 * MIB), odd = p + 1;
    uint64_t times = 1;
    RC("launch", launch(ATOMIC, NULL, (void *[]){&odd, &times}));
    RC("sync", cuCtxSynchronize());
    RC("alloc", cuMemAlloc_v2(&p, 16));
}
// The other context of the same GPU goes on?
static void lost_beside_another(void) {
    obj c = NULL;
    ptr p = 0;
    RC("create", cuCtxCreate_v2(&c, 0, 0));
    RC("alloc", cuMemAlloc_v2(&p, 4 * MIB));
    RC("back", cuCtxSetCurrent(context));
    RC("launch", fill(16, 1, 16, NULL));
    RC("sync", cuCtxSynchronize());
    RC("other", cuCtxSetCurrent(c));
    RC("set", cuMemsetD8_v2(p, 1, 16));
    RC("sync", cuCtxSynchronize());
    RC("alloc", cuMemAlloc_v2(&p, 4 * MIB));
}

static void in_a_forked_child(void) {
    int ends[2], rc[4] = {7, 7, 7, 7};
    if (pipe(ends)) return;
    if (fork() == 0) {
        ptr p = 0;
        int got[4] = {cuInit(0), cuMemAlloc_v2(&p, 4 * MIB), cuCtxSynchronize(), cuDeviceGetCount(&(int){0})};
        if (write(ends[1], got, sizeof got) != sizeof got) _exit(1);
        _exit(0);
    }
    if (read(ends[0], rc, sizeof rc) != sizeof rc) word("child", "silent");
    fact("init", rc[0]), fact("alloc", rc[1]), fact("sync", rc[2]), fact("count", rc[3]);
    RC("parent", cuCtxSynchronize());
}

CASES({"grids", grids}, {"modules", modules}, {"streams_and_events", streams_and_events}, {"contexts", contexts},
      {"without_a_context", without_a_context}, {"in_another_thread", in_another_thread},
      {"another_context", another_context}, {"in_a_forked_child", in_a_forked_child, 1},
      {"use_of_a_destroyed_context", use_of_a_destroyed_context, 1}, {"after_a_reset", after_a_reset, 1},
      {"after_the_last_release", after_the_last_release, 1}, {"lost_by_a_null_write", lost_by_a_null_write, 1},
      {"lost_by_a_far_write", lost_by_a_far_write, 1}, {"lost_by_a_freed_block", lost_by_a_freed_block, 1},
      {"lost_by_an_odd_address", lost_by_an_odd_address, 1}, {"lost_beside_another", lost_beside_another, 1});
