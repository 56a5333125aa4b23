// Virtual memory management: pages, ranges, access, what they answer.
#include "conf.h"

static void granularity(void) {
    static const char *const names[] = {"device", "host", "node"};
    for (int place = ON_DEVICE; place <= ON_NODE; place++) {
        struct make m = how(place);
        size_t least = 7, best = 7;
        RC(names[place - 1], cuMemGetAllocationGranularity(&least, &m, 0));
        fact("least", (long long)least);
        RC("rc", cuMemGetAllocationGranularity(&best, &m, 1));
        fact("best", (long long)best);
    }
    struct make m = how(ON_DEVICE);
    size_t bytes = 7;
    RC("other", cuMemGetAllocationGranularity(&bytes, &m, 2));
    RC("null", cuMemGetAllocationGranularity(NULL, &m, 0));
    RC("null_properties", cuMemGetAllocationGranularity(&bytes, NULL, 0));
}

// One range over memory of the GPU and of the host: kernels, copies and memsets over the seams.
static void one_range(void) {
    struct range r;
    RC("open", range_open(&r, "dhnd"));
    RC("fill", fill(r.at, 0x01020304, r.bytes, NULL));
    RC("wait", cuCtxSynchronize());
    fact("wrong", not_equal(r.at, 0x01020304, r.bytes));
    for (int seam = 1; seam < 4; seam++) {
        unsigned char bytes[8000];
        pattern(bytes, sizeof bytes, 77);
        ptr over = r.at + (size_t)seam * PAGE - 4001;
        RC("to", cuMemcpyHtoD_v2(over, bytes, sizeof bytes));
        fact("back", unlike_at(over, sizeof bytes, 77));
        RC("set", cuMemsetD8_v2(over + 1, 0xAB, 7998));
        RC("read", cuMemcpyDtoH_v2(bytes, over, sizeof bytes));
        checksum("sum", bytes, sizeof bytes);
    }
    ptr from = r.at, to = r.at + 2 * PAGE;
    uint64_t n = 2 * PAGE;
    RC("pages", launch(COPY, NULL, (void *[]){&to, &from, &n}));
    RC("between", cuMemcpyDtoD_v2(r.at + 100, r.at + 2 * PAGE + 4, PAGE + 999));
    RC("wait", cuCtxSynchronize());
    unsigned char *all = malloc(r.bytes);
    RC("all", cuMemcpyDtoH_v2(all, r.at, r.bytes));
    checksum("sum", all, r.bytes);
    free(all);
    range_close(&r);
}

static void page_is_the_grain(void) {
    struct range r;
    uint64_t big = 0;
    RC("open", range_open(&r, "dd..d"));
    RC("unmap_half_of_one", cuMemUnmap(r.at, MIB));
    RC("unmap_one", cuMemUnmap(r.at + PAGE, PAGE));
    RC("unmap_again", cuMemUnmap(r.at + PAGE, PAGE));
    RC("create", create(&big, ON_DEVICE, 2 * PAGE));
    RC("map_from_inside", cuMemMap(r.at + PAGE, PAGE, PAGE, big, 0));
    RC("map_less_than_all", cuMemMap(r.at + PAGE, PAGE, 0, big, 0));
    RC("map_more_than_all", cuMemMap(r.at + PAGE, 3 * PAGE, 0, big, 0));
    RC("map_over_mapped", cuMemMap(r.at, 2 * PAGE, 0, big, 0));
    RC("map_odd_address", cuMemMap(r.at + PAGE + 4096, 2 * PAGE, 0, big, 0));
    RC("map_not_reserved", cuMemMap(r.at + r.bytes + ((size_t)1 << 40), 2 * PAGE, 0, big, 0));
    RC("map_flags", cuMemMap(r.at + 2 * PAGE, 2 * PAGE, 0, big, 1));
    RC("map", cuMemMap(r.at + 2 * PAGE, 2 * PAGE, 0, big, 0));
    RC("unmap_part_of_big", cuMemUnmap(r.at + 2 * PAGE, PAGE));
    RC("unmap_two_whole", cuMemUnmap(r.at + 2 * PAGE, 3 * PAGE));
    RC("unmap_with_a_hole", cuMemUnmap(r.at, 2 * PAGE));
    RC("release", cuMemRelease(big));
    range_close(&r);
}

