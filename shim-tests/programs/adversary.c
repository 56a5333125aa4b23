// Kernels that find addresses where no launch names them: in memory, in lists, in variables of modules. While the
// memory behind those addresses is moved about, every byte must be right.
//   adversary MODE SEED
#include "adversary.h"

enum { TARGETS = 20 };

// Memory that only addresses in memory lead to.
static void make_targets(struct world *w, struct block **targets, int n, size_t bytes) {
    for (int i = 0; i < n; i++) targets[i] = make(w, bytes);
}

// What a kernel does that adds `a` to `each` floats at every address of a table.
struct place { struct block *block; size_t at; };
static void add_shadow(const struct place *places, uint64_t n, float a, uint64_t each) {
    for (uint64_t i = 0; i < n; i++) {
        float *to = floats(places[i].block) + places[i].at / 4;
        for (uint64_t k = 0; k < each; k++) to[k] += a;
    }
}

// The sum as the kernel gives it: whole numbers add up exactly in any order.
static void sum_shadow(struct block *out, const struct place *places, uint64_t n, uint64_t each) {
    double total = 0;
    for (uint64_t i = 0; i < n; i++) {
        const float *from = floats(places[i].block) + places[i].at / 4;
        for (uint64_t k = 0; k < each; k++) total += from[k];
    }
    floats(out)[0] = (float)total;
}

// Random places in the targets, no two in one of them.
static void choose(struct world *w, struct place *places, struct block **targets, int n, uint64_t each) {
    for (int i = 0; i < n; i++) {
        places[i].block = targets[i];
        places[i].at = 4 * below(w, targets[i]->bytes / 4 - each + 1);
    }
    for (int i = n - 1; i > 0; i--) {
        int k = (int)below(w, (uint64_t)i + 1);
        struct place p = places[i];
        places[i] = places[k], places[k] = p;
    }
}

static void fill_table(struct block *table, const struct place *places, int n) {
    for (int i = 0; i < n; i++) words(table)[i] = places[i].block->at + places[i].at;
}

// A table of addresses that the host copied into device memory.
static void host_table(struct world *w) {
    struct block *targets[TARGETS], *table = make(w, 2 * MIB), *out = make(w, 2 * MIB);
    struct place places[TARGETS];
    uint64_t n = TARGETS, each = 700000;
    make_targets(w, targets, TARGETS, 4 * MIB);
    add_ballast(w, 3 * gpu_bytes);
    for (int round = 0; round < 12; round++) {
        float a = (float)(round % 5) - 1;
        choose(w, places, targets, TARGETS, each);
        fill_table(table, places, TARGETS);
        upload(w, table, 0, 8 * n);
        press(w, 6);
        touch(w, targets[below(w, n)]);
        go(w, table_add_f32, (void *[]){&table->at, &a, &n, &each});
        add_shadow(places, n, a, each);
        press(w, 1);
        go(w, table_sum_f32, (void *[]){&out->at, &table->at, &n, &each});
        sum_shadow(out, places, n, each);
        look(w, out, 0, 64);
    }
}

// The table lies in pinned memory of the host, outside the pool, and the host changes it by plain stores.
static void pinned_table(struct world *w) {
    struct block *targets[TARGETS];
    struct place places[TARGETS];
    uint64_t n = TARGETS, each = 700000, *table;
    CHECK(cuMemAllocHost_v2((void **)&table, 4096));
    CUdeviceptr at = (CUdeviceptr)table;
    make_targets(w, targets, TARGETS, 4 * MIB);
    add_ballast(w, 3 * gpu_bytes);
    for (int round = 0; round < 12; round++) {
        float a = (float)(round % 5) + 1;
        press(w, 6);
        touch(w, targets[below(w, n)]);
        CHECK(d.cuCtxSynchronize());
        choose(w, places, targets, TARGETS, each);
        for (int i = 0; i < TARGETS; i++) table[i] = places[i].block->at + places[i].at;
        go(w, table_add_f32, (void *[]){&at, &a, &n, &each});
        add_shadow(places, n, a, each);
        press(w, 1);
    }
    CHECK(d.cuCtxSynchronize());
    CHECK(cuMemFreeHost(table));
}

// A kernel that follows nothing for hundreds of launches, whatever is looked at, and then follows addresses: it is
// handed a table that was empty so far, by a copy on the device that comes right before the launch.
static void betrayal(struct world *w) {
    struct block *targets[TARGETS], *table = make(w, 2 * MIB), *staged = make(w, 2 * MIB);
    struct place places[TARGETS];
    uint64_t none = 0, n = TARGETS, each = 700000;
    float a = 1;
    make_targets(w, targets, TARGETS, 4 * MIB);
    memset(table->shadow, 0, table->bytes);
    upload(w, table, 0, table->bytes);
    add_ballast(w, 3 * gpu_bytes);
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < 300; i++) {
            go(w, table_add_f32, (void *[]){&table->at, &a, &none, &each});
            if (i % 30 == 0) press(w, 1);
        }
        choose(w, places, targets, TARGETS, each);
        fill_table(staged, places, TARGETS);
        upload(w, staged, 0, 8 * n);
        press(w, 3);
        CHECK(d.cuMemcpyDtoDAsync(table->at, staged->at, 8 * n, NULL));
        go(w, table_add_f32, (void *[]){&table->at, &a, &n, &each});
        add_shadow(places, n, a, each);
        CHECK(cuMemsetD8Async(table->at, 0, 8 * n, NULL));
        press(w, 3);
    }
}

