// Programs that only go through memory: what paging costs where no arithmetic hides it. And the rate of the link.
//
//     scans scan       reads all buffers, one launch each, in the same order each round
//     scans add        c = a + b: the first third of the buffers, the second, the third
//     scans random     reads all buffers, one launch each, in another order each round
//     scans gather     reads words anywhere in one buffer of that size, one launch a round
//     scans stencil    a grid in bands, a launch each, that reads its neighbours' edges; two grids in turn
//     scans link       copies between pinned host memory and the GPU; takes no sizes
//
// Sizes come from the environment: MIB of a buffer (256), BUFFERS (48), ROUNDS (10). All sums are of whole numbers, so
// they are exact whatever the order. A round's time is the median of the later half of the rounds.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <vector>

#include "common.cuh"

namespace {

using u64 = unsigned long long;
constexpr unsigned BLOCKS = 2048, THREADS = 512;
// Words of one row of the stencil's grid.
constexpr size_t ROW = 4096;

__device__ size_t thread_number() { return size_t(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ size_t thread_count() { return size_t(gridDim.x) * blockDim.x; }

__device__ u64 mixed(u64 x) {
    x = (x ^ x >> 31) * 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9ull;
    return x ^ x >> 32;
}

__global__ void fill(unsigned *out, size_t count, unsigned seed) {
    for (size_t i = thread_number(); i < count; i += thread_count()) out[i] = unsigned(i) * 2654435761u + seed;
}

// Every sum goes through here: one atomic for a warp.
__device__ void give(u64 *out, u64 mine) {
    for (int step = 16; step > 0; step /= 2) mine += __shfl_down_sync(~0u, mine, step);
    if (threadIdx.x % 32 == 0) atomicAdd(out, mine);
}

__global__ void sum(u64 *out, const uint4 *in, size_t quads) {
    u64 mine = 0;
    for (size_t i = thread_number(); i < quads; i += thread_count()) {
        uint4 four = in[i];
        mine += u64(four.x) + four.y + four.z + four.w;
    }
    give(out, mine);
}

__global__ void gathered(u64 *out, const unsigned *in, size_t count, size_t reads, u64 seed) {
    u64 mine = 0;
    for (size_t i = thread_number(); i < reads; i += thread_count()) mine += in[mixed(i + seed) % count];
    give(out, mine);
}

__global__ void add(uint4 *c, const uint4 *a, const uint4 *b, size_t quads) {
    for (size_t i = thread_number(); i < quads; i += thread_count()) {
        uint4 x = a[i], y = b[i];
        c[i] = make_uint4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w);
    }
}

// The sum of a word and its four neighbours. `above` and `below` are the bands beside this one, which may be itself.
__global__ void stencil(unsigned *out, const unsigned *in, const unsigned *above, const unsigned *below, size_t rows) {
    for (size_t i = thread_number(); i < rows * ROW; i += thread_count()) {
        size_t row = i / ROW, column = i % ROW;
        unsigned value = in[i] + in[i - column + (column + 1) % ROW] + in[i - column + (column + ROW - 1) % ROW];
        value += row > 0 ? in[i - ROW] : above[(rows - 1) * ROW + column];
        out[i] = value + (row + 1 < rows ? in[i + ROW] : below[column]);
    }
}

size_t number(const char *name, size_t otherwise) {
    const char *text = std::getenv(name);
    return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

// What all modes work on.
struct Memory {
    std::vector<unsigned *> buffers;
    size_t bytes;
    u64 *total;

    Memory(size_t count, size_t bytes) : buffers(count), bytes(bytes) {
        for (size_t i = 0; i < count; ++i) {
            CHECK(cudaMalloc(&buffers[i], bytes));
            fill<<<BLOCKS, THREADS>>>(buffers[i], words(), unsigned(i) * 977u);
            CHECK(cudaGetLastError());
        }
        CHECK(cudaMalloc(&total, sizeof *total));
    }

    size_t words() const { return bytes / sizeof(unsigned); }
    size_t quads() const { return bytes / sizeof(uint4); }
    void clear() const { CHECK(cudaMemsetAsync(total, 0, sizeof *total)); }
    void add_up(size_t i) const { sum<<<BLOCKS, THREADS>>>(total, (const uint4 *)buffers[i], quads()); }

    u64 read() const {
        u64 host;
        CHECK(cudaGetLastError());
        CHECK(cudaMemcpy(&host, total, sizeof host, cudaMemcpyDeviceToHost));
        return host;
    }
};

using Round = std::function<void(const Memory &, size_t)>;

void read_in_order(const Memory &memory, size_t) {
    for (size_t i = 0; i < memory.buffers.size(); ++i) memory.add_up(i);
}

void read_in_any_order(const Memory &memory, size_t round) {
    std::vector<size_t> order(memory.buffers.size());
    std::iota(order.begin(), order.end(), size_t(0));
    u64 state = round * 2 + 1;
    for (size_t i = order.size(); i > 1; --i) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        std::swap(order[i - 1], order[(state >> 33) % i]);
    }
    for (size_t i : order) memory.add_up(i);
}

// A word in eight: nearly every sector of the memory is touched about once.
void read_anywhere(const Memory &memory, size_t round) {
    size_t words = memory.words();
    gathered<<<BLOCKS, THREADS>>>(memory.total, memory.buffers[0], words, words / 8, u64(round) << 40);
}

void add_thirds(const Memory &memory, size_t) {
    size_t third = memory.buffers.size() / 3;
    for (size_t i = 0; i < third; ++i)
        add<<<BLOCKS, THREADS>>>((uint4 *)memory.buffers[2 * third + i], (const uint4 *)memory.buffers[i],
                                 (const uint4 *)memory.buffers[third + i], memory.quads());
}

void next_grid(const Memory &memory, size_t round) {
    size_t bands = memory.buffers.size() / 2;
    unsigned *const *in = memory.buffers.data() + (round % 2 ? bands : 0);
    unsigned *const *out = memory.buffers.data() + (round % 2 ? 0 : bands);
    for (size_t i = 0; i < bands; ++i)
        stencil<<<BLOCKS, THREADS>>>(out[i], in[i], in[(i + bands - 1) % bands], in[(i + 1) % bands],
                                     memory.words() / ROW);
}

double settled(std::vector<double> times) {
    std::sort(times.begin() + times.size() / 2, times.end());
    return times[times.size() / 2 + (times.size() - times.size() / 2) / 2];
}

// `sums`: rounds that add up what they read say it; after the others all of the memory is added up once.
void measure(const Memory &memory, const Round &work, bool sums, size_t rounds) {
    std::vector<double> times;
    for (size_t round = 0; round < rounds; ++round) {
        memory.clear();
        CHECK(cudaDeviceSynchronize());
        auto start = std::chrono::steady_clock::now();
        work(memory, round);
        CHECK(cudaGetLastError());
        CHECK(cudaDeviceSynchronize());
        times.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
        if (sums) std::printf("result round %llu\n", memory.read());
    }
    memory.clear();
    read_in_order(memory, 0);
    std::printf("result sum %llu\n", memory.read());
    std::printf("figure step_ms %.3f\n", settled(times));
    std::printf("time %.3f\n", settled(times));
    std::printf("bytes %llu\n", u64(memory.bytes) * memory.buffers.size());
}

// Copies of 256 MiB, a direction at a time.
void link() {
    constexpr size_t BYTES = size_t(256) << 20, WORDS = BYTES / sizeof(unsigned);
    unsigned *host, *device;
    CHECK(cudaMallocHost(&host, BYTES));
    CHECK(cudaMalloc(&device, BYTES));
    for (size_t i = 0; i < WORDS; ++i) host[i] = unsigned(i) * 2654435761u;
    for (auto [name, kind] : {std::pair{"h2d_gb_per_s", cudaMemcpyHostToDevice},
                              std::pair{"d2h_gb_per_s", cudaMemcpyDeviceToHost}}) {
        std::vector<double> times;
        for (int copy = 0; copy < 16; ++copy) {
            auto start = std::chrono::steady_clock::now();
            if (kind == cudaMemcpyHostToDevice)
                CHECK(cudaMemcpyAsync(device, host, BYTES, kind));
            else
                CHECK(cudaMemcpyAsync(host, device, BYTES, kind));
            CHECK(cudaDeviceSynchronize());
            times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
        }
        std::printf("figure %s %.2f\n", name, BYTES / settled(times) / 1e9);
        if (kind == cudaMemcpyHostToDevice) std::memset(host, 0, BYTES);
    }
    size_t wrong = 0;
    for (size_t i = 0; i < WORDS; ++i) wrong += host[i] != unsigned(i) * 2654435761u;
    std::printf("result wrong %zu\n", wrong);
}

struct Mode {
    const char *name;
    Round work;
    bool sums, one_buffer;
    size_t least;
};

}  // namespace

int main(int argc, char **argv) {
    const Mode modes[] = {{"scan", read_in_order, true, false, 1},
                          {"add", add_thirds, false, false, 3},
                          {"random", read_in_any_order, true, false, 1},
                          {"gather", read_anywhere, true, true, 1},
                          {"stencil", next_grid, false, false, 2}};
    const char *name = argc == 2 ? argv[1] : "";
    if (std::strcmp(name, "link") == 0) {
        link();
        return 0;
    }
    size_t bytes = number("MIB", 256) << 20, buffers = number("BUFFERS", 48), rounds = number("ROUNDS", 10);
    for (const Mode &mode : modes) {
        if (std::strcmp(name, mode.name) != 0) continue;
        if (bytes == 0 || buffers < mode.least || rounds < 1) {
            std::fprintf(stderr, "scans %s: MIB=%zu BUFFERS=%zu ROUNDS=%zu: accepted are 1, %zu and 1 or more\n", name,
                         bytes >> 20, buffers, rounds, mode.least);
            return 2;
        }
        measure(mode.one_buffer ? Memory(1, bytes * buffers) : Memory(buffers, bytes), mode.work, mode.sums, rounds);
        return 0;
    }
    std::fprintf(stderr, "usage: scans scan | add | random | gather | stencil | link; given: '%s'\n", name);
    return 2;
}
