// Vector addition, a reduction and a matrix product over more memory than the limit.
//
//     vectors [MIB per buffer] [buffers] [steps]
//
// Built with the runtime linked statically and as a shared library: the two find the driver in
// different ways. All sums are of integers, so they are exact whatever the order.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(call)                                                                          \
    do {                                                                                     \
        cudaError_t code = (call);                                                           \
        if (code != cudaSuccess) {                                                           \
            std::fprintf(stderr, "vectors: %s: %s\n", #call, cudaGetErrorString(code));      \
            std::exit(code == cudaErrorMemoryAllocation ? 3 : 1);                            \
        }                                                                                    \
    } while (0)

__global__ void fill(unsigned *out, size_t count, unsigned seed) {
    size_t stride = size_t(gridDim.x) * blockDim.x;
    for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride)
        out[i] = unsigned(i) * 2654435761u + seed;
}

__global__ void add(unsigned *out, const unsigned *a, const unsigned *b, size_t count) {
    size_t stride = size_t(gridDim.x) * blockDim.x;
    for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) out[i] = a[i] + b[i];
}

__global__ void sum(unsigned long long *out, const unsigned *in, size_t count) {
    size_t stride = size_t(gridDim.x) * blockDim.x;
    unsigned long long mine = 0;
    for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) mine += in[i];
    atomicAdd(out, mine);
}

// Whole tiles only: `side` is a multiple of 32.
__global__ void product(unsigned *c, const unsigned *a, const unsigned *b, unsigned side) {
    __shared__ unsigned left[32][33], right[32][33];
    unsigned row = blockIdx.y * 32 + threadIdx.y, column = blockIdx.x * 32 + threadIdx.x, value = 0;
    for (unsigned tile = 0; tile < side; tile += 32) {
        left[threadIdx.y][threadIdx.x] = a[size_t(row) * side + tile + threadIdx.x];
        right[threadIdx.y][threadIdx.x] = b[size_t(tile + threadIdx.y) * side + column];
        __syncthreads();
        for (unsigned k = 0; k < 32; ++k) value += left[threadIdx.y][k] * right[k][threadIdx.x];
        __syncthreads();
    }
    c[size_t(row) * side + column] = value;
}

static unsigned long long total(const unsigned *in, size_t count) {
    unsigned long long *out, host;
    CHECK(cudaMalloc(&out, sizeof host));
    CHECK(cudaMemset(out, 0, sizeof host));
    sum<<<1024, 256>>>(out, in, count);
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpy(&host, out, sizeof host, cudaMemcpyDeviceToHost));
    CHECK(cudaFree(out));
    return host;
}

int main(int argc, char **argv) {
    size_t bytes = size_t(argc > 1 ? std::atoi(argv[1]) : 1024) << 20;
    int buffers = argc > 2 ? std::atoi(argv[2]) : 10, steps = argc > 3 ? std::atoi(argv[3]) : 3;
    size_t count = bytes / sizeof(unsigned);
    if (count == 0 || buffers < 3 || steps < 1) {
        std::fprintf(stderr, "usage: vectors [MIB per buffer] [buffers, 3 or more] [steps]\n");
        return 2;
    }
    std::vector<unsigned *> data(buffers);
    for (int i = 0; i < buffers; ++i) {
        CHECK(cudaMalloc(&data[i], bytes));
        fill<<<1024, 256>>>(data[i], count, unsigned(i) * 977u);
        CHECK(cudaGetLastError());
    }
    std::vector<double> times;
    for (int step = 0; step < steps; ++step) {
        CHECK(cudaDeviceSynchronize());
        auto start = std::chrono::steady_clock::now();
        for (int i = 2; i < buffers; ++i) add<<<1024, 256>>>(data[i], data[i - 2], data[i - 1], count);
        CHECK(cudaDeviceSynchronize());
        times.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
    }
    for (int i = 0; i < buffers; ++i) std::printf("result sum%d %llu\n", i, total(data[i], count));
    unsigned side = 4096;
    while (size_t(side) * side > count) side /= 2;
    product<<<dim3(side / 32, side / 32), dim3(32, 32)>>>(data[0], data[buffers - 1], data[buffers - 2], side);
    CHECK(cudaGetLastError());
    std::printf("result product %llu\n", total(data[0], size_t(side) * side));
    // One copy of a whole buffer to the host and back again, across whatever its pages lie on.
    std::vector<unsigned> host(count);
    CHECK(cudaMemcpy(host.data(), data[buffers - 1], bytes, cudaMemcpyDeviceToHost));
    unsigned long long seen = 0;
    for (unsigned value : host) seen += value;
    std::printf("result copied %llu\n", seen);
    CHECK(cudaMemcpy(data[1], host.data(), bytes, cudaMemcpyHostToDevice));
    std::printf("result returned %llu\n", total(data[1], count));
    for (unsigned *pointer : data) CHECK(cudaFree(pointer));
    std::sort(times.begin(), times.end());
    std::printf("time %.3f\n", times[times.size() / 2]);
    std::printf("bytes %llu\n", (unsigned long long)bytes * buffers);
    return 0;
}