// Tables that one kernel writes for the next, with moves in between.
static void kernel_table(struct world *w) {
    struct block *big = make(w, 64 * MIB), *other = make(w, 24 * MIB), *out = make(w, 2 * MIB);
    struct block *tables[2] = {make(w, 2 * MIB), make(w, 4096)};
    struct place places[32];
    uint64_t n = 20, each = 250000;
    add_ballast(w, 3 * gpu_bytes);
    for (int round = 0; round < 14; round++) {
        struct block *table = tables[round % 2], *data = round % 3 ? big : other;
        uint64_t stride = (data->bytes - 4 * each) / n / 4 * 4, first = 4 * below(w, 64);
        CUdeviceptr base = data->at + first;
        go(w, build_table, (void *[]){&table->at, &base, &stride, &n});
        for (uint64_t i = 0; i < n; i++) {
            places[i] = (struct place){data, first + i * stride};
            words(table)[i] = base + i * stride;
        }
        press(w, round % 4 * 3);
        float a = (float)(round % 3) + 1;
        go(w, table_add_f32, (void *[]){&table->at, &a, &n, &each});
        // Places overlap where the stride is short: one after the other, as the kernel goes.
        add_shadow(places, n, a, each);
        press(w, 3);
        go(w, table_sum_f32, (void *[]){&out->at, &table->at, &n, &each});
        sum_shadow(out, places, n, each);
        look(w, out, 0, 64);
    }
}

// A kernel that makes its own table and follows it, from a base that memory holds in disguise.
static void own_table(struct world *w) {
    struct block *big = make(w, 48 * MIB), *scratch = make(w, 2 * MIB), *holder = make(w, 2 * MIB);
    uint64_t n = 16, each = 300000, stride = 3 * MIB;
    words(holder)[0] = ~big->at;
    upload(w, holder, 0, 8);
    add_ballast(w, 3 * gpu_bytes);
    for (int round = 0; round < 14; round++) {
        float a = (float)(round % 4) - 2;
        press(w, 5);
        if (round % 4 == 3) touch(w, big);
        go(w, self_table_f32, (void *[]){&scratch->at, &holder->at, &stride, &a, &n, &each});
        struct place places[16];
        for (uint64_t i = 0; i < n; i++) {
            places[i] = (struct place){big, i * stride};
            words(scratch)[i] = big->at + i * stride;
        }
        add_shadow(places, n, a, each);
        press(w, 2);
    }
}

enum { LINKS = 4000, LISTED = 40 };
// A list whose elements lie all over many allocations; the shadow holds the links.
static void list(struct world *w) {
    struct block *targets[LISTED], *out = make(w, 2 * MIB);
    make_targets(w, targets, LISTED, 2 * MIB + 4096);
    static struct place nodes[LINKS];
    for (int i = 0; i < LINKS; i++) // one node in each cell of an allocation
        nodes[i] = (struct place){targets[i % LISTED], (size_t)(i / LISTED) * 16384 + 8 * below(w, 2048)};
    add_ballast(w, 3 * gpu_bytes);
    for (int round = 0; round < 12; round++) {
        for (int i = LINKS - 1; i > 0; i--) {
            int k = (int)below(w, (uint64_t)i + 1);
            struct place p = nodes[i];
            nodes[i] = nodes[k], nodes[k] = p;
        }
        for (int i = 0; i < LINKS; i++) {
            const struct place *to = &nodes[(i + 1) % LINKS];
            words(nodes[i].block)[nodes[i].at / 8] = to->block->at + to->at;
        }
        for (int i = 0; i < LISTED; i++) upload(w, targets[i], 0, targets[i]->bytes);
        press(w, 6);
        uint64_t steps = LINKS - 1 - below(w, 100);
        CUdeviceptr first = nodes[0].block->at + nodes[0].at, result = out->at + 8 * (uint64_t)round;
        go(w, chase_u64, (void *[]){&result, &first, &steps});
        words(out)[round] = nodes[steps].block->at + nodes[steps].at;
        press(w, 2);
        look(w, out, 0, 128);
    }
}

