// Everything at once for a long time, with three times the memory that the GPU has: what grows, what goes wrong?
//   soak SECONDS SEED [EVERY [WILD]]   prints a line every EVERY seconds (10); the `soak` lines are for a verdict
// Work that leads the library away from moving pages beside it (addresses in memory, graphs, captures) comes in the
// last WILD (20) of 100 parts of each sixth of the time: after each such disturbance pages move strictly for a while.
// Exits with 5 at the first wrong byte, after a line that says the seed, the thread and the step.
#include "adversary.h"
#include <dirent.h>
#include <malloc.h>
#include <time.h>

enum { STREAMS = 3, LINKED_BLOCKS = 8, NODES = 400, CHAIN = 6, PINNED = 2 * MIB, MOST_PLACES = 8 };
static const double SMALL = 1 << 18; // values that are larger are replaced before they are used again

struct page { unsigned long long base, bytes; int gpu, home; };
static int (*page_of)(unsigned long long, struct page *); // of the library, if it is there
static CUresult (*cuEventDestroy_v2)(CUevent);

// A thread's memory, and which of its streams used each block last.
struct place { struct block *block; size_t at; };
struct worker {
    struct world w;
    int id, last[MOST], pinned_on, other_default;
    double most[MOST]; // no value of the block is larger
    size_t held, budget;
    uint64_t steps;
    CUstream streams[STREAMS];
    CUevent events[STREAMS];
    char *pinned; // half of it goes up, half comes down
    struct block *table, *out, *links[LINKED_BLOCKS], *chain[CHAIN];
    struct place nodes[NODES];
    CUgraphExec exec;
    float factor; // of the graph
    pthread_t thread;
    int stop;
};
static struct worker workers[2];
static const char *seed;
static int wild = 1;

static int index_of(struct worker *k, struct block *b) { return (int)(b - k->w.blocks); }
static struct block *any(struct worker *k) { return k->w.ballast[below(&k->w, (uint64_t)k->w.ballasts)]; }
static int any_stream(struct worker *k) { return (int)below(&k->w, STREAMS); }

// The stream's next work comes after all work that used the block so far.
static void order(struct worker *k, struct block *b, int s) {
    int *last = &k->last[index_of(k, b)];
    if (*last >= 0 && *last != s) {
        CHECK(cuEventRecord(k->events[*last], k->streams[*last]));
        CHECK(cuStreamWaitEvent(k->streams[s], k->events[*last], 0));
    }
    *last = s;
}
static void settle(struct worker *k, struct block *b) {
    int *last = &k->last[index_of(k, b)];
    if (*last >= 0) CHECK(d.cuStreamSynchronize(k->streams[*last]));
    *last = -1;
}
static void run(struct worker *k, int s, CUfunction f, void **params) { launch_on(&k->w, k->streams[s], f, params); }

static void blame(struct worker *k) {
    printf("WRONG seed %s thread %d step %llu\n", seed, k->id, (unsigned long long)k->steps);
    fflush(stdout);
    _exit(5);
}
static void see(struct worker *k, struct block *b, size_t at, size_t n) {
    settle(k, b);
    look(&k->w, b, at, n);
    if (k->w.wrong) blame(k);
}

static struct block *new_block(struct worker *k, size_t bytes) {
    struct block *b = make(&k->w, bytes);
    k->last[index_of(k, b)] = -1, k->most[index_of(k, b)] = 256;
    k->held += bytes;
    return b;
}
static void renew_if_large(struct worker *k, struct block *b) {
    double *most = &k->most[index_of(k, b)];
    if (*most <= SMALL) return;
    if (below(&k->w, 2)) {
        float value = (float)below(&k->w, 100);
        unsigned bits;
        int s = any_stream(k);
        memcpy(&bits, &value, 4);
        order(k, b, s);
        CHECK(d.cuMemsetD32Async(b->at, bits, b->bytes / 4, k->streams[s]));
        for (size_t i = 0; i < b->bytes / 4; i++) floats(b)[i] = value;
    } else {
        uint64_t n = next(&k->w);
        settle(k, b);
        for (size_t i = 0; i < b->bytes / 4; i++) floats(b)[i] = (float)(((i + n) * 2654435761u >> 7) & 127);
        upload(&k->w, b, 0, b->bytes);
    }
    *most = 256;
}

