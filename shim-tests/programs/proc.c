// Asks the driver's own lookup for every name of a file in the versions given there and with every
// flag, and prints each answer whole: code, status, and what the pointer became.
//   proc FILE    lines of: name, a tab, versions with spaces between
#include "use.h"

#define UNWRITTEN ((void *)0x5a5a5a5a)
static GetProcAddressV1 v1;
static GetProcAddressV2 v2;

static void say(const char *form, const char *name, int version, int flags, int rc, int status, void *found) {
    printf("%s %s %d %d rc=%d status=%d ", form, name, version, flags, rc, status);
    Dl_info info;
    if (found == UNWRITTEN) {
        puts("unwritten");
    } else if (!found) {
        puts("null");
    } else if (!dladdr(found, &info)) {
        puts("unknown!unknown");
    } else {
        printf("%s!%s\n", library_of(found), info.dli_saddr == found ? info.dli_sname : "inside");
    }
}

static void ask(const char *name, int version, int flags) {
    void *found = UNWRITTEN;
    int status = 77;
    int rc = v2(name, &found, version, flags, &status);
    say("v2", name, version, flags, rc, status, found);
    found = UNWRITTEN;
    rc = v1(name, &found, version, flags);
    say("v1", name, version, flags, rc, 77, found);
}

int main(int argc, char **argv) {
    void *handle = need(dlopen("libcuda.so.1", RTLD_NOW), "libcuda.so.1");
    v1 = need(dlsym(handle, "cuGetProcAddress"), "cuGetProcAddress");
    v2 = need(dlsym(handle, "cuGetProcAddress_v2"), "cuGetProcAddress_v2");
    say("dlsym", "cuGetProcAddress", 0, 0, 0, 0, v1);
    say("dlsym", "cuGetProcAddress_v2", 0, 0, 0, 0, v2);
    FILE *file = need(fopen(argv[1], "r"), argv[1]);
    char line[512];
    while (fgets(line, sizeof line, file)) {
        char *tab = need(strchr(line, '\t'), line);
        *tab = 0;
        for (char *at = strtok(tab + 1, " \n"); at; at = strtok(NULL, " \n"))
            for (int flags = 0; flags <= 4; flags++) ask(line, atoi(at), flags);
    }
    fclose(file);

    // No place for the answer, for the status, no name.
    void *found = UNWRITTEN;
    int status = 77, rc;
    rc = v2("cuMemAlloc", &found, 12000, 0, NULL);
    say("v2-no-status", "cuMemAlloc", 12000, 0, rc, 77, found);
    found = UNWRITTEN;
    rc = v2("cuNoSuchThing", &found, 12000, 0, NULL);
    say("v2-no-status", "cuNoSuchThing", 12000, 0, rc, 77, found);
    rc = v2("cuMemAlloc", NULL, 12000, 0, &status);
    say("v2-no-place", "cuMemAlloc", 12000, 0, rc, status, UNWRITTEN);
    rc = v1("cuMemAlloc", NULL, 12000, 0);
    say("v1-no-place", "cuMemAlloc", 12000, 0, rc, 77, UNWRITTEN);
    found = UNWRITTEN;
    status = 77;
    rc = v2(NULL, &found, 12000, 0, &status);
    say("v2-no-name", "NULL", 12000, 0, rc, status, found);
    found = UNWRITTEN;
    rc = v1(NULL, &found, 12000, 0);
    say("v1-no-name", "NULL", 12000, 0, rc, 77, found);
    return 0;
}
