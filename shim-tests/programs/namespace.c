// Loads a second driver into a namespace of its own.
//   namespace DRIVER
#include "use.h"

int main(int argc, char **argv) {
    struct driver d;
    find_default(&d);
    start(&d, 0);
    void *apart = dlmopen(LM_ID_NEWLM, argv[1], RTLD_NOW);
    if (!apart) printf("%s\n", dlerror());
    CUresult (*version)(int *) = (CUresult (*)(int *))need(dlsym(need(apart, argv[1]), "cuDriverGetVersion"), "version");
    int number = 0;
    printf("version %d", version(&number));
    printf(" %d\n", number);
    // Its functions are another copy's, and never ours.
    void *alloc = dlsym(apart, "cuMemAlloc_v2");
    printf("apart %d %d\n", alloc != NULL, alloc == (void *)d.cuMemAlloc || !strcmp(library_of(alloc), "libvgmem.so"));
    return 0;
}
