// What the driver answers about addresses, allocations, memory and devices.
#include "conf.h"

enum { ATTRIBUTES = 20, BUFFER = 80 };

// How many bytes a call wrote into a buffer that held one pattern and then another.
static int written(const unsigned char *one, const unsigned char *other) {
    int n = 0;
    for (int i = 0; i < BUFFER; i++)
        if (one[i] != 0xAA || other[i] != 0x55) n = i + 1;
    return n;
}

// An attribute's value as a fact: addresses relative to `base`, handles as known or not.
static void say_value(int attribute, const unsigned char *bytes, int n, ptr base) {
    uint64_t value = 0;
    memcpy(&value, bytes, n < 8 ? (size_t)n : 8);
    if (n == 0) return;
    if (attribute == 5) return; // tokens
    if (attribute == 7 || attribute == 20) printf("(%s)", value ? "a number" : "0");
    else if (attribute == 1) printf("(%s)", value == (ptr)(uintptr_t)context ? "ours" : value ? "other" : "0");
    else if (attribute == 17) printf("(%s)", value ? "a pool" : "0");
    else if (attribute == 9 && n == 4) printf("(%d)", (int)value);
    else if (attribute == 3 || attribute == 4 || attribute == 11 || attribute == 19) {
        if (value == 0) printf("(0)");
        else if (value - base < (uint64_t)1 << 32) printf("(base+%llu)", (unsigned long long)(value - base));
        else if (base - value < (uint64_t)1 << 32) printf("(base-%llu)", (unsigned long long)(base - value));
        else printf("(elsewhere)");
    } else printf("(%llu)", (unsigned long long)value);
}

static void attributes(ptr at, ptr base) {
    for (int attribute = 1; attribute <= ATTRIBUTES; attribute++) {
        unsigned char a[BUFFER], b[BUFFER];
        memset(a, 0xAA, BUFFER), memset(b, 0x55, BUFFER);
        int rc = cuPointerGetAttribute(a, attribute, at);
        cuPointerGetAttribute(b, attribute, at);
        printf(" %d=%d/%d", attribute, rc, written(a, b));
        say_value(attribute, a, written(a, b), base);
    }
}

static void attributes_in_a_list(ptr at, ptr base) {
    static unsigned char a[ATTRIBUTES][BUFFER], b[ATTRIBUTES][BUFFER];
    int which[ATTRIBUTES];
    void *to_a[ATTRIBUTES], *to_b[ATTRIBUTES];
    memset(a, 0xAA, sizeof a), memset(b, 0x55, sizeof b);
    for (int i = 0; i < ATTRIBUTES; i++) which[i] = i + 1, to_a[i] = a[i], to_b[i] = b[i];
    printf(" [list]");
    RC("tokens", cuPointerGetAttributes(1, &which[4], &to_a[4], at)); // an error of its own: left out of the list
    which[4] = 3, memset(a[4], 0xAA, BUFFER);
    RC("rc", cuPointerGetAttributes(ATTRIBUTES, which, to_a, at));
    cuPointerGetAttributes(ATTRIBUTES, which, to_b, at);
    for (int i = 0; i < ATTRIBUTES; i++) {
        if (i == 4) continue;
        printf(" %d=%d", i + 1, written(a[i], b[i]));
        say_value(i + 1, a[i], written(a[i], b[i]), base);
    }
}

static void range_of(ptr at, ptr base) {
    ptr start = 7;
    size_t bytes = 7;
    RC("range", cuMemGetAddressRange_v2(&start, &bytes, at));
    if (start == 0) word("start", "null");
    else if (start != 7) fact("start", (long long)(start - base));
    fact("bytes", (long long)bytes);
}

static void about(ptr at, ptr base) {
    attributes(at, base);
    attributes_in_a_list(at, base);
    range_of(at, base);
}

