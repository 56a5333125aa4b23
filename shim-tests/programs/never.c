// Kernels that were launched before anything lay elsewhere and do not end for long. Modes; each line says that something
// holds, and the last one how many words are wrong.
//
//     never blocking     a kernel on a stream that blocks with the legacy default stream waits for what is launched later
//     never persistent   a kernel runs all the time while thirty others need pages
#include "waits.h"

static void last_block_comes(CUstream t) {
    for (int i = BLOCKS - 12; i < BLOCKS; i++) {
        fill(i, 78, t);
        CHECK(d.cuStreamSynchronize(t));
    }
    say("pages come again", away(BLOCKS - 1) == 0 || !page_of);
}

static void blocking(void) {
    CUstream s, t, u = stream();
    CHECK(d.cuStreamCreate(&s, 0));
    CHECK(d.cuStreamCreate(&t, 0));
    CHECK(d.cuMemAlloc(&blocks[0].at, SIZE));
    pattern(0); // by the legacy default stream
    spin(flag_at(), 1, s);
    for (int i = 1; i < BLOCKS; i++) {
        CHECK(d.cuMemAlloc(&blocks[i].at, SIZE));
        fill(i, 100 + (uint32_t)i, u);
    }
    CHECK(d.cuStreamSynchronize(u));
    CHECK(cuStreamWriteValue32(t, flag_at(), 1, 0));
    CHECK(d.cuStreamSynchronize(s));
    say("met", 1);
    last_block_comes(u);
}

static void persistent(void) {
    CUstream s = stream(), t = stream();
    spin(flag_at(), 1, s);
    allocate();
    for (int i = 0; i < 30; i++) {
        fill(BLOCKS - 1 - i, 200 + (uint32_t)i, t);
        CHECK(d.cuStreamSynchronize(t));
    }
    say("launches ran beside it", 1);
    tell(1);
    CHECK(d.cuStreamSynchronize(s));
    last_block_comes(t);
}

int main(int argc, char **argv) {
    const char *mode = argc == 2 ? argv[1] : "";
    begin();
    if (strcmp(mode, "blocking") == 0) blocking();
    else if (strcmp(mode, "persistent") == 0) persistent();
    else return 2;
    compare();
    return 0;
}