// A buffer whose own address lies in device memory, updated through it alone for 1,000 steps.
static void self_reference(struct world *w) {
    struct block *own = make(w, 6 * MIB), *cell = make(w, 2 * MIB);
    memset(own->shadow, 0, own->bytes);
    words(own)[0] = own->at;
    upload(w, own, 0, own->bytes);
    words(cell)[5] = own->at;
    upload(w, cell, 0, 64);
    CUdeviceptr at = cell->at + 40;
    uint64_t count = own->bytes / 8;
    add_ballast(w, 3 * gpu_bytes);
    for (uint64_t step = 0; step < 1000; step++) {
        go(w, self_step_u64, (void *[]){&at, &step, &count});
        words(own)[1] += 1;
        words(own)[2 + step * 0x9e3779b97f4a7c15u % (count - 2)] += step;
        if (step % 12 == 0) press(w, 1);
        if (step % 100 == 0) { // the address itself named: home again
            uint64_t none = 0;
            go(w, atomic_add_u64, (void *[]){&own->at, &none});
        }
    }
}

// Tables and addresses in variables of a module; the kernels have no parameter that is an address.
static void variables(struct world *w) {
    struct block *targets[TARGETS], *staged = make(w, 2 * MIB);
    struct place places[TARGETS];
    CUdeviceptr table, pointer;
    size_t size;
    uint64_t n = TARGETS, each = 600000, more = 900000;
    CHECK(cuModuleGetGlobal_v2(&table, &size, module, "sim_table_u64"));
    CHECK(cuModuleGetGlobal_v2(&pointer, &size, module, "sim_global_u64"));
    make_targets(w, targets, TARGETS, 4 * MIB);
    add_ballast(w, 3 * gpu_bytes);
    for (int round = 0; round < 12; round++) {
        choose(w, places, targets, TARGETS, more);
        fill_table(staged, places, TARGETS);
        if (round % 2) {
            CHECK(d.cuMemcpyHtoD(table, staged->shadow, 8 * n));
            upload(w, staged, 0, 8 * n);
        } else { // by a copy on the device
            upload(w, staged, 0, 8 * n);
            CHECK(d.cuMemcpyDtoD(table, staged->at, 8 * n));
        }
        CHECK(d.cuMemcpyHtoD(pointer, &words(staged)[3], 8));
        press(w, 6);
        touch(w, targets[below(w, n)]);
        float a = (float)(round % 3) + 1;
        go(w, global_add_f32, (void *[]){&a, &n, &each});
        add_shadow(places, n, a, each);
        press(w, 2);
        go(w, global_pointer_add_f32, (void *[]){&a, &more});
        add_shadow(&places[3], 1, a, more);
    }
}

enum { GROUPS = 12, ROWS = 48, COLUMNS = 64, INNER = 2048 };
static void multiply_shadow(const struct place *c, const struct place *a, const struct place *b) {
    float *out = floats(c->block) + c->at / 4;
    const float *left = floats(a->block) + a->at / 4, *right = floats(b->block) + b->at / 4;
    memset(out, 0, 4 * ROWS * COLUMNS);
    for (int i = 0; i < ROWS; i++)
        for (int k = 0; k < INNER; k++)
            for (int j = 0; j < COLUMNS; j++) out[i * COLUMNS + j] += left[i * INNER + k] * right[k * COLUMNS + j];
}

// Grouped products: outputs and factors are named by arrays of addresses in device memory.
static void grouped(struct world *w) {
    struct block *blocks[3][GROUPS], *tables[3];
    static struct place places[3][GROUPS];
    uint64_t groups = GROUPS;
    uint32_t m = ROWS, n = COLUMNS, k = INNER;
    static const uint64_t sizes[3] = {ROWS * COLUMNS, ROWS * INNER, INNER * COLUMNS};
    for (int which = 0; which < 3; which++) {
        make_targets(w, blocks[which], GROUPS, 2 * MIB);
        tables[which] = make(w, which == 1 ? 4096 : 2 * MIB);
        for (int i = 0; i < GROUPS && which; i++) { // factors below 16: sums of products stay exact
            for (size_t at = 0; at < blocks[which][i]->bytes / 4; at++)
                floats(blocks[which][i])[at] = (float)((int)floats(blocks[which][i])[at] & 15);
            upload(w, blocks[which][i], 0, blocks[which][i]->bytes);
        }
    }
    add_ballast(w, 3 * gpu_bytes);
    for (int round = 0; round < 8; round++) {
        for (int which = 0; which < 3; which++) {
            choose(w, places[which], blocks[which], GROUPS, sizes[which]);
            fill_table(tables[which], places[which], GROUPS);
            upload(w, tables[which], 0, 8 * groups);
        }
        press(w, 7);
        go(w, grouped_matmul_f32, (void *[]){&tables[0]->at, &tables[1]->at, &tables[2]->at, &groups, &m, &n, &k});
        for (int i = 0; i < GROUPS; i++) multiply_shadow(&places[0][i], &places[1][i], &places[2][i]);
        press(w, 2);
        touch(w, blocks[1 + round % 2][below(w, GROUPS)]);
    }
}

int main(int argc, char **argv) {
    static const struct mode modes[] = {
        {"host_table", host_table}, {"pinned_table", pinned_table}, {"betrayal", betrayal},
        {"kernel_table", kernel_table}, {"own_table", own_table}, {"list", list},
        {"self_reference", self_reference}, {"variables", variables}, {"grouped", grouped},
    };
    return run_mode(argc, argv, modes, sizeof modes / sizeof *modes);
}
