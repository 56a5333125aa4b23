// The kernels of the conformance programs for hardware: names and parameters as the simulator's registry has them.
// Build: nvcc -cubin -arch=sm_90 -fmad=false (sums must round as on a CPU).
typedef unsigned u32;
typedef unsigned long long u64;

#define FIRST (blockIdx.x == 0 && threadIdx.x == 0)
#define EACH(i, n)                                                                                  \
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < (n); i += (u64)gridDim.x * blockDim.x)

struct Four { float *out, *a, *b; u64 n; };

__device__ u64 sim_global_u64;

// Waits on the card's own clock, which counts nanoseconds.
__device__ void pass(u64 us) {
    u64 start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do {
        __nanosleep(1000);
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while (now - start < us * 1000);
}

extern "C" {
__global__ void fill_u32(u32 *out, u32 value, u64 n) { EACH(i, n) out[i] = value; }
__global__ void fill_f32(float *out, float value, u64 n) { EACH(i, n) out[i] = value; }
__global__ void copy_f32(float *to, const float *from, u64 n) { EACH(i, n) to[i] = from[i]; }
__global__ void copy_bytes(unsigned char *to, const unsigned char *from, u64 n) { EACH(i, n) to[i] = from[i]; }
__global__ void add_f32(float *out, const float *a, const float *b, u64 n) { EACH(i, n) out[i] = a[i] + b[i]; }
__global__ void axpy_f32(float *y, const float *x, float a, u64 n) { EACH(i, n) y[i] = y[i] + a * x[i]; }
__global__ void scale_f32(float *y, float a, u64 n) { EACH(i, n) y[i] = y[i] * a; }
__global__ void struct_add_f32(Four f) { EACH(i, f.n) f.out[i] = f.a[i] + f.b[i]; }
__global__ void sleep_us(u64 us) { if (FIRST) pass(us); }
__global__ void atomic_add_u64(u64 *counter, u64 times) {
    if (!FIRST) return;
    for (u64 i = 0; i < times; i++) atomicAdd_system(counter, 1ull);
}
__global__ void write_after_us(u32 *out, u32 value, u64 us) {
    if (!FIRST) return;
    pass(us);
    *(volatile u32 *)out = value;
}
// Ends by itself after ten seconds, so that a test that fails does not hang the card.
__global__ void spin_until_u32(const u32 *flag, u32 value) {
    if (!FIRST) return;
    for (u32 i = 0; *(const volatile u32 *)flag != value && i < 10000; i++) pass(1000);
}
__global__ void chase_u64(u64 *out, const u64 *start, u64 steps) {
    if (!FIRST) return;
    u64 at = (u64)start;
    for (u64 i = 0; i < steps; i++) at = *(const volatile u64 *)at;
    *out = at;
}
__global__ void build_table(u64 *table, u64 base, u64 stride, u64 n) { EACH(i, n) table[i] = base + i * stride; }
__global__ void table_sum_f32(float *out, const u64 *table, u64 n, u64 each) {
    if (!FIRST) return;
    double total = 0;
    for (u64 i = 0; i < n; i++)
        for (u64 k = 0; k < each; k++) total += ((const float *)table[i])[k];
    *out = (float)total;
}
}
