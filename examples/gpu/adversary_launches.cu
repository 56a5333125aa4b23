// Adversarial modes: launches of every kind, kernels that are new, and kernels that need memory of the
// driver's own.
#include <cooperative_groups.h>

#include <algorithm>

#include "adversary.cuh"

namespace {

constexpr u64 MUL = 0x2545f4914f6cdd1dull;
// Side of a matrix, and words of one.
constexpr unsigned SIDE = 1024;
constexpr size_t MATRIX = size_t(SIDE) * SIDE;
// Counters for atomics, and how far apart the words lie that are counted.
constexpr unsigned BINS = MIB, APART = 64;

// Adds a to b, then b backwards to a, with a wait of the whole grid between.
__global__ void exchange(u64 *a, u64 *b, size_t count, unsigned rounds) {
    auto grid = cooperative_groups::this_grid();
    for (unsigned round = 0; round < rounds; ++round) {
        for (size_t i = thread_number(); i < count; i += thread_count()) b[i] += a[i];
        grid.sync();
        for (size_t i = thread_number(); i < count; i += thread_count()) a[i] += b[count - 1 - i];
        grid.sync();
    }
}

__global__ void count_words(unsigned *whole, float *real, const u64 *data, size_t count) {
    for (size_t i = thread_number() * APART; i < count; i += thread_count() * APART) {
        unsigned bin = unsigned(i / APART) % BINS, value = unsigned(data[i] >> 60);
        atomicAdd(whole + bin, value);
        atomicAdd(real + (BINS - 1 - bin), float(value));
    }
}

// c = a * b for as many groups as the grid is deep; the matrices are known by tables of addresses only.
__global__ void grouped_product(u64 *const *c, const u64 *const *a, const u64 *const *b) {
    __shared__ u64 left[32][33], right[32][33];
    const u64 *from_a = a[blockIdx.z], *from_b = b[blockIdx.z];
    unsigned row = blockIdx.y * 32 + threadIdx.y, column = blockIdx.x * 32 + threadIdx.x;
    u64 value = 0;
    for (unsigned tile = 0; tile < SIDE; tile += 32) {
        left[threadIdx.y][threadIdx.x] = from_a[size_t(row) * SIDE + tile + threadIdx.x];
        right[threadIdx.y][threadIdx.x] = from_b[size_t(tile + threadIdx.y) * SIDE + column];
        __syncthreads();
        for (unsigned k = 0; k < 32; ++k) value += left[threadIdx.y][k] * right[k][threadIdx.x];
        __syncthreads();
    }
    c[blockIdx.z][size_t(row) * SIDE + column] = value;
}

__global__ void table_sum(u64 *sums, const u64 *const *table, size_t count) {
    atomicAdd(sums + blockIdx.y, sum_part(table[blockIdx.y], 0, count));
}

__global__ void graph_step(u64 *data, size_t count, u64 mul, u64 add) { step_part(data, 0, count, mul, add); }

// Kernels of their own, each loaded at its first launch.
template <int N>
__global__ void lazy_step(u64 *data, size_t count) {
    step_part(data, 0, count, 2 * N + 3, N);
}

// A stack frame of WORDS words in each thread.
template <unsigned WORDS>
__global__ void deep_step(u64 *data, size_t count, u64 mul, u64 add) {
    volatile u64 frame[WORDS];
    for (size_t i = thread_number(); i < count; i += thread_count()) {
        u64 value = data[i];
        unsigned at = unsigned(value >> 7) % WORDS;
        frame[at] = value;
        frame[(at + WORDS / 2) % WORDS] = 0;
        data[i] = frame[at] * mul + add;
    }
}

void cooperative() {
    std::vector<Buffer> buffers = make_buffers(COUNT, total_bytes);
    for (unsigned i = 0; i < COUNT; ++i) {
        Buffer &a = buffers[i], &b = buffers[(i * 7 + 25) % COUNT];
        if (a.data == b.data) continue;
        unsigned rounds = 3;
        void *arguments[] = {&a.data, &b.data, &a.count, &rounds};
        CHECK(cudaLaunchCooperativeKernel((void *)exchange, dim3(cooperative_blocks()), dim3(THREADS),
                                          arguments, 0, 0));
        for (unsigned round = 0; round < rounds; ++round) {
            b.line = {b.line.a + a.line.a, b.line.b + a.line.b};
            a.line = {a.line.a - b.line.a, a.line.b + b.line.at(a.count - 1)};
        }
    }
    see_all("at the end", buffers);
    drop(buffers);
}

void atomics() {
    const unsigned launches = 4;
    std::vector<Buffer> buffers = make_buffers(COUNT, total_bytes);
    unsigned *whole = device_array<unsigned>(BINS);
    float *real = device_array<float>(BINS);
    CHECK(cudaMemset(whole, 0, BINS * sizeof *whole));
    CHECK(cudaMemset(real, 0, BINS * sizeof *real));
    for (unsigned i = 0; i < launches * COUNT; ++i) {
        const Buffer &buffer = buffers[i % COUNT];
        count_words<<<256, THREADS>>>(whole, real, buffer.data, buffer.count);
        LAUNCHED();
    }
    std::vector<unsigned> counts(BINS), expected(BINS, 0);
    std::vector<float> reals(BINS);
    CHECK(cudaMemcpy(counts.data(), whole, BINS * sizeof *whole, cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(reals.data(), real, BINS * sizeof *real, cudaMemcpyDeviceToHost));
    for (const Buffer &buffer : buffers)
        for (size_t i = 0; i < buffer.count; i += APART)
            expected[i / APART % BINS] += launches * unsigned(buffer.line.at(i) >> 60);
    u64 sums[3] = {0, 0, 0};
    for (unsigned bin = 0; bin < BINS; ++bin) {
        sums[0] += expected[bin] * u64(2 * bin + 1);
        sums[1] += counts[bin] * u64(2 * bin + 1);
        sums[2] += u64(reals[BINS - 1 - bin]) * u64(2 * bin + 1);
    }
    see("whole numbers", sums[1], sums[0]);
    see("real numbers", sums[2], sums[0]);
    see_all("at the end", buffers);
    drop(buffers);
    device_free(whole);
    device_free(real);
}

// The weighed sum of a product of two matrices on lines: each of its words is a closed formula.
u64 product_sum(Line a, Line b) {
    const u64 n = SIDE, first = n * (n - 1) / 2, second = n * (n - 1) * (2 * n - 1) / 6;
    u64 sum = 0;
    for (u64 row = 0; row < n; ++row) {
        u64 p = a.a * row * n + a.b, fixed = p * b.a * n * first + a.a * b.a * n * second;
        for (u64 column = 0; column < n; ++column) {
            u64 q = b.a * column + b.b;
            sum += (n * p * q + a.a * q * first + fixed) * (2 * (row * n + column) + 1);
        }
    }
    return sum;
}

// Each buffer holds a left matrix, a right one and a result of three groups.
void grouped_gemm() {
    const unsigned groups = unsigned(total_bytes / (3 * MATRIX * 8));
    std::vector<Buffer> buffers = make_buffers(groups, groups * 3 * MATRIX * 8);
    u64 **tables = device_array<u64 *>(MIB), *sums = device_array<u64>(groups);
    std::vector<u64> got(groups);
    for (unsigned round = 0; round < 2; ++round) {
        std::vector<u64 *> a, b, c;
        std::vector<u64> expected;
        for (unsigned k = 0; k < groups; ++k) {
            const Buffer &left = buffers[k], &right = buffers[(k + 7 + round) % groups];
            a.push_back(left.data);
            b.push_back(right.data + MATRIX);
            c.push_back(buffers[(k + 13) % groups].data + 2 * MATRIX);
            expected.push_back(product_sum(left.line, {right.line.a, right.line.at(MATRIX)}));
        }
        for (unsigned part = 0; part < 3; ++part) {
            const std::vector<u64 *> &host = part == 0 ? a : part == 1 ? b : c;
            CHECK(cudaMemcpy(tables + part * groups, host.data(), groups * sizeof(u64 *),
                             cudaMemcpyHostToDevice));
        }
        CHECK(cudaMemset(sums, 0, groups * sizeof *sums));
        grouped_product<<<dim3(SIDE / 32, SIDE / 32, groups), dim3(32, 32)>>>(tables + 2 * groups, tables,
                                                                              tables + groups);
        table_sum<<<dim3(64, groups), THREADS>>>(sums, tables + 2 * groups, MATRIX);
        LAUNCHED();
        CHECK(cudaMemcpy(got.data(), sums, groups * sizeof(u64), cudaMemcpyDeviceToHost));
        for (unsigned k = 0; k < groups; ++k) see("a product", got[k], expected[k]);
        // All by name: pages go round, and the next operands are others.
        for (Buffer &buffer : buffers) {
            see_range("the operands", buffer.data, 0, 2 * MATRIX, buffer.line);
            fill(buffer, after(buffer.line, MUL, round));
        }
    }
    drop(buffers);
    device_free(tables);
    device_free(sums);
}

// A graph by capture, on two streams, that uses more memory than the limit.
void graph_captured() {
    std::vector<Buffer> buffers = make_buffers(COUNT, total_bytes);
    Stream stream, side;
    cudaEvent_t fork, join;
    CHECK(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
    CHECK(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
    cudaGraph_t graph;
    cudaGraphExec_t ready;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    CHECK(cudaEventRecord(fork, stream));
    CHECK(cudaStreamWaitEvent(side, fork, 0));
    for (unsigned k = 0; k < COUNT; ++k) {
        graph_step<<<BLOCKS, THREADS, 0, k % 2 ? side : stream>>>(buffers[k].data, buffers[k].count, MUL, k);
        LAUNCHED();
    }
    CHECK(cudaEventRecord(join, side));
    CHECK(cudaStreamWaitEvent(stream, join, 0));
    size_t bytes = buffers[0].count * 8;
    CHECK(cudaMemsetAsync(buffers[2].data, 0, bytes, stream));
    CHECK(cudaMemcpyAsync(buffers[1].data, buffers[COUNT - 2].data, bytes, cudaMemcpyDeviceToDevice, stream));
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&ready, graph, 0));
    for (unsigned round = 0; round < 5; ++round) {
        CHECK(cudaGraphLaunch(ready, stream));
        if (round == 1) CHECK(cudaGraphLaunch(ready, stream));
        for (unsigned k = 0; k < COUNT; ++k) buffers[k].line = after(buffers[k].line, MUL, k);
        buffers[2].line = {0, 0};
        buffers[1].line = buffers[COUNT - 2].line;
        if (round == 1) {
            for (unsigned k = 0; k < COUNT; ++k) buffers[k].line = after(buffers[k].line, MUL, k);
            buffers[2].line = {0, 0};
            buffers[1].line = buffers[COUNT - 2].line;
        }
        // Behind the graph, on its stream: pages go round.
        press(buffers, round * 9, COUNT / 2, stream);
    }
    stream.wait();
    see_all("at the end", buffers);
    CHECK(cudaGraphExecDestroy(ready));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaEventDestroy(fork));
    CHECK(cudaEventDestroy(join));
    drop(buffers);
}

cudaKernelNodeParams node_of(void **arguments) {
    cudaKernelNodeParams node = {};
    node.func = (void *)graph_step;
    node.gridDim = dim3(BLOCKS);
    node.blockDim = dim3(THREADS);
    node.kernelParams = arguments;
    return node;
}

// The same built node by node in four chains; one node is given another buffer of its chain later.
void graph_built() {
    std::vector<Buffer> buffers = make_buffers(COUNT, total_bytes);
    Stream stream;
    cudaGraph_t graph;
    cudaGraphExec_t ready;
    std::vector<cudaGraphNode_t> nodes(COUNT), ends(2);
    CHECK(cudaGraphCreate(&graph, 0));
    u64 mul = MUL, add;
    for (unsigned k = 0; k < COUNT; ++k) {
        add = k;
        void *arguments[] = {&buffers[k].data, &buffers[k].count, &mul, &add};
        cudaKernelNodeParams node = node_of(arguments);
        CHECK(
            cudaGraphAddKernelNode(&nodes[k], graph, k < 4 ? nullptr : &nodes[k - 4], k < 4 ? 0 : 1, &node));
    }
    cudaMemsetParams zeros = {};
    zeros.dst = buffers[3].data;
    zeros.elementSize = 4;
    zeros.width = buffers[3].count * 2;
    zeros.height = 1;
    CHECK(cudaGraphAddMemsetNode(&ends[0], graph, &nodes[COUNT - 4], 4, &zeros));
    CHECK(cudaGraphAddMemcpyNode1D(&ends[1], graph, &ends[0], 1, buffers[0].data, buffers[COUNT - 1].data,
                                   buffers[0].count * 8, cudaMemcpyDeviceToDevice));
    CHECK(cudaGraphInstantiate(&ready, graph, 0));
    unsigned target = COUNT - 1;
    for (unsigned round = 0; round < 5; ++round) {
        if (round == 3) {
            target = COUNT - 5;
            add = 99;
            void *arguments[] = {&buffers[target].data, &buffers[target].count, &mul, &add};
            cudaKernelNodeParams node = node_of(arguments);
            CHECK(cudaGraphExecKernelNodeSetParams(ready, nodes[COUNT - 1], &node));
        }
        CHECK(cudaGraphLaunch(ready, stream));
        for (unsigned k = 0; k < COUNT - 1; ++k) buffers[k].line = after(buffers[k].line, MUL, k);
        buffers[target].line = after(buffers[target].line, MUL, round < 3 ? COUNT - 1 : 99);
        buffers[3].line = {0, 0};
        buffers[0].line = buffers[COUNT - 1].line;
        press(buffers, round * 9, COUNT / 2, stream);
    }
    stream.wait();
    see_all("at the end", buffers);
    CHECK(cudaGraphExecDestroy(ready));
    CHECK(cudaGraphDestroy(graph));
    drop(buffers);
}

// A graph that is a chain: steps over all buffers, a memset and a copy between them, each needing the ones before.
cudaGraph_t chain_of(const std::vector<Buffer> &buffers, u64 add, cudaStream_t stream) {
    cudaGraph_t graph;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (unsigned k = 0; k < COUNT; ++k) {
        size_t bytes = buffers[k].count * 8;
        if (k % 8 == 3) CHECK(cudaMemsetAsync(buffers[k].data, 0, bytes, stream));
        if (k % 8 == 6)
            CHECK(cudaMemcpyAsync(buffers[k].data, buffers[k - 1].data, bytes, cudaMemcpyDeviceToDevice, stream));
        graph_step<<<BLOCKS, THREADS, 0, stream>>>(buffers[k].data, buffers[k].count, MUL, add + k);
        LAUNCHED();
    }
    CHECK(cudaStreamEndCapture(stream, &graph));
    return graph;
}

void chain_lines(std::vector<Buffer> &buffers, u64 add) {
    for (unsigned k = 0; k < COUNT; ++k) {
        if (k % 8 == 3) buffers[k].line = {0, 0};
        if (k % 8 == 6) buffers[k].line = buffers[k - 1].line;
        buffers[k].line = after(buffers[k].line, MUL, add + k);
    }
}

// A chain launched several times, on two streams in turn, and given other values between.
void graph_chain() {
    std::vector<Buffer> buffers = make_buffers(COUNT, total_bytes);
    Stream streams[2];
    cudaEvent_t over;
    CHECK(cudaEventCreateWithFlags(&over, cudaEventDisableTiming));
    cudaGraph_t graph = chain_of(buffers, 1, streams[0]);
    cudaGraphExec_t ready;
    CHECK(cudaGraphInstantiate(&ready, graph, 0));
    u64 add = 1;
    for (unsigned round = 0; round < 6; ++round) {
        cudaStream_t stream = streams[round % 2];
        if (round == 3) {
            cudaGraph_t other = chain_of(buffers, add = 1000, stream);
            cudaGraphExecUpdateResultInfo found = {};
            CHECK(cudaGraphExecUpdate(ready, other, &found));
            CHECK(cudaGraphDestroy(other));
        }
        CHECK(cudaGraphLaunch(ready, stream));
        chain_lines(buffers, add);
        press(buffers, round * 9, COUNT / 2, stream);
        CHECK(cudaEventRecord(over, stream));
        CHECK(cudaStreamWaitEvent(streams[1 - round % 2], over, 0));
    }
    CHECK(cudaDeviceSynchronize());
    see_all("at the end", buffers);
    CHECK(cudaGraphExecDestroy(ready));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaEventDestroy(over));
    drop(buffers);
}