static size_t some_size(struct worker *k) {
    uint64_t kind = below(&k->w, 10);
    if (kind < 3) return 4096 + 4 * below(&k->w, MIB / 4);
    if (kind < 7) return 2 * MIB + 4096 * below(&k->w, 6 * 256);
    if (kind < 9) return 2 * MIB * (1 + below(&k->w, 4));
    return 8 * MIB + 512 * below(&k->w, 16 * 2048);
}
static void leave(struct worker *k, struct block *b) {
    if (below(&k->w, 3) == 0) see(k, b, 0, b->bytes);
    else if (below(&k->w, 2)) settle(k, b); // else the free has to wait for the work
    k->held -= b->bytes;
    drop(&k->w, b);
}
static void replace(struct worker *k) {
    size_t bytes = some_size(k);
    while (k->held + bytes > k->budget || k->w.count >= MOST - 1) leave(k, any(k));
    k->w.ballast[k->w.ballasts++] = new_block(k, bytes);
    if (below(&k->w, 4) == 0) { // nothing but room
        CUdeviceptr p;
        CHECK(d.cuMemAlloc(&p, some_size(k)));
        CHECK(d.cuMemFree(p));
    }
}

static void add(struct worker *k) {
    struct world *w = &k->w;
    struct block *y = any(k), *x = any(k);
    if (x == y) return;
    renew_if_large(k, x), renew_if_large(k, y);
    static const float factors[] = {1, -1, 2, -2};
    float a = factors[below(w, 4)];
    uint64_t most = (x->bytes < y->bytes ? x->bytes : y->bytes) / 4, n = below(w, 3) ? most : 1 + below(w, most);
    size_t there = below(w, y->bytes / 4 - n + 1), here = below(w, x->bytes / 4 - n + 1);
    CUdeviceptr to = y->at + 4 * there, from = x->at + 4 * here;
    int s = any_stream(k);
    order(k, y, s), order(k, x, s);
    run(k, s, axpy_f32, (void *[]){&to, &from, &a, &n});
    axpy_shadow(y, there, x, here, a, n);
    k->most[index_of(k, y)] += 2 * k->most[index_of(k, x)];
}
static void negate(struct worker *k) {
    struct block *b = any(k);
    float a = -1;
    uint64_t n = b->bytes / 4;
    int s = any_stream(k);
    order(k, b, s);
    run(k, s, scale_f32, (void *[]){&b->at, &a, &n});
    for (uint64_t i = 0; i < n; i++) floats(b)[i] *= a;
}

// A range gets one value: by a kernel, or by memsets of all kinds.
static void set(struct worker *k) {
    struct world *w = &k->w;
    struct block *b = any(k);
    uint64_t n = 1 + below(w, b->bytes / 4), kind = below(w, 5);
    size_t first = below(w, b->bytes / 4 - n + 1);
    CUdeviceptr at = b->at + 4 * first;
    float value = kind == 1 || kind == 3 ? 0 : (float)below(w, 200);
    uint32_t bits;
    int s = any_stream(k);
    memcpy(&bits, &value, 4);
    if (kind < 3) order(k, b, s);
    else settle(k, b);
    switch (kind) {
    case 0: CHECK(d.cuMemsetD32Async(at, bits, n, k->streams[s])); break;
    case 1: CHECK(cuMemsetD8Async(at, 0, 4 * n, k->streams[s])); break;
    case 2: run(k, s, fill_u32, (void *[]){&at, &bits, &n}); break;
    case 3: CHECK(d.cuMemsetD8(at, 0, 4 * n)); break;
    default: CHECK(d.cuMemsetD32(at, bits, n));
    }
    if (kind >= 3) CHECK(d.cuStreamSynchronize(NULL));
    for (uint64_t i = 0; i < n; i++) floats(b)[first + i] = value;
}

