// A program that waits in every way it can while launches need pages that lie elsewhere: nothing may hang, and what it
// is told about its work must stay true.
//   waits MODE
// Prints lines "what 1" for what must hold, and at the end how many words of its memory are wrong.
//
// Not here: a kernel whose local memory makes the driver grow a context's. The simulated driver gives local memory no
// room (src/sim/limits.rs), so there is nothing to see.
#include "waits.h"
#include <semaphore.h>

// Work behind a wait for a value, of every kind; `x` is at home.
enum { NOTHING, KERNEL, SET, GRAPH, COPY2D, COPY3D, BATCH, PEER, PEER3D };
static void *graph; // captured before the wait: fills a block
static int graph_block;

// The driver's descriptions of a rectangle and of a box, between two contexts or in one.
typedef struct { size_t x, y; int type; const void *host; CUdeviceptr at; void *array; size_t pitch; } side2;
typedef struct { side2 from, to; size_t width, height; } rectangle;
typedef struct {
    size_t x, y, z, lod;
    int type;
    const void *host;
    CUdeviceptr at;
    void *array;
    CUcontext context;
    size_t pitch, height;
} side3;
typedef struct { side3 from, to; size_t width, height, depth; } box;

static void prepare_graph(CUstream s) {
    void *made;
    graph_block = at_home();
    CHECK(cuStreamBeginCapture(s, 2));
    fill(graph_block, 4242, s);
    CHECK(cuStreamEndCapture(s, &made));
    CHECK(cuGraphInstantiate(&graph, made, 0));
}

static void put(int kind, int x, int y, CUcontext other, CUstream s) {
    rectangle r = {{0, 0, 2, NULL, blocks[y].at, NULL, 4096},
                   {0, 0, 2, NULL, blocks[x].at, NULL, 4096}, 4096, SIZE / 4096};
    box b = {{0, 0, 0, 0, 2, NULL, blocks[y].at, NULL, NULL, 4096, 64},
             {0, 0, 0, 0, 2, NULL, blocks[x].at, NULL, NULL, 4096, 64}, 4096, 64, SIZE / 4096 / 64};
    if (kind == KERNEL) copy(x, y, s);
    if (kind == SET) {
        CHECK(d.cuMemsetD32Async(blocks[x].at, 99, WORDS, s));
        blocks[x].base = blocks[x].first = 99, blocks[x].step = 0;
    }
    if (kind == GRAPH) CHECK(cuGraphLaunch(graph, s));
    if (kind == COPY2D) CHECK(cuMemcpy2DAsync(&r, s));
    if (kind == COPY3D) CHECK(cuMemcpy3DAsync(&b, s));
    if (kind == BATCH) {
        struct { int order, hints[4]; unsigned flags; } in_order = {1, {0, 0, 0, 0}, 0};
        size_t size = SIZE, start_of = 0;
        CHECK(cuMemcpyBatchAsync(&blocks[x].at, &blocks[y].at, &size, 1, &in_order, &start_of, 1, s));
    }
    if (kind == PEER) CHECK(cuMemcpyPeerAsync(blocks[x].at, context, blocks[y].at, other, SIZE, s));
    if (kind == PEER3D) {
        b.from.context = other, b.to.context = context;
        CHECK(cuMemcpy3DPeerAsync(&b, s));
    }
    if (kind >= COPY2D) copied(x, y);
}

// The launch that needs pages while work waits for something that comes later; pages come again when that is over.
static void later_launch(CUstream t) {
    int a = elsewhere();
    fill(a, 77, t);
    CHECK(d.cuStreamSynchronize(t));
}
static void pages_come_again(CUstream t) {
    int a = elsewhere();
    fill(a, 78, t);
    CHECK(d.cuStreamSynchronize(t));
    say("pages come again", away(a) == 0 || !page_of);
}

