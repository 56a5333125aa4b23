// For the programs of this folder that measure: checks, and where pages lie.
#pragma once
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <map>

#include "../../include/vgmem.h"

#define CHECK(call)                                                                                       \
    do {                                                                                                  \
        cudaError_t code = (call);                                                                        \
        if (code != cudaSuccess) {                                                                        \
            std::fprintf(stderr, "line %d: %s: %s\n", __LINE__, #call, cudaGetErrorString(code));         \
            std::exit(code == cudaErrorMemoryAllocation ? 3 : 1);                                         \
        }                                                                                                 \
    } while (0)

// Bytes of a range by the GPU they lie on, -1 for host RAM; empty without the library.
inline std::map<int, size_t> places_of(const void *start, size_t bytes) {
    std::map<int, size_t> found;
    auto ask = (int (*)(unsigned long long, vgmem_page *))dlsym(RTLD_DEFAULT, "vgmem_page_of");
    unsigned long long at = (unsigned long long)start, end = at + bytes;
    vgmem_page page;
    while (ask && at < end && ask(at, &page)) {
        unsigned long long next = page.base + page.bytes < end ? page.base + page.bytes : end;
        found[page.gpu] += next - at;
        at = next;
    }
    return found;
}

// Prints where all ranges named so far lie; the last line of a name counts.
inline void say_places(const void *start, size_t bytes) {
    static std::map<int, size_t> all;
    for (auto [gpu, count] : places_of(start, bytes)) all[gpu] += count;
    for (auto [gpu, count] : all) {
        if (gpu < 0)
            std::printf("figure host_mib %zu\n", count >> 20);
        else
            std::printf("figure gpu%d_mib %zu\n", gpu, count >> 20);
    }
}