static void copy_on_device(struct worker *k) {
    struct world *w = &k->w;
    struct block *y = any(k), *x = any(k);
    if (x == y) return;
    size_t most = x->bytes < y->bytes ? x->bytes : y->bytes, n = 4 * (1 + below(w, most / 4));
    size_t there = 4 * below(w, (y->bytes - n) / 4 + 1), here = 4 * below(w, (x->bytes - n) / 4 + 1);
    uint64_t kind = below(w, 3);
    if (kind == 0) {
        int s = any_stream(k);
        order(k, y, s), order(k, x, s);
        CHECK(d.cuMemcpyDtoDAsync(y->at + there, x->at + here, n, k->streams[s]));
    } else {
        settle(k, y), settle(k, x);
        CHECK((kind == 1 ? d.cuMemcpyDtoD : d.cuMemcpy)(y->at + there, x->at + here, n));
        CHECK(d.cuStreamSynchronize(NULL));
    }
    memcpy((char *)y->shadow + there, (char *)x->shadow + here, n);
    double *most_y = &k->most[index_of(k, y)], most_x = k->most[index_of(k, x)];
    if (*most_y < most_x) *most_y = most_x;
}
static void copy_up(struct worker *k) {
    struct world *w = &k->w;
    struct block *b = any(k);
    size_t most = b->bytes < PINNED / 2 ? b->bytes : PINNED / 2, n = 4 * (1 + below(w, most / 4));
    size_t at = 4 * below(w, (b->bytes - n) / 4 + 1);
    float *to = (float *)((char *)b->shadow + at), value = (float)below(w, 100);
    for (size_t i = 0; i < n / 4; i++) to[i] = value + (float)(i & 63);
    if (below(w, 2)) {
        settle(k, b);
        upload(w, b, at, n);
        return;
    }
    int s = any_stream(k);
    if (k->pinned_on >= 0) CHECK(d.cuStreamSynchronize(k->streams[k->pinned_on]));
    memcpy(k->pinned, to, n);
    order(k, b, s);
    CHECK(d.cuMemcpyHtoDAsync(b->at + at, k->pinned, n, k->streams[s]));
    k->pinned_on = s;
}
static void copy_down(struct worker *k) {
    struct world *w = &k->w;
    struct block *b = any(k);
    char *to = k->pinned + PINNED / 2;
    size_t most = b->bytes < PINNED / 2 ? b->bytes : PINNED / 2, n = 1 + below(w, most);
    size_t at = below(w, b->bytes - n + 1);
    int s = any_stream(k);
    order(k, b, s);
    memset(to, 0xEE, n);
    CHECK(d.cuMemcpyDtoHAsync(to, b->at + at, n, k->streams[s]));
    CHECK(d.cuStreamSynchronize(k->streams[s]));
    w->read += n;
    if (memcmp(to, (char *)b->shadow + at, n)) {
        printf("a copy of %zu bytes at %zu of block %d is wrong\n", n, at, index_of(k, b));
        blame(k);
    }
}