static void large(void) {
    ptr p = 0;
    RC("alloc", cuMemAlloc_v2(&p, 8 * MIB + 12345));
    about(p + 5, p);
    RC("free", cuMemFree_v2(p));
}
static void small(void) {
    ptr p = 0;
    RC("alloc", cuMemAlloc_v2(&p, 1000));
    // Where small memory lies in its block is the driver's choice: the block's own numbers are left out.
    for (int attribute = 1; attribute <= 17; attribute++) {
        unsigned char a[BUFFER], b[BUFFER];
        memset(a, 0xAA, BUFFER), memset(b, 0x55, BUFFER);
        int rc = cuPointerGetAttribute(a, attribute, p + 3);
        cuPointerGetAttribute(b, attribute, p + 3);
        printf(" %d=%d/%d", attribute, rc, written(a, b));
        say_value(attribute, a, written(a, b), p);
    }
    range_of(p + 3, p);
    RC("free", cuMemFree_v2(p));
}
static void freed(void) {
    ptr p = 0;
    RC("alloc", cuMemAlloc_v2(&p, 64 * MIB));
    RC("free", cuMemFree_v2(p));
    about(p + 5, p);
}
static void null_address(void) { about(0, 0); }
static void pageable(void) {
    static char bytes[100];
    about((ptr)(uintptr_t)bytes + 5, (ptr)(uintptr_t)bytes);
}
static void pinned(void) {
    void *p = NULL;
    unsigned flags = 77;
    ptr device = 0;
    RC("alloc", cuMemAllocHost_v2(&p, 3 * MIB));
    attributes((ptr)(uintptr_t)p + 5, (ptr)(uintptr_t)p);
    range_of((ptr)(uintptr_t)p + 5, (ptr)(uintptr_t)p);
    RC("flags", cuMemHostGetFlags(&flags, p));
    fact("are", flags);
    RC("device", cuMemHostGetDevicePointer_v2(&device, p, 0));
    fact("same", device == (ptr)(uintptr_t)p);
    RC("free", cuMemFreeHost(p));
    RC("again", cuMemFreeHost(p));
    RC("flags_after", cuMemHostGetFlags(&flags, p));
}
static void registered(void) {
    char *p = aligned_alloc(4096, MIB);
    unsigned flags = 77;
    ptr device = 0;
    RC("register", cuMemHostRegister_v2(p, MIB, 2));
    RC("again", cuMemHostRegister_v2(p, MIB, 2));
    attributes((ptr)(uintptr_t)p + 5, (ptr)(uintptr_t)p);
    RC("flags", cuMemHostGetFlags(&flags, p));
    fact("are", flags);
    RC("device", cuMemHostGetDevicePointer_v2(&device, p, 0));
    fact("same", device == (ptr)(uintptr_t)p);
    RC("fill", fill(device, 3, 4096, NULL) ?: cuCtxSynchronize());
    fact("seen", ((unsigned *)p)[1000]);
    RC("inside", cuMemHostUnregister(p + 4096));
    RC("unregister", cuMemHostUnregister(p));
    RC("again", cuMemHostUnregister(p));
    RC("null", cuMemHostRegister_v2(NULL, MIB, 0));
    RC("nothing", cuMemHostRegister_v2(p, 0, 0));
    free(p);
}
static void pages(const char *kinds, size_t page) {
    struct range r;
    RC("open", range_open(&r, kinds));
    about(r.at + page * PAGE + 5, r.at);
    int flag = 1;
    RC("set_sync", cuPointerSetAttribute(&flag, 6, r.at));
    RC("set_other", cuPointerSetAttribute(&flag, 2, r.at));
    range_close(&r);
}
static void page_on_the_device(void) { pages("dd", 1); }
static void page_on_the_host(void) { pages("hh", 1); }
static void page_on_the_node(void) { pages("dn", 1); }
static void page_that_is_not_mapped(void) { pages("d.", 1); }

