// Where a tensor map keeps the address it was made for: `figure word N` if 8-byte word N is the address itself.
// Whoever looks for addresses in parameters and in memory finds it there.
#include <cuda.h>
#include <cuda_runtime.h>
#include <cstdio>
#include <cstring>

int main() {
    void *memory = nullptr, *entry = nullptr;
    cudaDriverEntryPointQueryResult found;
    if (cudaMalloc(&memory, 64 << 20) || cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &entry, 0, &found)) return 6;
    auto encode = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(entry);
    CUtensorMap map;
    cuuint64_t sizes[] = {1024, 1024}, strides[] = {4096};
    cuuint32_t box[] = {32, 32}, steps[] = {1, 1};
    char *inside = static_cast<char *>(memory) + (3 << 20);
    CUresult rc = encode(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, inside, sizes, strides, box, steps,
                         CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                         CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (rc) return 6;
    for (size_t word = 0; word < sizeof map / 8; word++) {
        unsigned long long value;
        memcpy(&value, reinterpret_cast<char *>(&map) + 8 * word, 8);
        if (value == reinterpret_cast<unsigned long long>(inside)) printf("figure word %zu\n", word);
    }
    printf("result encoded\n");
    return 0;
}