// Kernels that follow addresses of a table to memory that the launch does not name.
static void follow_table(struct worker *k) {
    struct world *w = &k->w;
    struct place places[MOST_PLACES];
    uint64_t n = 0, each = 200000;
    for (int i = 0; i < 3 * MOST_PLACES && n < MOST_PLACES; i++) {
        struct block *b = any(k);
        uint64_t same = 0;
        for (uint64_t j = 0; j < n; j++) same += places[j].block == b;
        if (same) continue;
        places[n++] = (struct place){b, 0};
        if (each > b->bytes / 4) each = b->bytes / 4;
    }
    int s = any_stream(k);
    settle(k, k->table);
    for (uint64_t i = 0; i < n; i++) {
        renew_if_large(k, places[i].block);
        order(k, places[i].block, s);
        places[i].at = 4 * below(w, places[i].block->bytes / 4 - each + 1);
        words(k->table)[i] = places[i].block->at + places[i].at;
    }
    upload(w, k->table, 0, 8 * n);
    order(k, k->table, s), order(k, k->out, s);
    if (below(w, 2)) {
        float a = (float)(1 + below(w, 3));
        run(k, s, table_add_f32, (void *[]){&k->table->at, &a, &n, &each});
        for (uint64_t i = 0; i < n; i++) {
            float *to = floats(places[i].block) + places[i].at / 4;
            for (uint64_t j = 0; j < each; j++) to[j] += a;
            k->most[index_of(k, places[i].block)] += a;
        }
    }
    run(k, s, table_sum_f32, (void *[]){&k->out->at, &k->table->at, &n, &each});
    double total = 0; // of whole numbers: exact
    for (uint64_t i = 0; i < n; i++)
        for (uint64_t j = 0; j < each; j++) total += floats(places[i].block)[places[i].at / 4 + j];
    floats(k->out)[0] = (float)total;
    see(k, k->out, 0, 64);
}

static void link_nodes(struct worker *k) {
    struct world *w = &k->w;
    for (int i = NODES - 1; i > 0; i--) {
        int j = (int)below(w, (uint64_t)i + 1);
        struct place p = k->nodes[i];
        k->nodes[i] = k->nodes[j], k->nodes[j] = p;
    }
    for (int i = 0; i < NODES; i++) {
        const struct place *to = &k->nodes[(i + 1) % NODES];
        words(k->nodes[i].block)[k->nodes[i].at / 8] = to->block->at + to->at;
    }
    for (int i = 0; i < LINKED_BLOCKS; i++) {
        settle(k, k->links[i]);
        upload(w, k->links[i], 0, k->links[i]->bytes);
    }
}
static void follow_list(struct worker *k) {
    if (below(&k->w, 4) == 0) link_nodes(k);
    int s = any_stream(k);
    uint64_t steps = 1 + below(&k->w, NODES - 1);
    for (int i = 0; i < LINKED_BLOCKS; i++) order(k, k->links[i], s);
    order(k, k->out, s);
    CUdeviceptr first = k->nodes[0].block->at + k->nodes[0].at, result = k->out->at + 32;
    run(k, s, chase_u64, (void *[]){&result, &first, &steps});
    words(k->out)[4] = k->nodes[steps].block->at + k->nodes[steps].at;
    see(k, k->out, 0, 64);
}

// A graph of launches, each of which adds one block of the chain to another.
static void capture(struct worker *k) {
    int s = any_stream(k);
    CUgraph graph;
    uint64_t n = k->chain[0]->bytes / 4;
    k->factor = below(&k->w, 2) ? 1 : -1;
    for (int i = 0; i < CHAIN; i++) settle(k, k->chain[i]);
    CHECK(cuStreamBeginCapture_v2(k->streams[s], 2));
    for (int i = 0; i < CHAIN; i++) {
        CUdeviceptr y = k->chain[i]->at, x = k->chain[(i + 1) % CHAIN]->at;
        run(k, s, axpy_f32, (void *[]){&y, &x, &k->factor, &n});
    }
    CHECK(cuStreamEndCapture(k->streams[s], &graph));
    if (k->exec) CHECK(cuGraphExecDestroy(k->exec));
    CHECK(cuGraphInstantiateWithFlags(&k->exec, graph, 0));
    CHECK(cuGraphDestroy(graph));
}
static void run_graph(struct worker *k) {
    int s = any_stream(k);
    for (int i = 0; i < CHAIN; i++) renew_if_large(k, k->chain[i]);
    for (int i = 0; i < CHAIN; i++) order(k, k->chain[i], s);
    CHECK(cuGraphLaunch(k->exec, k->streams[s]));
    for (int i = 0; i < CHAIN; i++) {
        struct block *y = k->chain[i], *x = k->chain[(i + 1) % CHAIN];
        axpy_shadow(y, 0, x, 0, k->factor, y->bytes / 4);
        k->most[index_of(k, y)] += k->most[index_of(k, x)];
    }
    if (below(&k->w, 4) == 0) see(k, k->chain[below(&k->w, CHAIN)], 0, MIB);
}

