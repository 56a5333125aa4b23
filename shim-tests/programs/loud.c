// A kernel that was found to use only what its launches name follows an address after all, into memory that is paged
// out: right in strict, loud in auto, silent never.
#include "use.h"

enum { BLOCKS = 24, MIB_EACH = 8 };

int main(void) {
    struct driver d;
    find_default(&d);
    start(&d, 0);
    size_t bytes = (size_t)MIB_EACH << 20;
    uint64_t words = bytes / 4, none = 0, one = 1, each = 16;
    CUdeviceptr blocks[BLOCKS], table, out;
    CHECK(d.cuMemAlloc(&table, 2u << 20));
    CHECK(d.cuMemAlloc(&out, 2u << 20));
    CHECK(d.cuMemsetD32(table, 0, (2u << 20) / 4));
    for (int i = 0; i < BLOCKS; i++) CHECK(d.cuMemAlloc(&blocks[i], bytes));
    CUfunction fill = kernel(&d, "fill_u32"), sum = kernel(&d, "table_sum_f32");
    float value = 0.5f, got = -1;
    uint32_t half;
    memcpy(&half, &value, 4);
    // Many launches that follow nothing: the function is trusted.
    void *harmless[] = {&out, &table, &none, &each}, *follows[] = {&out, &table, &one, &each};
    for (int i = 0; i < 4 * BLOCKS; i++) {
        void *params[] = {&blocks[i % BLOCKS], &half, &words};
        launch(&d, fill, NULL, params);
        launch(&d, sum, NULL, harmless);
        CHECK(d.cuCtxSynchronize());
    }
    // The first block is paged out by the others, and the table leads to it.
    CHECK(d.cuMemcpyHtoD(table, &blocks[0], 8));
    for (int i = 1; i < BLOCKS; i++) {
        void *params[] = {&blocks[i], &half, &words};
        launch(&d, fill, NULL, params);
        CHECK(d.cuCtxSynchronize());
    }
    launch(&d, sum, NULL, follows);
    CHECK(d.cuCtxSynchronize());
    CHECK(d.cuMemcpyDtoH(&got, out, 4));
    printf("sum %g\n", (double)got);
    return 0;
}
