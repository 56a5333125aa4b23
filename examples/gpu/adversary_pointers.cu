// Adversarial modes: memory that kernels reach through addresses that lie in memory.
#include <cooperative_groups.h>

#include <algorithm>

#include "adversary.cuh"

namespace {

constexpr u64 MUL = 0x2545f4914f6cdd1dull;
constexpr u64 MASK = 0x5a5a5a5a5a5a5a5aull;
// A table is large enough to be pooled memory itself.
constexpr size_t TABLE_BYTES = 4 * MIB;

__constant__ u64 *constant_table[COUNT];
__device__ u64 *copied_pointer, *made_pointer;
__device__ u64 global_sums[COUNT + 2];

__global__ void table_step(u64 *const *table, size_t count, u64 mul, u64 add) {
    step_part(table[blockIdx.y], 0, count, mul, add);
}

__global__ void table_sum(u64 *sums, u64 *const *table, size_t count) {
    atomicAdd(sums + blockIdx.y, sum_part(table[blockIdx.y], 0, count));
}

__global__ void put(u64 **table, unsigned at, u64 *pointer) { table[at] = pointer; }

// Makes its table of words in which no address is to be seen, then follows it.
__global__ void own_table(u64 *sums, u64 **scratch, const u64 *coded, unsigned tables, size_t count, u64 mul,
                          u64 add) {
    auto grid = cooperative_groups::this_grid();
    for (size_t i = thread_number(); i < tables; i += thread_count()) scratch[i] = (u64 *)(coded[i] ^ MASK);
    grid.sync();
    for (unsigned k = 0; k < tables; ++k) {
        if (sums)
            atomicAdd(sums + k, sum_part(scratch[k], 0, count));
        else
            step_part(scratch[k], 0, count, mul, add);
    }
}

// Cells are plain numbers, or addresses if the first says so.
__global__ void maybe_follow(u64 *sums, const u64 *cells, size_t count) {
    u64 cell = cells[blockIdx.y + 1];
    if (cells[0] == 0) {
        if (thread_number() == 0) sums[blockIdx.y] += cell;
    } else {
        atomicAdd(sums + blockIdx.y, sum_part((const u64 *)cell, 0, count));
    }
}

__global__ void link_nodes(u64 **node, u64 *next, u64 value) {
    node[0] = next;
    node[1] = (u64 *)value;
}

// A node: the address of the next, and a value. Adds to each value if `add` is not 0.
__global__ void walk(u64 *out, u64 *node, u64 add) {
    u64 sum = 0;
    for (u64 place = 1; node; node = (u64 *)node[0], ++place) {
        sum += node[1] * place;
        if (add) node[1] += add * place;
    }
    *out = sum;
}

__global__ void constant_step(size_t count, u64 mul, u64 add) {
    step_part(constant_table[blockIdx.y], 0, count, mul, add);
}

__global__ void constant_sum(size_t count) {
    atomicAdd(&global_sums[blockIdx.y], sum_part(constant_table[blockIdx.y], 0, count));
}

__global__ void device_step(size_t count, u64 mul, u64 add) {
    step_part(blockIdx.y ? made_pointer : copied_pointer, 0, count, mul, add);
}

__global__ void device_sum(size_t count) {
    atomicAdd(&global_sums[COUNT + blockIdx.y],
              sum_part(blockIdx.y ? made_pointer : copied_pointer, 0, count));
}

__global__ void set_made(u64 *pointer) { made_pointer = pointer; }
__global__ void clear_sums() { global_sums[threadIdx.x] = 0; }

const dim3 EACH(64, COUNT);

std::vector<u64> addresses(const std::vector<Buffer> &buffers, u64 mask = 0) {
    std::vector<u64> found;
    for (const Buffer &buffer : buffers) found.push_back((u64)buffer.data ^ mask);
    return found;
}

void stepped(std::vector<Buffer> &buffers, u64 mul, u64 add) {
    for (Buffer &buffer : buffers) buffer.line = after(buffer.line, mul, add);
}

// Rounds of work through a table, with work that names its buffers in between.
void follow(std::vector<Buffer> &buffers, u64 **table, bool writes) {
    u64 *sums = device_array<u64>(COUNT);
    for (unsigned round = 0; round < 4; ++round) {
        press(buffers, round * 11, COUNT / 2);
        if (writes) {
            table_step<<<EACH, THREADS>>>(table, buffers[0].count, MUL, round + 1);
            LAUNCHED();
            stepped(buffers, MUL, round + 1);
            press(buffers, round * 7, COUNT / 2);
        } else {
            CHECK(cudaMemset(sums, 0, COUNT * sizeof *sums));
            table_sum<<<EACH, THREADS>>>(sums, table, buffers[0].count);
            LAUNCHED();
            see_sums("through the table", sums, buffers);
        }
    }
    see_all("at the end", buffers);
    device_free(sums);
}

void table_copied(bool writes) {
    u64 **table = (u64 **)device_alloc(TABLE_BYTES);
    std::vector<Buffer> buffers = make_buffers(COUNT, total_bytes);
    std::vector<u64> host = addresses(buffers);
    CHECK(cudaMemcpy(table, host.data(), host.size() * sizeof(u64), cudaMemcpyHostToDevice));
    follow(buffers, table, writes);
    drop(buffers);
    device_free(table);
}

void table_built(bool writes) {
    std::vector<Buffer> buffers = make_buffers(COUNT, total_bytes);
    u64 **table = (u64 **)device_alloc(TABLE_BYTES);
    for (unsigned k = 0; k < COUNT; ++k) {
        put<<<1, 1>>>(table, k, buffers[k].data);
        LAUNCHED();
    }
    follow(buffers, table, writes);
    drop(buffers);
    device_free(table);
}

void table_own(bool writes) {
    std::vector<Buffer> buffers = make_buffers(COUNT, total_bytes);
    std::vector<u64> host = addresses(buffers, MASK);
    u64 **scratch = (u64 **)device_alloc(TABLE_BYTES), *coded = (u64 *)device_alloc(TABLE_BYTES);
    u64 *sums = device_array<u64>(COUNT), *none = nullptr, mul = MUL, add = 1;
    CHECK(cudaMemcpy(coded, host.data(), host.size() * sizeof(u64), cudaMemcpyHostToDevice));
    unsigned tables = COUNT;
    size_t count = buffers[0].count;
    void *arguments[] = {writes ? &none : &sums, &scratch, &coded, &tables, &count, &mul, &add};
    for (unsigned round = 0; round < 4; ++round) {
        press(buffers, round * 13, COUNT / 2);
        add = 2 * round + 1;
        CHECK(cudaMemset(scratch, 0, COUNT * sizeof *scratch));
        CHECK(cudaMemset(sums, 0, COUNT * sizeof *sums));
        CHECK(cudaLaunchCooperativeKernel((void *)own_table, dim3(cooperative_blocks()), dim3(THREADS),
                                          arguments, 0, 0));
        if (writes) {
            stepped(buffers, mul, add);
            press(buffers, round * 17, COUNT / 2);
        } else {
            see_sums("through its own table", sums, buffers);
        }
    }
    see_all("at the end", buffers);
    drop(buffers);
    for (void *data : {(void *)scratch, (void *)coded, (void *)sums}) device_free(data);
}

// A kernel that has only seen numbers for hundreds of launches is given addresses.
void table_after_trust() {
    std::vector<Buffer> buffers = make_buffers(COUNT, total_bytes);
    u64 *cells = (u64 *)device_alloc(TABLE_BYTES), *sums = device_array<u64>(COUNT);
    std::vector<u64> numbers(COUNT + 1, 0), host(COUNT, 0), pointers = addresses(buffers);
    for (unsigned k = 0; k < COUNT; ++k) numbers[k + 1] = k * k + 5;
    pointers.insert(pointers.begin(), 1);
    for (unsigned round = 0; round < 3; ++round) {
        CHECK(cudaMemcpy(cells, numbers.data(), numbers.size() * sizeof(u64), cudaMemcpyHostToDevice));
        CHECK(cudaMemset(sums, 0, COUNT * sizeof *sums));
        for (unsigned i = 0; i < 200; ++i) {
            maybe_follow<<<EACH, THREADS>>>(sums, cells, buffers[0].count);
            LAUNCHED();
            if (i % 20 == 0) press(buffers, i, 3);
        }
        CHECK(cudaMemcpy(host.data(), sums, COUNT * sizeof(u64), cudaMemcpyDeviceToHost));
        for (unsigned k = 0; k < COUNT; ++k) see("plain numbers", host[k], 200 * numbers[k + 1]);
        if (round == 1) {
            for (unsigned k = 0; k <= COUNT; ++k) {
                put<<<1, 1>>>((u64 **)cells, k, (u64 *)pointers[k]);
                LAUNCHED();
            }
        } else {
            CHECK(cudaMemcpy(cells, pointers.data(), pointers.size() * sizeof(u64), cudaMemcpyHostToDevice));
        }
        CHECK(cudaMemset(sums, 0, COUNT * sizeof *sums));
        press(buffers, round * 19, 4);
        maybe_follow<<<EACH, THREADS>>>(sums, cells, buffers[0].count);
        LAUNCHED();
        see_sums("addresses", sums, buffers);
    }
    see_all("at the end", buffers);
    drop(buffers);
    device_free(cells);
    device_free(sums);
}

void linked_list(bool writes) {
    const unsigned nodes = unsigned(total_bytes / (16 * MIB));
    std::vector<Buffer> buffers = make_buffers(nodes, total_bytes);
    std::vector<unsigned> order(nodes);
    std::vector<u64> values(nodes);
    for (unsigned k = 0; k < nodes; ++k) order[k] = k;
    // The same shuffle everywhere.
    u64 state = 1;
    for (unsigned k = nodes - 1; k > 0; --k) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        std::swap(order[k], order[(state >> 33) % (k + 1)]);
    }
    for (unsigned k = 0; k < nodes; ++k) {
        values[k] = line_of(k).b;
        u64 *next = k + 1 < nodes ? buffers[order[k + 1]].data : nullptr;
        link_nodes<<<1, 1>>>((u64 **)buffers[order[k]].data, next, values[k]);
        LAUNCHED();
    }
    // A walk names the first node only.
    u64 *out = device_array<u64>(1), got;
    for (u64 round = 0; round < 6; ++round) {
        u64 expected = 0, add = writes ? 2 * round + 1 : 0;
        for (unsigned k = 0; k < nodes; ++k) {
            expected += values[k] * (k + 1);
            values[k] += add * (k + 1);
        }
        walk<<<1, 1>>>(out, buffers[order[0]].data, add);
        LAUNCHED();
        CHECK(cudaMemcpy(&got, out, sizeof got, cudaMemcpyDeviceToHost));
        see("the walk", got, expected);
        // Reads all, by name, what lies behind the nodes: pages go round.
        for (const Buffer &buffer : buffers)
            see_range("behind a node", buffer.data, 2, buffer.count, buffer.line);
    }
    drop(buffers);
    device_free(out);
}

