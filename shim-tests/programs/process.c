// What happens to processes: forks, threads, and all the ways to end.
//   process MODE MIB
#include "use.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

extern char **environ;
static struct driver d;
static size_t bytes;
static CUdeviceptr kept;

static void begin(void) {
    find_default(&d);
    start(&d, 0);
    CHECK(d.cuMemAlloc(&kept, bytes));
    CHECK(d.cuMemsetD32(kept, 42, bytes / 4));
}

static int wait_for(pid_t pid) {
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

// The child of a process that uses CUDA: every call answers, none works, none hangs.
static void fork_after(void) {
    begin();
    pid_t pid = fork();
    if (pid == 0) {
        size_t a, b;
        CUdeviceptr p = 0, base;
        char text[8];
        int attribute;
        printf("child_info %d\n", d.cuMemGetInfo(&a, &b));
        printf("child_alloc %d\n", d.cuMemAlloc(&p, bytes));
        printf("child_small %d\n", d.cuMemAlloc(&p, 4096));
        printf("child_free %d\n", d.cuMemFree(kept));
        printf("child_copy %d\n", d.cuMemcpyDtoH(text, kept, sizeof text));
        printf("child_set %d\n", d.cuMemsetD8(kept, 1, 8));
        printf("child_range %d\n", d.cuMemGetAddressRange(&base, &a, kept));
        printf("child_attribute %d\n", d.cuPointerGetAttribute(&attribute, 2, kept));
        printf("child_init %d\n", d.cuInit(0));
        fflush(stdout);
        exit(9);
    }
    printf("child_exit %d\n", wait_for(pid));
    uint32_t word = 0;
    CHECK(d.cuMemcpyDtoH(&word, kept + bytes - 4, 4));
    printf("parent_word %u\n", word);
    CHECK(d.cuMemFree(kept));
}

// The parent has not touched CUDA: the child may.
static void fork_before(void) {
    pid_t pid = fork();
    if (pid == 0) {
        begin();
        printf("child_wrong %zu\n", fill_and_check(&d, kept, bytes, 3));
        CHECK(d.cuMemFree(kept));
        exit(0);
    }
    printf("child_exit %d\n", wait_for(pid));
}

static volatile int stop;

static void *noise(void *unused) {
    CHECK(d.cuCtxSetCurrent(unused));
    while (!stop) {
        CUdeviceptr p;
        if (d.cuMemAlloc(&p, 3 << 20) == 0) d.cuMemFree(p);
    }
    return NULL;
}

// Children forked while other threads allocate, so that locks are held, and each makes calls
// that are logged.
static void fork_many(void) {
    find_default(&d);
    CUcontext context = start(&d, 0);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, noise, context);
    int good = 0;
    for (int round = 0; round < 7; round++) {
        pid_t children[16];
        for (int i = 0; i < 16; i++) {
            children[i] = fork();
            if (children[i] == 0) {
                CUdeviceptr p;
                size_t a, b;
                for (int n = 0; n < 20; n++) {
                    d.cuMemAlloc(&p, 3 << 20);
                    d.cuMemGetInfo(&a, &b);
                    d.cuMemFree(1 << 20);
                    dlsym(RTLD_DEFAULT, "cuMemAlloc_v2");
                }
                exit(11);
            }
        }
        for (int i = 0; i < 16; i++) good += wait_for(children[i]) == 11;
    }
    stop = 1;
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    printf("good %d\n", good);
}

static void spawn(void) {
    begin();
    fflush(stdout);
    pid_t pid = vfork();
    if (pid == 0) {
        execl("/bin/sh", "sh", "-c", "exit 4", (char *)NULL);
        _exit(127);
    }
    printf("vfork_exec %d\n", wait_for(pid));
    pid = vfork();
    if (pid == 0) _exit(5);
    printf("vfork_exit %d\n", wait_for(pid));
    char *args[] = {"sh", "-c", "exit 6", NULL};
    CHECK(posix_spawn(&pid, "/bin/sh", NULL, NULL, args, environ));
    printf("spawn %d\n", wait_for(pid));
    printf("system %d\n", WEXITSTATUS(system("exit 7")));
    printf("wrong %zu\n", fill_and_check(&d, kept, bytes, 8));
    CHECK(d.cuMemFree(kept));
}

