// Every way to launch a kernel, and what functions say of themselves.
#include "conf.h"

enum { N = 100000 };
struct four { ptr out, a, b; uint64_t n; };

// Three arrays of floats: the first two hold values, the third gets the result.
static ptr floats(ptr *a, ptr *b) {
    float *values = malloc(N * 4);
    ptr p = 0;
    if (cuMemAlloc_v2(&p, 12 * MIB)) word("floats", "none");
    *a = p + 4 * MIB, *b = p + 8 * MIB;
    for (int i = 0; i < N; i++) values[i] = (float)i * 0.37f;
    cuMemcpyHtoD_v2(*a, values, N * 4);
    for (int i = 0; i < N; i++) values[i] = 1.0f / (float)(i + 1);
    cuMemcpyHtoD_v2(*b, values, N * 4);
    cuMemsetD32_v2(p, 0, N);
    free(values);
    return p;
}
static void say_sum(ptr p) {
    void *bytes = malloc(N * 4);
    RC("read", cuMemcpyDtoH_v2(bytes, p, N * 4));
    checksum("sum", bytes, N * 4);
    free(bytes);
    RC("clear", cuMemsetD32_v2(p, 0, N));
}

static void forms(void) {
    ptr a, b, p = floats(&a, &b);
    uint64_t n = N;
    void *params[] = {&p, &a, &b, &n};
    struct four f = {p, a, b, n};
    size_t size = sizeof f;
    void *extra[] = {(void *)1, &f, (void *)2, &size, NULL};
    struct launch_config config = {.gx = 64, .gy = 1, .gz = 1, .bx = 256, .by = 1, .bz = 1};
    obj library = NULL, kernel = NULL, of_kernel = NULL;
    RC("params", launch(ADD, NULL, params)), say_sum(p);
    RC("extra", cuLaunchKernel(function[ADD], 64, 1, 1, 256, 1, 1, 0, NULL, NULL, extra)), say_sum(p);
    RC("ex", cuLaunchKernelEx(&config, function[ADD], params, NULL)), say_sum(p);
    RC("ex_extra", cuLaunchKernelEx(&config, function[ADD], NULL, extra)), say_sum(p);
    RC("cooperative", cuLaunchCooperativeKernel(function[ADD], 64, 1, 1, 256, 1, 1, 0, NULL, params)), say_sum(p);
    RC("struct", launch(STRUCT_ADD, NULL, (void *[]){&f})), say_sum(p);
    RC("library", cuLibraryLoadData(&library, image_text, NULL, NULL, 0, NULL, NULL, 0));
    RC("kernel", cuLibraryGetKernel(&kernel, library, "add_f32"));
    RC("as_function", cuLaunchKernel(kernel, 64, 1, 1, 256, 1, 1, 0, NULL, params, NULL)), say_sum(p);
    RC("as_function_extra", cuLaunchKernel(kernel, 64, 1, 1, 256, 1, 1, 0, NULL, NULL, extra)), say_sum(p);
    RC("of_kernel", cuKernelGetFunction(&of_kernel, kernel));
    RC("launch_it", cuLaunchKernel(of_kernel, 64, 1, 1, 256, 1, 1, 0, NULL, params, NULL)), say_sum(p);
    RC("ex_kernel", cuLaunchKernelEx(&config, kernel, params, NULL)), say_sum(p);
    RC("cooperative_kernel", cuLaunchCooperativeKernel(kernel, 64, 1, 1, 256, 1, 1, 0, NULL, params)), say_sum(p);
    float half = 0.5f;
    RC("axpy", launch(AXPY, NULL, (void *[]){&p, &a, &half, &n}));
    RC("axpy", launch(AXPY, NULL, (void *[]){&p, &b, &half, &n})), say_sum(p);
    RC("unload", cuLibraryUnload(library));
    RC("free", cuMemFree_v2(p));
}

// Parameters are taken when the launch is made.
static void parameters_are_copied(void) {
    ptr p = 0;
    RC("alloc", cuMemAlloc_v2(&p, 4 * MIB));
    uint32_t value = 1;
    uint64_t n = 16;
    RC("sleep", sleep_on(NULL, 100000));
    ptr to = p;
    void *params[] = {&to, &value, &n};
    RC("launch", launch(FILL, NULL, params));
    to = 0, value = 2, n = 0, params[0] = NULL;
    RC("wait", cuCtxSynchronize());
    fact("wrong", not_equal(p, 1, 64));
    RC("free", cuMemFree_v2(p));
}

