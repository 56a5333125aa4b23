// The control interface, as a program that links the library uses it.
//   capi MIB
#include "use.h"
#include "vgmem.h"

int main(int argc, char **argv) {
    size_t bytes = mib(argv[1]);
    struct driver d;
    printf("active %d", vgmem_active());
    find_default(&d);
    printf(" %d", vgmem_active());
    printf(" given %d\n", vgmem_hooks_given() > 10);
    printf("reached %d %d %d\n", vgmem_hook_reached("cuMemAlloc_v2"), vgmem_hook_reached("cuNoSuch"),
           vgmem_hook_reached(NULL));
    start(&d, 0);
    printf("started %d\n", vgmem_active());
    CUdeviceptr p, small;
    CHECK(d.cuMemAlloc(&p, bytes));
    CHECK(d.cuMemAlloc(&small, 4096));
    printf("reached_now %d %d\n", vgmem_hook_reached("cuMemAlloc_v2"), vgmem_hook_reached("cuMemFree_v2"));
    size_t on[3] = {0, 0, 0}, bad = 0;
    CUdeviceptr next = p;
    while (next < p + bytes) {
        vgmem_page page = {1, 1, 77, 77};
        if (!vgmem_page_of(next, &page) || page.base != next || page.home != 0 || page.gpu < -1 || page.gpu > 1) {
            bad++;
            break;
        }
        vgmem_page last = page;
        bad += !vgmem_page_of(page.base + page.bytes - 1, &last) || last.base != page.base;
        on[page.gpu < 0 ? 2 : page.gpu] += page.bytes;
        next = page.base + page.bytes;
    }
    printf("bad %zu\n", bad);
    printf("gpu0 %zu\ngpu1 %zu\nhost %zu\n", on[0] >> 20, on[1] >> 20, on[2] >> 20);
    printf("nowhere %d\n", vgmem_page_of(p, NULL));
    vgmem_page untouched = {1, 2, 3, 4};
    printf("unpooled %d", vgmem_page_of(small, &untouched));
    printf(" %d", vgmem_page_of(0, &untouched));
    printf(" %d", vgmem_page_of(~0ull, &untouched));
    CHECK(d.cuMemFree(p));
    printf(" %d", vgmem_page_of(p, &untouched));
    printf(" %d\n", untouched.base == 1 && untouched.home == 4);
    return 0;
}