// The address lies in memory of its own; each step goes through it.
void own_address() {
    std::vector<Buffer> buffers = make_buffers(COUNT, total_bytes);
    u64 **cell = (u64 **)device_alloc(TABLE_BYTES);
    Buffer &hidden = buffers[COUNT / 3];
    put<<<1, 1>>>(cell, 0, hidden.data);
    LAUNCHED();
    // Each step changes the first 4 MiB; others are stepped by name in between.
    size_t part = 4 * MIB / sizeof(u64);
    Line front = hidden.line;
    for (unsigned i = 0; i < 1000; ++i) {
        table_step<<<64, THREADS>>>(cell, part, MUL, i);
        LAUNCHED();
        front = after(front, MUL, i);
        if (i % 10 != 9) continue;
        Buffer &other = buffers[(i / 10 * 5) % COUNT];
        if (other.data != hidden.data) step(other, MUL, i);
    }
    see_range("through the address", hidden.data, 0, part, front);
    see_range("behind", hidden.data, part, hidden.count, hidden.line);
    for (const Buffer &buffer : buffers)
        if (buffer.data != hidden.data) see_buffer("others", buffer);
    drop(buffers);
    device_free(cell);
}

// Kernels that have no pointer among their parameters.
void globals(bool writes) {
    std::vector<Buffer> buffers = make_buffers(COUNT, total_bytes);
    std::vector<Buffer> pair = {buffers[5], buffers[COUNT - 3]};
    std::vector<u64> host = addresses(buffers), sums(COUNT + 2);
    CHECK(cudaMemcpyToSymbol(constant_table, host.data(), COUNT * sizeof(u64)));
    CHECK(cudaMemcpyToSymbol(copied_pointer, &pair[0].data, sizeof(u64 *)));
    set_made<<<1, 1>>>(pair[1].data);
    LAUNCHED();
    size_t count = buffers[0].count;
    for (unsigned round = 0; round < 4; ++round) {
        press(buffers, round * 11, COUNT / 2);
        if (writes) {
            constant_step<<<EACH, THREADS>>>(count, MUL, round);
            LAUNCHED();
            stepped(buffers, MUL, round);
            device_step<<<dim3(64, 2), THREADS>>>(count, MUL, round + 9);
            LAUNCHED();
            for (unsigned k : {5u, COUNT - 3}) buffers[k].line = after(buffers[k].line, MUL, round + 9);
            continue;
        }
        clear_sums<<<1, COUNT + 2>>>();
        constant_sum<<<EACH, THREADS>>>(count);
        device_sum<<<dim3(64, 2), THREADS>>>(count);
        LAUNCHED();
        CHECK(cudaMemcpyFromSymbol(sums.data(), global_sums, sums.size() * sizeof(u64)));
        for (unsigned k = 0; k < COUNT + 2; ++k) {
            const Buffer &buffer = buffers[k < COUNT ? k : k == COUNT ? 5 : COUNT - 3];
            see("through a global", sums[k], weighed(buffer.line, 0, count));
        }
    }
    see_all("at the end", buffers);
    drop(buffers);
}

}  // namespace

std::vector<Mode> pointer_modes() {
    return {{"table_copied_read", [] { table_copied(false); }},
            {"table_copied_write", [] { table_copied(true); }},
            {"table_built_read", [] { table_built(false); }},
            {"table_built_write", [] { table_built(true); }},
            {"table_own_read", [] { table_own(false); }},
            {"table_own_write", [] { table_own(true); }},
            {"table_after_trust", table_after_trust},
            {"list_read", [] { linked_list(false); }},
            {"list_write", [] { linked_list(true); }},
            {"own_address", own_address},
            {"globals_read", [] { globals(false); }},
            {"globals_write", [] { globals(true); }}};
}