static void wrong_questions(void) {
    ptr p = 0, start = 7;
    size_t bytes = 7;
    RC("alloc", cuMemAlloc_v2(&p, 4 * MIB));
    unsigned char a[BUFFER];
    RC("attribute_0", cuPointerGetAttribute(a, 0, p));
    RC("attribute_99", cuPointerGetAttribute(a, 99, p));
    RC("null", cuPointerGetAttribute(NULL, 2, p));
    int which[2] = {2, 99};
    void *to[2] = {a, a + 16};
    RC("list_of_none", cuPointerGetAttributes(0, which, to, p));
    RC("list_with_99", cuPointerGetAttributes(2, which, to, p));
    RC("list_null", cuPointerGetAttributes(1, NULL, to, p));
    RC("list_null_out", cuPointerGetAttributes(1, which, NULL, p));
    RC("range_null_start", cuMemGetAddressRange_v2(NULL, &bytes, p + 9));
    fact("bytes", (long long)bytes);
    RC("range_null_size", cuMemGetAddressRange_v2(&start, NULL, p + 9));
    fact("start", start == p);
    RC("range_null_both", cuMemGetAddressRange_v2(NULL, NULL, p));
    RC("range_last", cuMemGetAddressRange_v2(&start, &bytes, p + 4 * MIB - 1));
    int flag = 1, off = 0;
    RC("set_sync", cuPointerSetAttribute(&flag, 6, p));
    RC("set_sync_off", cuPointerSetAttribute(&off, 6, p));
    RC("set_inside", cuPointerSetAttribute(&flag, 6, p + 77));
    RC("set_other", cuPointerSetAttribute(&flag, 2, p));
    RC("set_null", cuPointerSetAttribute(NULL, 6, p));
    RC("set_unknown", cuPointerSetAttribute(&flag, 6, 12345));
    RC("free", cuMemFree_v2(p));
}

static void memory_information(void) {
    size_t before = 0, total = 0, after = 0, of_device = 0, last = 0;
    ptr p = 0;
    RC("info", cuMemGetInfo_v2(&before, &total));
    RC("total", cuDeviceTotalMem_v2(&of_device, 0));
    fact("same", total == of_device);
    fact("less", before < total);
    RC("null_free", cuMemGetInfo_v2(NULL, &total));
    RC("null_total", cuMemGetInfo_v2(&before, NULL));
    RC("null_both", cuMemGetInfo_v2(NULL, NULL));
    RC("alloc", cuMemAlloc_v2(&p, 64 * MIB));
    cuMemGetInfo_v2(&after, &total);
    fact("mib", (long long)((before - after) >> 20));
    RC("free", cuMemFree_v2(p));
    cuMemGetInfo_v2(&last, &total);
    fact("back", last == before);
    RC("total_null", cuDeviceTotalMem_v2(NULL, 0));
    RC("total_of_nobody", cuDeviceTotalMem_v2(&of_device, 77));
}

static void allocations(void) {
    ptr p = 7;
    size_t pitch = 7;
    RC("nothing", cuMemAlloc_v2(&p, 0)), fact("written", p != 7);
    RC("null", cuMemAlloc_v2(NULL, 4096));
    p = 7, RC("huge", cuMemAlloc_v2(&p, (size_t)1 << 50)), fact("written", p != 7);
    p = 7, RC("most", cuMemAlloc_v2(&p, (size_t)-1)), fact("written", p != 7);
    for (int i = 0; i < 4; i++) {
        static const size_t sizes[] = {1, 513, 70000, 3 * MIB + 1};
        RC("alloc", cuMemAlloc_v2(&p, sizes[i]));
        fact("aligned", p % (sizes[i] > MIB ? PAGE : 256) == 0);
        RC("inside", sizes[i] > 600 ? cuMemFree_v2(p + 512) : INVALID);
        RC("free", cuMemFree_v2(p));
        RC("again", cuMemFree_v2(p));
    }
    RC("free_null", cuMemFree_v2(0));
    RC("free_unknown", cuMemFree_v2(0x123456789000));
    RC("free_stack", cuMemFree_v2((ptr)(uintptr_t)&p));
    static const size_t widths[] = {1000, 33, 512, 513, 70000};
    for (int i = 0; i < 5; i++) {
        RC("pitched", cuMemAllocPitch_v2(&p, &pitch, widths[i], 100, 4));
        fact("pitch", (long long)pitch);
        RC("free", cuMemFree_v2(p));
    }
    p = pitch = 7;
    RC("element_3", cuMemAllocPitch_v2(&p, &pitch, 1000, 10, 3));
    RC("element_16", cuMemAllocPitch_v2(&p, &pitch, 1000, 10, 16));
    cuMemFree_v2(p);
    RC("no_width", cuMemAllocPitch_v2(&p, &pitch, 0, 10, 4));
    RC("no_height", cuMemAllocPitch_v2(&p, &pitch, 1000, 0, 4));
    RC("null", cuMemAllocPitch_v2(NULL, &pitch, 1000, 10, 4));
    RC("null_pitch", cuMemAllocPitch_v2(&p, NULL, 1000, 10, 4));
    RC("huge", cuMemAllocPitch_v2(&p, &pitch, (size_t)1 << 40, (size_t)1 << 20, 4));
}