// `by_stream`: another stream writes the value, into memory of the pool; else the host does, into its own.
static void behind(int kind, int by_stream) {
    CUcontext other = NULL;
    CUstream s = stream(), t = stream(), u = stream();
    CUevent e = event();
    int x = at_home(), y = at_home(), z = at_home();
    if (kind == PEER || kind == PEER3D) {
        other = start(&d, 1);
        CHECK(d.cuMemAlloc(&blocks[OTHER].at, SIZE));
        pattern(y = OTHER);
        CHECK(d.cuCtxSynchronize());
        CHECK(d.cuCtxSetCurrent(context));
    }
    if (kind == GRAPH) prepare_graph(s);
    CUdeviceptr at = by_stream ? blocks[z].at : flag_at();
    CHECK(cuStreamWaitValue32(s, at, 0xc0ffee, 1));
    put(kind, x, y, other, s);
    CHECK(cuEventRecord(e, s));
    later_launch(t);
    say("waits until it is told", cuEventQuery(e) == BUSY);
    if (by_stream) {
        CHECK(cuStreamWriteValue32(u, at, 0xc0ffee, 0));
        blocks[z].first = 0xc0ffee;
    } else tell(0xc0ffee);
    CHECK(d.cuStreamSynchronize(s));
    say("done when it is told", cuEventQuery(e) == 0);
    pages_come_again(t);
}

static void *tell_late(void *arg) {
    usleep(*(useconds_t *)arg);
    tell(1);
    return NULL;
}
// The first launch of a function, in another stream than the one that waits: it is told after the launch.
static void lazy(void) {
    CUstream s = stream(), t = stream();
    CUevent e = event();
    int a = elsewhere(), x = at_home();
    CHECK(cuStreamWaitValue32(s, flag_at(), 1, 0));
    CHECK(cuEventRecord(e, s));
    copy_by(lazy_f, a, x, WORDS, t);
    CHECK(d.cuStreamSynchronize(t));
    say("waits until it is told", cuEventQuery(e) == BUSY);
    tell(1);
    CHECK(d.cuStreamSynchronize(s));
    pages_come_again(t);
}
// In the stream that waits the driver loads when the stream has drained, and keeps everybody else out meanwhile. The
// second time it waits for longer than the pager does.
static void lazy_same(void) {
    useconds_t us[2] = {200000, 2600000};
    CUstream s = stream(), t = stream();
    for (int round = 0; round < 2; round++) {
        int a = elsewhere(), x = at_home();
        tell(0);
        CHECK(cuStreamWaitValue32(s, flag_at(), 1, 0));
        pthread_t teller = go(tell_late, &us[round]);
        copy_by(round ? kernel(&d, "copy_f32") : lazy_f, a, x, WORDS, s);
        CHECK(d.cuStreamSynchronize(s));
        end(teller);
    }
    pages_come_again(t);
}

// 3,000 launches behind a kernel that sleeps; then one that needs pages, in the same stream and in another.
static void queue(void) {
    CUstream s = stream(), t = stream();
    int q = at_home();
    fill(q, 0, s);
    for (uint64_t ms = 300; ms <= 3000; ms += 2700) {
        uint64_t us = ms * 1000;
        void *params[] = {&us};
        launch(&d, sleep_f, s, params);
        for (uint32_t i = 0; i < 3000; i++) {
            CUdeviceptr p = blocks[q].at + 4 * (uint64_t)i;
            uint32_t value = i + (uint32_t)ms;
            uint64_t n = 1;
            void *one[] = {&p, &value, &n};
            launch(&d, fill_f, s, one);
        }
        fill(elsewhere(), (uint32_t)ms, s);
        fill(elsewhere(), (uint32_t)ms + 1, t);
        CHECK(d.cuStreamSynchronize(t));
        CHECK(d.cuStreamSynchronize(s));
        static uint32_t words[3000];
        CHECK(d.cuMemcpyDtoH(words, blocks[q].at, sizeof words));
        size_t bad = 0;
        for (uint32_t i = 0; i < 3000; i++) bad += words[i] != i + (uint32_t)ms;
        say("all of the queue ran", bad == 0);
    }
    fill(q, 1, s); // as the model wants it
}

static volatile int over;
static void *synchronize(void *arg) {
    (void)arg;
    CHECK(d.cuCtxSetCurrent(context));
    int count = 0;
    for (; !over; count++) CHECK(d.cuCtxSynchronize());
    say("synchronized", count > 0);
    return NULL;
}
// Another thread waits for the context all the time.
static void context_waits(void) {
    CUstream s = stream(), t = stream();
    int x = at_home();
    first_late(x, 31, 300000, s);
    pthread_t waiter = go(synchronize, NULL);
    struct toucher all = {0, BLOCKS, 2 * BLOCKS, 9000, 0, t, 0};
    CHECK(d.cuStreamSynchronize(s)); // the same block is touched below
    first_late(x, 32, 100000, t);
    touch(&all);
    over = 1;
    end(waiter);
}

