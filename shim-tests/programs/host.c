// Loads a plug-in the way the argument says and lets it run.
//   host deep|local PLUGIN MIB
#include "use.h"

int main(int argc, char **argv) {
    int mode = RTLD_NOW | RTLD_LOCAL | (strcmp(argv[1], "deep") ? 0 : RTLD_DEEPBIND);
    void *handle = dlopen(argv[2], mode);
    if (!handle) printf("%s\n", dlerror());
    void (*run)(size_t) = (void (*)(size_t))dlsym(need(handle, argv[2]), "plugin_run");
    need((void *)run, "plugin_run");
    run(mib(argv[3]));
    return 0;
}
