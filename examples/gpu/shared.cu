// Two GPUs on the same pages, or all.
//
//     shared atomics [MIB of filler]    both add to one array of counters at the same time: every addition must arrive
//     shared grant [MIB] [MIB of filler]    what the first launch of GPU 1 on memory of GPU 0 costs
//     shared grants [MIB] [MIB of filler]    what that of each further GPU costs, one after another
//
// The filler is allocated first: with a small VGMEM_DEVICE_LIMIT of GPU 0 the rest lies elsewhere.
#include <chrono>
#include <cstring>
#include <string>

#include "common.cuh"

static double now_us() {
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

__global__ void count_up(unsigned long long *counters, unsigned mask, unsigned times) {
    unsigned own = blockIdx.x * blockDim.x + threadIdx.x;
    for (unsigned i = 0; i < times; ++i) atomicAdd_system(&counters[(own + i * 7) & mask], 1ull);
}

__global__ void fill(unsigned *out, size_t count) {
    size_t stride = size_t(gridDim.x) * blockDim.x;
    for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) out[i] = unsigned(i);
}

__global__ void one_word(unsigned *out, size_t at) { out[at] += 1; }

static void enable(int from, int to) {
    CHECK(cudaSetDevice(from));
    CHECK(cudaDeviceEnablePeerAccess(to, 0));
}

static void atomics(size_t filler) {
    const unsigned words = 1u << 20, blocks = 512, threads = 256, times = 200;
    unsigned long long *counters;
    void *before = nullptr;
    CHECK(cudaSetDevice(0));
    if (filler) CHECK(cudaMalloc(&before, filler));
    CHECK(cudaMalloc(&counters, words * sizeof *counters));
    CHECK(cudaMemset(counters, 0, words * sizeof *counters));
    CHECK(cudaDeviceSynchronize());
    enable(1, 0);
    enable(0, 1);
    // Few counters first: the two meet at every word.
    for (unsigned mask : {15u, 1023u, words - 1}) {
        for (int gpu : {0, 1}) {
            CHECK(cudaSetDevice(gpu));
            count_up<<<blocks, threads>>>(counters, mask, times);
            CHECK(cudaGetLastError());
        }
        for (int gpu : {0, 1}) {
            CHECK(cudaSetDevice(gpu));
            CHECK(cudaDeviceSynchronize());
        }
    }
    unsigned long long *host = (unsigned long long *)std::malloc(words * sizeof *host), sum = 0;
    CHECK(cudaMemcpy(host, counters, words * sizeof *host, cudaMemcpyDeviceToHost));
    for (unsigned i = 0; i < words; ++i) sum += host[i];
    unsigned long long expected = 3ull * 2 * blocks * threads * times;
    std::printf("result expected %llu\n", expected);
    std::printf("result wrong %llu\n", expected - sum);
    say_places(counters, words * sizeof *counters);
    std::printf("bytes %zu\n", words * sizeof *counters);
    std::free(host);
    CHECK(cudaFree(counters));
    CHECK(cudaFree(before));
}

// Microseconds of the launch call and of launch and wait.
static void touch(const char *name, unsigned *out, size_t words) {
    double start = now_us();
    one_word<<<1, 1>>>(out, words - 1);
    double launched = now_us();
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
    std::printf("figure %s_launch_us %.1f\n", name, launched - start);
    std::printf("figure %s_all_us %.1f\n", name, now_us() - start);
}

static void grant(size_t bytes, size_t filler) {
    unsigned *data, *other, last;
    void *before = nullptr;
    CHECK(cudaSetDevice(1));
    CHECK(cudaMalloc(&other, size_t(4) << 20));
    // Loads the kernel on GPU 1.
    one_word<<<1, 1>>>(other, 0);
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaSetDevice(0));
    if (filler) CHECK(cudaMalloc(&before, filler));
    CHECK(cudaMalloc(&data, bytes));
    fill<<<1024, 256>>>(data, bytes / 4);
    CHECK(cudaDeviceSynchronize());
    say_places(data, bytes);
    CHECK(cudaSetDevice(1));
    // Natively GPU 1 may not touch this memory before peer access is enabled.
    touch("first", data, bytes / 4);
    touch("second", data, bytes / 4);
    touch("third", data, bytes / 4);
    CHECK(cudaMemcpy(&last, data + bytes / 4 - 1, 4, cudaMemcpyDeviceToHost));
    std::printf("result wrong %d\n", last != unsigned(bytes / 4 - 1) + 3);
    double start = now_us();
    CHECK(cudaDeviceEnablePeerAccess(0, 0));
    std::printf("figure enable_us %.1f\n", now_us() - start);
    CHECK(cudaSetDevice(0));
    CHECK(cudaFree(data));
    CHECK(cudaFree(before));
}

// What the first launch of each further GPU costs, while all before it have access.
static void grants(int gpus, size_t bytes, size_t filler) {
    unsigned *data, *other, last;
    void *before = nullptr;
    for (int gpu = gpus - 1; gpu >= 0; --gpu) {
        CHECK(cudaSetDevice(gpu));
        CHECK(cudaMalloc(&other, size_t(4) << 20));
        one_word<<<1, 1>>>(other, 0); // loads the kernel
        CHECK(cudaDeviceSynchronize());
    }
    if (filler) CHECK(cudaMalloc(&before, filler));
    CHECK(cudaMalloc(&data, bytes));
    fill<<<1024, 256>>>(data, bytes / 4);
    CHECK(cudaDeviceSynchronize());
    say_places(data, bytes);
    for (int gpu = 1; gpu < gpus; ++gpu) {
        CHECK(cudaSetDevice(gpu));
        touch(("gpu" + std::to_string(gpu)).c_str(), data, bytes / 4);
    }
    CHECK(cudaMemcpy(&last, data + bytes / 4 - 1, 4, cudaMemcpyDeviceToHost));
    std::printf("result wrong %d\n", last != unsigned(bytes / 4 - 1) + gpus - 1);
    CHECK(cudaSetDevice(0));
    CHECK(cudaFree(data));
    CHECK(cudaFree(before));
}

int main(int argc, char **argv) {
    int gpus = 0;
    CHECK(cudaGetDeviceCount(&gpus));
    if (argc < 2 || gpus < 2) {
        std::fprintf(stderr, "usage: shared atomics|grant|grants [sizes], on a machine with two GPUs\n");
        return 2;
    }
    size_t first = size_t(argc > 2 ? std::atoi(argv[2]) : 0) << 20;
    size_t second = size_t(argc > 3 ? std::atoi(argv[3]) : 0) << 20;
    if (std::strcmp(argv[1], "atomics") == 0)
        atomics(first);
    else if (std::strcmp(argv[1], "grants") == 0)
        grants(gpus, first ? first : size_t(1) << 30, second);
    else
        grant(first ? first : size_t(1) << 30, second);
    return 0;
}