template <int N>
void first_launch(Buffer &buffer, cudaStream_t stream) {
    lazy_step<N><<<BLOCKS, THREADS, 0, stream>>>(buffer.data, buffer.count);
    LAUNCHED();
    buffer.line = after(buffer.line, 2 * N + 3, N);
}

// Kernels whose first launch comes while another kernel runs and memory is short.
void lazy_loading() {
    std::vector<Buffer> buffers = make_buffers(COUNT, total_bytes - 4 * MIB);
    Buffer slow = make_buffer(4 * MIB, line_of(88));
    CHECK(cudaDeviceSynchronize());
    Stream stream, busy;
    void (*const firsts[])(Buffer &, cudaStream_t) = {first_launch<1>, first_launch<2>, first_launch<3>,
                                                      first_launch<4>, first_launch<5>, first_launch<6>,
                                                      first_launch<7>, first_launch<8>, first_launch<9>};
    for (unsigned k = 0; k < 9; ++k) {
        long_step(slow.data, 0, slow.count, 4, 100, MUL, k, busy);
        slow.line = after_long(slow.line, 4, MUL, k);
        firsts[k](buffers[k * 5], stream);
        firsts[k](buffers[k * 5 + 1], stream);
        press(buffers, k * 5 + 20, 2, stream);
    }
    stream.wait();
    busy.wait();
    see_buffer("slow", slow);
    see_all("at the end", buffers);
    drop(buffers);
    device_free(slow.data);
}

