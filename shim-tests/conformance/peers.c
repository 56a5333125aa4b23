// Several GPUs and several contexts: what may be asked and enabled, and copies between them.
#include "conf.h"

static void alone(void) {
    int can = 7, value = 7;
    RC("can_itself", cuDeviceCanAccessPeer(&can, 0, 0)), fact("is", can);
    RC("can_nobody", cuDeviceCanAccessPeer(&can, 0, 77));
    RC("can_null", cuDeviceCanAccessPeer(NULL, 0, 0));
    RC("attribute_itself", cuDeviceGetP2PAttribute(&value, 1, 0, 0));
    RC("attribute_nobody", cuDeviceGetP2PAttribute(&value, 1, 0, 77));
    RC("enable_itself", cuCtxEnablePeerAccess(context, 0));
    RC("enable_null", cuCtxEnablePeerAccess(NULL, 0));
    RC("enable_flags", cuCtxEnablePeerAccess(context, 1));
    RC("disable_itself", cuCtxDisablePeerAccess(context));
    RC("disable_null", cuCtxDisablePeerAccess(NULL));
}

// Two contexts of one GPU: their memory is not each other's, but copies go.
static void two_contexts_of_one_gpu(void) {
    obj c = NULL;
    ptr p = 0, q = 0;
    RC("alloc", cuMemAlloc_v2(&p, 4 * MIB) ?: cuMemsetD32_v2(p, 5, MIB) ?: cuCtxSynchronize());
    RC("create", cuCtxCreate_v2(&c, 0, 0));
    RC("enable", cuCtxEnablePeerAccess(context, 0));
    RC("alloc", cuMemAlloc_v2(&q, 4 * MIB));
    RC("peer", cuMemcpyPeer(q, c, p, context, 4 * MIB) ?: cuCtxSynchronize());
    fact("wrong", not_equal(q, 5, 4 * MIB));
    RC("set", cuMemsetD32_v2(q, 6, MIB) ?: cuCtxSynchronize());
    RC("plain", cuMemcpyDtoD_v2(p, q, 2 * MIB) ?: cuCtxSynchronize());
    fact("wrong", not_equal(p, 6, 2 * MIB));
    struct copy3 b = {.from = {.kind = DEVICE, .device = q, .context = c, .pitch = 1024, .height = 64},
                      .to = {.kind = DEVICE, .device = p + 3 * MIB, .context = context, .pitch = 1024, .height = 64},
                      .width = 1000, .height = 60, .depth = 3};
    RC("box", cuMemcpy3DPeer(&b) ?: cuCtxSynchronize());
    fact("wrong", not_equal(p + 3 * MIB, 6, 1000));
    RC("back", cuCtxSetCurrent(context));
    RC("wrong_names", cuMemcpyPeer(q, context, p, c, 1024) ?: cuCtxSynchronize());
    RC("null_context", cuMemcpyPeer(q, NULL, p, context, 1024));
    RC("end", cuCtxDestroy_v2(c) ?: cuMemFree_v2(p));
}

// Does a kernel of one context reach the memory of another of the same GPU?
static void a_kernel_on_another_contexts_memory(void) {
    obj c = NULL;
    ptr q = 0;
    RC("create", cuCtxCreate_v2(&c, 0, 0));
    RC("alloc", cuMemAlloc_v2(&q, 4 * MIB) ?: cuMemsetD32_v2(q, 1, MIB) ?: cuCtxSynchronize());
    RC("back", cuCtxSetCurrent(context));
    RC("fill", fill(q, 9, 4 * MIB, NULL));
    RC("sync", cuCtxSynchronize());
    fact("wrong", not_equal(q, 9, 4 * MIB));
}

static void events_across_contexts(void) {
    obj c = NULL, s = NULL, t = NULL, e = NULL;
    ptr p = 0;
    uint64_t us = 200000;
    uint32_t seven = 7;
    RC("open", cuMemAlloc_v2(&p, 4096) ?: cuMemsetD32_v2(p, 0, 16) ?: cuCtxSynchronize());
    RC("stream", cuStreamCreate(&s, 1) ?: cuEventCreate(&e, 2));
    RC("write", launch(WRITE_AFTER, s, (void *[]){&p, &seven, &us}) ?: cuEventRecord(e, s));
    RC("create", cuCtxCreate_v2(&c, 0, 0));
    RC("wait", cuStreamCreate(&t, 1) ?: cuStreamWaitEvent(t, e, 0) ?: cuStreamSynchronize(t));
    RC("event", cuEventQuery(e));
    RC("record_here", cuEventRecord(e, t));
    RC("back", cuCtxSetCurrent(context));
    fact("word", word_at(p));
    RC("other_stream", cuMemsetD32Async(p, 8, 1, t));
    RC("end", cuCtxDestroy_v2(c) ?: cuStreamDestroy_v2(s) ?: cuEventDestroy_v2(e) ?: cuMemFree_v2(p));
}

static void access_two_gpus(void) {
    obj second = NULL;
    ptr p = 0, q = 0;
    int can = 7;
    RC("can", cuDeviceCanAccessPeer(&can, 0, 1)), fact("is", can);
    RC("second", cuDevicePrimaryCtxRetain(&second, 1) ?: cuCtxSetCurrent(second));
    RC("alloc", cuMemAlloc_v2(&q, 4 * MIB) ?: cuMemsetD32_v2(q, 1, MIB) ?: cuCtxSynchronize());
    RC("first", cuCtxSetCurrent(context));
    RC("disable_early", cuCtxDisablePeerAccess(second));
    RC("enable", cuCtxEnablePeerAccess(second, 0));
    RC("enable_again", cuCtxEnablePeerAccess(second, 0));
    RC("fill", fill(q, 9, 4 * MIB, NULL) ?: cuCtxSynchronize());
    fact("wrong", not_equal(q, 9, 4 * MIB));
    RC("alloc", cuMemAlloc_v2(&p, 4 * MIB));
    RC("copy", cuMemcpyPeer(p, context, q, second, 4 * MIB) ?: cuCtxSynchronize());
    fact("wrong", not_equal(p, 9, 4 * MIB));
    RC("plain", cuMemcpyDtoD_v2(q, p, 4 * MIB) ?: cuCtxSynchronize());
    RC("disable", cuCtxDisablePeerAccess(second));
    RC("free", cuMemFree_v2(p) ?: cuMemFree_v2(q));
}

CASES({"alone", alone}, {"two_contexts_of_one_gpu", two_contexts_of_one_gpu, 1},
      {"events_across_contexts", events_across_contexts},
      {"access_two_gpus", access_two_gpus},
      {"a_kernel_on_another_contexts_memory", a_kernel_on_another_contexts_memory, 1});
