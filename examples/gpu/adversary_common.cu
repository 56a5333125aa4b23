// What the adversarial programs have in common: see adversary.cuh.
#include "adversary.cuh"

#include <unistd.h>

#include <csignal>
#include <cstring>
#include <map>
#include <mutex>

// Seconds that one mode may take.
static constexpr unsigned LONGEST = 130;

size_t total_bytes;
volatile unsigned *release_at_failure;

static const char *mode_name = "none";
static u64 digest;
static std::mutex lock, ending;
static std::map<void *, size_t> sizes;
static size_t live, peak;
static u64 *sum_cell;

// The first thread that fails ends the program; others wait here for that.
[[noreturn]] static void end_with(int code) {
    ending.lock();
    if (release_at_failure) *release_at_failure = 1;
    std::fflush(stdout);
    std::exit(code);
}

void cuda_failed(const char *file, int line, const char *call, const char *why) {
    std::fprintf(stderr, "%s: %s:%d: %s: %s\n", mode_name, file, line, call, why);
    end_with(6);
}

void driver_failed(const char *file, int line, const char *call, int code) {
    std::fprintf(stderr, "%s: %s:%d: %s answers %d\n", mode_name, file, line, call, code);
    end_with(6);
}

void wrong(const char *what, u64 got, u64 expected) {
    std::printf("result %s wrong %s: %016llx, expected %016llx\n", mode_name, what, got, expected);
    end_with(5);
}

static void too_late(int) {
    static const char text[] = ": no end within the time of one mode\n";
    ssize_t ignored = write(2, mode_name, std::strlen(mode_name));
    ignored = write(2, text, sizeof text - 1);
    (void)ignored;
    _exit(7);
}

Line line_of(u64 k) {
    return {(2 * k + 1) * 0x9e3779b97f4a7c15ull, (2 * k + 1) * 0xd1b54a32d192ed03ull + 0x632be59bd9b4e019ull};
}

// Of the words before `n`: sums of i and i * i, which overflow 64 bits before they are divided.
static u64 weighed_before(Line line, u64 n) {
    using u128 = unsigned __int128;
    if (n == 0) return 0;
    u64 first = u64(u128(n) * (n - 1) / 2), second = u64(u128(n) * (n - 1) * (2 * u128(n) - 1) / 6);
    return 2 * line.a * second + (line.a + 2 * line.b) * first + line.b * n;
}

u64 weighed(Line line, u64 from, u64 to) { return weighed_before(line, to) - weighed_before(line, from); }

void *device_alloc(size_t bytes) {
    void *data = nullptr;
    CHECK(cudaMalloc(&data, bytes));
    std::lock_guard<std::mutex> held(lock);
    sizes[data] = bytes;
    live += bytes;
    if (live > peak) peak = live;
    return data;
}

void device_free(void *data) {
    {
        std::lock_guard<std::mutex> held(lock);
        live -= sizes[data];
        sizes.erase(data);
    }
    CHECK(cudaFree(data));
}

static __global__ void fill_kernel(u64 *data, size_t count, Line line) {
    for (size_t i = thread_number(); i < count; i += thread_count()) data[i] = line.at(i);
}

static __global__ void step_kernel(u64 *data, size_t from, size_t to, u64 mul, u64 add) {
    step_part(data, from, to, mul, add);
}

static __global__ void sum_kernel(u64 *out, const u64 *data, size_t from, size_t to) {
    atomicAdd(out, sum_part(data, from, to));
}

// Volatile: each round is written to memory.
static __global__ void long_kernel(volatile u64 *data, size_t from, size_t to, unsigned rounds, u64 ns,
                                   u64 mul, u64 add) {
    u64 start = now_ns();
    for (unsigned round = 1; round <= rounds; ++round) {
        for (size_t i = from + thread_number(); i < to; i += thread_count()) data[i] = data[i] * mul + add;
        while (now_ns() - start < round * (ns / rounds)) __nanosleep(20000);
    }
}

Buffer make_buffer(size_t bytes, Line line, cudaStream_t stream) {
    Buffer buffer = {(u64 *)device_alloc(bytes), bytes / sizeof(u64), line};
    fill(buffer, line, stream);
    return buffer;
}

void fill(Buffer &buffer, Line line, cudaStream_t stream) {
    fill_kernel<<<BLOCKS, THREADS, 0, stream>>>(buffer.data, buffer.count, line);
    LAUNCHED();
    buffer.line = line;
}

std::vector<Buffer> make_buffers(unsigned count, size_t bytes, u64 seed) {
    size_t each = bytes / count / (2 * MIB) * (2 * MIB);
    std::vector<Buffer> buffers;
    for (unsigned k = 0; k < count; ++k) buffers.push_back(make_buffer(each, line_of(seed + k)));
    CHECK(cudaDeviceSynchronize());
    return buffers;
}

void drop(std::vector<Buffer> &buffers) {
    for (Buffer &buffer : buffers) device_free(buffer.data);
    buffers.clear();
}