static void what_functions_say(void) {
    static const enum kernel asked[] = {FILL, AXPY, STRUCT_ADD, SLEEP, ATOMIC};
    obj library = NULL, kernel = NULL, m = NULL;
    for (int i = 0; i < 5; i++) {
        printf(" [%d]", i);
        for (size_t k = 0; k < 6; k++) {
            size_t at = 77, bytes = 77;
            int rc = cuFuncGetParamInfo(function[asked[i]], k, &at, &bytes);
            printf(" %zu=%d", k, rc);
            if (rc == 0) printf("/%zu/%zu", at, bytes);
        }
    }
    size_t at = 77, bytes = 77;
    const char *name = NULL;
    RC("size_null", cuFuncGetParamInfo(function[AXPY], 2, &at, NULL)), fact("at", (long long)at);
    RC("offset_null", cuFuncGetParamInfo(function[AXPY], 2, NULL, &bytes));
    RC("null", cuFuncGetParamInfo(NULL, 0, &at, &bytes));
    RC("library", cuLibraryLoadData(&library, image_text, NULL, NULL, 0, NULL, NULL, 0));
    RC("kernel", cuLibraryGetKernel(&kernel, library, "axpy_f32"));
    RC("no_such", cuLibraryGetKernel(&m, library, "no_such_kernel"));
    RC("function_of_kernel", cuFuncGetParamInfo(kernel, 0, &at, &bytes));
    RC("kernel_info", cuKernelGetParamInfo(kernel, 2, &at, &bytes));
    fact("at", (long long)at), fact("bytes", (long long)bytes);
    RC("kernel_past", cuKernelGetParamInfo(kernel, 4, &at, &bytes));
    RC("name", cuFuncGetName(&name, function[FILL])), word("is", name ? name : "NULL");
    RC("module", cuFuncGetModule(&m, function[FILL])), fact("ours", m == module);
    int loaded = 7, most = 7;
    RC("loaded", cuFuncIsLoaded(&loaded, function[FILL])), fact("is", loaded);
    RC("most_threads", cuFuncGetAttribute(&most, 0, function[FILL])), fact("is", most);
    RC("attribute_99", cuFuncGetAttribute(&most, 99, function[FILL]));
    RC("unload", cuLibraryUnload(library));
    RC("null_unload", cuLibraryUnload(NULL));
}

// Addresses that no launch names.
static void addresses_in_memory(void) {
    ptr data = 0, table = 0, out = 0;
    RC("alloc", cuMemAlloc_v2(&data, 64 * MIB) ?: cuMemAlloc_v2(&table, 4 * MIB) ?: cuMemAlloc_v2(&out, 4 * MIB));
    uint64_t stride = 3 * MIB, n = 20, each = 1000, steps = 19;
    float sum = 0;
    ptr last = 0;
    RC("fill", fill(data, 0x3f000000, 64 * MIB, NULL));
    RC("build", launch(BUILD, NULL, (void *[]){&table, &data, &stride, &n}));
    RC("sum", launch(SUM, NULL, (void *[]){&out, &table, &n, &each}));
    RC("read", cuMemcpyDtoH_v2(&sum, out, 4));
    fact("is", (long long)sum);
    for (uint64_t i = 0; i < n; i++) {
        ptr next = data + ((i + 1) % n) * stride;
        cuMemcpyHtoD_v2(data + i * stride, &next, 8);
    }
    RC("chase", launch(CHASE, NULL, (void *[]){&out, &data, &steps}));
    RC("read", cuMemcpyDtoH_v2(&last, out, 8));
    fact("ends_at", (long long)((last - data) / stride));
    RC("free", cuMemFree_v2(data) ?: cuMemFree_v2(table) ?: cuMemFree_v2(out));
}

static void host_memory_in_a_kernel(void) {
    unsigned *pinned = NULL;
    ptr device = 0, p = 0;
    uint64_t n = 4 * MIB;
    RC("host", cuMemHostAlloc((void **)&pinned, 4 * MIB, 2));
    RC("device", cuMemHostGetDevicePointer_v2(&device, pinned, 0) ?: cuMemAlloc_v2(&p, 4 * MIB));
    RC("fill", fill(p, 11, 4 * MIB, NULL));
    RC("out", launch(COPY, NULL, (void *[]){&device, &p, &n}));
    RC("wait", cuCtxSynchronize());
    fact("seen", pinned[123456]);
    for (int i = 0; i < MIB; i++) pinned[i] = 12;
    RC("in", launch(COPY, NULL, (void *[]){&p, &device, &n}));
    fact("wrong", not_equal(p, 12, 4 * MIB));
    RC("free", cuMemFree_v2(p) ?: cuMemFreeHost(pinned));
}

// A global of the module as a kernel's operand.
static void globals(void) {
    ptr p = 0;
    size_t bytes = 0;
    uint64_t times = 41, count = 0;
    RC("global", cuModuleGetGlobal_v2(&p, &bytes, module, "sim_global_u64"));
    RC("set", cuMemsetD8_v2(p, 0, bytes));
    RC("launch", launch(ATOMIC, NULL, (void *[]){&p, &times}));
    RC("read", cuMemcpyDtoH_v2(&count, p, 8));
    fact("count", (long long)count);
    obj m = NULL, f = NULL;
    RC("load", cuModuleLoadData(&m, image_text));
    RC("function", cuModuleGetFunction(&f, m, "fill_u32"));
    fact("other_function", f != function[FILL]);
    RC("unload", cuModuleUnload(m));
}

CASES({"forms", forms}, {"parameters_are_copied", parameters_are_copied}, {"what_functions_say", what_functions_say},
      {"addresses_in_memory", addresses_in_memory}, {"host_memory_in_a_kernel", host_memory_in_a_kernel},
      {"globals", globals});
