// Bandwidth of the pool: c = a + b over large arrays, by GPU 0 or by both GPUs, one half each.
//
//     bandwidth [MIB per array] [GPUs] [rounds]
//
// Where the pages lie is chosen from outside (VGMEM_DEVICE_LIMIT, VGMEM_PLACEMENT) and said at the end. A figure
// counts the bytes read and written.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "common.cuh"

__global__ void fill(float *out, size_t count, float step) {
    size_t stride = size_t(gridDim.x) * blockDim.x;
    for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride)
        out[i] = float(i & 0xFFFF) * step;
}

__global__ void add(float4 *c, const float4 *a, const float4 *b, size_t count) {
    size_t stride = size_t(gridDim.x) * blockDim.x;
    for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
        float4 x = a[i], y = b[i];
        c[i] = make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w);
    }
}

__global__ void differ(unsigned long long *wrong, const float *c, size_t count) {
    size_t stride = size_t(gridDim.x) * blockDim.x;
    unsigned long long mine = 0;
    for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride)
        mine += c[i] != float(i & 0xFFFF) * 3.0f;
    if (mine) atomicAdd(wrong, mine);
}

int main(int argc, char **argv) {
    size_t bytes = size_t(argc > 1 ? std::atoi(argv[1]) : 1024) << 20, count = bytes / sizeof(float);
    int gpus = argc > 2 ? std::atoi(argv[2]) : 1, rounds = argc > 3 ? std::atoi(argv[3]) : 9;
    float *a, *b, *c;
    for (int gpu = gpus - 1; gpu >= 0; --gpu) {
        CHECK(cudaSetDevice(gpu));
        CHECK(cudaFree(nullptr));
    }
    CHECK(cudaMalloc(&a, bytes));
    CHECK(cudaMalloc(&b, bytes));
    CHECK(cudaMalloc(&c, bytes));
    fill<<<2048, 512>>>(a, count, 1.0f);
    fill<<<2048, 512>>>(b, count, 2.0f);
    CHECK(cudaDeviceSynchronize());
    for (int gpu = 1; gpu < gpus; ++gpu) {
        CHECK(cudaSetDevice(gpu));
        CHECK(cudaDeviceEnablePeerAccess(0, 0));
    }
    std::vector<double> times;
    size_t part = count / 4 / gpus;
    for (int round = 0; round < rounds; ++round) {
        auto start = std::chrono::steady_clock::now();
        for (int gpu = 0; gpu < gpus; ++gpu) {
            size_t from = part * gpu;
            CHECK(cudaSetDevice(gpu));
            add<<<2048, 512>>>((float4 *)c + from, (float4 *)a + from, (float4 *)b + from, part);
            CHECK(cudaGetLastError());
        }
        for (int gpu = 0; gpu < gpus; ++gpu) {
            CHECK(cudaSetDevice(gpu));
            CHECK(cudaDeviceSynchronize());
        }
        times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    CHECK(cudaSetDevice(0));
    unsigned long long *wrong, host = 0;
    CHECK(cudaMalloc(&wrong, sizeof host));
    CHECK(cudaMemset(wrong, 0, sizeof host));
    differ<<<2048, 512>>>(wrong, c, count);
    CHECK(cudaMemcpy(&host, wrong, sizeof host, cudaMemcpyDeviceToHost));
    std::printf("result wrong %llu\n", host);
    // The first rounds load kernels and give access.
    std::sort(times.begin() + rounds / 4, times.end());
    double median = times[rounds / 4 + (rounds - rounds / 4) / 2];
    std::printf("figure gb_per_s %.1f\n", 3.0 * bytes / median / 1e9);
    say_places(a, bytes);
    say_places(b, bytes);
    say_places(c, bytes);
    std::printf("time %.3f\n", median * 1e3);
    std::printf("bytes %llu\n", 3ull * bytes);
    return 0;
}