void step(Buffer &buffer, u64 mul, u64 add, cudaStream_t stream) {
    step_kernel<<<BLOCKS, THREADS, 0, stream>>>(buffer.data, 0, buffer.count, mul, add);
    LAUNCHED();
    buffer.line = after(buffer.line, mul, add);
}

void press(std::vector<Buffer> &buffers, unsigned from, unsigned many, cudaStream_t stream) {
    for (unsigned k = from; k < from + many; ++k)
        step(buffers[k % buffers.size()], 0x5851f42d4c957f2dull, 2 * k + 1, stream);
}

void long_step(u64 *data, size_t from, size_t to, unsigned rounds, unsigned ms, u64 mul, u64 add,
               cudaStream_t stream) {
    long_kernel<<<64, THREADS, 0, stream>>>(data, from, to, rounds, u64(ms) * 1000000, mul, add);
    LAUNCHED();
}

Line after_long(Line line, unsigned rounds, u64 mul, u64 add) {
    for (unsigned round = 0; round < rounds; ++round) line = after(line, mul, add);
    return line;
}

void see(const char *what, u64 got, u64 expected) {
    if (got != expected) wrong(what, got, expected);
    digest = (digest ^ got) * 0x100000001b3ull + 0x9e3779b97f4a7c15ull;
}

static u64 sum_of(const u64 *data, u64 from, u64 to) {
    u64 got;
    if (!sum_cell) CHECK(cudaMalloc(&sum_cell, sizeof got));
    CHECK(cudaMemset(sum_cell, 0, sizeof got));
    sum_kernel<<<BLOCKS, THREADS>>>(sum_cell, data, from, to);
    LAUNCHED();
    CHECK(cudaMemcpy(&got, sum_cell, sizeof got, cudaMemcpyDeviceToHost));
    return got;
}

void see_range(const char *what, const u64 *data, u64 from, u64 to, Line line) {
    see(what, sum_of(data, from, to), weighed(line, from, to));
}

void compare(const char *what, const Buffer &buffer) {
    u64 got = sum_of(buffer.data, 0, buffer.count), expected = weighed(buffer.line, 0, buffer.count);
    if (got != expected) wrong(what, got, expected);
}

void see_buffer(const char *what, const Buffer &buffer) {
    see_range(what, buffer.data, 0, buffer.count, buffer.line);
}

void see_all(const char *what, const std::vector<Buffer> &buffers) {
    CHECK(cudaDeviceSynchronize());
    for (const Buffer &buffer : buffers) see_buffer(what, buffer);
}

void see_sums(const char *what, const u64 *sums, const std::vector<Buffer> &buffers) {
    std::vector<u64> host(buffers.size());
    CHECK(cudaMemcpy(host.data(), sums, host.size() * sizeof(u64), cudaMemcpyDeviceToHost));
    for (size_t k = 0; k < host.size(); ++k)
        see(what, host[k], weighed(buffers[k].line, 0, buffers[k].count));
}

void see_host(const char *what, const u64 *data, u64 from, u64 count, Line line) {
    u64 sum = 0;
    for (u64 i = from; i < from + count; ++i) sum += data[i - from] * (2 * i + 1);
    see(what, sum, weighed(line, from, from + count));
}

void *driver_function(const char *name) {
    void *found = nullptr;
    cudaDriverEntryPointQueryResult answer;
    CHECK(cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &answer));
    if (answer != cudaDriverEntryPointSuccess || !found) driver_failed(__FILE__, __LINE__, name, int(answer));
    return found;
}

unsigned cooperative_blocks() {
    int device, processors;
    CHECK(cudaGetDevice(&device));
    CHECK(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
    return 2 * unsigned(processors);
}

static void run_mode(const Mode &mode) {
    mode_name = mode.name;
    digest = 0;
    alarm(LONGEST);
    mode.run();
    CHECK(cudaDeviceSynchronize());
    std::printf("result %s %016llx\n", mode.name, digest);
    std::fflush(stdout);
}

int run_modes(int argc, char **argv, const std::vector<Mode> &modes) {
    const char *wanted = argc > 1 ? argv[1] : "";
    total_bytes = size_t(std::atof(argc > 2 ? argv[2] : "6") * 1024) * MIB;
    if (std::strcmp(wanted, "list") == 0) {
        for (const Mode &mode : modes) std::printf("%s\n", mode.name);
        return 0;
    }
    if (total_bytes < 3072 * MIB) wanted = "";
    std::signal(SIGALRM, too_late);
    unsigned ran = 0;
    for (const Mode &mode : modes) {
        if (std::strcmp(wanted, "all") != 0 && std::strcmp(wanted, mode.name) != 0) continue;
        run_mode(mode);
        ++ran;
    }
    if (ran == 0) {
        std::fprintf(stderr, "usage: %s MODE|all|list [GiB in all, 3 or more]\n", argv[0]);
        return 2;
    }
    std::printf("bytes %zu\n", peak);
    return 0;
}