static void one_page_at_two_addresses(void) {
    struct range r;
    ptr shadow = 0;
    RC("open", range_open(&r, "d"));
    RC("reserve", cuMemAddressReserve(&shadow, PAGE, 0, 0, 0));
    RC("map", cuMemMap(shadow, PAGE, 0, r.handle[0], 0));
    RC("no_access_yet", cuMemsetD8_v2(shadow, 1, 16));
    RC("grant", grant(shadow, PAGE, 0, READ_WRITE));
    RC("fill", fill(shadow, 42, PAGE, NULL));
    fact("wrong", not_equal(r.at, 42, PAGE));
    RC("fill", fill(r.at, 43, PAGE, NULL));
    fact("wrong", not_equal(shadow, 43, PAGE));
    RC("unmap", cuMemUnmap(shadow, PAGE));
    fact("still", not_equal(r.at, 43, PAGE));
    RC("free", cuMemAddressFree(shadow, PAGE));
    range_close(&r);
}

static void a_remap_starts_without_access(void) {
    struct range r;
    RC("open", range_open(&r, "d"));
    unsigned long long flags = 9;
    struct location gpu = {ON_DEVICE, 0};
    RC("access", cuMemGetAccess(&flags, &gpu, r.at));
    fact("flags", (long long)flags);
    RC("unmap", cuMemUnmap(r.at, PAGE));
    flags = 9;
    RC("access", cuMemGetAccess(&flags, &gpu, r.at));
    fact("flags", (long long)flags);
    RC("map", cuMemMap(r.at, PAGE, 0, r.handle[0], 0));
    flags = 9;
    RC("access", cuMemGetAccess(&flags, &gpu, r.at));
    fact("flags", (long long)flags);
    RC("memset", cuMemsetD8_v2(r.at, 1, 16));
    int value = 0;
    RC("read", cuMemcpyDtoH_v2(&value, r.at, 4));
    RC("write", cuMemcpyHtoD_v2(r.at, &value, 4));
    RC("grant", grant(r.at, PAGE, 0, READ_WRITE));
    RC("memset", cuMemsetD8_v2(r.at, 1, 16));
    range_close(&r);
}

static void granting(void) {
    struct range r;
    RC("open", range_open(&r, "dd.d"));
    RC("both", grant(r.at, 2 * PAGE, 0, READ_WRITE));
    RC("half", grant(r.at, MIB, 0, READ_WRITE));
    RC("unmapped", grant(r.at + 2 * PAGE, PAGE, 0, READ_WRITE));
    RC("with_a_hole", grant(r.at, r.bytes, 0, READ_WRITE));
    RC("no_such_gpu", grant(r.at, PAGE, 77, READ_WRITE));
    RC("write_only", grant(r.at, PAGE, 0, 2));
    RC("odd_flags", grant(r.at, PAGE, 0, 8));
    struct access a = {{ON_DEVICE, 0}, READ_WRITE};
    RC("none", cuMemSetAccess(r.at, PAGE, &a, 0));
    RC("null", cuMemSetAccess(r.at, PAGE, NULL, 1));
    a.location.kind = 9;
    RC("odd_place", cuMemSetAccess(r.at, PAGE, &a, 1));
    a.location = (struct location){ON_NODE, how(ON_NODE).location.id};
    RC("device_page_for_the_host", cuMemSetAccess(r.at, PAGE, &a, 1));
    RC("take_back", grant(r.at, PAGE, 0, NO_ACCESS));
    RC("memset", cuMemsetD8_v2(r.at, 1, 16));
    unsigned long long flags = 9;
    struct location gpu = {ON_DEVICE, 0}, nobody = {ON_DEVICE, 77};
    RC("access", cuMemGetAccess(&flags, &gpu, r.at));
    fact("flags", (long long)flags);
    RC("of_nobody", cuMemGetAccess(&flags, &nobody, r.at));
    RC("null_flags", cuMemGetAccess(NULL, &gpu, r.at));
    range_close(&r);
}

