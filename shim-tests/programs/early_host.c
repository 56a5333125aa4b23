// Prints what the preloaded library saw before main, and that all is well after it.
#include "use.h"

int main(void) {
    void (*report)(void) = (void (*)(void))need(dlsym(RTLD_DEFAULT, "early_report"), "early_report");
    report();
    struct driver d;
    find_default(&d);
    start(&d, 0);
    CUdeviceptr p = 0;
    CHECK(d.cuMemAlloc(&p, 4 << 20));
    CHECK(d.cuMemFree(p));
    printf("late %s\n", library_of(d.cuMemAlloc));
    return 0;
}