template <unsigned WORDS>
void deep(Buffer &buffer, u64 add, cudaStream_t stream) {
    deep_step<WORDS><<<BLOCKS, THREADS, 0, stream>>>(buffer.data, buffer.count, MUL, add);
    LAUNCHED();
    buffer.line = after(buffer.line, MUL, add);
}

// Stack frames that make the driver grow its local memory while memory is short.
void local_memory() {
    std::vector<Buffer> buffers = make_buffers(COUNT, total_bytes - 4 * MIB);
    Buffer slow = make_buffer(4 * MIB, line_of(89));
    CHECK(cudaDeviceSynchronize());
    Stream stream, busy;
    for (unsigned round = 0; round < 4; ++round) {
        long_step(slow.data, 0, slow.count, 4, 100, MUL, round, busy);
        slow.line = after_long(slow.line, 4, MUL, round);
        press(buffers, round * 10, 2, stream);
        deep<64>(buffers[round * 10 + 4], round, stream);
        if (round > 0) deep<512>(buffers[round * 10 + 5], round, stream);
        if (round > 1) deep<1536>(buffers[round * 10 + 6], round, stream);
        press(buffers, round * 10 + 24, 3, stream);
    }
    stream.wait();
    busy.wait();
    see_buffer("slow", slow);
    see_all("at the end", buffers);
    drop(buffers);
    device_free(slow.data);
}

}  // namespace

std::vector<Mode> launch_modes() {
    return {{"cooperative", cooperative},       {"atomics", atomics},         {"grouped_gemm", grouped_gemm},
            {"graph_captured", graph_captured}, {"graph_built", graph_built}, {"graph_chain", graph_chain},
            {"lazy_loading", lazy_loading},     {"local_memory", local_memory}};
}
