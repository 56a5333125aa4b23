// A table of which launches touch a few words, and layers that are worked through whole.
//   lookup few SEED     the table and the layers do not fit together
//   lookup all SEED     the same; in the end launches read the whole table
#include "adversary.h"

enum { TABLE = 48 * MIB, LAYER = 8 * MIB, LAYERS = 11, ROUNDS = 50, WORDS = 64 };

// Adds the first layer's words to some of the table, in steps so that another part of it is hit in every round.
static void look_up(struct world *w, struct block *table, struct block *row, int round, uint64_t words) {
    float one = 1;
    size_t at = (size_t)round * (TABLE / 4 / ROUNDS) / WORDS * WORDS;
    CUdeviceptr to = table->at + (words == WORDS ? 4 * at : 0), from = row->at;
    go(w, axpy_f32, (void *[]){&to, &from, &one, &words});
    axpy_shadow(table, words == WORDS ? at : 0, row, 0, one, words);
}

// The layers' launches take long enough to have read them.
static void rounds(struct world *w, struct block *table, struct block **layers, int count, uint64_t words) {
    uint64_t us = 3000;
    for (int round = 0; round < count; round++) {
        look_up(w, table, layers[0], round, words);
        for (int i = 0; i < LAYERS; i++) {
            float value = (float)(round + i);
            uint32_t bits;
            memcpy(&bits, &value, 4);
            go(w, write_after_us, (void *[]){&layers[i]->at, &bits, &us});
            floats(layers[i])[0] = value;
        }
        CHECK(d.cuCtxSynchronize());
    }
}

static struct block *table, *layers[LAYERS];
static void few(struct world *w) {
    table = make(w, TABLE);
    for (int i = 0; i < LAYERS; i++) layers[i] = make(w, LAYER);
    rounds(w, table, layers, ROUNDS, WORDS);
}
static void all(struct world *w) {
    few(w);
    rounds(w, table, layers, 12, LAYER / 4);
}

int main(int argc, char **argv) {
    static const struct mode modes[] = {{"few", few}, {"all", all}};
    return run_mode(argc, argv, modes, sizeof modes / sizeof *modes);
}