static void read_only(void) {
    struct range r;
    ptr out = 0;
    for (const char *kind = "dn"; *kind; kind++) {
        char kinds[2] = {*kind, 0};
        RC("open", range_open(&r, kinds));
        RC("fill", fill(r.at, 5, PAGE, NULL));
        RC("wait", cuCtxSynchronize());
        RC("grant", grant(r.at, PAGE, 0, READ_ONLY));
        RC("alloc", cuMemAlloc_v2(&out, PAGE));
        uint64_t n = PAGE;
        RC("kernel_reads", launch(COPY, NULL, (void *[]){&out, &r.at, &n}));
        RC("wait", cuCtxSynchronize());
        fact("wrong", not_equal(out, 5, PAGE));
        RC("memset", cuMemsetD8_v2(r.at, 1, 16));
        RC("memset_async", cuMemsetD8Async(r.at, 1, 16, NULL));
        RC("write", cuMemcpyHtoD_v2(r.at, "abcd", 4));
        RC("copy_in", cuMemcpyDtoD_v2(r.at, out, 64));
        RC("copy_out", cuMemcpyDtoD_v2(out, r.at, 64));
        RC("wait", cuCtxSynchronize());
        fact("kept", not_equal(r.at, 5, PAGE));
        RC("free", cuMemFree_v2(out));
        range_close(&r);
    }
}

static void write_to_read_only(void) {
    struct range r;
    RC("open", range_open(&r, "d"));
    RC("grant", grant(r.at, PAGE, 0, READ_ONLY));
    RC("launch", fill(r.at, 5, PAGE, NULL));
    RC("wait", cuCtxSynchronize());
}

static void unmap_under_its_kernel(void) {
    struct range r;
    uint32_t value = 7;
    uint64_t us = 300000;
    RC("open", range_open(&r, "d"));
    RC("write", launch(WRITE_AFTER, NULL, (void *[]){&r.at, &value, &us}));
    usleep(50000);
    double start = seconds();
    RC("unmap", cuMemUnmap(r.at, PAGE));
    fact("waited", seconds() - start > 0.15);
    RC("wait", cuCtxSynchronize());
}

static void use_of_unmapped(void) {
    struct range r;
    RC("open", range_open(&r, "d.d"));
    RC("memset", cuMemsetD8_v2(r.at + PAGE, 1, 16));
    RC("over_the_edge", cuMemsetD8_v2(r.at + PAGE - 8, 1, 16));
    RC("over_the_hole", cuMemsetD8_v2(r.at, 1, 3 * PAGE));
    char bytes[64];
    RC("read", cuMemcpyDtoH_v2(bytes, r.at + PAGE, 64));
    RC("launch", fill(r.at + PAGE, 5, 64, NULL));
    RC("wait", cuCtxSynchronize());
}

static void reserving(void) {
    ptr a = 0, b = 0, hint = 0x400000000000;
    size_t large = (size_t)1 << 34;
    RC("hinted", cuMemAddressReserve(&a, large, 0, hint, 0));
    fact("as_hinted", a == hint);
    RC("taken_hint", cuMemAddressReserve(&b, PAGE, 0, hint, 0));
    fact("elsewhere", b != a && b != 0);
    RC("free_less", cuMemAddressFree(a, PAGE));
    RC("free_inside", cuMemAddressFree(a + PAGE, PAGE));
    RC("free", cuMemAddressFree(a, large));
    RC("free_again", cuMemAddressFree(a, large));
    RC("free", cuMemAddressFree(b, PAGE));
    RC("nothing", cuMemAddressReserve(&a, 0, 0, 0, 0));
    RC("odd_size", cuMemAddressReserve(&a, 4096, 0, 0, 0));
    RC("odd_alignment", cuMemAddressReserve(&a, PAGE, 3 * PAGE, 0, 0));
    RC("null", cuMemAddressReserve(NULL, PAGE, 0, 0, 0));
    RC("flags", cuMemAddressReserve(&a, PAGE, 0, 0, 1));
    RC("aligned", cuMemAddressReserve(&a, PAGE, (size_t)1 << 30, 0, 0));
    fact("is", a % ((size_t)1 << 30) == 0);
    RC("free", cuMemAddressFree(a, PAGE));
    RC("free_of_nothing", cuMemAddressFree(0, PAGE));
    struct range r;
    RC("open", range_open(&r, "d"));
    RC("free_mapped", cuMemAddressFree(r.at, PAGE));
    RC("still_there", cuMemsetD8_v2(r.at, 1, 16));
    range_close(&r);
}

