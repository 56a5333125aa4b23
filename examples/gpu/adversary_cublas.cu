// cuBLAS with arrays of pointers in device memory, over more memory than the limit.
//
//     adversary_cublas MODE|all|list [GiB in all]
//
// The matrices hold small whole numbers in a pattern of period 16, so each product is exact and known.
//
//     nvcc -O2 -std=c++17 -arch=native -o adversary_cublas adversary_cublas.cu adversary_common.cu -lcublas
#include <cublas_v2.h>

#include <algorithm>

#include "adversary.cuh"

namespace {

// Side of a matrix, words of one, and products of one call.
constexpr unsigned SIDE = 1024, PERIOD = 16, BATCH = 64;
constexpr size_t MATRIX = size_t(SIDE) * SIDE;

#define CUBLAS(call)                                                                            \
    do {                                                                                        \
        cublasStatus_t code = (call);                                                           \
        if (code != CUBLAS_STATUS_SUCCESS) driver_failed(__FILE__, __LINE__, #call, int(code)); \
    } while (0)

// A left matrix, a right one and a result, by columns: (row + column + s) % 16 and (row + 3 * column + t)
// % 16.
struct Group {
    float *data;
    unsigned s, t;
};

__global__ void fill_group(float *data, unsigned s, unsigned t) {
    for (size_t i = thread_number(); i < MATRIX; i += thread_count()) {
        unsigned row = unsigned(i % SIDE), column = unsigned(i / SIDE);
        data[i] = float((row + column + s) % PERIOD);
        data[MATRIX + i] = float((row + 3 * column + t) % PERIOD);
        data[2 * MATRIX + i] = -1;
    }
}

__global__ void sum_result(u64 *sum, const float *data) {
    u64 mine = 0;
    for (size_t i = thread_number(); i < MATRIX; i += thread_count())
        mine += u64((long long)data[i]) * (2 * i + 1);
    atomicAdd(sum, mine);
}

void fill_all(std::vector<Group> &groups, unsigned round) {
    for (unsigned k = 0; k < groups.size(); ++k) {
        groups[k].s = (k + 5 * round) % PERIOD;
        groups[k].t = (k / PERIOD + 3 * round) % PERIOD;
        fill_group<<<BLOCKS, THREADS>>>(groups[k].data, groups[k].s, groups[k].t);
        LAUNCHED();
    }
}

// Weighed sums of a result's places, by the remainders of row and column.
std::vector<u64> place_sums() {
    std::vector<u64> sums(PERIOD * PERIOD, 0);
    for (size_t i = 0; i < MATRIX; ++i) sums[i % SIDE % PERIOD * PERIOD + i / SIDE % PERIOD] += 2 * i + 1;
    return sums;
}

u64 expected_sum(const std::vector<u64> &places, unsigned s, unsigned t) {
    u64 sum = 0;
    for (unsigned row = 0; row < PERIOD; ++row)
        for (unsigned column = 0; column < PERIOD; ++column) {
            u64 value = 0;
            for (unsigned k = 0; k < PERIOD; ++k)
                value += (row + k + s) % PERIOD * ((k + 3 * column + t) % PERIOD);
            sum += value * (SIDE / PERIOD) * places[row * PERIOD + column];
        }
    return sum;
}

enum class Form { plain, batched, grouped };

// The products `from` to `from` + BATCH; their addresses lie in the three parts of `tables`.
void multiply(cublasHandle_t handle, Form form, float **const *tables, float *const *host, unsigned from,
              unsigned batch, unsigned all) {
    const float one = 1, zero = 0;
    const int side = SIDE, group = int(batch);
    const cublasOperation_t no = CUBLAS_OP_N;
    float **a = tables[0] + from, **b = tables[1] + from, **c = tables[2] + from;
    if (form == Form::batched)
        CUBLAS(cublasSgemmBatched(handle, no, no, side, side, side, &one, a, side, b, side, &zero, c, side,
                                  group));
    else if (form == Form::grouped)
        CUBLAS(cublasSgemmGroupedBatched(handle, &no, &no, &side, &side, &side, &one, a, &side, b, &side,
                                         &zero, c, &side, 1, &group));
    else
        for (unsigned k = from; k < from + batch; ++k)
            CUBLAS(cublasSgemm(handle, no, no, side, side, side, &one, host[k], side, host[all + k], side,
                               &zero, host[2 * all + k], side));
}

void products(Form form) {
    cublasHandle_t handle;
    CUBLAS(cublasCreate(&handle));
    const unsigned all = unsigned(total_bytes / (3 * MATRIX * sizeof(float)));
    std::vector<Group> groups(all);
    for (Group &group : groups) group.data = device_array<float>(3 * MATRIX);
    float **table = device_array<float *>(MIB);
    float **const tables[] = {table, table + all, table + 2 * all};
    u64 *sums = device_array<u64>(all);
    std::vector<u64> places = place_sums(), got(all);
    for (unsigned round = 0; round < 2; ++round) {
        fill_all(groups, round);
        std::vector<float *> host(3 * all);
        for (unsigned k = 0; k < all; ++k) {
            host[k] = groups[k].data;
            host[all + k] = groups[(k + 7 + round) % all].data + MATRIX;
            host[2 * all + k] = groups[(k + 13) % all].data + 2 * MATRIX;
        }
        CHECK(cudaMemcpy(table, host.data(), host.size() * sizeof(float *), cudaMemcpyHostToDevice));
        CHECK(cudaMemset(sums, 0, all * sizeof *sums));
        for (unsigned from = 0; from < all; from += BATCH)
            multiply(handle, form, tables, host.data(), from, std::min(BATCH, all - from), all);
        // By name: pages go round.
        for (unsigned k = 0; k < all; ++k) {
            sum_result<<<BLOCKS, THREADS>>>(sums + k, host[2 * all + k]);
            LAUNCHED();
        }
        CHECK(cudaMemcpy(got.data(), sums, all * sizeof(u64), cudaMemcpyDeviceToHost));
        for (unsigned k = 0; k < all; ++k)
            see("a product", got[k], expected_sum(places, groups[k].s, groups[(k + 7 + round) % all].t));
    }
    CUBLAS(cublasDestroy(handle));
    for (Group &group : groups) device_free(group.data);
    device_free(table);
    device_free(sums);
}

}  // namespace

int main(int argc, char **argv) {
    return run_modes(argc, argv,
                     {{"sgemm", [] { products(Form::plain); }},
                      {"sgemm_batched", [] { products(Form::batched); }},
                      {"sgemm_grouped", [] { products(Form::grouped); }}});
}
