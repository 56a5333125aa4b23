// Pressure in every shape: one buffer, huge operands, many sizes, allocations under way. No byte may suffer.
//   adversary_load MODE SEED
#include "adversary.h"

// One buffer of three times what fits; its tensors are used by interior pointers.
static void one_buffer(struct world *w) {
    struct block *all = make(w, 3 * gpu_bytes);
    uint64_t tensor = 5 * MIB / 4, tensors = all->bytes / 4 / tensor;
    for (uint64_t i = 0; i < 120; i++) {
        uint64_t y = i < 60 ? i : below(w, tensors), x = below(w, tensors);
        axpy(w, all, y % tensors * tensor, all, x * tensor, i % 2 ? 0.5f : -1, tensor - below(w, 999));
    }
    // Others come and go: parts of the buffer make room for them.
    for (int round = 0; round < 10; round++) {
        struct block *b = make(w, 20 * MIB);
        touch(w, b);
        axpy(w, all, below(w, tensors) * tensor, b, 0, 1, tensor);
        touch(w, b);
        drop(w, b);
    }
}

// The same buffer used tensor by tensor, over and over, as a model's layers are.
static void layers(struct world *w) {
    struct block *all = make(w, 3 * gpu_bytes), *x = make(w, 5 * MIB);
    uint64_t tensor = 5 * MIB / 4, tensors = all->bytes / 4 / tensor;
    for (uint64_t i = 0; i < 8 * tensors; i++)
        axpy(w, all, i % tensors * tensor, x, 0, i % 3 ? 0.5f : -1, tensor - below(w, 999));
}

static size_t part_of_gpu(size_t n, size_t of) { return gpu_bytes / of * n / 4096 * 4096; }

// Operands of one launch that together are larger than the GPU.
static void huge_operands(struct world *w) {
    struct block *a = make(w, part_of_gpu(3, 4)), *b = make(w, part_of_gpu(3, 4)), *c = make(w, part_of_gpu(9, 8));
    add_ballast(w, 3 * gpu_bytes);
    for (int round = 0; round < 6; round++) {
        axpy(w, a, 0, b, 0, 0.5f, a->bytes / 4);
        press(w, 6);
        axpy(w, c, 0, a, 0, -1, a->bytes / 4);
        touch(w, c);
        press(w, 4);
    }
}

// Allocations and frees while pages move.
static void allocations(struct world *w) {
    struct block *kept[16] = {NULL};
    add_ballast(w, 3 * gpu_bytes);
    for (int i = 0; i < 100; i++) {
        struct block **b = &kept[below(w, 16)];
        if (*b) {
            if (i % 4 == 0) look(w, *b, 0, (*b)->bytes);
            drop(w, *b);
        }
        size_t kind = below(w, 8), most = kind < 3 ? 1 * MIB : kind < 7 ? 8 * MIB : 40 * MIB;
        *b = make(w, 4096 + 256 * below(w, most / 256));
        touch(w, *b);
        press(w, 1);
        for (int k = 0; k < 4; k++) { // nothing but room
            CUdeviceptr p;
            CHECK(d.cuMemAlloc(&p, 2 * MIB + 4096 * below(w, 1024)));
            CHECK(d.cuMemFree(p));
        }
    }
}

// Very many small allocations, below and at the size that is pooled, beside a few huge ones.
static void many_sizes(struct world *w) {
    struct block *huge[2] = {make(w, part_of_gpu(4, 5)), NULL};
    for (int i = 0; i < 250; i++) w->ballast[w->ballasts++] = make(w, 4 * (256 + below(w, 60000)));
    for (int i = 0; i < 60; i++) w->ballast[w->ballasts++] = make(w, 2 * MIB);
    for (int i = 0; i < 20; i++) w->ballast[w->ballasts++] = make(w, MIB + 4096 * below(w, 250));
    huge[1] = make(w, part_of_gpu(2, 3));
    while (taken < 3 * gpu_bytes) w->ballast[w->ballasts++] = make(w, 2 * MIB);
    for (int round = 0; round < 8; round++) {
        press(w, 60);
        touch(w, huge[round % 2]);
        axpy(w, huge[0], 0, huge[1], 0, 0.5f, huge[1]->bytes / 4);
    }
}

// Hardly more than fits, used in a circle and at random.
static void just_over(struct world *w) {
    add_ballast(w, gpu_bytes / 100 * 101);
    for (int round = 0; round < 6; round++) {
        for (int i = 0; i < w->ballasts; i++) touch(w, w->ballast[i]);
        press(w, 10);
    }
}

int main(int argc, char **argv) {
    static const struct mode modes[] = {
        {"one_buffer", one_buffer}, {"layers", layers}, {"huge_operands", huge_operands}, {"allocations", allocations},
        {"many_sizes", many_sizes}, {"just_over", just_over},
    };
    return run_mode(argc, argv, modes, sizeof modes / sizeof *modes);
}