static void half_of_all_addresses(void) {
    ptr a = 0;
    size_t huge = (size_t)64 << 40;
    RC("reserve", cuMemAddressReserve(&a, huge, 0, 0, 0));
    RC("free", cuMemAddressFree(a, huge));
}

static void making(void) {
    uint64_t h = 7;
    struct make m = how(ON_DEVICE), bad;
    RC("nothing", cuMemCreate(&h, 0, &m, 0));
    RC("odd", cuMemCreate(&h, PAGE + 4096, &m, 0));
    RC("null", cuMemCreate(NULL, PAGE, &m, 0));
    RC("null_properties", cuMemCreate(&h, PAGE, NULL, 0));
    RC("flags", cuMemCreate(&h, PAGE, &m, 1));
    bad = m, bad.kind = 0;
    RC("no_kind", cuMemCreate(&h, PAGE, &bad, 0));
    bad = m, bad.location.id = 77;
    RC("no_such_gpu", cuMemCreate(&h, PAGE, &bad, 0));
    bad = m, bad.location.kind = 0;
    RC("nowhere", cuMemCreate(&h, PAGE, &bad, 0));
    bad = m, bad.location.kind = 9;
    RC("odd_place", cuMemCreate(&h, PAGE, &bad, 0));
    bad = m, bad.location = (struct location){ON_NODE, -1};
    RC("node_minus_one", cuMemCreate(&h, PAGE, &bad, 0));
    bad.location.id = 77;
    RC("no_such_node", cuMemCreate(&h, PAGE, &bad, 0));
    bad.location = (struct location){ON_CURRENT_NODE, 0};
    RC("current_node", cuMemCreate(&h, PAGE, &bad, 0));
    bad.location = (struct location){ON_HOST, 5};
    RC("host_with_number", cuMemCreate(&h, PAGE, &bad, 0));
    if (h != 7) cuMemRelease(h);
    RC("larger_than_all", cuMemCreate(&h, (size_t)1 << 50, &m, 0));
    RC("release_none", cuMemRelease(0));
    RC("create", cuMemCreate(&h, PAGE, &m, 0));
    struct make got = {0};
    RC("properties", cuMemGetAllocationPropertiesFromHandle(&got, h));
    fact("kind", got.kind), fact("place", got.location.kind), fact("id", got.location.id);
    fact("handles", got.handle_types), fact("rdma", got.rdma), fact("compression", got.compression);
    RC("null", cuMemGetAllocationPropertiesFromHandle(NULL, h));
    RC("release", cuMemRelease(h));
}

static void release_while_mapped(void) {
    struct range r;
    RC("open", range_open(&r, "d"));
    size_t before = 0, after = 0, total;
    RC("fill", fill(r.at, 9, PAGE, NULL));
    RC("release", cuMemRelease(r.handle[0]));
    fact("still", not_equal(r.at, 9, PAGE));
    cuMemGetInfo_v2(&before, &total);
    RC("unmap", cuMemUnmap(r.at, PAGE));
    cuMemGetInfo_v2(&after, &total);
    fact("given_back", after >= before);
    RC("free", cuMemAddressFree(r.at, PAGE));
}

static void retained(void) {
    struct range r;
    uint64_t h = 0, other = 0;
    ptr plain = 0;
    RC("open", range_open(&r, "d."));
    RC("retain", cuMemRetainAllocationHandle(&h, (void *)(r.at + 4096)));
    fact("same", h == r.handle[0]);
    RC("release", cuMemRelease(h));
    RC("unmapped", cuMemRetainAllocationHandle(&other, (void *)(r.at + PAGE)));
    RC("null", cuMemRetainAllocationHandle(NULL, (void *)r.at));
    RC("alloc", cuMemAlloc_v2(&plain, 4 * MIB));
    RC("plain", cuMemRetainAllocationHandle(&other, (void *)plain));
    RC("host", cuMemRetainAllocationHandle(&other, &h));
    RC("free", cuMemFree_v2(plain));
    range_close(&r);
}