static sem_t may_go;
static void tell_now(void *arg) { tell((uint32_t)(uintptr_t)arg); }
static void wait_here(void *arg) { sem_wait(arg); }
// A host function that is put in later ends what runs; one that waits holds up what comes behind it.
static void callbacks(void) {
    CUstream s = stream(), t = stream(), u = stream();
    CUevent e = event();
    int x = at_home();
    spin(flag_at(), 3, s);
    first_late(x, 55, 0, s);
    CHECK(cuEventRecord(e, s));
    later_launch(t);
    say("waits for the function", cuEventQuery(e) == BUSY);
    CHECK(cuLaunchHostFunc(u, tell_now, (void *)3));
    CHECK(d.cuStreamSynchronize(s));
    sem_init(&may_go, 0, 0);
    CHECK(cuLaunchHostFunc(s, wait_here, &may_go));
    first_late(x, 56, 0, s);
    CHECK(cuEventRecord(e, s));
    later_launch(t);
    say("waits in the function", cuEventQuery(e) == BUSY);
    sem_post(&may_go);
    CHECK(d.cuStreamSynchronize(s));
    pages_come_again(t);
}

// Half a second of work, while the program does nothing but ask; another thread's launches need the memory.
static int came[2]; // whether each launch found its pages at home; the second may send the first one's away
static void *two_launches(void *arg) {
    CHECK(d.cuCtxSetCurrent(context));
    CUstream t = stream();
    for (int i = 0; i < 2; i++) {
        int block = ((int *)arg)[i];
        fill(block, 66, t);
        came[i] = away(block) == 0 || !page_of;
    }
    CHECK(d.cuStreamSynchronize(t));
    return NULL;
}
static void polls(void) {
    CUstream s = stream(), t = stream();
    CUevent e = event();
    for (int round = 0; round < 3; round++) {
        int x = at_home(), a[2] = {elsewhere(), elsewhere()};
        tell(0);
        first_late(x, 44, 500000, s);
        write_late(flag_at(), 1, 0, s);
        CHECK(cuEventRecord(e, s));
        use_all_but(x, t);
        pthread_t other = go(two_launches, a);
        CUresult rc;
        double begin = now();
        while ((rc = cuEventQuery(e)) == BUSY) {}
        say("done when it is done", rc == 0 && *flag == 1 && now() - begin > 0.4);
        end(other);
        say("pages came for the other", came[0] && came[1]);
    }
}

// Two kernels that need each other, the second needs pages: the first runs until the second has written.
static void pair(void) {
    CUstream s = stream(), t = stream();
    CUevent e = event();
    for (int round = 0; round < 3; round++) {
        int f = at_home(), a = elsewhere();
        spin(blocks[f].at, blocks[a].first, s);
        CHECK(cuEventRecord(e, s));
        if (round == 0) {
            use_all_but(f, t); // the word that the first one reads must stay, too
            later_launch(t), later_launch(t);
        }
        copy_word(f, a, t);
        CHECK(d.cuStreamSynchronize(s));
        CHECK(d.cuStreamSynchronize(t));
        say("both ended", cuEventQuery(e) == 0);
    }
    pages_come_again(t);
}
static pthread_barrier_t together;
struct half { int flag, from, other; uint32_t want; CUstream stream; };
static void *half(void *arg) {
    struct half *h = arg;
    CHECK(d.cuCtxSetCurrent(context));
    pthread_barrier_wait(&together);
    copy_word(h->flag, h->from, h->stream);
    spin(blocks[h->other].at, h->want, h->stream);
    CHECK(d.cuStreamSynchronize(h->stream));
    return NULL;
}
// The same from two threads, and each waits for the other's word: a collective.
static void collective(void) {
    struct half h[2] = {{.stream = stream()}, {.stream = stream()}};
    pthread_barrier_init(&together, NULL, 2);
    for (int round = 0; round < 3; round++) {
        for (int k = 0; k < 2; k++) h[k].flag = at_home(), h[k].from = elsewhere();
        for (int k = 0; k < 2; k++) h[k].other = h[!k].flag, h[k].want = blocks[h[!k].from].first;
        pthread_t other = go(half, &h[1]);
        half(&h[0]);
        end(other);
        say("met", 1);
    }
    pages_come_again(stream());
}

