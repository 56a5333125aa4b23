// The ends of memory, streams, contexts and processes, with work in flight and pages that move (waits.h).
//   ends MODE
#include "waits.h"
#include <sys/wait.h>

static void *make_and_free(void *arg) {
    CHECK(d.cuCtxSetCurrent(context));
    CUstream s = stream();
    for (int i = 0; i < 12; i++) {
        CUdeviceptr p;
        uint32_t *host = arg, zero = 0;
        CHECK(d.cuMemAlloc(&p, SIZE));
        CHECK(d.cuMemcpyHtoD(p, &zero, 4));
        write_late(p, 7, 40000, s);
        // The word arrives before the memory goes: a free waits.
        CHECK(d.cuMemcpyDtoHAsync(&host[i], p, 4, s));
        CHECK(d.cuMemFree(p));
        if (host[i] != 7) say("freed too early", 0);
    }
    return NULL;
}
static void free_waits(void) {
    uint32_t *host = (uint32_t *)flag + 16;
    struct toucher all = {0, BLOCKS, 100000, 100, 0, stream(), 0};
    pthread_t toucher = go(touch, &all);
    make_and_free(host);
    all.stop = 1;
    end(toucher);
    say("freed", 1);
}

// Streams go while their work runs: it goes on, and what needs pages waits for it.
static void streams(void) {
    CUstream t = stream();
    for (uint32_t i = 0; i < 10; i++) {
        CUstream s = stream();
        int x = at_home();
        first_late(x, 300 + i, 50000, s);
        CHECK(d.cuStreamDestroy(s));
        CUstream next = stream(); // its handle may be the old one
        write_late(flag_at(), i, 1000, next);
        use_all_but(x, t);
        fill(elsewhere(), 400 + i, t);
        CHECK(d.cuStreamSynchronize(t));
        CHECK(d.cuStreamDestroy(next));
        blocks[x].taken = 0;
    }
}

// What runs in the stream that goes waits for something that comes later.
static void waiting_stream(void) {
    CUstream s = stream(), t = stream();
    CUevent e = event();
    int x = at_home();
    spin(flag_at(), 1, s);
    first_late(x, 21, 0, s);
    CHECK(cuEventRecord(e, s));
    CHECK(d.cuStreamDestroy(s));
    fill(elsewhere(), 22, t);
    CHECK(d.cuStreamSynchronize(t));
    say("waits until it is told", cuEventQuery(e) == BUSY);
    tell(1);
    CHECK(d.cuCtxSynchronize());
    int a = elsewhere();
    fill(a, 23, t);
    CHECK(d.cuStreamSynchronize(t));
    say("pages come again", away(a) == 0 || !page_of);
}

// Contexts go with their memory while their work runs, and another thread's launches move pages all the time.
static void contexts(void) {
    struct toucher some = {0, BLOCKS, 100000, 100, 0, stream(), 0};
    pthread_t toucher = go(touch, &some);
    CUfunction fill_here = fill_f;
    for (uint32_t round = 0; round < 6; round++) {
        CUcontext own;
        CUdeviceptr p[4];
        CHECK(cuCtxCreate(&own, 0, 0));
        CUfunction mine = kernel(&d, "fill_u32"), late = kernel(&d, "write_after_us");
        CUstream s = stream();
        for (int i = 0; i < 4; i++) CHECK(d.cuMemAlloc(&p[i], SIZE));
        for (int i = 0; i < 8; i++) {
            uint64_t n = WORDS, us = 20000;
            uint32_t value = round * 10 + (uint32_t)i, word = 0;
            void *params[] = {&p[i % 4], &value, &n}, *last[] = {&p[i % 4], &value, &us};
            launch(&d, mine, s, params);
            if (i == 5) {
                CHECK(d.cuStreamSynchronize(s));
                CHECK(d.cuMemcpyDtoH(&word, p[1] + SIZE - 4, 4));
                if (word != value) say("wrong in the other context", 0);
            }
            launch(&d, late, s, last);
        }
        CHECK(cuCtxDestroy(own));
        CHECK(d.cuCtxSetCurrent(context));
    }
    some.stop = 1;
    end(toucher);
    say("kernels are the same", fill_here == fill_f);
}

