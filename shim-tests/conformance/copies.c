// Copies and memsets of every form, over plain memory, pages of several places, and host memory; and wrong ones.
#include "conf.h"

enum { KINDS = 4, SIZE = 5 * MIB };
static const char *const kind_names[KINDS] = {"plain", "pages", "pinned", "pageable"};

// Memory of one kind; `host` is set where the CPU can use it.
struct memory { ptr at; void *host; struct range range; int kind; };

static int memory_open(struct memory *m, int kind) {
    int rc = 0;
    memset(m, 0, sizeof *m);
    m->kind = kind;
    if (kind == 0) rc = cuMemAlloc_v2(&m->at, SIZE);
    if (kind == 1) rc = range_open(&m->range, "dhd"), m->at = m->range.at;
    if (kind == 2) rc = cuMemAllocHost_v2(&m->host, SIZE);
    if (kind == 3) m->host = malloc(SIZE);
    if (m->host) m->at = (ptr)(uintptr_t)m->host;
    return rc;
}

static void memory_close(struct memory *m) {
    if (m->kind == 0) cuMemFree_v2(m->at);
    if (m->kind == 1) range_close(&m->range);
    if (m->kind == 2) cuMemFreeHost(m->host);
    if (m->kind == 3) free(m->host);
}

static void put(struct memory *m, size_t at, size_t n, unsigned first) {
    unsigned char *bytes = malloc(n);
    pattern(bytes, n, first);
    if (m->host) memcpy((char *)m->host + at, bytes, n);
    else if (cuMemcpyHtoD_v2(m->at + at, bytes, n)) word("put", "failed");
    free(bytes);
}

static long long differ(struct memory *m, size_t at, size_t n, unsigned first) {
    cuCtxSynchronize();
    return m->host ? unlike((char *)m->host + at, n, first) : unlike_at(m->at + at, n, first);
}

static void pairs(void (*each)(struct memory *, struct memory *)) {
    for (int a = 0; a < KINDS; a++)
        for (int b = 0; b < KINDS; b++) {
            struct memory to, from;
            printf(" [%s<-%s]", kind_names[a], kind_names[b]);
            int rc = memory_open(&to, a) ?: memory_open(&from, b);
            if (rc) fact("open", rc);
            else each(&to, &from);
            memory_close(&to), memory_close(&from);
        }
}

static void linear_pair(struct memory *to, struct memory *from) {
    size_t n = 3 * MIB + 777, a = 13, b = 1000003;
    put(from, b, n, 5);
    RC("copy", cuMemcpy(to->at + a, from->at + b, n));
    fact("wrong", differ(to, a, n, 5));
    put(from, b, n, 6);
    RC("async", cuMemcpyAsync(to->at + a, from->at + b, n, NULL));
    fact("wrong", differ(to, a, n, 6));
}
static void linear(void) { pairs(linear_pair); }

static void set_side2(struct side2 *s, struct memory *m, int unified) {
    s->kind = unified ? UNIFIED : m->host ? HOST : DEVICE;
    s->host = unified ? NULL : m->host, s->device = m->host && !unified ? 0 : m->at;
}

// A rectangle whose rows cross the seams.
static void rectangle_pair(struct memory *to, struct memory *from) {
    for (int form = 0; form < 4; form++) {
        struct copy2 c = {.width = 1001, .height = 1500};
        set_side2(&c.from, from, form == 3), set_side2(&c.to, to, form == 3);
        c.from.x = 7, c.from.y = 3, c.from.pitch = 2048, c.to.x = 64, c.to.y = 1, c.to.pitch = 3072;
        put(from, 0, SIZE, 20 + (unsigned)form);
        int rc = form == 0   ? cuMemcpy2D_v2(&c)
                 : form == 1 ? cuMemcpy2DUnaligned_v2(&c)
                 : form == 2 ? cuMemcpy2DAsync_v2(&c, NULL)
                             : cuMemcpy2D_v2(&c);
        RC("rc", rc);
        long long wrong = 0;
        for (size_t y = 0; rc == 0 && y < c.height; y += 37)
            wrong += differ(to, (y + 1) * 3072 + 64, c.width, (unsigned)((y + 3) * 2048 + 7) + 20 + (unsigned)form);
        fact("wrong", wrong);
    }
}
static void rectangles(void) { pairs(rectangle_pair); }