static CUcontext shared;
static int bad;

static void *work(void *number) {
    uint32_t seed = (uint32_t)(uintptr_t)number;
    CHECK(d.cuCtxSetCurrent(shared));
    CUfunction fill = kernel(&d, "fill_u32");
    CUstream stream;
    CHECK(d.cuStreamCreate(&stream, 1));
    uint32_t *words = malloc(4 << 20);
    for (int round = 0; round < 40; round++) {
        seed = seed * 1664525 + 1013904223;
        size_t size = ((seed >> 8) % 4 + 1) << 20;
        CUdeviceptr p;
        CHECK(d.cuMemAlloc(&p, size));
        uint32_t value = seed;
        uint64_t n = size / 4;
        void *params[] = {&p, &value, &n};
        launch(&d, fill, stream, params);
        CHECK(d.cuMemcpyDtoHAsync(words, p, size, stream));
        CHECK(d.cuStreamSynchronize(stream));
        for (size_t i = 0; i < n; i += 1021) bad += words[i] != value;
        CHECK(d.cuMemFree(p));
    }
    free(words);
    CHECK(d.cuStreamDestroy(stream));
    return NULL;
}

static void threads(void) {
    find_default(&d);
    shared = start(&d, 0);
    size_t before, after, total;
    CHECK(d.cuMemGetInfo(&before, &total));
    pthread_t ids[8];
    for (intptr_t i = 0; i < 8; i++) pthread_create(&ids[i], NULL, work, (void *)(i + 1));
    for (int i = 0; i < 8; i++) pthread_join(ids[i], NULL);
    CHECK(d.cuMemGetInfo(&after, &total));
    printf("bad %d\n", bad);
    printf("lost %lld\n", (long long)(before - after));
}

static void last(void) {
    CUdeviceptr p = 0;
    CUresult rc = d.cuMemFree(kept);
    printf("handler_free %d\n", rc);
    rc = d.cuMemAlloc(&p, 4 << 20);
    printf("handler_alloc %d\n", rc);
    fflush(stdout);
}

static void *leave(void *code) {
    usleep(20000);
    exit((int)(intptr_t)code);
}

static void ends(const char *mode) {
    if (!strcmp(mode, "atexit")) atexit(last);
    begin();
    if (!strcmp(mode, "atexit")) exit(7);
    if (!strcmp(mode, "underscore")) _exit(6);
    if (!strcmp(mode, "abort")) abort();
    if (!strcmp(mode, "kill")) raise(SIGKILL);
    if (!strcmp(mode, "queued")) {
        CUfunction sleeper = kernel(&d, "sleep_us");
        uint64_t us = 60 * 1000000ull;
        void *params[] = {&us};
        for (int i = 0; i < 4; i++) launch(&d, sleeper, NULL, params);
        exit(8);
    }
    if (!strcmp(mode, "thread")) {
        pthread_t id;
        pthread_create(&id, NULL, leave, (void *)5);
        for (;;) {
            CUdeviceptr p;
            if (d.cuMemAlloc(&p, 3 << 20) == 0) d.cuMemFree(p);
        }
    }
    if (!strcmp(mode, "pthread_exit")) {
        pthread_t id;
        pthread_create(&id, NULL, leave, (void *)4);
        pthread_exit(NULL);
    }
}

int main(int argc, char **argv) {
    bytes = mib(argv[2]);
    if (!strcmp(argv[1], "fork")) fork_after();
    else if (!strcmp(argv[1], "fork-before")) fork_before();
    else if (!strcmp(argv[1], "fork-many")) fork_many();
    else if (!strcmp(argv[1], "spawn")) spawn();
    else if (!strcmp(argv[1], "threads")) threads();
    else ends(argv[1]);
    return 0;
}