static void make_stream(struct worker *k, int s) {
    CHECK(d.cuStreamCreate(&k->streams[s], 1)); // does not wait for the default stream
    CHECK(cuEventCreate(&k->events[s], 2));
}
// A stream is destroyed, at times with work in flight, and another takes its place behind it.
static void new_stream(struct worker *k) {
    int s = any_stream(k);
    CUstream old = k->streams[s];
    CUevent event = k->events[s];
    if (below(&k->w, 2)) CHECK(d.cuStreamSynchronize(old));
    CHECK(cuEventRecord(event, old));
    CHECK(d.cuStreamDestroy(old));
    make_stream(k, s);
    CHECK(cuStreamWaitEvent(k->streams[s], event, 0));
    CHECK(cuEventDestroy_v2(event));
}

static void step(struct worker *k) {
    uint64_t what = below(&k->w, 1000);
    k->steps++;
    if (what >= 890 && what < 975 && !__atomic_load_n(&wild, __ATOMIC_SEQ_CST)) what -= 890 - 180; // launches instead
    if (what >= 995 && !__atomic_load_n(&wild, __ATOMIC_SEQ_CST)) what = 0;
    if (what < 180) replace(k);
    else if (what < 480) add(k);
    else if (what < 580) negate(k);
    else if (what < 680) set(k);
    else if (what < 740) copy_on_device(k);
    else if (what < 790) copy_up(k);
    else if (what < 840) copy_down(k);
    else if (what < 890) {
        struct block *b = any(k);
        size_t n = 1 + below(&k->w, b->bytes);
        see(k, b, below(&k->w, b->bytes - n + 1), n);
    } else if (what < 920) follow_table(k);
    else if (what < 940) follow_list(k);
    else if (what < 975) run_graph(k);
    else if (what < 995) new_stream(k);
    else capture(k);
}

static void *work(void *of) {
    struct worker *k = of;
    CHECK(d.cuCtxSetCurrent(context));
    while (!__atomic_load_n(&k->stop, __ATOMIC_SEQ_CST)) step(k);
    return NULL;
}
static void hire(struct worker *k) {
    k->stop = 0;
    if (pthread_create(&k->thread, NULL, work, k)) exit(3);
}
static void send_home(struct worker *k) {
    __atomic_store_n(&k->stop, 1, __ATOMIC_SEQ_CST);
    pthread_join(k->thread, NULL);
}
static void equip(struct worker *k, int id) {
    k->id = id, k->pinned_on = -1, k->w.twin = id;
    k->w.random = strtoull(seed, NULL, 10) + 1000003u * (unsigned)id;
    k->budget = gpu_bytes / 20 * 30;
    for (int s = 0; s < STREAMS; s++) make_stream(k, s);
    CHECK(cuMemAllocHost_v2((void **)&k->pinned, PINNED));
    k->table = new_block(k, 2 * MIB), k->out = new_block(k, 4096);
    for (int i = 0; i < LINKED_BLOCKS; i++) k->links[i] = new_block(k, 2 * MIB + 4096);
    for (int i = 0; i < NODES; i++)
        k->nodes[i] = (struct place){
            k->links[i % LINKED_BLOCKS],
            (size_t)(i / LINKED_BLOCKS) * 32768 + 8 * below(&k->w, 4096),
        };
    link_nodes(k);
    for (int i = 0; i < CHAIN; i++) k->chain[i] = new_block(k, 4 * MIB);
    for (size_t bytes = 4 * MIB; k->held + bytes < k->budget; bytes = some_size(k))
        k->w.ballast[k->w.ballasts++] = new_block(k, bytes);
    capture(k);
}
static void put_away(struct worker *k) {
    finish(&k->w);
    if (k->w.wrong) blame(k);
    CHECK(cuGraphExecDestroy(k->exec));
    for (int s = 0; s < STREAMS; s++) {
        CHECK(cuEventDestroy_v2(k->events[s]));
        CHECK(d.cuStreamDestroy(k->streams[s]));
    }
    CHECK(cuMemFreeHost(k->pinned));
}