static void set_side3(struct side3 *s, struct memory *m) {
    s->kind = m->host ? HOST : DEVICE, s->host = m->host, s->device = m->host ? 0 : m->at;
}

static void box_pair(struct memory *to, struct memory *from) {
    for (int form = 0; form < 4; form++) {
        struct copy3 c = {.width = 500, .height = 60, .depth = 40};
        set_side3(&c.from, from), set_side3(&c.to, to);
        c.from.x = 5, c.from.y = 2, c.from.z = 1, c.from.pitch = 1024, c.from.height = 64;
        c.to.x = 8, c.to.y = 1, c.to.z = 2, c.to.pitch = 1536, c.to.height = 61;
        if (form >= 2) c.from.context = c.to.context = context;
        put(from, 0, SIZE, 50 + (unsigned)form);
        int rc = form == 0   ? cuMemcpy3D_v2(&c)
                 : form == 1 ? cuMemcpy3DAsync_v2(&c, NULL)
                 : form == 2 ? cuMemcpy3DPeer(&c)
                             : cuMemcpy3DPeerAsync(&c, NULL);
        RC("rc", rc);
        long long wrong = 0;
        for (size_t z = 0; rc == 0 && z < c.depth; z += 7)
            for (size_t y = 0; y < c.height; y += 13)
                wrong += differ(to, ((z + 2) * 61 + y + 1) * 1536 + 8, c.width,
                                (unsigned)(((z + 1) * 64 + y + 2) * 1024 + 5) + 50 + (unsigned)form);
        fact("wrong", wrong);
    }
}
static void boxes(void) { pairs(box_pair); }

static void peer_pair(struct memory *to, struct memory *from) {
    if (to->host || from->host) return;
    size_t n = 3 * MIB + 5;
    put(from, 9, n, 5);
    RC("peer", cuMemcpyPeer(to->at + 3, context, from->at + 9, context, n));
    fact("wrong", differ(to, 3, n, 5));
    put(from, 9, n, 6);
    RC("async", cuMemcpyPeerAsync(to->at + 3, context, from->at + 9, context, n, NULL));
    fact("wrong", differ(to, 3, n, 6));
}
static void within_one_context(void) { pairs(peer_pair); }

static void batches(void) {
    struct memory m[KINDS];
    obj stream = NULL;
    for (int k = 0; k < KINDS; k++) RC(kind_names[k], memory_open(&m[k], k));
    RC("stream", cuStreamCreate(&stream, 0));
    ptr to[4] = {m[0].at + 5, m[1].at + 2 * MIB - 999, m[2].at, m[0].at + 3 * MIB};
    ptr from[4] = {m[1].at + MIB, m[0].at + 4 * MIB, m[0].at + 4 * MIB, m[2].at + 4 * MIB};
    size_t sizes[4] = {2 * MIB, 5000, 7000, 9000}, index = 0, failed = 77;
    struct copy_attributes how_to = {.order = 1};
    put(&m[0], 4 * MIB, 9000, 1), put(&m[1], MIB, 2 * MIB, 2), put(&m[2], 4 * MIB, 9000, 3);
    RC("batch", cuMemcpyBatchAsync_v2(to, from, sizes, 4, &how_to, &index, 1, stream));
    RC("wait", cuStreamSynchronize(stream));
    fact("pinned", differ(&m[2], 0, 7000, 1)), fact("plain", differ(&m[0], 3 * MIB, 9000, 3));
    fact("seam", differ(&m[1], 2 * MIB - 999, 5000, 1));
    RC("old_batch", cuMemcpyBatchAsync(to, from, sizes, 4, &how_to, &index, 1, &failed, stream));
    RC("wait", cuStreamSynchronize(stream));
    RC("of_none", cuMemcpyBatchAsync_v2(to, from, sizes, 0, &how_to, &index, 1, stream));
    RC("no_attributes", cuMemcpyBatchAsync_v2(to, from, sizes, 4, NULL, NULL, 0, stream));
    RC("default_stream", cuMemcpyBatchAsync_v2(to, from, sizes, 4, &how_to, &index, 1, NULL));
    sizes[1] = 0;
    RC("size_zero", cuMemcpyBatchAsync_v2(to, from, sizes, 4, &how_to, &index, 1, stream));
    sizes[1] = 5000, index = 1;
    RC("first_index_not_zero", cuMemcpyBatchAsync_v2(to, from, sizes, 4, &how_to, &index, 1, stream));
    index = 0, how_to.order = 9;
    RC("odd_order", cuMemcpyBatchAsync_v2(to, from, sizes, 4, &how_to, &index, 1, stream));
    RC("wait", cuStreamSynchronize(stream));
    cuStreamDestroy_v2(stream);
    for (int k = 0; k < KINDS; k++) memory_close(&m[k]);
}

