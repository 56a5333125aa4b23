// Adversarial modes: memory that kernels reach through textures and tensor maps.
#include <cstring>

#include "adversary.cuh"

namespace {

// A tensor map shows a buffer as rows of so many words; a tile is a part of 32 rows.
constexpr unsigned ROW = 1024, TILE = 32;
constexpr unsigned TILE_BYTES = TILE * TILE * sizeof(u64);
constexpr u64 MUL = 0x2545f4914f6cdd1dull;

struct Textures {
    cudaTextureObject_t of[COUNT];
};

__device__ u64 texture_part(cudaTextureObject_t texture, size_t count) {
    u64 sum = 0;
    for (size_t i = thread_number(); i < count; i += thread_count()) {
        uint2 word = tex1Dfetch<uint2>(texture, int(i));
        sum += (u64(word.y) << 32 | word.x) * (2 * i + 1);
    }
    return sum;
}

__global__ void texture_sum(u64 *sum, cudaTextureObject_t texture, size_t count) {
    atomicAdd(sum, texture_part(texture, count));
}

__global__ void textures_sum(u64 *sums, const __grid_constant__ Textures textures, size_t count) {
    atomicAdd(sums + blockIdx.y, texture_part(textures.of[blockIdx.y], count));
}

cudaTextureObject_t texture_of(const Buffer &buffer) {
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeLinear;
    resource.res.linear.devPtr = buffer.data;
    resource.res.linear.desc = cudaCreateChannelDesc<uint2>();
    resource.res.linear.sizeInBytes = buffer.count * sizeof(u64);
    cudaTextureDesc reading = {};
    reading.readMode = cudaReadModeElementType;
    cudaTextureObject_t texture;
    CHECK(cudaCreateTextureObject(&texture, &resource, &reading, nullptr));
    return texture;
}

void textures() {
    std::vector<Buffer> buffers = make_buffers(COUNT, total_bytes);
    u64 *sums = device_array<u64>(COUNT);
    Textures all;
    for (unsigned k = 0; k < COUNT; ++k) all.of[k] = texture_of(buffers[k]);
    size_t count = buffers[0].count;
    for (unsigned round = 0; round < 3; ++round) {
        press(buffers, round * 11, COUNT / 2);
        CHECK(cudaMemset(sums, 0, COUNT * sizeof *sums));
        textures_sum<<<dim3(64, COUNT), THREADS>>>(sums, all, count);
        LAUNCHED();
        see_sums("all at once", sums, buffers);
        CHECK(cudaMemset(sums, 0, COUNT * sizeof *sums));
        std::vector<Buffer> seen = buffers;
        for (unsigned k = 0; k < COUNT; ++k) {
            texture_sum<<<256, THREADS>>>(sums + k, all.of[k], count);
            LAUNCHED();
            seen[k].line = buffers[k].line;
            // Other pages go round while textures are read, and change afterwards only.
            press(buffers, k + 20, 1);
        }
        see_sums("one by one", sums, seen);
        // Other memory under a new texture.
        unsigned at = round * 17 + 3;
        CHECK(cudaDestroyTextureObject(all.of[at]));
        device_free(buffers[at].data);
        buffers[at] = make_buffer(count * sizeof(u64), line_of(800 + round));
        all.of[at] = texture_of(buffers[at]);
    }
    for (cudaTextureObject_t texture : all.of) CHECK(cudaDestroyTextureObject(texture));
    see_all("at the end", buffers);
    drop(buffers);
    device_free(sums);
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// Waits for `phase` of a barrier in shared memory.
__device__ void wait_for(unsigned barrier, unsigned phase) {
    unsigned done = 0;
    while (!done)
        asm volatile(
            "{\n\t.reg .pred p;\n\t"
            "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
            "selp.u32 %0, 1, 0, p;\n\t}"
            : "=r"(done)
            : "r"(barrier), "r"(phase)
            : "memory");
}

// One thread: orders the copy of a tile to shared memory.
__device__ void load_tile(unsigned tile, const CUtensorMap *map, unsigned x, unsigned y, unsigned barrier) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(TILE_BYTES)
                 : "memory");
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], "
        "[%4];" ::"r"(tile),
        "l"(map), "r"(x), "r"(y), "r"(barrier)
        : "memory");
}

// One thread: copies a tile back, and waits until it is written.
__device__ void store_tile(unsigned tile, const CUtensorMap *map, unsigned x, unsigned y) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map),
                 "r"(x), "r"(y), "r"(tile)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// All tiles of a buffer that only the map names: their weighed sum, or a step if there is no place for a sum.