static long entries(const char *folder) {
    long n = -2; // . and ..
    DIR *all = opendir(folder);
    while (all && readdir(all)) n++;
    if (all) closedir(all);
    return n;
}
static void report(double seconds) {
    long pages = 0, resident = 0, lines = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%ld %ld", &pages, &resident) != 2) exit(3);
    fclose(f);
    f = fopen("/proc/self/maps", "r");
    for (int c; f && (c = getc(f)) != EOF;) lines += c == '\n';
    if (f) fclose(f);
    int away = 0; // blocks of the thread that rests whose first page is in host RAM
    struct worker *k = &workers[1];
    for (int i = 0; page_of && i < k->w.count; i++) {
        struct page page;
        away += k->w.blocks[i].bytes && page_of(k->w.blocks[i].at, &page) && page.gpu < 0;
    }
    printf("soak %.1f steps %llu rss_kib %ld maps %ld fds %ld threads %ld held_mib %zu away %d read_mib %llu\n",
           seconds, (unsigned long long)(workers[0].steps + k->steps), resident * (sysconf(_SC_PAGESIZE) / 1024), lines,
           entries("/proc/self/fd") - 1, entries("/proc/self/task"), taken / MIB, away,
           (unsigned long long)(workers[0].w.read + k->w.read) / MIB);
    fflush(stdout);
}
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    double seconds = atof(argv[1]), every = argc > 3 ? atof(argv[3]) : 10, share = argc > 4 ? atof(argv[4]) : 20;
    seed = argv[2];
    // The shadows come and go; what the allocator keeps of them is not what is measured.
    mallopt(M_MMAP_THRESHOLD, 128 << 10);
    mallopt(M_ARENA_MAX, 1);
    begin(seed);
    void *handle = need(dlopen("libcuda.so.1", RTLD_NOW), "libcuda.so.1");
    cuEventDestroy_v2 = need(dlsym(handle, "cuEventDestroy_v2"), "cuEventDestroy_v2");
    page_of = (int (*)(unsigned long long, struct page *))dlsym(RTLD_DEFAULT, "vgmem_page_of");
    for (int i = 0; i < 2; i++) equip(&workers[i], i);
    CHECK(d.cuCtxSynchronize());
    double start = now();
    hire(&workers[0]);
    for (int line = 1; now() - start < seconds; line++) { // one thread works on, the other is a new one each time
        hire(&workers[1]);
        for (double t = now(); t < start + every * line; t = now()) {
            double parts = 6 * (t - start) / seconds;
            __atomic_store_n(&wild, (parts - (int)parts) * 100 >= 100 - share, __ATOMIC_SEQ_CST);
            usleep(50000);
        }
        send_home(&workers[1]);
        report(now() - start);
    }
    send_home(&workers[0]);
    for (int i = 0; i < 2; i++) put_away(&workers[i]);
    printf("steps %llu\nread %llu\nwrong 0\n", (unsigned long long)(workers[0].steps + workers[1].steps),
           (unsigned long long)(workers[0].w.read + workers[1].w.read));
    return 0;
}