static void set_one(struct memory *m) {
    unsigned char *bytes = malloc(SIZE);
    printf(" [%s]", kind_names[m->kind]);
    RC("d8", cuMemsetD8_v2(m->at, 0x11, SIZE));
    RC("d8_odd", cuMemsetD8_v2(m->at + 2 * MIB - 333, 0x12, 999));
    RC("d16", cuMemsetD16_v2(m->at + 2, 0x3132, 500));
    RC("d16_odd", cuMemsetD16_v2(m->at + 1, 0x3132, 500));
    RC("d32", cuMemsetD32_v2(m->at + 4 * MIB - 400, 0x51525354, 200));
    RC("d32_odd", cuMemsetD32_v2(m->at + 2, 1, 1));
    RC("2d8", cuMemsetD2D8_v2(m->at + 5000, 3000, 0x61, 1001, 900));
    RC("2d16", cuMemsetD2D16_v2(m->at + 6002, 3000, 0x7172, 101, 900));
    RC("2d32", cuMemsetD2D32_v2(m->at + 7000, 3000, 0x81828384, 101, 900));
    RC("2d32_odd_pitch", cuMemsetD2D32_v2(m->at + 7000, 3001, 1, 101, 9));
    RC("2d8_narrow", cuMemsetD2D8_v2(m->at, 100, 1, 101, 9));
    RC("2d8_one_row", cuMemsetD2D8_v2(m->at, 0, 0x91, 101, 1));
    RC("none", cuMemsetD8_v2(m->at, 1, 0));
    RC("2d_none", cuMemsetD2D8_v2(m->at, 100, 1, 0, 5));
    RC("async", cuMemsetD8Async(m->at + 100, 0xA1, 64, NULL) ?: cuMemsetD32Async(m->at + 200, 0xB1, 64, NULL));
    RC("read", cuMemcpyDtoH_v2(bytes, m->at, SIZE));
    checksum("sum", bytes, SIZE);
    free(bytes);
}

static void memsets(void) {
    for (int k = 0; k < 3; k++) {
        struct memory m;
        int rc = memory_open(&m, k);
        if (rc) fact("open", rc);
        else set_one(&m);
        memory_close(&m);
    }
}

static void past_the_end(void) {
    ptr p = 0;
    unsigned char *bytes = malloc(16 * MIB);
    struct range r;
    RC("alloc", cuMemAlloc_v2(&p, 4 * MIB) ?: range_open(&r, "dd"));
    RC("to", cuMemcpyHtoD_v2(p + 4 * MIB - 10, bytes, 11));
    RC("from", cuMemcpyDtoH_v2(bytes, p + 4 * MIB - 10, 11));
    RC("set", cuMemsetD8_v2(p + 4 * MIB - 10, 0, 11));
    RC("far_to", cuMemcpyHtoD_v2(p, bytes, 12 * MIB));
    RC("far_set", cuMemsetD8_v2(p, 0, (size_t)1 << 40));
    RC("pages_to", cuMemcpyHtoD_v2(r.at + 2 * PAGE - 10, bytes, 11));
    RC("pages_from", cuMemcpyDtoH_v2(bytes, r.at + 2 * PAGE - 10, 11));
    RC("pages_set", cuMemsetD8_v2(r.at + 2 * PAGE - 10, 0, 11));
    RC("pages_to_plain", cuMemcpyDtoD_v2(p + 4 * MIB - 10, r.at, 11));
    RC("wait", cuCtxSynchronize());
    RC("free", cuMemFree_v2(p));
    range_close(&r);
    free(bytes);
}