static void host_allocations(void) {
    void *p = NULL;
    ptr device = 0;
    RC("nothing", cuMemAllocHost_v2(&p, 0));
    RC("null", cuMemAllocHost_v2(NULL, 4096));
    RC("mapped", cuMemHostAlloc(&p, 5000, 2));
    RC("device", cuMemHostGetDevicePointer_v2(&device, p, 0));
    RC("fill", fill(device, 8, 4000, NULL) ?: cuCtxSynchronize());
    fact("seen", ((unsigned *)p)[999]);
    RC("device_flags", cuMemHostGetDevicePointer_v2(&device, p, 1));
    RC("free_as_device", cuMemFree_v2((ptr)(uintptr_t)p));
    RC("free_inside", cuMemFreeHost((char *)p + 64));
    RC("free", cuMemFreeHost(p));
    RC("portable_combined", cuMemHostAlloc(&p, 5000, 5));
    RC("free", cuMemFreeHost(p));
    RC("odd_flags", cuMemHostAlloc(&p, 5000, 64));
    RC("free_null", cuMemFreeHost(NULL));
    RC("device_of_unknown", cuMemHostGetDevicePointer_v2(&device, &device, 0));
}

static void devices(void) {
    // Those that say what memory calls may be used, or how they round.
    static const int asked[] = {
        10, 19, 31, 41, 51, 75, 76, 83, 89, 90, 95, 102, 103, 110, 115, 116, 119, 121, 129, 132};
    int value = 7;
    for (unsigned i = 0; i < sizeof asked / sizeof *asked; i++) {
        value = 7;
        int rc = cuDeviceGetAttribute(&value, asked[i], 0);
        printf(" %d=%d/%d", asked[i], rc, value);
    }
    RC("node", cuDeviceGetAttribute(&value, 134, 0)), fact("is_one", value >= 0);
    value = 7;
    RC("attribute_0", cuDeviceGetAttribute(&value, 0, 0));
    RC("attribute_9999", cuDeviceGetAttribute(&value, 9999, 0)), fact("written", value != 7);
    RC("null", cuDeviceGetAttribute(NULL, 10, 0));
    RC("nobody", cuDeviceGetAttribute(&value, 10, 77));
    RC("minus", cuDeviceGetAttribute(&value, 10, -1));
    int device = 77;
    RC("get_minus", cuDeviceGet(&device, -1));
    RC("get_many", cuDeviceGet(&device, 77));
    RC("get_null", cuDeviceGet(NULL, 0));
    RC("count_null", cuDeviceGetCount(NULL));
    char name[4] = "abc";
    RC("name_short", cuDeviceGetName(name, 3, 0)), fact("ends", name[2] == 0);
    RC("version_null", cuDriverGetVersion(NULL));
}

static void words_for_errors(void) {
    static const int codes[] = {0, 1, 2, 3, 100, 101, 201, 400, 500, 600, 700, 719, 801, 900, 906, 999, 5555};
    for (unsigned i = 0; i < sizeof codes / sizeof *codes; i++) {
        const char *name = "untouched", *text = "untouched";
        printf(" %d=%d", codes[i], cuGetErrorName(codes[i], &name));
        printf("/%s", name ? name : "NULL");
        printf("/%d/%d", cuGetErrorString(codes[i], &text), text != NULL);
    }
}

CASES({"large", large}, {"small", small}, {"freed", freed}, {"null_address", null_address}, {"pageable", pageable},
      {"pinned", pinned}, {"registered", registered}, {"page_on_the_device", page_on_the_device},
      {"page_on_the_host", page_on_the_host}, {"page_on_the_node", page_on_the_node},
      {"page_that_is_not_mapped", page_that_is_not_mapped}, {"wrong_questions", wrong_questions},
      {"memory_information", memory_information}, {"allocations", allocations},
      {"host_allocations", host_allocations}, {"devices", devices}, {"words_for_errors", words_for_errors});