static void as_descriptor(void) {
    for (int place = ON_DEVICE; place <= ON_NODE; place++) {
        struct make m = how(place);
        uint64_t h = 0, again = 0;
        int fd = -1;
        m.handle_types = AS_FD;
        fact("place", place);
        int rc = cuMemCreate(&h, PAGE, &m, 0);
        RC("create", rc);
        if (rc != 0) continue;
        RC("export", cuMemExportToShareableHandle(&fd, h, AS_FD, 0));
        fact("fd", fd >= 0);
        if (fd < 0) continue;
        RC("import", cuMemImportFromShareableHandle(&again, (void *)(intptr_t)fd, AS_FD));
        close(fd);
        ptr one = 0, two = 0;
        RC("reserve", cuMemAddressReserve(&one, PAGE, 0, 0, 0) ?: cuMemAddressReserve(&two, PAGE, 0, 0, 0));
        RC("map", cuMemMap(one, PAGE, 0, h, 0) ?: cuMemMap(two, PAGE, 0, again, 0));
        RC("grant", grant(one, PAGE, 0, READ_WRITE) ?: grant(two, PAGE, 0, READ_WRITE));
        RC("fill", fill(one, 77, PAGE, NULL));
        fact("wrong", not_equal(two, 77, PAGE));
        RC("end", cuMemUnmap(one, PAGE) ?: cuMemUnmap(two, PAGE) ?: cuMemRelease(h) ?: cuMemRelease(again));
        cuMemAddressFree(one, PAGE), cuMemAddressFree(two, PAGE);
    }
    uint64_t h = 0;
    int fd = -1;
    RC("create", create(&h, ON_DEVICE, PAGE));
    RC("not_asked_for", cuMemExportToShareableHandle(&fd, h, AS_FD, 0));
    RC("odd_type", cuMemExportToShareableHandle(&fd, h, 0, 0));
    RC("null", cuMemExportToShareableHandle(NULL, h, AS_FD, 0));
    RC("import_nothing", cuMemImportFromShareableHandle(&h, (void *)(intptr_t)-1, AS_FD));
    RC("release", cuMemRelease(h));
}

static void atomics_on_the_host(void) {
    struct range r;
    uint64_t times = 1000, count = 0;
    RC("open", range_open(&r, "n"));
    RC("zero", cuMemsetD32_v2(r.at, 0, 64));
    for (int i = 0; i < 8; i++) RC("launch", launch(ATOMIC, NULL, (void *[]){&r.at, &times}));
    RC("read", cuMemcpyDtoH_v2(&count, r.at, 8));
    fact("count", (long long)count);
    range_close(&r);
}

// Pages come and go while a kernel runs, and do not wait for it.
static void beside_a_kernel(void) {
    struct range r;
    obj stream = NULL;
    RC("open", range_open(&r, "dd"));
    RC("stream", cuStreamCreate(&stream, 1));
    RC("sleep", sleep_on(stream, 400000));
    int rc = 0;
    for (int i = 0; i < 50 && rc == 0; i++) {
        rc = cuMemUnmap(r.at + PAGE, PAGE);
        if (rc == 0) rc = cuMemMap(r.at + PAGE, PAGE, 0, r.handle[1], 0);
        if (rc == 0) rc = grant(r.at + PAGE, PAGE, 0, READ_WRITE);
    }
    fact("remaps", rc);
    RC("still_running", cuStreamQuery(stream));
    RC("wait", cuStreamSynchronize(stream));
    RC("end", cuStreamDestroy_v2(stream));
    range_close(&r);
}

