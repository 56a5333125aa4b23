// What cuMemMap, cuMemSetAccess and cuMemUnmap of a device page of 32 MiB take while copies are under way, what pinning
// such a page takes, what one call for several pages takes, whether copies of another context count, and what a launch
// takes while another thread calls the driver. Without the library.
//
//     grants      medians, in microseconds
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

#define CHECK(call)                                                                        \
    do {                                                                                   \
        if (int code = (int)(call)) {                                                      \
            std::fprintf(stderr, "line %d: %s: %d\n", __LINE__, #call, code);              \
            std::exit(1);                                                                  \
        }                                                                                  \
    } while (0)

static const size_t PAGE = 32 << 20, PAGES = 16, ALL = PAGES * PAGE;

static double now() {
    auto time = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double, std::micro>(time).count();
}
static double median(std::vector<double> v) {
    std::sort(v.begin(), v.end());
    return v[v.size() / 2];
}

__global__ void copy(uint4 *to, const uint4 *from, size_t n) {
    size_t stride = size_t(gridDim.x) * blockDim.x, i = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
    for (; i + 3 * stride < n; i += 4 * stride) {
        uint4 a = __ldcs(from + i), b = __ldcs(from + i + stride);
        uint4 c = __ldcs(from + i + 2 * stride), d = __ldcs(from + i + 3 * stride);
        __stcs(to + i, a), __stcs(to + i + stride, b);
        __stcs(to + i + 2 * stride, c), __stcs(to + i + 3 * stride, d);
    }
    for (; i < n; i += stride) to[i] = from[i];
}

static CUmemGenericAllocationHandle page(bool host) {
    CUmemAllocationProp prop = {};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = host ? CU_MEM_LOCATION_TYPE_HOST_NUMA : CU_MEM_LOCATION_TYPE_DEVICE;
    CUmemGenericAllocationHandle handle;
    CHECK(cuMemCreate(&handle, PAGE, &prop, 0));
    return handle;
}
static void grant(CUdeviceptr at, size_t bytes) {
    CUmemAccessDesc access = {};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    CHECK(cuMemSetAccess(at, bytes, &access, 1));
}

static CUcontext another_context() {
    CUcontext context;
#if CUDA_VERSION >= 13000
    CHECK(cuCtxCreate(&context, nullptr, 0, 0));
#else
    CHECK(cuCtxCreate(&context, 0, 0));
#endif
    return context;
}

// Neighbours that are mapped one by one: access by one call, and the unmapping of all by one.
static void runs(CUdeviceptr at) {
    for (size_t count : {size_t(1), size_t(4), PAGES}) {
        std::vector<double> maps, grants, unmaps;
        std::vector<CUmemGenericAllocationHandle> handles;
        for (size_t i = 0; i < count; i++) handles.push_back(page(false));
        for (int round = 0; round < 12; round++) {
            double begin = now();
            for (size_t i = 0; i < count; i++) CHECK(cuMemMap(at + i * PAGE, PAGE, 0, handles[i], 0));
            double mapped = now();
            grant(at, count * PAGE);
            double granted = now();
            CHECK(cuMemUnmap(at, count * PAGE));
            maps.push_back(mapped - begin), grants.push_back(granted - mapped), unmaps.push_back(now() - granted);
        }
        std::printf("figure run_%zu_map_us %.0f\nfigure run_%zu_grant_us %.0f\nfigure run_%zu_unmap_us %.0f\n", count,
                    median(maps), count, median(grants), count, median(unmaps));
        for (auto handle : handles) CHECK(cuMemRelease(handle));
    }
}

int main() {
    CHECK(cuInit(0));
    CHECK(cudaFree(nullptr));
    CUdeviceptr base;
    CHECK(cuMemAddressReserve(&base, 5 * ALL, PAGE, 0, 0));
    CUdeviceptr device = base, second = base + ALL, host = base + 2 * ALL, from = base + 3 * ALL, at = base + 4 * ALL;
    std::vector<double> pinned;
    for (auto range : {device, second, host, from}) {
        bool is_host = range == host || range == from;
        for (size_t i = 0; i < PAGES; i++) {
            double begin = now();
            auto handle = page(is_host);
            if (is_host) pinned.push_back(now() - begin);
            CHECK(cuMemMap(range + i * PAGE, PAGE, 0, handle, 0));
        }
        grant(range, ALL);
    }
    std::printf("figure create_host_us %.0f\n", median(pinned));
    cudaStream_t out, in;
    CHECK(cudaStreamCreateWithFlags(&out, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&in, cudaStreamNonBlocking));
    auto engine = [&](CUdeviceptr to, CUdeviceptr of, cudaStream_t on) {
        for (size_t i = 0; i < PAGES; i++) CHECK(cuMemcpyDtoDAsync(to + i * PAGE, of + i * PAGE, PAGE, on));
    };
    auto kernel = [&](int blocks, int threads) {
        copy<<<blocks, threads, 0, out>>>((uint4 *)host, (const uint4 *)device, ALL / 16);
    };
    CUcontext own;
    CHECK(cuCtxGetCurrent(&own));
    CUcontext context = another_context();
    CUstream beyond;
    CHECK(cuStreamCreate(&beyond, CU_STREAM_NON_BLOCKING));
    CHECK(cuCtxSetCurrent(own));
    auto in_other_context = [&](std::function<void()> work) {
        CHECK(cuCtxSetCurrent(context));
        work();
        CHECK(cuCtxSetCurrent(own));
    };
    auto handle = page(false);
    auto measure = [&](const char *name, std::function<void()> start) {
        std::vector<double> grants, unmaps;
        for (int round = 0; round < 24; round++) {
            start();
            std::this_thread::sleep_for(std::chrono::microseconds(700 + 37 * round));
            CHECK(cuMemMap(at, PAGE, 0, handle, 0));
            double begin = now();
            grant(at, PAGE);
            double granted = now();
            CHECK(cuMemUnmap(at, PAGE));
            grants.push_back(granted - begin), unmaps.push_back(now() - granted);
            CHECK(cudaDeviceSynchronize());
            in_other_context([&] { CHECK(cuStreamSynchronize(beyond)); });
        }
        std::printf("figure %s_grant_us %.0f\nfigure %s_unmap_us %.0f\n", name, median(grants), name, median(unmaps));
    };
    measure("idle", [] {});
    measure("engine_in", [&] { engine(second, from, in); });
    measure("engine_out", [&] { engine(host, device, out); });
    measure("other_context_out", [&] { in_other_context([&] { engine(host, device, beyond); }); });
    runs(at);
    for (auto [blocks, threads] : {std::pair<int, int>{1, 1024}, {2, 512}, {16, 512}}) {
        cudaEvent_t begin, end;
        float ms;
        CHECK(cudaEventCreate(&begin));
        CHECK(cudaEventCreate(&end));
        CHECK(cudaEventRecord(begin, out));
        kernel(blocks, threads);
        CHECK(cudaEventRecord(end, out));
        CHECK(cudaDeviceSynchronize());
        CHECK(cudaEventElapsedTime(&ms, begin, end));
        char name[40];
        std::snprintf(name, sizeof name, "kernel_%dx%d", blocks, threads);
        std::printf("figure %s_gb_per_s %.1f\n", name, ALL / ms / 1e6);
        measure(name, [&, blocks = blocks, threads = threads] { kernel(blocks, threads); });
    }
    const char *beside[] = {"nothing", "mapping", "pinning", "queries"};
    for (int what = 0; what < 4; what++) {
        std::atomic<bool> stop{false};
        std::thread other([&] {
            CHECK(cudaSetDevice(0));
            while (!stop) {
                if (what == 1) {
                    CHECK(cuMemMap(at, PAGE, 0, handle, 0));
                    grant(at, PAGE);
                    CHECK(cuMemUnmap(at, PAGE));
                } else if (what == 2) {
                    CHECK(cuMemRelease(page(true)));
                } else if (what == 3) {
                    cudaStreamQuery(in);
                } else {
                    std::this_thread::sleep_for(std::chrono::microseconds(50));
                }
            }
        });
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        const int count = 2000;
        double begin = now();
        for (int i = 0; i < count; i++) copy<<<1, 32, 0, in>>>((uint4 *)second, (const uint4 *)device, 32);
        double each = (now() - begin) / count;
        stop = true;
        other.join();
        CHECK(cudaDeviceSynchronize());
        std::printf("figure launch_beside_%s_us %.2f\n", beside[what], each);
    }
    std::printf("wrong 0\n");
}