// A kernel that runs all the time, as some servers have: every launch goes on in the end.
static void persistent(void) {
    CUstream s = stream(), t = stream();
    spin(flag_at(), 1, s);
    for (int i = 0; i < 4; i++) later_launch(t);
    say("launches ran beside it", 1);
    tell(1);
    CHECK(d.cuStreamSynchronize(s));
    pages_come_again(t);
}

static void *read_word(void *arg) {
    uint32_t word = 0;
    CHECK(d.cuCtxSetCurrent(context));
    CHECK(d.cuMemcpyDtoH(&word, blocks[*(int *)arg].at, 4));
    say("read after the write", word == blocks[*(int *)arg].first);
    return NULL;
}
// A thread is inside a copy, which ends when another thread has launched what needs pages.
static void blocked_copy(void) {
    CUstream t = stream();
    for (int round = 0; round < 2; round++) {
        int f = at_home(), a = elsewhere();
        spin(blocks[f].at, blocks[a].first, NULL);
        uint32_t want = blocks[f].first = blocks[a].first;
        pthread_t reader = go(read_word, &f);
        usleep(100000);
        copy_word(f, a, t);
        end(reader);
        say("the same word", blocks[f].first == want);
    }
    CHECK(d.cuCtxSynchronize());
    pages_come_again(t);
}

// Work in flight from before anything lay elsewhere: it has left no marker.
static void before_pressure(void) {
    CUstream s = stream(), t = stream();
    CUevent e = event();
    CHECK(d.cuMemAlloc(&blocks[0].at, SIZE));
    pattern(0);
    spin(blocks[0].at, 1, s);
    CHECK(cuEventRecord(e, s));
    allocate();
    use_all_but(0, t);
    blocks[0].taken = 1;
    later_launch(t);
    say("waits until it is told", cuEventQuery(e) == BUSY);
    CHECK(cuStreamWriteValue32(t, blocks[0].at, 1, 0));
    blocks[0].first = 1;
    CHECK(d.cuStreamSynchronize(s));
    pages_come_again(t);
}

// A graph runs for half a second; what it writes to is what a launch would send away.
static void graph_runs(void) {
    CUstream s = stream(), t = stream();
    int x = at_home();
    void *made;
    CHECK(cuStreamBeginCapture(s, 2));
    first_late(x, 45, 500000, s);
    CHECK(cuStreamEndCapture(s, &made));
    CHECK(cuGraphInstantiate(&graph, made, 0));
    CHECK(cuGraphLaunch(graph, s));
    use_all_but(x, t);
    later_launch(t);
    pages_come_again(t);
    CHECK(d.cuStreamSynchronize(s));
}

// The program's own events, while launches in another stream move pages.
static void events(void) {
    CUstream s = stream(), t = stream();
    CUevent from = event(), to = event();
    struct toucher some = {0, BLOCKS / 2, 100000, 500, 0, t, 0};
    pthread_t toucher = go(touch, &some);
    int early = 0, order = 1, x = BLOCKS - 1;
    for (uint32_t round = 1; round <= 10; round++) {
        float ms = -1;
        CHECK(cuEventRecord(from, s));
        first_late(x, round, 30000, s);
        write_late(flag_at(), round, 0, s);
        CHECK(cuEventRecord(to, s));
        CHECK(cuStreamWaitEvent(t, to, 0));
        for (;;) {
            CUresult rc = cuEventQuery(to);
            early += rc == 0 && *flag != round;
            if (rc != BUSY) break;
        }
        CHECK(cuEventElapsedTime(&ms, from, to));
        order &= ms >= 30 && ms < 20000;
    }
    some.stop = 1;
    end(toucher);
    say("never done too early", early == 0);
    say("times in order", order);
}