// Streams of other contexts go, in turn with and without their context, and streams of the first one come after them.
static void streams_of_contexts(void) {
    for (uint32_t round = 0; round < 8; round++) {
        CUcontext own;
        CUdeviceptr p;
        CHECK(cuCtxCreate(&own, 0, 0));
        CUfunction mine = kernel(&d, "fill_u32");
        CUstream s = stream();
        CHECK(d.cuMemAlloc(&p, SIZE));
        for (uint32_t i = 0; i < 8; i++) {
            uint64_t n = WORDS;
            launch(&d, mine, s, (void *[]){&p, &i, &n});
        }
        CHECK(d.cuStreamSynchronize(s));
        CHECK(d.cuStreamDestroy(s));
        CHECK(d.cuMemFree(p));
        CHECK(d.cuCtxSetCurrent(context));
        fill(0, 500 + round, NULL); // what was there is seen to be over
        CHECK(d.cuStreamSynchronize(NULL));
        if (round % 2) CHECK(cuCtxDestroy(own));
        CUstream next = stream();
        for (uint32_t i = 0; i < 40; i++) fill((int)(round * 40 + i) % BLOCKS, 900 + i, next);
        CHECK(d.cuStreamSynchronize(next));
    }
}

// Children that are forked while pages move: calls answer what the driver answers there, nothing hangs, and the parent
// goes on.
static void forks(void) {
    struct toucher some = {0, BLOCKS, 100000, 100, 0, stream(), 0};
    pthread_t toucher = go(touch, &some);
    for (int i = 0; i < 12; i++) {
        usleep(15000);
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            CUdeviceptr p = 0;
            uint64_t n = 4;
            uint32_t value = 1;
            void *params[] = {&blocks[i].at, &value, &n};
            CUresult rc = d.cuMemAlloc(&p, SIZE);
            CUresult launched = d.cuLaunchKernel(fill_f, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL);
            int code = rc == launched ? rc : 200;
            if (i % 2) exit(code);
            _exit(code);
        }
        int status = 0;
        waitpid(child, &status, 0);
        printf("child %d %d\n", WIFEXITED(status), WEXITSTATUS(status));
    }
    some.stop = 1;
    end(toucher);
}

static int nothing_to_compare;
// The process ends with kernels, copies and a launch of half a second in flight.
static void exit_busy(void) {
    CUstream s = stream(), t = stream();
    for (int i = 0; i < 6; i++) fill(elsewhere(), 1, s);
    first_late(at_home(), 1, 500000, s);
    copy(at_home(), elsewhere(), t);
    CHECK(d.cuMemsetD32Async(blocks[at_home()].at, 1, WORDS, s));
    say("ends", 1);
    nothing_to_compare = 1;
}
// It ends while other threads launch, and while pages move.
static void exit_threads(void) {
    static struct toucher t[2];
    for (int k = 0; k < 2; k++) {
        t[k] = (struct toucher){k * BLOCKS / 2, BLOCKS / 2, 100000000, 100, 0, stream(), 0};
        go(touch, &t[k]);
    }
    usleep(300000);
    say("ends", 1);
    nothing_to_compare = 1;
}
static void *launch_elsewhere(void *arg) {
    CHECK(d.cuCtxSetCurrent(context));
    fill(*(int *)arg, 1, NULL);
    return NULL;
}
// It ends while a launch waits for a kernel that nobody ends.
static void exit_waiting(void) {
    static int a;
    a = elsewhere();
    spin(flag_at(), 1, stream());
    go(launch_elsewhere, &a);
    usleep(300000);
    say("ends", 1);
    nothing_to_compare = 1;
}

int main(int argc, char **argv) {
    static const struct { const char *name; void (*run)(void); } modes[] = {
        {"free_waits", free_waits}, {"streams", streams}, {"waiting_stream", waiting_stream}, {"contexts", contexts},
        {"streams_of_contexts", streams_of_contexts}, {"forks", forks},
        {"exit_busy", exit_busy}, {"exit_threads", exit_threads}, {"exit_waiting", exit_waiting},
    };
    if (argc < 2) return 2;
    begin();
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        if (strcmp(argv[1], modes[i].name)) continue;
        allocate();
        warm();
        modes[i].run();
        if (!nothing_to_compare) compare();
        return 0;
    }
    return 2;
}
