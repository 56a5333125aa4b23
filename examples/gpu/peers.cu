// Copies between two GPUs in every form, and kernels of one GPU on the other's memory, with peer access off, on,
// off and on again.
//
//     peers [MIB per buffer]
//
// Sums are of integers: exact. The codes of calls that fail on purpose are results too.
#include <cuda.h>

#include <chrono>

#include "common.cuh"

#define DRIVER(call)                                                                     \
    do {                                                                                 \
        CUresult code = (call);                                                          \
        if (code != CUDA_SUCCESS) {                                                      \
            std::fprintf(stderr, "line %d: %s answers %d\n", __LINE__, #call, int(code)); \
            std::exit(1);                                                                \
        }                                                                                \
    } while (0)

__global__ void fill(unsigned *out, size_t count, unsigned seed) {
    size_t stride = size_t(gridDim.x) * blockDim.x;
    for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride)
        out[i] = unsigned(i) * 2654435761u + seed;
}

__global__ void add(unsigned *out, const unsigned *in, size_t count) {
    size_t stride = size_t(gridDim.x) * blockDim.x;
    for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) out[i] += in[i];
}

__global__ void sum(unsigned long long *out, const unsigned *in, size_t count) {
    size_t stride = size_t(gridDim.x) * blockDim.x;
    unsigned long long mine = 0;
    for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) mine += in[i] ^ unsigned(i);
    atomicAdd(out, mine);
}

struct Gpu {
    CUcontext context;
    cudaStream_t stream;
    cudaEvent_t event;
    unsigned *data, *late;
};

static Gpu gpus[2];
static size_t bytes, count;

// The sum of a buffer, by the GPU that owns it.
static void say(const char *form, int gpu, const unsigned *data) {
    unsigned long long *out, host;
    CHECK(cudaSetDevice(gpu));
    CHECK(cudaMalloc(&out, sizeof host));
    CHECK(cudaMemset(out, 0, sizeof host));
    sum<<<512, 256>>>(out, data, count);
    CHECK(cudaMemcpy(&host, out, sizeof host, cudaMemcpyDeviceToHost));
    CHECK(cudaFree(out));
    std::printf("result %s gpu%d %llu\n", form, gpu, host);
}

// New contents on the sender, zeros on the receiver.
static void ready(int from, int to, unsigned seed) {
    CHECK(cudaSetDevice(to));
    CHECK(cudaMemset(gpus[to].data, 0, bytes));
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaSetDevice(from));
    fill<<<512, 256>>>(gpus[from].data, count, seed);
    CHECK(cudaDeviceSynchronize());
}

static void copies(int from, int to, unsigned seed, bool access) {
    unsigned *in = gpus[from].data, *out = gpus[to].data;
    size_t odd = (size_t(5) << 20) + 12;
    ready(from, to, seed);
    CHECK(cudaMemcpyPeer(out, to, in, from, bytes));
    say("memcpy_peer", to, out);
    ready(from, to, seed + 1);
    CHECK(cudaMemcpyPeerAsync((char *)out + odd, to, (char *)in + odd + 4, from, bytes - odd - 4, gpus[from].stream));
    // The receiver's stream goes on when the sender's has copied.
    CHECK(cudaEventRecord(gpus[from].event, gpus[from].stream));
    CHECK(cudaSetDevice(to));
    CHECK(cudaStreamWaitEvent(gpus[to].stream, gpus[from].event, 0));
    add<<<512, 256, 0, gpus[to].stream>>>(out, out, count);
    CHECK(cudaStreamSynchronize(gpus[to].stream));
    say("memcpy_peer_async", to, out);
    ready(from, to, seed + 2);
    DRIVER(cuMemcpyPeer((CUdeviceptr)out, gpus[to].context, (CUdeviceptr)in + 4, gpus[from].context, bytes - 4));
    say("driver_peer", to, out);
    ready(from, to, seed + 3);
    DRIVER(cuMemcpyPeerAsync((CUdeviceptr)out, gpus[to].context, (CUdeviceptr)in, gpus[from].context, bytes / 2,
                             gpus[from].stream));
    CHECK(cudaStreamSynchronize(gpus[from].stream));
    say("driver_peer_async", to, out);
    ready(from, to, seed + 4);
    CHECK(cudaMemcpy(out, in, bytes, cudaMemcpyDefault));
    CHECK(cudaDeviceSynchronize());
    say("memcpy_default", to, out);
    ready(from, to, seed + 5);
    CHECK(cudaSetDevice(to));
    CHECK(cudaMemcpyAsync(out, in, bytes - 4, cudaMemcpyDeviceToDevice, gpus[to].stream));
    CHECK(cudaStreamSynchronize(gpus[to].stream));
    say("memcpy_async_receiver", to, out);
    if (!access) return;  // the next form is not promised then
    ready(from, to, seed + 6);
    CHECK(cudaMemcpy2DAsync(out, 4096, in, 8192, 4000, bytes / 8192, cudaMemcpyDeviceToDevice, gpus[from].stream));
    CHECK(cudaStreamSynchronize(gpus[from].stream));
    say("memcpy_2d", to, out);
}

