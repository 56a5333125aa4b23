// Adversarial modes: work on several streams and threads, memory that comes and goes meanwhile.
#include <atomic>
#include <thread>

#include "adversary.cuh"

namespace {

constexpr u64 MUL = 0x2545f4914f6cdd1dull;
// Words of a part that is copied or written on its own: 8 MiB.
constexpr size_t PART = MIB;

__global__ void small_step(u64 *data, size_t count, u64 mul, u64 add) { step_part(data, 0, count, mul, add); }

__global__ void step_to(u64 *out, const u64 *in, size_t count, u64 mul, u64 add) {
    for (size_t i = thread_number(); i < count; i += thread_count()) out[i] = in[i] * mul + add;
}

// A kernel writes one part of a buffer for 200 ms while other parts are copied.
void writer_across_copy() {
    std::vector<Buffer> buffers = make_buffers(COUNT, total_bytes);
    u64 *out = pinned_array<u64>(PART), *in = pinned_array<u64>(PART);
    Stream writer, copier;
    for (unsigned round = 0; round < 6; ++round) {
        Buffer &buffer = buffers[round * 7 % COUNT], &other = buffers[(round * 7 + 20) % COUNT];
        size_t half = buffer.count / 2, quarter = buffer.count / 4;
        Line line = line_of(5000 + round);
        for (size_t i = 0; i < PART; ++i) in[i] = line.at(quarter + i);
        long_step(buffer.data, 0, PART, 20, 200, MUL, round + 1, writer);
        CHECK(cudaMemcpyAsync(out, buffer.data + half, PART * 8, cudaMemcpyDeviceToHost, copier));
        CHECK(cudaMemcpyAsync(buffer.data + quarter, in, PART * 8, cudaMemcpyHostToDevice, copier));
        step(buffers[(round * 7 + 30) % COUNT], MUL, 3, copier);
        CHECK(cudaMemcpyAsync(other.data, buffer.data + half, PART * 8, cudaMemcpyDeviceToDevice, copier));
        CHECK(cudaMemsetAsync(buffer.data + half + PART, 0, PART * 8, copier));
        press(buffers, round * 7 + 35, 2, copier);
        writer.wait();
        copier.wait();
        see_host("copied to the host", out, half, PART, buffer.line);
        see_range("written", buffer.data, 0, PART, after_long(buffer.line, 20, MUL, round + 1));
        see_range("between", buffer.data, PART, quarter, buffer.line);
        see_range("copied to the device", buffer.data, quarter, quarter + PART, line);
        see_range("not copied either", buffer.data, quarter + PART, half + PART, buffer.line);
        see_range("set", buffer.data, half + PART, half + 2 * PART, {0, 0});
        see_range("behind", buffer.data, half + 2 * PART, buffer.count, buffer.line);
        see_range("copied", other.data, 0, PART, {buffer.line.a, buffer.line.at(half)});
        see_range("not copied", other.data, PART, other.count, other.line);
        fill(buffer, line_of(100 + round));
        fill(other, line_of(200 + round));
        CHECK(cudaDeviceSynchronize());
    }
    see_all("at the end", buffers);
    drop(buffers);
    CHECK(cudaFreeHost(out));
    CHECK(cudaFreeHost(in));
}

// One thread's rounds over its own buffers, on its own default stream.
void own_rounds(std::vector<Buffer> *buffers, u64 *host, unsigned rounds) {
    CHECK(cudaSetDevice(0));
    for (unsigned round = 0; round < rounds; ++round) {
        for (size_t k = 0; k < buffers->size(); ++k) {
            Buffer &buffer = (*buffers)[k];
            step(buffer, MUL, round + k, cudaStreamPerThread);
            if (k % 3 != 0) continue;
            size_t from = buffer.count / 2 + k * 512;
            CHECK(cudaMemcpyAsync(host, buffer.data + from, PART * 8, cudaMemcpyDeviceToHost,
                                  cudaStreamPerThread));
            CHECK(cudaStreamSynchronize(cudaStreamPerThread));
            // Not through see(): the order of two threads is no result.
            for (size_t i = 0; i < PART; i += 61)
                if (host[i] != buffer.line.at(from + i))
                    wrong("in a thread", host[i], buffer.line.at(from + i));
        }
    }
    CHECK(cudaStreamSynchronize(cudaStreamPerThread));
}

void threads() {
    std::vector<Buffer> left = make_buffers(COUNT / 2, total_bytes / 2, 1);
    std::vector<Buffer> right = make_buffers(COUNT / 2, total_bytes / 2, 99);
    u64 *host = pinned_array<u64>(2 * PART);
    std::thread one(own_rounds, &left, host, 5), two(own_rounds, &right, host + PART, 5);
    one.join();
    two.join();
    see_all("left", left);
    see_all("right", right);
    drop(left);
    drop(right);
    CHECK(cudaFreeHost(host));
}

// A thread keeps pages moving while the first frees buffers that have work outstanding, and uses new ones at
// once.
void free_while_moving() {
    std::vector<Buffer> moving = make_buffers(COUNT / 2, total_bytes / 2, 1);
    std::vector<Buffer> slots = make_buffers(COUNT / 2, total_bytes / 2, 500);
    std::atomic<bool> stop{false};
    std::thread mover([&] {
        CHECK(cudaSetDevice(0));
        for (unsigned i = 0; !stop; ++i) {
            press(moving, i, 1, cudaStreamPerThread);
            if (i % 8 == 7) CHECK(cudaStreamSynchronize(cudaStreamPerThread));
        }
        CHECK(cudaStreamSynchronize(cudaStreamPerThread));
    });
    Stream streams[2];
    const size_t each = total_bytes / COUNT;
    u64 state = 7;
    for (unsigned round = 0; round < 120; ++round) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        unsigned at = unsigned(state >> 33) % slots.size(), near = (at + 1) % slots.size();
        step(slots[near], MUL, round, streams[near % 2]);
        step(slots[at], MUL, round, streams[at % 2]);
        if (round % 2) continue;
        device_free(slots[at].data);
        size_t bytes = (each / 4 + (state >> 40) % (each * 3 / 4)) / 4096 * 4096;
        slots[at] = make_buffer(bytes, line_of(round + 9000), streams[at % 2]);
        step(slots[at], MUL, round, streams[at % 2]);
    }
    stop = true;
    mover.join();
    see_all("slots", slots);
    // How far the mover came is no result.
    for (const Buffer &buffer : moving) compare("moving", buffer);
    drop(moving);
    drop(slots);
}