__device__ void all_tiles(u64 *sum, const CUtensorMap *map, unsigned rows, u64 mul, u64 add) {
    __shared__ alignas(128) u64 tile[TILE * TILE];
    __shared__ alignas(8) u64 barrier;
    unsigned tile_at = unsigned(__cvta_generic_to_shared(tile));
    unsigned barrier_at = unsigned(__cvta_generic_to_shared(&barrier));
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier_at) : "memory");
        asm volatile("fence.proxy.async;" ::: "memory");
    }
    __syncthreads();
    u64 mine = 0;
    unsigned phase = 0, across = ROW / TILE, tiles = rows / TILE * across;
    for (unsigned at = blockIdx.x; at < tiles; at += gridDim.x, phase ^= 1) {
        unsigned x = at % across * TILE, y = at / across * TILE;
        if (threadIdx.x == 0) load_tile(tile_at, map, x, y, barrier_at);
        wait_for(barrier_at, phase);
        for (unsigned i = threadIdx.x; i < TILE * TILE; i += blockDim.x) {
            u64 place = u64(y + i / TILE) * ROW + x + i % TILE;
            if (sum)
                mine += tile[i] * (2 * place + 1);
            else
                tile[i] = tile[i] * mul + add;
        }
        // What was written here must be seen by the copy, and the copy be over before the next one.
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        if (!sum && threadIdx.x == 0) store_tile(tile_at, map, x, y);
        __syncthreads();
    }
    if (sum) atomicAdd(sum, mine);
}

#else
__device__ void all_tiles(u64 *, const CUtensorMap *, unsigned, u64, u64) {}
#endif

__global__ void map_tiles(u64 *sum, const __grid_constant__ CUtensorMap map, unsigned rows, u64 mul,
                          u64 add) {
    all_tiles(sum, &map, rows, mul, add);
}

// The map lies in device memory.
__global__ void stored_map_tiles(u64 *sum, const CUtensorMap *map, unsigned rows, u64 mul, u64 add) {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.tensormap::generic.acquire.sys [%0], 128;" ::"l"(map) : "memory");
#endif
    all_tiles(sum, map, rows, mul, add);
}

using Encode = CUresult (*)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                            const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
                            CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

CUtensorMap map_of(Encode encode, const Buffer &buffer) {
    alignas(64) CUtensorMap map;
    const cuuint64_t sizes[] = {ROW, buffer.count / ROW}, strides[] = {ROW * sizeof(u64)};
    const cuuint32_t box[] = {TILE, TILE}, steps[] = {1, 1};
    DRIVER(encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT64, 2, buffer.data, sizes, strides, box, steps,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
    return map;
}

bool has_tensor_maps() {
    int device, major;
    CHECK(cudaGetDevice(&device));
    CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    if (major < 9) std::printf("SKIP tensor maps: this GPU has none\n");
    return major >= 9;
}

void tensor_maps(bool writes, bool stored) {
    if (!has_tensor_maps()) return;
    auto encode = (Encode)driver_function("cuTensorMapEncodeTiled");
    std::vector<Buffer> buffers = make_buffers(COUNT, total_bytes);
    std::vector<CUtensorMap> maps;
    for (const Buffer &buffer : buffers) maps.push_back(map_of(encode, buffer));
    // Large enough to be pooled memory itself.
    CUtensorMap *on_device = (CUtensorMap *)device_alloc(4 * MIB);
    CHECK(cudaMemcpy(on_device, maps.data(), COUNT * sizeof(CUtensorMap), cudaMemcpyHostToDevice));
    u64 *sums = device_array<u64>(COUNT);
    unsigned rows = unsigned(buffers[0].count / ROW);
    for (unsigned round = 0; round < 3; ++round) {
        CHECK(cudaMemset(sums, 0, COUNT * sizeof *sums));
        std::vector<Buffer> seen = buffers;
        for (unsigned k = 0; k < COUNT; ++k) {
            u64 *sum = writes ? nullptr : sums + k;
            if (stored)
                stored_map_tiles<<<BLOCKS, THREADS>>>(sum, on_device + k, rows, MUL, k);
            else
                map_tiles<<<BLOCKS, THREADS>>>(sum, maps[k], rows, MUL, k);
            LAUNCHED();
            seen[k].line = buffers[k].line;
            if (writes) buffers[k].line = after(buffers[k].line, MUL, k);
            press(buffers, k + 20, 1);
        }
        if (!writes) see_sums("through the map", sums, seen);
        press(buffers, round * 11, COUNT / 2);
    }
    see_all("at the end", buffers);
    drop(buffers);
    device_free(on_device);
    device_free(sums);
}

}  // namespace

std::vector<Mode> view_modes() {
    return {{"textures", textures},
            {"tensor_maps_read", [] { tensor_maps(false, false); }},
            {"tensor_maps_write", [] { tensor_maps(true, false); }},
            {"stored_maps_read", [] { tensor_maps(false, true); }},
            {"stored_maps_write", [] { tensor_maps(true, true); }}};
}