static void boxes(int from, int to, unsigned seed) {
    const size_t pitch = 4096, height = 64, depth = bytes / pitch / height;
    cudaMemcpy3DPeerParms box = {};
    ready(from, to, seed);
    box.srcDevice = from;
    box.dstDevice = to;
    box.srcPtr = make_cudaPitchedPtr(gpus[from].data, pitch, pitch, height);
    box.dstPtr = make_cudaPitchedPtr(gpus[to].data, pitch, pitch, height);
    box.srcPos = make_cudaPos(64, 3, 1);
    box.dstPos = make_cudaPos(128, 5, 2);
    box.extent = make_cudaExtent(3000, 50, depth - 4);
    CHECK(cudaMemcpy3DPeer(&box));
    CHECK(cudaDeviceSynchronize());
    say("memcpy_3d_peer", to, gpus[to].data);
    ready(from, to, seed + 1);
    CHECK(cudaMemcpy3DPeerAsync(&box, gpus[from].stream));
    CHECK(cudaStreamSynchronize(gpus[from].stream));
    say("memcpy_3d_peer_async", to, gpus[to].data);
}

// Kernels of `gpu` read and write memory of `other`, allocated before and after access was enabled.
static void kernels(int gpu, int other, unsigned seed) {
    ready(other, gpu, seed);
    CHECK(cudaSetDevice(other));
    CHECK(cudaMalloc(&gpus[other].late, bytes));
    fill<<<512, 256>>>(gpus[other].late, count, seed + 1);
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaSetDevice(gpu));
    add<<<512, 256>>>(gpus[gpu].data, gpus[other].data, count);
    add<<<512, 256>>>(gpus[gpu].data, gpus[other].late, count);
    CHECK(cudaDeviceSynchronize());
    say("kernel_reads_peer", gpu, gpus[gpu].data);
    CHECK(cudaSetDevice(gpu));
    fill<<<512, 256>>>(gpus[other].late, count / 2, seed + 2);
    CHECK(cudaDeviceSynchronize());
    say("kernel_wrote_peer", other, gpus[other].late);
    CHECK(cudaFree(gpus[other].late));
}

static void peer_access(bool on) {
    for (int gpu : {0, 1}) {
        CHECK(cudaSetDevice(gpu));
        CHECK(on ? cudaDeviceEnablePeerAccess(1 - gpu, 0) : cudaDeviceDisablePeerAccess(1 - gpu));
        // A second time is an error, of a code of its own.
        cudaError_t again = on ? cudaDeviceEnablePeerAccess(1 - gpu, 0) : cudaDeviceDisablePeerAccess(1 - gpu);
        std::printf("result again%d %d\n", int(on), int(again));
        cudaGetLastError();
    }
}

static void speed() {
    const int rounds = 20;
    CHECK(cudaSetDevice(0));
    CHECK(cudaMemcpyPeerAsync(gpus[1].data, 1, gpus[0].data, 0, bytes, gpus[0].stream));
    CHECK(cudaStreamSynchronize(gpus[0].stream));
    auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < rounds; ++i)
        CHECK(cudaMemcpyPeerAsync(gpus[1].data, 1, gpus[0].data, 0, bytes, gpus[0].stream));
    CHECK(cudaStreamSynchronize(gpus[0].stream));
    double spent = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    std::printf("figure peer_copy_gb_per_s %.1f\n", double(bytes) * rounds / spent / 1e9);
    std::printf("time %.3f\n", spent / rounds * 1e3);
}

int main(int argc, char **argv) {
    bytes = size_t(argc > 1 ? std::atoi(argv[1]) : 256) << 20;
    count = bytes / 4;
    for (int gpu : {0, 1}) {
        int can = 0;
        CHECK(cudaSetDevice(gpu));
        CHECK(cudaDeviceCanAccessPeer(&can, gpu, 1 - gpu));
        std::printf("result can%d %d\n", gpu, can);
        CHECK(cudaStreamCreateWithFlags(&gpus[gpu].stream, cudaStreamNonBlocking));
        CHECK(cudaEventCreateWithFlags(&gpus[gpu].event, cudaEventDisableTiming));
        CHECK(cudaMalloc(&gpus[gpu].data, bytes));
        DRIVER(cuCtxGetCurrent(&gpus[gpu].context));
    }
    for (unsigned round = 0; round < 4; ++round) {
        bool on = round % 2 == 1;
        if (round > 0) peer_access(on);
        for (int from : {0, 1}) {
            copies(from, 1 - from, round * 100 + from * 50, on);
            boxes(from, 1 - from, round * 100 + from * 50 + 20);
            if (on) kernels(1 - from, from, round * 100 + from * 50 + 30);
        }
    }
    speed();
    for (int gpu : {0, 1}) say_places(gpus[gpu].data, bytes);
    std::printf("bytes %llu\n", 3ull * bytes);
    return 0;
}
