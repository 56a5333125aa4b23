// Adversarial modes: work that ends only after the program has gone on.
#include <unistd.h>

#include <atomic>
#include <chrono>

#include "adversary.cuh"

namespace {

constexpr u64 MUL = 0x2545f4914f6cdd1dull;
constexpr size_t PART = MIB / 8;
// Nothing waits longer than this.
constexpr u64 LONGEST_NS = 60000000000ull;

__global__ void set_word(unsigned *word, unsigned value) { *(volatile unsigned *)word = value; }

// Writes `during` again and again until the flag is set, then `last` once.
__global__ void persist(const volatile unsigned *flag, volatile u64 *data, size_t count, Line during,
                        Line last, unsigned *late) {
    u64 start = now_ns();
    bool over = false;
    while (*flag == 0 && !over) {
        for (size_t i = thread_number(); i < count; i += thread_count()) data[i] = during.at(i);
        over = now_ns() - start > LONGEST_NS;
        __nanosleep(20000);
    }
    for (size_t i = thread_number(); i < count; i += thread_count()) data[i] = last.at(i);
    if (over) atomicAdd(late, 1);
}

unsigned *device_pointer(unsigned *host) {
    void *found;
    CHECK(cudaHostGetDevicePointer(&found, host, 0));
    return (unsigned *)found;
}

// What goes on while the two kernels do not end. Returns the new buffers.
std::vector<Buffer> beside_persistent(std::vector<Buffer> &buffers, u64 *host, const Stream &work,
                                      const Stream &copies) {
    std::vector<Buffer> fresh;
    size_t each = buffers[0].count * 8;
    press(buffers, 20, 2, work);
    CHECK(cudaMemcpyAsync(host, buffers[8].data, PART * 8, cudaMemcpyDeviceToHost, copies));
    for (unsigned k = 0; k < 2; ++k) fresh.push_back(make_buffer(each, line_of(600 + k), work));
    work.wait();
    copies.wait();
    see_host("copied meanwhile", host, 0, PART, buffers[8].line);
    CHECK(cudaMemcpyAsync(buffers[9].data, host, PART * 8, cudaMemcpyHostToDevice, copies));
    press(fresh, 0, 2, work);
    press(buffers, 30, 1, work);
    work.wait();
    copies.wait();
    return fresh;
}

// Kernels that spin until a word of host memory, and one of device memory, is set.
void persistent() {
    std::vector<Buffer> buffers = make_buffers(COUNT - 2, total_bytes / COUNT * (COUNT - 2));
    unsigned *host_flag = pinned_array<unsigned>(16), *flag = (unsigned *)device_alloc(4 * MIB);
    unsigned *late = device_array<unsigned>(1), was_late;
    u64 *host = pinned_array<u64>(PART);
    *(volatile unsigned *)host_flag = 0;
    CHECK(cudaMemset(late, 0, sizeof *late));
    // Every kernel that is used later is loaded now: to load one may wait for kernels that run.
    set_word<<<1, 1>>>(flag, 0);
    persist<<<1, 1>>>(device_pointer(host_flag), buffers[0].data, 0, {1, 1}, {1, 1}, late);
    LAUNCHED();
    *(volatile unsigned *)host_flag = 1;
    press(buffers, 0, COUNT);
    CHECK(cudaDeviceSynchronize());
    *(volatile unsigned *)host_flag = 0;
    release_at_failure = host_flag;
    Stream first, second, work, copies;
    persist<<<4, 128, 0, first>>>(device_pointer(host_flag), buffers[0].data, PART, line_of(1), line_of(2),
                                  late);
    persist<<<4, 128, 0, second>>>(flag, buffers[1].data, PART, line_of(3), line_of(4), late);
    LAUNCHED();
    std::vector<Buffer> fresh = beside_persistent(buffers, host, work, copies);
    set_word<<<1, 1, 0, work>>>(flag, 1);
    LAUNCHED();
    *(volatile unsigned *)host_flag = 1;
    for (const Stream *stream : {&first, &second, &work}) stream->wait();
    release_at_failure = nullptr;
    CHECK(cudaMemcpy(&was_late, late, sizeof was_late, cudaMemcpyDeviceToHost));
    see("kernels that gave up", was_late, 0);
    see_range("until the host's word", buffers[0].data, 0, PART, line_of(2));
    see_range("until the device's word", buffers[1].data, 0, PART, line_of(4));
    for (unsigned k : {0u, 1u}) see_range("behind", buffers[k].data, PART, buffers[k].count, buffers[k].line);
    see_range("copied back", buffers[9].data, 0, PART, buffers[8].line);
    see_range("not copied", buffers[9].data, PART, buffers[9].count, buffers[9].line);
    for (unsigned k = 2; k < buffers.size(); ++k)
        if (k != 9) see_buffer("others", buffers[k]);
    see_all("new", fresh);
    drop(fresh);
    drop(buffers);
    device_free(flag);
    device_free(late);
    CHECK(cudaFreeHost(host_flag));
    CHECK(cudaFreeHost(host));
}

struct Job {
    u64 *data;
    std::atomic<bool> may_go, late;
};

// Changes what was copied to the host; first waits until the program allows it.
void CUDART_CB change(void *argument) {
    Job &job = *(Job *)argument;
    for (unsigned ms = 0; !job.may_go && !job.late; ++ms) {
        usleep(1000);
        job.late = ms > 60000;
    }
    for (size_t i = 0; i < PART; ++i) job.data[i] = job.data[i] * 3 + 1;
}

// Data goes through a function of the host between two kernels. In some rounds that function waits until the
// program has launched what comes behind it.
void host_callback() {
    std::vector<Buffer> buffers = make_buffers(COUNT, total_bytes);
    Job job;
    job.data = pinned_array<u64>(PART);
    job.late = false;
    press(buffers, 0, COUNT);
    CHECK(cudaDeviceSynchronize());
    Stream stream, other;
    for (unsigned round = 0; round < 8; ++round) {
        Buffer &buffer = buffers[round * 5];
        job.may_go = round % 4 != 3;
        step(buffer, MUL, round, stream);
        Line front = after(buffer.line, 3, 1);
        CHECK(cudaMemcpyAsync(job.data, buffer.data, PART * 8, cudaMemcpyDeviceToHost, stream));
        CHECK(cudaLaunchHostFunc(stream, change, &job));
        CHECK(cudaMemcpyAsync(buffer.data, job.data, PART * 8, cudaMemcpyHostToDevice, stream));
        step(buffer, MUL, round + 1, stream);
        front = after(front, MUL, round + 1);
        press(buffers, round * 5 + 22, 2, other);
        job.may_go = true;
        stream.wait();
        other.wait();
        see("functions that gave up", job.late, 0);
        see_range("through the host", buffer.data, 0, PART, front);
        see_range("behind", buffer.data, PART, buffer.count, buffer.line);
        fill(buffer, line_of(700 + round));
        CHECK(cudaDeviceSynchronize());
    }
    see_all("at the end", buffers);
    drop(buffers);
    CHECK(cudaFreeHost(job.data));
}

using WaitValue = CUresult (*)(CUstream, CUdeviceptr, unsigned, unsigned);

// A stream waits for a value that the program writes later: itself, or by another stream.
void wait_value(bool on_device) {
    auto wait = (WaitValue)driver_function("cuStreamWaitValue32");
    auto write = (WaitValue)driver_function("cuStreamWriteValue32");
    std::vector<Buffer> buffers = make_buffers(COUNT, total_bytes);
    unsigned *host = pinned_array<unsigned>(16), *device = (unsigned *)device_alloc(4 * MIB);
    *(volatile unsigned *)host = 0;
    CHECK(cudaMemset(device, 0, 4 * MIB));
    press(buffers, 0, COUNT);
    CHECK(cudaDeviceSynchronize());
    release_at_failure = host;
    Stream waiting, other;
    for (unsigned round = 1; round <= 3; ++round) {
        CUdeviceptr word = (CUdeviceptr)(on_device ? device : device_pointer(host));
        step(buffers[round], MUL, round, waiting);
        DRIVER(wait(waiting, word, round, CU_STREAM_WAIT_VALUE_GEQ));
        step(buffers[round], MUL, round + 1, waiting);
        step(buffers[round + 10], MUL, round, waiting);
        press(buffers, round * 4 + 16, 2, other);
        if (on_device)
            DRIVER(write(other, word, round, CU_STREAM_WRITE_VALUE_DEFAULT));
        else
            *(volatile unsigned *)host = round;
        waiting.wait();
        other.wait();
        see_buffer("behind the wait", buffers[round]);
        press(buffers, round * 9, COUNT / 2);
        CHECK(cudaDeviceSynchronize());
    }
    release_at_failure = nullptr;
    see_all("at the end", buffers);
    drop(buffers);
    device_free(device);
    CHECK(cudaFreeHost(host));
}

}  // namespace

std::vector<Mode> wait_modes() {
    return {{"persistent", persistent},
            {"host_callback", host_callback},
            {"wait_value_host", [] { wait_value(false); }},
            {"wait_value_device", [] { wait_value(true); }}};
}
