// A preloaded library that looks for the driver in its constructor, before main.
#include "use.h"

static char said[512];

__attribute__((constructor)) static void begin(void) {
    void *handle = dlopen("libcuda.so.1", RTLD_NOW);
    void *found = handle ? dlsym(handle, "cuMemAlloc_v2") : NULL;
    void *none = handle ? dlsym(handle, "cuNoSuchName") : NULL;
    void *next = dlsym(RTLD_NEXT, "malloc");
    snprintf(said, sizeof said, "early %s\nearly_none %d\nearly_malloc %s\n", library_of(found), none == NULL,
             library_of(next));
}

void early_report(void) { fputs(said, stdout); }