static void wrong_addresses(void) {
    ptr p = 0;
    char bytes[64] = "x";
    RC("alloc", cuMemAlloc_v2(&p, 4 * MIB));
    RC("to_null", cuMemcpyHtoD_v2(0, bytes, 4));
    RC("from_null", cuMemcpyDtoH_v2(bytes, 0, 4));
    RC("none_null", cuMemcpyHtoD_v2(0, NULL, 0));
    RC("none", cuMemcpyHtoD_v2(p, bytes, 0));
    RC("set_null", cuMemsetD8_v2(0, 0, 4));
    RC("set_unknown", cuMemsetD8_v2(12345678, 0, 4));
    RC("to_unknown", cuMemcpyHtoD_v2(12345678, bytes, 4));
    RC("between_null", cuMemcpyDtoD_v2(p, 0, 4));
    RC("set_host", cuMemsetD8_v2((ptr)(uintptr_t)bytes, 0, 4));
    RC("unified_host_host", cuMemcpy((ptr)(uintptr_t)(bytes + 32), (ptr)(uintptr_t)bytes, 4));
    RC("free", cuMemFree_v2(p));
    RC("freed_to", cuMemcpyHtoD_v2(p, bytes, 4));
    RC("freed_from", cuMemcpyDtoH_v2(bytes, p, 4));
    RC("freed_set", cuMemsetD8_v2(p, 0, 4));
    RC("wait", cuCtxSynchronize());
}

// A driver may well read there: the answer is a code or a signal.
static void from_a_null_host(void) {
    ptr p = 0;
    RC("alloc", cuMemAlloc_v2(&p, 4 * MIB));
    RC("from", cuMemcpyHtoD_v2(p, NULL, 4));
}

static void to_a_null_host(void) {
    ptr p = 0;
    RC("alloc", cuMemAlloc_v2(&p, 4 * MIB));
    RC("to", cuMemcpyDtoH_v2(NULL, p, 4));
}

static void wrong_rectangles_on(ptr p) {
    char *bytes = malloc(MIB);
    struct copy2 good = {.from = {.kind = HOST, .host = bytes, .pitch = 1024},
                         .to = {.kind = DEVICE, .device = p, .pitch = 2048}, .width = 1000, .height = 100};
    struct copy2 c = good;
    RC("good", cuMemcpy2D_v2(&c));
    c.from.pitch = 999;
    RC("narrow_pitch", cuMemcpy2D_v2(&c));
    c = good, c.to.x = 1049;
    RC("row_past_pitch", cuMemcpy2D_v2(&c));
    c = good, c.width = 0;
    RC("no_width", cuMemcpy2D_v2(&c));
    c = good, c.height = 0;
    RC("no_height", cuMemcpy2D_v2(&c));
    c = good, c.from.pitch = c.to.pitch = 0, c.height = 1;
    RC("one_row_no_pitch", cuMemcpy2D_v2(&c));
    c.height = 2;
    RC("two_rows_no_pitch", cuMemcpy2D_v2(&c));
    c = good, c.to.kind = 0;
    RC("no_kind", cuMemcpy2D_v2(&c));
    c = good, c.to.kind = 9;
    RC("odd_kind", cuMemcpy2D_v2(&c));
    c = good, c.to.device = 0;
    RC("null_device", cuMemcpy2D_v2(&c));
    c = good, c.from.host = NULL;
    RC("null_host", cuMemcpy2D_v2(&c));
    RC("null", cuMemcpy2D_v2(NULL));
    struct copy3 b = {.from = {.kind = HOST, .host = bytes, .pitch = 1024, .height = 10},
                      .to = {.kind = DEVICE, .device = p, .pitch = 1024, .height = 10},
                      .width = 500, .height = 9, .depth = 5};
    RC("box", cuMemcpy3D_v2(&b));
    b.from.height = 5;
    RC("box_low", cuMemcpy3D_v2(&b));
    b.from.height = 10, b.depth = 0;
    RC("box_no_depth", cuMemcpy3D_v2(&b));
    b.depth = 5, b.to.pitch = 400;
    RC("box_narrow", cuMemcpy3D_v2(&b));
    RC("box_null", cuMemcpy3D_v2(NULL));
    RC("wait", cuCtxSynchronize());
    free(bytes);
}

static void wrong_rectangles(void) {
    ptr p = 0;
    RC("alloc", cuMemAlloc_v2(&p, 4 * MIB));
    wrong_rectangles_on(p);
    RC("free", cuMemFree_v2(p));
}

static void wrong_rectangles_on_pages(void) {
    struct range r;
    RC("open", range_open(&r, "dd"));
    wrong_rectangles_on(r.at);
    range_close(&r);
}