// cudaMallocAsync beside memory that is short.
void stream_ordered() {
    std::vector<Buffer> buffers = make_buffers(COUNT, total_bytes);
    Stream streams[2];
    for (unsigned i = 0; i < 2 * COUNT; ++i) {
        // COUNT is even: a buffer stays with its stream.
        Buffer &buffer = buffers[i * 5 % COUNT];
        cudaStream_t stream = streams[i % 2];
        void *between, *more;
        CHECK(cudaMallocAsync(&between, buffer.count * 8, stream));
        CHECK(cudaMallocAsync(&more, 3 * MIB, stream));
        step_to<<<BLOCKS, THREADS, 0, stream>>>((u64 *)between, buffer.data, buffer.count, MUL, i);
        CHECK(cudaMemcpyAsync(more, between, 2 * MIB, cudaMemcpyDeviceToDevice, stream));
        CHECK(cudaMemsetAsync(between, 0, 2 * MIB, stream));
        CHECK(cudaMemcpyAsync(between, more, 2 * MIB, cudaMemcpyDeviceToDevice, stream));
        CHECK(cudaFreeAsync(more, stream));
        step_to<<<BLOCKS, THREADS, 0, stream>>>(buffer.data, (u64 *)between, buffer.count, 5, 7);
        LAUNCHED();
        CHECK(cudaFreeAsync(between, stream));
        buffer.line = after(after(buffer.line, MUL, i), 5, 7);
    }
    see_all("at the end", buffers);
    drop(buffers);
}

// Thousands of launches behind a kernel that holds the queue; some name buffers that lie elsewhere.
void full_queue() {
    std::vector<Buffer> buffers = make_buffers(COUNT, total_bytes - 8 * MIB);
    Buffer small = make_buffer(4 * MIB, line_of(77)), blocker = make_buffer(4 * MIB, line_of(78));
    CHECK(cudaDeviceSynchronize());
    Stream stream;
    for (unsigned round = 0; round < 2; ++round) {
        long_step(blocker.data, 0, blocker.count, 5, 300, MUL, 1, stream);
        blocker.line = after_long(blocker.line, 5, MUL, 1);
        for (unsigned i = 0; i < 3000; ++i) {
            if (i % 100 == 99) step(buffers[(i / 100 * 7 + round) % COUNT], MUL, i, stream);
            small_step<<<32, THREADS, 0, stream>>>(small.data, small.count, MUL, i);
            LAUNCHED();
            small.line = after(small.line, MUL, i);
        }
        stream.wait();
        see_buffer("small", small);
        see_buffer("blocker", blocker);
    }
    see_all("at the end", buffers);
    drop(buffers);
    device_free(small.data);
    device_free(blocker.data);
}

// A kernel of 500 ms, and a program that makes no call but cudaEventQuery.
void polling() {
    std::vector<Buffer> buffers = make_buffers(COUNT, total_bytes);
    Stream slow, quick;
    cudaEvent_t events[2];
    for (cudaEvent_t &event : events) CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    for (unsigned round = 0; round < 5; ++round) {
        Buffer &buffer = buffers[round * 3];
        long_step(buffer.data, 0, PART, 10, 500, MUL, round + 1, slow);
        CHECK(cudaEventRecord(events[0], slow));
        press(buffers, 20 + round * 5, 4, quick);
        CHECK(cudaEventRecord(events[1], quick));
        for (unsigned done = 0; done < 2;) {
            cudaError_t answer = cudaEventQuery(events[done]);
            if (answer == cudaSuccess)
                ++done;
            else if (answer != cudaErrorNotReady)
                CHECK(answer);
        }
        see_range("slow", buffer.data, 0, PART, after_long(buffer.line, 10, MUL, round + 1));
        see_range("behind", buffer.data, PART, buffer.count, buffer.line);
        fill(buffer, line_of(300 + round));
        CHECK(cudaDeviceSynchronize());
    }
    see_all("at the end", buffers);
    drop(buffers);
    for (cudaEvent_t event : events) CHECK(cudaEventDestroy(event));
}

}  // namespace

std::vector<Mode> stream_modes() {
    return {{"writer_across_copy", writer_across_copy},
            {"threads", threads},
            {"free_while_moving", free_while_moving},
            {"stream_ordered", stream_ordered},
            {"full_queue", full_queue},
            {"polling", polling}};
}
