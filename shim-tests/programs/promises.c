// What is reported free can be allocated and written: one seeded line in each granule of 2 MiB.
//   promises full [GPU]     all of it, in blocks of 64 MiB and then of 2 MiB, until out of memory
//   promises two            two contexts on two GPUs: each asks first, then each takes what it was told
#include "use.h"

enum { MOST = 1 << 16, LINE = 64 };
static const size_t GRANULE = (size_t)2 << 20, BLOCK = (size_t)64 << 20;

static struct driver d;
static CUdeviceptr blocks[MOST];
static size_t sizes[MOST];
static int held, refused;

static size_t take(size_t size, size_t most) {
    size_t got = 0;
    while (got + size <= most && held < MOST && (refused = d.cuMemAlloc(&blocks[held], size)) == 0)
        sizes[held++] = size, got += size;
    return got;
}

static void line(unsigned char *bytes, CUdeviceptr address, unsigned seed) {
    uint64_t state = address * 0x9E3779B97F4A7C15ull + seed;
    for (int i = 0; i < LINE; i++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        bytes[i] = (unsigned char)state;
    }
}

static unsigned long wrong_lines(unsigned seed) {
    unsigned char want[LINE], got[LINE];
    unsigned long wrong = 0;
    for (int b = 0; b < held; b++)
        for (size_t at = 0; at < sizes[b]; at += GRANULE) {
            line(want, blocks[b] + at, seed);
            CHECK(d.cuMemcpyHtoD(blocks[b] + at + GRANULE - LINE, want, LINE));
        }
    for (int b = 0; b < held; b++)
        for (size_t at = 0; at < sizes[b]; at += GRANULE) {
            line(want, blocks[b] + at, seed);
            CHECK(d.cuMemcpyDtoH(got, blocks[b] + at + GRANULE - LINE, LINE));
            wrong += memcmp(want, got, LINE) != 0;
        }
    return wrong;
}

static size_t told(void) {
    size_t free_bytes = 0, total = 0;
    CHECK(d.cuMemGetInfo(&free_bytes, &total));
    return free_bytes;
}

int main(int count, char **words) {
    int two = count > 1 && !strcmp(words[1], "two"), first = count > 2 ? atoi(words[2]) : 0;
    CUcontext contexts[2] = {NULL, NULL};
    size_t promised[2] = {0, 0};
    find_default(&d);
    CHECK(d.cuInit(0));
    for (int gpu = 0; gpu <= two; gpu++) {
        CHECK(d.cuDevicePrimaryCtxRetain(&contexts[gpu], first + gpu));
        CHECK(d.cuCtxSetCurrent(contexts[gpu]));
        promised[gpu] = told();
    }
    for (int gpu = 0; gpu <= two; gpu++) {
        CHECK(d.cuCtxSetCurrent(contexts[gpu]));
        size_t most = two ? promised[gpu] : (size_t)-1;
        size_t had = take(BLOCK, most);
        had += take(GRANULE, most == (size_t)-1 ? most : most - had);
        printf("promised%d %zu\nhad%d %zu\n", gpu, promised[gpu], gpu, had);
    }
    printf("refused %d\nwrong %lu\n", refused, wrong_lines(17));
    while (held) CHECK(d.cuMemFree(blocks[--held]));
    CHECK(d.cuCtxSetCurrent(contexts[0]));
    printf("after %zu\n", told());
    return 0;
}
