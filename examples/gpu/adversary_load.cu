// Adversarial modes: pressure in every shape. One buffer that holds everything, operands that do not fit
// together, allocations under way, very many small ones beside huge ones, hardly more than fits.
#include "adversary.cuh"

namespace {

constexpr u64 MUL = 0x5851f42d4c957f2dull;

// Numbers that look random, the same in each run.
struct Chance {
    u64 state;
    u64 below(u64 n) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        return (state >> 33) % n;
    }
};

// y += x * k: both stay on lines.
__global__ void add_kernel(u64 *y, const u64 *x, size_t count, u64 k) {
    for (size_t i = thread_number(); i < count; i += thread_count()) y[i] += x[i] * k;
}

void add(Buffer &y, const Buffer &x, u64 k) {
    add_kernel<<<BLOCKS, THREADS>>>(y.data, x.data, y.count, k);
    LAUNCHED();
    y.line = {y.line.a + x.line.a * k, y.line.b + x.line.b * k};
}

// All memory is one allocation; its tensors are known by addresses in it alone.
void one_buffer() {
    constexpr unsigned TENSORS = 60;
    // Not a multiple of any size of page.
    size_t each = total_bytes / TENSORS / 4096 * 4096 - 4096;
    u64 *all = (u64 *)device_alloc(total_bytes);
    std::vector<Buffer> tensors;
    for (unsigned k = 0; k < TENSORS; ++k) {
        tensors.push_back({all + each / 8 * k, each / 8, {}});
        fill(tensors[k], line_of(k));
    }
    Chance chance{1};
    for (unsigned round = 0; round < 2; ++round) {
        for (unsigned k = 0; k + 1 < TENSORS; ++k) add(tensors[k + 1], tensors[k], 2 * k + 3);
        for (unsigned k = 0; k < 20; ++k) {
            unsigned y = unsigned(chance.below(TENSORS)), x = unsigned(chance.below(TENSORS));
            if (x == y) step(tensors[y], MUL, k);
            else add(tensors[y], tensors[x], k + 1);
        }
        // Others come and go, and parts of the buffer make room for them.
        std::vector<Buffer> others = make_buffers(8, total_bytes / 16, 700 + round);
        add(others[round], tensors[round * 31], 5);
        see_all("others", others);
        drop(others);
    }
    see_all("tensors", tensors);
    device_free(all);
}

// Operands of one launch that are together more than the limit: each is a quarter of three times as much.
void huge_operands() {
    Buffer a = make_buffer(total_bytes / 4, line_of(1)), b = make_buffer(total_bytes / 4, line_of(2));
    Buffer all = make_buffer(total_bytes * 3 / 8, line_of(3)); // more than the limit on its own
    Ballast ballast(total_bytes / 8);
    for (unsigned round = 0; round < 4; ++round) {
        add(a, b, round + 2);
        ballast.use(5);
        step(all, MUL, round);
        add(b, all, 3);
        ballast.use(3);
        see_buffer("the larger one", all);
    }
    see_buffer("one", a);
    see_buffer("other", b);
    ballast.end();
    for (Buffer *buffer : {&a, &b, &all}) device_free(buffer->data);
}

// Allocations of all sizes come and go while pages move.
void allocations() {
    constexpr unsigned SLOTS = 24;
    Ballast ballast(total_bytes * 2 / 3);
    std::vector<Buffer> held(SLOTS, Buffer{});
    Chance chance{2};
    for (unsigned round = 0; round < 300; ++round) {
        Buffer &slot = held[chance.below(SLOTS)];
        if (slot.data) {
            if (round % 4 == 0) see_buffer("freed", slot);
            device_free(slot.data);
        }
        u64 kind = chance.below(8), most = kind < 3 ? MIB : kind < 7 ? 32 * MIB : total_bytes / 32;
        slot = make_buffer(4096 + 256 * chance.below(most / 256), line_of(5000 + round));
        step(slot, MUL, round);
        ballast.use(1);
        device_free(device_alloc(2 * MIB + 4096 * chance.below(4096)));
    }
    for (Buffer &slot : held) {
        if (!slot.data) continue;
        see_buffer("kept", slot);
        device_free(slot.data);
    }
    ballast.end();
}

// Thousands of allocations about the least size that is pooled, beside two huge ones.
void many_sizes() {
    Buffer huge[2] = {make_buffer(total_bytes / 4, line_of(1)), make_buffer(total_bytes / 4, line_of(2))};
    std::vector<Buffer> small;
    Chance chance{3};
    for (unsigned k = 0; k < 1500; ++k)
        small.push_back(make_buffer(256 * (1 + chance.below(4096)), line_of(10 + k)));
    for (size_t left = total_bytes / 2; left > 4 * MIB; left -= 2 * MIB) {
        size_t bytes = chance.below(4) ? 2 * MIB : MIB + 4096 * chance.below(512);
        small.push_back(make_buffer(bytes, line_of(3000 + small.size())));
        if (small.size() == 3000) break;
    }
    CHECK(cudaDeviceSynchronize());
    for (unsigned round = 0; round < 4; ++round) {
        for (unsigned k = 0; k < 700; ++k) step(small[chance.below(small.size())], MUL, k);
        step(huge[round % 2], MUL, round);
        add(huge[0], huge[1], 7);
    }
    see_all("small", small);
    for (Buffer &buffer : huge) {
        see_buffer("huge", buffer);
        device_free(buffer.data);
    }
    drop(small);
}

// In a circle and at random; made for a limit of hardly less than all memory.
void just_over() {
    std::vector<Buffer> buffers = make_buffers(COUNT, total_bytes);
    Chance chance{4};
    for (unsigned round = 0; round < 20; ++round) {
        press(buffers, 0, COUNT);
        for (unsigned k = 0; k < 10; ++k) press(buffers, unsigned(chance.below(COUNT)), 1);
    }
    see_all("buffers", buffers);
    drop(buffers);
}

} // namespace

std::vector<Mode> load_modes() {
    return {{"one_buffer", one_buffer},
            {"huge_operands", huge_operands},
            {"allocations", allocations},
            {"many_sizes", many_sizes},
            {"just_over", just_over}};
}
