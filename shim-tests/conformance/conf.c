// Runs the cases of one program. A case that ends its process is reported, and the rest go on in a new one.
//
//   PROGRAM [IMAGE]      IMAGE: file with the kernels, on hardware
#include "conf.h"
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

#define POINTER(name, params) int(*name) params;
ALL_FUNCTIONS(POINTER)
#undef POINTER

obj context, module, function[KERNELS];
int gpus;
char *image_text;
static const char *const kernel_names[KERNELS] = {
    "fill_u32",       "copy_bytes",     "add_f32",        "axpy_f32",  "atomic_add_u64", "sleep_us",
    "write_after_us", "spin_until_u32", "struct_add_f32", "chase_u64", "build_table",    "table_sum_f32"};

void fact(const char *name, long long value) { printf(" %s=%lld", name, value); }
void word(const char *name, const char *value) { printf(" %s=%s", name, value); }

void checksum(const char *name, const void *bytes, size_t n) {
    uint64_t sum = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++) sum = (sum ^ ((const unsigned char *)bytes)[i]) * 0x100000001b3u;
    printf(" %s=%016llx", name, (unsigned long long)sum);
}

int launch(enum kernel k, obj stream, void **params) {
    return cuLaunchKernel(function[k], 64, 1, 1, 256, 1, 1, 0, stream, params, NULL);
}

int fill(ptr to, uint32_t value, size_t bytes, obj stream) {
    uint64_t n = bytes / 4;
    return launch(FILL, stream, (void *[]){&to, &value, &n});
}

int sleep_on(obj stream, uint64_t us) { return launch(SLEEP, stream, (void *[]){&us}); }

long long not_equal(ptr from, uint32_t value, size_t bytes) {
    uint32_t *words = malloc(bytes);
    long long wrong = 0;
    if (cuMemcpyDtoH_v2(words, from, bytes) != 0) wrong = -1;
    for (size_t i = 0; wrong >= 0 && i < bytes / 4; i++) wrong += words[i] != value;
    free(words);
    return wrong;
}

uint32_t word_at(ptr from) {
    uint32_t value = 0xEEEEEEEE;
    cuMemcpyDtoH_v2(&value, from, 4);
    return value;
}

static unsigned char at_index(size_t i) { return (unsigned char)((i * 2654435761u >> 13) ^ i); }
void pattern(void *to, size_t n, unsigned first) {
    for (size_t i = 0; i < n; i++) ((unsigned char *)to)[i] = at_index(first + i);
}
long long unlike(const void *bytes, size_t n, unsigned first) {
    long long wrong = 0;
    for (size_t i = 0; i < n; i++) wrong += ((const unsigned char *)bytes)[i] != at_index(first + i);
    return wrong;
}
long long unlike_at(ptr from, size_t n, unsigned first) {
    unsigned char *bytes = malloc(n);
    long long wrong = cuMemcpyDtoH_v2(bytes, from, n) ? -1 : unlike(bytes, n, first);
    free(bytes);
    return wrong;
}

double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

struct make how(int place) {
    struct make m = {.kind = PINNED, .location = {place, 0}};
    if (place == ON_NODE && cuDeviceGetAttribute(&m.location.id, 134, 0) != 0) m.location.id = 0;
    if (place == ON_NODE && m.location.id < 0) m.location.id = 0;
    return m;
}

int create(uint64_t *handle, int place, size_t bytes) {
    struct make m = how(place);
    return cuMemCreate(handle, bytes, &m, 0);
}

int grant(ptr at, size_t bytes, int gpu, int flags) {
    struct access a = {{ON_DEVICE, gpu}, flags};
    return cuMemSetAccess(at, bytes, &a, 1);
}

int range_open(struct range *r, const char *kinds) {
    memset(r, 0, sizeof *r);
    strcpy(r->kinds, kinds);
    r->bytes = strlen(kinds) * PAGE;
    int rc = cuMemAddressReserve(&r->at, r->bytes, 0, 0, 0);
    for (size_t i = 0; rc == 0 && kinds[i]; i++) {
        if (kinds[i] == '.') continue;
        int place = kinds[i] == 'd' ? ON_DEVICE : kinds[i] == 'h' ? ON_HOST : ON_NODE;
        rc = create(&r->handle[i], place, PAGE);
        if (rc == 0) rc = cuMemMap(r->at + i * PAGE, PAGE, 0, r->handle[i], 0);
        if (rc == 0) rc = grant(r->at + i * PAGE, PAGE, 0, READ_WRITE);
    }
    return rc;
}

