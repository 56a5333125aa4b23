// Shared by the adversarial programs: exact contents, checks, and memory that presses on the limit.
//
// All contents are 64-bit words that lie on a line: word `i` of a buffer is a * i + b (modulo 2^64). Every
// kernel here keeps lines lines, so the host knows all contents exactly by two numbers a buffer, and the sum
// of all words, each weighed by its place, is a closed formula. A page that is stale, misplaced or lost
// changes that sum.
//
// Exit codes: 5 the program found a wrong value, 6 a CUDA call failed, 7 no end within the time of one mode.
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

using u64 = unsigned long long;

constexpr size_t MIB = size_t(1) << 20;
constexpr unsigned THREADS = 256, BLOCKS = 1024;
// Buffers that most modes use: the memory in all is cut into so many.
constexpr unsigned COUNT = 48;

#define CHECK(call)                                                                                \
    do {                                                                                           \
        cudaError_t code = (call);                                                                 \
        if (code != cudaSuccess) cuda_failed(__FILE__, __LINE__, #call, cudaGetErrorString(code)); \
    } while (0)

#define DRIVER(call)                                                                   \
    do {                                                                               \
        CUresult code = (call);                                                        \
        if (code != CUDA_SUCCESS) driver_failed(__FILE__, __LINE__, #call, int(code)); \
    } while (0)

// After a launch by <<<>>>.
#define LAUNCHED() CHECK(cudaGetLastError())

[[noreturn]] void cuda_failed(const char *file, int line, const char *call, const char *why);
[[noreturn]] void driver_failed(const char *file, int line, const char *call, int code);
// Prints the line of a wrong result and ends the program.
[[noreturn]] void wrong(const char *what, u64 got, u64 expected);

// A word that is set to 1 before the program ends by a failure: releases kernels that wait for it.
extern volatile unsigned *release_at_failure;

struct Line {
    u64 a, b;
    __host__ __device__ u64 at(u64 i) const { return a * i + b; }
};

// The line of seed `k`: odd numbers that have nothing in common.
Line line_of(u64 k);

// Words on `line` after x = x * mul + add.
inline Line after(Line line, u64 mul, u64 add) { return {line.a * mul, line.b * mul + add}; }

// The weighed sum of words `from` to `to` (not included) on a line: each times 2 * place + 1.
u64 weighed(Line line, u64 from, u64 to);

struct Buffer {
    u64 *data;
    size_t count;
    Line line;
};

// Bytes that the program was told to use in all.
extern size_t total_bytes;

// cudaMalloc and cudaFree that count for the line `bytes N`.
void *device_alloc(size_t bytes);
void device_free(void *data);

template <class T>
T *device_array(size_t count) {
    return (T *)device_alloc(count * sizeof(T));
}

// `count` buffers that are `bytes` together, filled by kernels that name them; waits for the device.
std::vector<Buffer> make_buffers(unsigned count, size_t bytes, u64 seed = 1);
Buffer make_buffer(size_t bytes, Line line, cudaStream_t stream = 0);
void drop(std::vector<Buffer> &buffers);
// New contents by a kernel that names the buffer.
void fill(Buffer &buffer, Line line, cudaStream_t stream = 0);

// x = x * mul + add by a kernel that names the buffer.
void step(Buffer &buffer, u64 mul, u64 add, cudaStream_t stream = 0);
// Steps on `many` buffers, from number `from` on, round and round.
void press(std::vector<Buffer> &buffers, unsigned from, unsigned many, cudaStream_t stream = 0);
// `rounds` steps on part of some data by one kernel that takes at least `ms` milliseconds.
void long_step(u64 *data, size_t from, size_t to, unsigned rounds, unsigned ms, u64 mul, u64 add,
               cudaStream_t stream);
Line after_long(Line line, unsigned rounds, u64 mul, u64 add);

// Adds to the checksum of the mode, after a comparison with what the host expects.
void see(const char *what, u64 got, u64 expected);
// The same for part of a buffer and for whole buffers, which are read by a kernel that names them.
void see_range(const char *what, const u64 *data, u64 from, u64 to, Line line);
void see_buffer(const char *what, const Buffer &buffer);
// Compares only: for what depends on timing.
void compare(const char *what, const Buffer &buffer);
void see_all(const char *what, const std::vector<Buffer> &buffers);
// The same for sums that lie on the device, one a buffer.
void see_sums(const char *what, const u64 *sums, const std::vector<Buffer> &buffers);

// The same for words that were copied to the host: `count` words from place `from` on.
void see_host(const char *what, const u64 *data, u64 from, u64 count, Line line);

// Host memory that kernels can reach too.
template <class T>
T *pinned_array(size_t count) {
    void *data;
    CHECK(cudaHostAlloc(&data, count * sizeof(T), cudaHostAllocMapped));
    return (T *)data;
}

// A stream that does not wait for the default stream.
struct Stream {
    cudaStream_t handle;
    Stream() { CHECK(cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking)); }
    ~Stream() { cudaStreamDestroy(handle); }
    Stream(const Stream &) = delete;
    operator cudaStream_t() const { return handle; }
    void wait() const { CHECK(cudaStreamSynchronize(handle)); }
};

// Memory that is there to press on the limit, used in turns.
struct Ballast {
    std::vector<Buffer> buffers;
    unsigned next = 0;
    explicit Ballast(size_t bytes) : buffers(make_buffers(32, bytes, 1000)) {}
    void use(unsigned many, cudaStream_t stream = 0) {
        press(buffers, next, many, stream);
        next += many;
    }
    void end() {
        see_all("ballast", buffers);
        drop(buffers);
    }
};

// An address of a function of the driver; no program here links with it.
void *driver_function(const char *name);

// Kernels that may run at once, for cooperative launches of up to 256 threads a block.
unsigned cooperative_blocks();

struct Mode {
    const char *name;
    void (*run)();
};

int run_modes(int argc, char **argv, const std::vector<Mode> &modes);

// Device code ----------------------------------------------------------------------------------------------

__device__ inline size_t thread_number() { return size_t(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ inline size_t thread_count() { return size_t(gridDim.x) * blockDim.x; }

__device__ inline u64 now_ns() {
    u64 now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

// This thread's part of a step, and of a weighed sum.
__device__ inline void step_part(u64 *data, size_t from, size_t to, u64 mul, u64 add) {
    for (size_t i = from + thread_number(); i < to; i += thread_count()) data[i] = data[i] * mul + add;
}

__device__ inline u64 sum_part(const u64 *data, size_t from, size_t to) {
    u64 sum = 0;
    for (size_t i = from + thread_number(); i < to; i += thread_count()) sum += data[i] * (2 * i + 1);
    return sum;
}
