// Lookups that have nothing to do with an allocation. What is printed must be the same with and
// without the preload, but for the library names that the test expects to differ.
//   lookups errors|foreign LIBRARY|table|threads|names FILE
#include "use.h"
#include <pthread.h>

static void error(const char *what) {
    const char *text = dlerror();
    printf("%s: %s\n", what, text ? text : "no error");
}

static void errors(void) {
    void *handle = need(dlopen("libcuda.so.1", RTLD_NOW), "libcuda.so.1");
    error("after dlopen");
    printf("%d\n", dlsym(handle, "cuNoSuchFunction") == NULL);
    error("unknown name");
    error("asked twice");
    printf("%d\n", dlsym(handle, "cuMemAlloc_v2_no") == NULL);
    printf("%d\n", dlsym(handle, "cuMemAlloc_v2") != NULL);
    error("a hit after a miss");
    printf("%d\n", dlsym(RTLD_DEFAULT, "cuNoSuchFunction") == NULL);
    error("unknown name, default");
    printf("%d\n", dlsym(RTLD_NEXT, "cuNoSuchFunction") == NULL);
    error("unknown name, next");
    printf("%d\n", dlopen("libno_such_library.so.9", RTLD_NOW) == NULL);
    error("unknown library");
    printf("%d\n", dlopen("libno_such_library.so.9", RTLD_NOW | RTLD_DEEPBIND) == NULL);
    error("unknown library, deep");
    printf("%d\n", dlopen("libcuda.so.1", 0) == NULL);
    error("no mode");
    printf("%d\n", dlopen(NULL, RTLD_NOW) != NULL);
    error("the program itself");
    printf("%d\n", dlsym(handle, "") == NULL);
    error("empty name");
    dlsym(handle, "cuMemAlloc_v3");
    need(dlsym(handle, "cuMemcpyHtoD_v2"), "cuMemcpyHtoD_v2");
    error("a hit clears it");
}

// A library whose names only begin like the driver's.
static void foreign(const char *path) {
    void *handle = need(dlopen(path, RTLD_NOW | RTLD_LOCAL), path);
    const char *names[] = {"cudnnCreate", "cublasCreate", "curl_easy_init", "cuMemAlloc_v2", "cudaMalloc", "cu"};
    for (int i = 0; i < 6; i++) {
        int (*f)(void) = (int (*)(void))dlsym(handle, names[i]);
        printf("%s %s %d\n", names[i], library_of((void *)f), f ? f() : -1);
    }
    for (int i = 0; i < 3; i++) printf("%s %d\n", names[i], dlsym(RTLD_DEFAULT, names[i]) == NULL);
}

static void table(void) {
    void *handle = need(dlopen("libcuda.so.1", RTLD_NOW), "libcuda.so.1");
    GetExportTable get = need(dlsym(handle, "cuGetExportTable"), "cuGetExportTable");
    printf("from %s\n", library_of((void *)get));
    CUuuid runtime = {{0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9}};
    CUuuid nobody = {{1, 2, 3}};
    for (int i = 0; i < 2; i++) {
        const void *found = (void *)0x5a5a;
        CUresult rc = get(&found, i ? &nobody : &runtime);
        printf("rc %d found %s\n", rc, found == (void *)0x5a5a ? "unwritten" : found ? "something" : "null");
    }
    const void *found = (void *)0x5a5a;
    printf("no id %d\n", get(&found, NULL));
    printf("no place %d\n", get(NULL, &runtime));
}

static pthread_barrier_t barrier;
static const char *const wanted[] = {"cuMemAlloc_v2", "cuMemFree_v2", "cuInit", "cuDriverGetVersion", "cuNoSuchName"};

static void *look(void *out) {
    void **answers = out;
    pthread_barrier_wait(&barrier);
    for (int round = 0; round < 2000; round++) {
        void *handle = round % 16 ? NULL : dlopen("libcuda.so.1", RTLD_NOW);
        if (!handle) handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
        for (int i = 0; i < 5; i++) {
            void *now = dlsym(handle, wanted[i]);
            if (round && now != answers[i]) answers[5] = (void *)1;
            answers[i] = now;
        }
        dlclose(handle);
    }
    return NULL;
}

static void threads(void) {
    enum { N = 16 };
    static void *answers[N][6];
    pthread_t ids[N];
    pthread_barrier_init(&barrier, NULL, N);
    need(dlopen("libcuda.so.1", RTLD_NOW), "libcuda.so.1");
    for (int i = 0; i < N; i++) pthread_create(&ids[i], NULL, look, answers[i]);
    for (int i = 0; i < N; i++) pthread_join(ids[i], NULL);
    int differ = 0;
    for (int i = 0; i < N; i++) differ += memcmp(answers[i], answers[0], sizeof answers[0]) != 0 || answers[i][5];
    printf("differ %d\n", differ);
    for (int i = 0; i < 5; i++) printf("%s %s\n", wanted[i], library_of(answers[0][i]));
}

static void names(const char *path) {
    void *handle = need(dlopen("libcuda.so.1", RTLD_NOW), "libcuda.so.1");
    FILE *file = need(fopen(path, "r"), path);
    char name[256];
    while (fgets(name, sizeof name, file)) {
        name[strcspn(name, "\n")] = 0;
        void *found = dlsym(handle, name);
        Dl_info info;
        int exact = found && dladdr(found, &info) && info.dli_saddr == found && !strcmp(info.dli_sname, name);
        printf("%s %s %d\n", name, library_of(found), exact);
    }
    fclose(file);
}

int main(int argc, char **argv) {
    if (!strcmp(argv[1], "errors")) errors();
    if (!strcmp(argv[1], "foreign")) foreign(argv[2]);
    if (!strcmp(argv[1], "table")) table();
    if (!strcmp(argv[1], "threads")) threads();
    if (!strcmp(argv[1], "names")) names(argv[2]);
    return 0;
}