static void *capture(void *arg) {
    int mode = *(int *)arg, capturing = 0;
    void *made, *exec;
    CHECK(d.cuCtxSetCurrent(context));
    CUstream s = stream();
    CHECK(cuStreamBeginCapture(s, mode));
    for (int i = BLOCKS - 8; i < BLOCKS; i++) {
        fill(i, 600 + (uint32_t)(mode * 10 + i), s);
        usleep(20000);
    }
    CHECK(cuStreamIsCapturing(s, &capturing));
    say("still captured", capturing == 1);
    CHECK(cuStreamEndCapture(s, &made));
    CHECK(cuGraphInstantiate(&exec, made, 0));
    for (int i = 0; i < 3; i++) CHECK(cuGraphLaunch(exec, s));
    CHECK(d.cuStreamSynchronize(s));
    return NULL;
}
// One thread captures, in each mode, while another launches what needs pages.
static void captures(void) {
    for (int mode = 0; mode < 3; mode++) {
        struct toucher some = {0, BLOCKS - 8, 100000, 700, 0, stream(), 10000};
        pthread_t other = go(capture, &mode);
        pthread_t toucher = go(touch, &some);
        end(other);
        some.stop = 1;
        end(toucher);
        // Nothing is captured any more: pages move.
        int a = elsewhere();
        fill(a, 800, some.stream);
        CHECK(d.cuStreamSynchronize(some.stream));
        say("pages come again", away(a) == 0 || !page_of);
    }
}

static void *own_stream(void *arg) {
    struct toucher *t = arg;
    uint32_t *words = malloc(SIZE);
    size_t bad = 0;
    CHECK(d.cuCtxSetCurrent(context));
    for (int i = 0; i < t->rounds; i++) {
        struct block *b = &blocks[t->from + i % t->count];
        uint64_t n = WORDS;
        uint32_t value = t->value + (uint32_t)i;
        void *params[] = {&b->at, &value, &n};
        CHECK(cuLaunchKernelPtsz(fill_f, 1, 1, 1, 256, 1, 1, 0, NULL, params, NULL));
        CHECK(cuMemcpyDtoHAsyncPtsz(words, b->at, SIZE, NULL));
        CHECK(cuStreamSynchronizePtsz(NULL));
        for (size_t j = 0; j < WORDS; j++) bad += words[j] != value;
        b->base = b->first = value, b->step = 0;
    }
    free(words);
    if (bad) say("wrong in a thread's own stream", 0);
    return NULL;
}
// The default stream of each of three threads.
static void per_thread(void) {
    struct toucher t[3];
    pthread_t threads[3];
    for (int k = 0; k < 3; k++) {
        t[k] = (struct toucher){k * 21, 21, 60, 10000u * (uint32_t)(k + 1), 0, NULL, 0};
        threads[k] = go(own_stream, &t[k]);
    }
    for (int k = 0; k < 3; k++) end(threads[k]);
    say("threads ended", 1);
}

static const struct mode { const char *name; void (*run)(void); int kind, by_stream; } modes[] = {
    {"value_host", NULL, NOTHING, 0}, {"value_stream", NULL, NOTHING, 1}, {"kernel", NULL, KERNEL, 0},
    {"memset", NULL, SET, 1}, {"graph", NULL, GRAPH, 0}, {"graph_stream", NULL, GRAPH, 1},
    {"copy2d", NULL, COPY2D, 0}, {"copy3d", NULL, COPY3D, 0}, {"batch", NULL, BATCH, 0},
    {"peer", NULL, PEER, 0}, {"peer3d", NULL, PEER3D, 0}, {"lazy", lazy, 0, 0}, {"lazy_same", lazy_same, 0, 0},
    {"queue", queue, 0, 0}, {"context_waits", context_waits, 0, 0},
    {"callbacks", callbacks, 0, 0}, {"polls", polls, 0, 0}, {"pair", pair, 0, 0}, {"collective", collective, 0, 0},
    {"persistent", persistent, 0, 0}, {"blocked_copy", blocked_copy, 0, 0}, {"events", events, 0, 0},
    {"captures", captures, 0, 0}, {"per_thread", per_thread, 0, 0}, {"before_pressure", before_pressure, 0, 0},
    {"graph_runs", graph_runs, 0, 0},
};

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    begin();
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        const struct mode *m = &modes[i];
        if (strcmp(argv[1], m->name)) continue;
        if (m->run != before_pressure) allocate(), warm();
        if (m->run) m->run();
        else behind(m->kind, m->by_stream);
        compare();
        return 0;
    }
    return 2;
}