// Rows past the end of the memory: they may be refused, or written and be the end of the context.
static void past_the_last_row_on(ptr p, int box) {
    char *bytes = malloc(MIB);
    struct copy2 c = {.from = {.kind = HOST, .host = bytes, .pitch = 1024},
                      .to = {.kind = DEVICE, .device = p, .pitch = 2048, .y = 2000}, .width = 1000, .height = 100};
    struct copy3 b = {.from = {.kind = HOST, .host = bytes, .pitch = 1024, .height = 10},
                      .to = {.kind = DEVICE, .device = p, .pitch = 1024, .height = 10, .z = 408},
                      .width = 500, .height = 9, .depth = 5};
    RC("copy", box ? cuMemcpy3D_v2(&b) : cuMemcpy2D_v2(&c));
    RC("wait", cuCtxSynchronize());
    RC("after", cuMemsetD8_v2(p, 0, 16));
}
static ptr four_mib(void) {
    ptr p = 0;
    RC("alloc", cuMemAlloc_v2(&p, 4 * MIB));
    return p;
}
static ptr two_pages(void) {
    static struct range r;
    RC("open", range_open(&r, "dd"));
    return r.at;
}
static void rectangle_past_the_end(void) { past_the_last_row_on(four_mib(), 0); }
static void box_past_the_end(void) { past_the_last_row_on(four_mib(), 1); }
static void rectangle_past_the_pages(void) { past_the_last_row_on(two_pages(), 0); }
static void box_past_the_pages(void) { past_the_last_row_on(two_pages(), 1); }

// Which copies the host waits for, with a kernel running in front of them.
static void who_waits(void) {
    ptr p = 0;
    void *pinned = NULL;
    char *pageable = calloc(1, 4 * MIB);
    obj stream = NULL;
    RC("open", cuMemAlloc_v2(&p, 4 * MIB) ?: cuMemAllocHost_v2(&pinned, 4 * MIB) ?: cuStreamCreate(&stream, 0));
    static const char *const names[] = {"async_from_pinned", "async_to_pinned", "async_within", "set_async",
                                        "async_to_pageable", "sync_within", "set", "sync_to_pinned", "free"};
    for (int i = 0; i < 9; i++) {
        RC("sleep", sleep_on(stream, 300000));
        double start = seconds();
        int rc = 0;
        if (i == 0) rc = cuMemcpyHtoDAsync_v2(p, pinned, MIB, stream);
        if (i == 1) rc = cuMemcpyDtoHAsync_v2(pinned, p, MIB, stream);
        if (i == 2) rc = cuMemcpyDtoDAsync_v2(p, p + 2 * MIB, MIB, stream);
        if (i == 3) rc = cuMemsetD8Async(p, 1, MIB, stream);
        if (i == 4) rc = cuMemcpyDtoHAsync_v2(pageable, p, 2 * MIB, stream);
        if (i == 5) rc = cuMemcpyDtoD_v2(p, p + 2 * MIB, MIB);
        if (i == 6) rc = cuMemsetD8_v2(p, 1, MIB);
        if (i == 7) rc = cuMemcpyDtoH_v2(pinned, p, MIB);
        if (i == 8) rc = cuMemFree_v2(p);
        fact(names[i], rc);
        fact("waited", seconds() - start > 0.15);
        RC("end", cuStreamSynchronize(stream));
    }
    cuStreamDestroy_v2(stream), cuMemFreeHost(pinned), free(pageable);
}

CASES({"linear", linear}, {"rectangles", rectangles}, {"boxes", boxes}, {"within_one_context", within_one_context},
      {"batches", batches}, {"memsets", memsets}, {"past_the_end", past_the_end}, {"wrong_addresses", wrong_addresses},
      {"wrong_rectangles", wrong_rectangles}, {"who_waits", who_waits},
      {"wrong_rectangles_on_pages", wrong_rectangles_on_pages, 1},
      {"rectangle_past_the_end", rectangle_past_the_end, 1}, {"box_past_the_end", box_past_the_end, 1},
      {"rectangle_past_the_pages", rectangle_past_the_pages, 1}, {"box_past_the_pages", box_past_the_pages, 1},
      {"from_a_null_host", from_a_null_host, 1}, {"to_a_null_host", to_a_null_host, 1});