// Work that was queued before its page was mapped finds what is mapped when it runs.
static void mapped_when_it_runs(void) {
    struct range r;
    obj stream = NULL, other = NULL;
    ptr out = 0, flag = 0;
    RC("open", range_open(&r, "dd"));
    RC("fill", fill(r.at, 1, PAGE, NULL) ?: fill(r.at + PAGE, 2, PAGE, NULL) ?: cuCtxSynchronize());
    RC("alloc", cuMemAlloc_v2(&out, PAGE) ?: cuMemAlloc_v2(&flag, 4096) ?: cuMemsetD32_v2(flag, 0, 4));
    RC("zero", cuCtxSynchronize()); // the streams below do not wait for the default stream
    RC("streams", cuStreamCreate(&stream, 1) ?: cuStreamCreate(&other, 1));
    uint64_t n = PAGE;
    int gate = cuStreamWaitValue32_v2(stream, flag, 1, 0);
    RC("gate", gate);
    if (gate != 0) return; // without the wait the rest would be a race
    RC("queue", launch(COPY, stream, (void *[]){&out, &r.at, &n}));
    RC("swap", cuMemUnmap(r.at, PAGE) ?: cuMemUnmap(r.at + PAGE, PAGE) ?: cuMemMap(r.at, PAGE, 0, r.handle[1], 0) ?:
                   grant(r.at, PAGE, 0, READ_WRITE));
    RC("open", cuMemsetD32Async(flag, 1, 1, other));
    RC("wait", cuStreamSynchronize(stream));
    fact("wrong", not_equal(out, 2, PAGE));
    cuStreamDestroy_v2(stream), cuStreamDestroy_v2(other), cuMemFree_v2(out), cuMemFree_v2(flag);
    cuMemUnmap(r.at, PAGE), cuMemRelease(r.handle[0]), cuMemRelease(r.handle[1]), cuMemAddressFree(r.at, r.bytes);
}

static void one_range_two_gpus(void) {
    struct range r;
    obj second = NULL;
    RC("open", range_open(&r, "dn"));
    RC("access", grant(r.at, r.bytes, 1, READ_WRITE));
    RC("fill", fill(r.at, 1, r.bytes, NULL) ?: cuCtxSynchronize());
    RC("second", cuDevicePrimaryCtxRetain(&second, 1) ?: cuCtxSetCurrent(second));
    RC("memset", cuMemsetD32_v2(r.at, 2, r.bytes / 8));
    fact("half", not_equal(r.at, 2, r.bytes / 2));
    fact("rest", not_equal(r.at + r.bytes / 2, 1, r.bytes / 2));
    RC("back", cuCtxSetCurrent(context));
    range_close(&r);
}

// A page of a GPU that has no context here: made, mapped for the first GPU, and used by it; the second gets none.
static void page_of_the_peer_two_gpus(void) {
    struct make m = how(ON_DEVICE);
    uint64_t page = 0;
    ptr at = 0, start = 7;
    unsigned state = 7;
    int active = 7, ordinal = 77, kind = 77;
    size_t bytes = 7;
    m.location.id = 1;
    RC("create", cuMemCreate(&page, PAGE, &m, 0));
    RC("reserve", cuMemAddressReserve(&at, PAGE, 0, 0, 0));
    RC("map", cuMemMap(at, PAGE, 0, page, 0) ?: grant(at, PAGE, 0, READ_WRITE));
    RC("state", cuDevicePrimaryCtxGetState(1, &state, &active)), fact("active", active);
    RC("fill", fill(at, 4, PAGE, NULL) ?: cuCtxSynchronize());
    fact("wrong", not_equal(at, 4, PAGE));
    RC("ordinal", cuPointerGetAttribute(&ordinal, 9, at)), fact("is", ordinal);
    RC("kind", cuPointerGetAttribute(&kind, 2, at)), fact("is", kind);
    RC("range", cuMemGetAddressRange_v2(&start, &bytes, at + 5));
    fact("same", start == at), fact("bytes", (long long)bytes);
    RC("end", cuMemUnmap(at, PAGE) ?: cuMemRelease(page) ?: cuMemAddressFree(at, PAGE));
}

