// A program that links the driver and runs beside another preloaded tool.
#define LINKED
#include "use.h"

int main(int argc, char **argv) {
    struct driver d;
    find_linked(&d);
    void (*ask)(void) = (void (*)(void))dlsym(RTLD_DEFAULT, "wrap_ask");
    void (*report)(void) = (void (*)(void))dlsym(RTLD_DEFAULT, "wrap_report");
    if (ask) ask();
    start(&d, 0);
    CUdeviceptr p = 0;
    CUresult rc = cuMemAlloc_v2(&p, mib(argv[1]));
    printf("alloc %d\n", rc);
    if (!rc) {
        printf("wrong %zu\n", fill_and_check(&d, p, mib(argv[1]), 7));
        printf("free %d\n", cuMemFree_v2(p));
    }
    if (report) report();
    return 0;
}