void range_close(struct range *r) {
    cuCtxSynchronize();
    for (size_t i = 0; r->kinds[i]; i++) {
        if (r->handle[i] == 0) continue;
        cuMemUnmap(r->at + i * PAGE, PAGE);
        cuMemRelease(r->handle[i]);
    }
    cuMemAddressFree(r->at, r->bytes);
}

static int absent(void) { return -1; }

static void read_image(const char *path) {
    FILE *file = path && strcmp(path, "-") ? fopen(path, "rb") : NULL;
    image_text = calloc(1, 8 << 20);
    strcpy(image_text, "image");
    if (file && fread(image_text, 1, (8 << 20) - 1, file) == 0) exit(4);
    if (file) fclose(file);
}

static void begin(const char *path) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) {
        fprintf(stderr, "no driver: %s\n", dlerror());
        exit(4);
    }
#define FIND(name, params)                                                                      \
    *(void **)&name = dlsym(driver, #name);                                                     \
    if (!name) *(void **)&name = (void *)absent;
    ALL_FUNCTIONS(FIND)
#undef FIND
    read_image(path);
    int rc = cuInit(0);
    if (rc == 0) rc = cuDeviceGetCount(&gpus);
    if (rc == 0) rc = cuDevicePrimaryCtxRetain(&context, 0);
    if (rc == 0) rc = cuCtxSetCurrent(context);
    if (rc == 0) rc = cuModuleLoadData(&module, image_text);
    for (int k = 0; rc == 0 && k < KERNELS; k++) {
        rc = cuModuleGetFunction(&function[k], module, kernel_names[k]);
        // Loaded now: a first launch would load it while others wait.
        if (rc == 0) cuFuncLoad(function[k]);
    }
    if (rc != 0) {
        fprintf(stderr, "the driver does not start: %d\n", rc);
        exit(4);
    }
}

// Runs cases from one on, until one that is alone or the last; `at` says where it stands.
static void run_cases(int first, volatile int *at, const char *path) {
    alarm(20);
    setvbuf(stdout, NULL, _IONBF, 0); // a case that dies has said what it found so far
    begin(path);
    for (int i = first; i < case_count && (i == first || !cases[i].alone); i++) {
        *at = i;
        if (!getenv("CONFORMANCE_CHILD")) printf("case %s:", cases[i].name);
        if (gpus < 2 && strstr(cases[i].name, "_two_gpus")) printf(" SKIP");
        else cases[i].body();
        printf("\n");
        fflush(stdout);
        *at = i + 1;
        if (cases[i].alone) break;
    }
    // A process with a lost context, or work that cannot end, need not tidy up.
    _exit(0);
}

int main(int argc, char **argv) {
    setenv("CONFORMANCE_IMAGE", argc > 1 ? argv[1] : "-", 1); // for programs that start themselves again
    if (argc == 4) {
        // Without a file for progress: a second process of a case, which ends in the body of the first one.
        static int nowhere;
        if (atoi(argv[3]) < 0) run_cases(0, &nowhere, argv[1]);
        volatile int *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, atoi(argv[3]), 0);
        run_cases(atoi(argv[2]), at, argv[1]);
    }
    int memory = memfd_create("progress", 0), next = 0, failed = 0;
    if (memory < 0 || ftruncate(memory, 4096)) return 4;
    volatile int *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    char first[16], fd[16];
    snprintf(fd, sizeof fd, "%d", memory);
    while (next < case_count) {
        snprintf(first, sizeof first, "%d", next);
        *at = next;
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            execl("/proc/self/exe", argv[0], argc > 1 ? argv[1] : "-", first, fd, (char *)NULL);
            _exit(4);
        }
        int status = 0;
        waitpid(child, &status, 0);
        if (status == 0 && *at > next) {
            next = *at;
            continue;
        }
        if (WIFEXITED(status) && WEXITSTATUS(status) == 4) return 4;
        // Goes on where the case's own words end.
        printf(" DIED signal=%d code=%d\n", WIFSIGNALED(status) ? WTERMSIG(status) : 0,
               WIFEXITED(status) ? WEXITSTATUS(status) : 0);
        next = *at + 1, failed++;
    }
    return failed ? 3 : 0;
}