// Both GPUs count on one page of the second: no count is lost.
static void atomics_on_a_peers_page_two_gpus(void) {
    struct make m = how(ON_DEVICE);
    uint64_t page = 0, times = 2000, count = 0;
    ptr at = 0;
    obj second = NULL, image = NULL, adds = NULL;
    m.location.id = 1;
    RC("create", cuMemCreate(&page, PAGE, &m, 0) ?: cuMemAddressReserve(&at, PAGE, 0, 0, 0));
    RC("map", cuMemMap(at, PAGE, 0, page, 0) ?: grant(at, PAGE, 0, READ_WRITE) ?: grant(at, PAGE, 1, READ_WRITE));
    RC("zero", cuMemsetD32_v2(at, 0, 16) ?: cuCtxSynchronize());
    RC("second", cuDevicePrimaryCtxRetain(&second, 1) ?: cuCtxSetCurrent(second));
    RC("kernel", cuModuleLoadData(&image, image_text) ?: cuModuleGetFunction(&adds, image, "atomic_add_u64"));
    void *params[] = {&at, &times};
    int rc = 0;
    for (int i = 0; i < 8 && rc == 0; i++) {
        rc = cuCtxSetCurrent(second) ?: cuLaunchKernel(adds, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL);
        if (rc == 0) rc = cuCtxSetCurrent(context) ?: launch(ATOMIC, NULL, params);
    }
    RC("launches", rc);
    RC("wait", cuCtxSynchronize() ?: cuCtxSetCurrent(second) ?: cuCtxSynchronize() ?: cuCtxSetCurrent(context));
    RC("read", cuMemcpyDtoH_v2(&count, at, 8)), fact("count", (long long)count);
    RC("end", cuMemUnmap(at, PAGE) ?: cuMemRelease(page) ?: cuMemAddressFree(at, PAGE));
}

// A peer copy that names contexts of GPUs on which no page lies.
static void copy_by_wrong_names_two_gpus(void) {
    struct range r;
    obj second = NULL;
    ptr plain = 0;
    RC("open", range_open(&r, "dn") ?: grant(r.at, r.bytes, 1, READ_WRITE) ?: cuDevicePrimaryCtxRetain(&second, 1));
    RC("fill", fill(r.at, 3, r.bytes, NULL) ?: cuCtxSynchronize() ?: cuMemAlloc_v2(&plain, r.bytes));
    RC("within", cuMemcpyPeer(r.at + PAGE, second, r.at, second, PAGE / 2) ?: cuCtxSynchronize());
    RC("to_plain", cuMemcpyPeer(plain, context, r.at, second, r.bytes) ?: cuCtxSynchronize());
    fact("wrong", not_equal(plain, 3, r.bytes));
    struct copy3 b = {.from = {.kind = DEVICE, .device = r.at, .context = second, .pitch = 4096, .height = 16},
                      .to = {.kind = DEVICE, .device = plain, .context = second, .pitch = 4096, .height = 16},
                      .width = 4000, .height = 16, .depth = 60};
    RC("box", cuMemsetD8_v2(plain, 0, r.bytes) ?: cuMemcpy3DPeer(&b) ?: cuCtxSynchronize());
    fact("wrong", not_equal(plain + 20 * 4096, 3, 4000));
    RC("free", cuMemFree_v2(plain));
    range_close(&r);
}

CASES({"granularity", granularity}, {"one_range", one_range}, {"page_is_the_grain", page_is_the_grain},
      {"one_page_at_two_addresses", one_page_at_two_addresses},
      {"a_remap_starts_without_access", a_remap_starts_without_access}, {"granting", granting},
      {"read_only", read_only}, {"reserving", reserving, 1},
      {"half_of_all_addresses", half_of_all_addresses, 1}, {"making", making},
      {"release_while_mapped", release_while_mapped}, {"retained", retained}, {"as_descriptor", as_descriptor},
      {"atomics_on_the_host", atomics_on_the_host}, {"beside_a_kernel", beside_a_kernel},
      {"mapped_when_it_runs", mapped_when_it_runs}, {"one_range_two_gpus", one_range_two_gpus},
      {"page_of_the_peer_two_gpus", page_of_the_peer_two_gpus, 1},
      {"atomics_on_a_peers_page_two_gpus", atomics_on_a_peers_page_two_gpus},
      {"copy_by_wrong_names_two_gpus", copy_by_wrong_names_two_gpus},
      {"write_to_read_only", write_to_read_only, 1}, {"use_of_unmapped", use_of_unmapped, 1},
      {"unmap_under_its_kernel", unmap_under_its_kernel, 1});
