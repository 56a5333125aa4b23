// Loads plug-ins locally, each with a runtime of its own, and runs them side by side.
//   rthost MIB PLUGIN...
#include "cu.h"

int main(int argc, char **argv) {
    void *pointers[8];
    void (*ends[8])(void *), (*many[8])(void);
    int count = argc - 2;
    for (int i = 0; i < count; i++) {
        void *handle = dlopen(argv[2 + i], RTLD_NOW | RTLD_LOCAL);
        if (!handle) {
            printf("%s\n", dlerror());
            return 4;
        }
        void *(*run)(size_t) = (void *(*)(size_t))dlsym(handle, "rtuser_run");
        ends[i] = (void (*)(void *))dlsym(handle, "rtuser_end");
        many[i] = (void (*)(void))dlsym(handle, "rtuser_many");
        pointers[i] = run(strtoull(argv[1], NULL, 10) << 20);
    }
    for (int i = 0; i < count; i++) {
        if (pointers[i]) ends[i](pointers[i]);
    }
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < count; i++) many[i]();
    return 0;
}
