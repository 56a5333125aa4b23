// Uses the runtime that it was linked with: as a program (PROGRAM) or as a plug-in for `rthost`.
#include "cu.h"

int cudaMalloc(void **out, size_t bytes);
int cudaFree(void *p);
int cudaMemcpy(void *to, const void *from, size_t bytes, int kind);
int cudaMemset(void *p, int value, size_t bytes);
int cudaMemGetInfo(size_t *available, size_t *total);
#define JOIN_(a, b, c) a##b##c
#define JOIN(a, b, c) JOIN_(a, b, c)
#define CALLS JOIN(rt, MARK, _calls)
int CALLS(void);

// 512 places in the program that call, each for itself.
#define CALL failed += cudaMemGetInfo(&available, &total) != 0;
#define FOUR(x) x x x x
#define MANY FOUR(FOUR(FOUR(FOUR(CALL))))

void rtuser_many(void) {
    size_t available, total;
    int failed = 0, before = CALLS();
    MANY
    MANY
    printf("rt%d_many %d %d\n", MARK, failed, CALLS() - before);
}

void *rtuser_run(size_t bytes) {
    void *p = NULL;
    size_t available = 0, total = 0;
    int rc = cudaMalloc(&p, bytes);
    printf("rt%d_malloc %d\n", MARK, rc);
    if (rc == 0) {
        unsigned char in[4096], out[4096];
        for (int i = 0; i < 4096; i++) in[i] = (unsigned char)(i * 7 + MARK);
        int set = cudaMemset(p, 9, bytes);
        int to = cudaMemcpy((char *)p + bytes - 4096, in, 4096, 1);
        int from = cudaMemcpy(out, (char *)p + bytes - 4096, 4096, 2);
        printf("rt%d_copies %d wrong %d\n", MARK, set + to + from, memcmp(in, out, 4096) != 0);
    }
    int info = cudaMemGetInfo(&available, &total);
    printf("rt%d_info %d %d\n", MARK, info, available <= total && total > 0);
    printf("rt%d_calls %d\n", MARK, CALLS());
    return p;
}

void rtuser_end(void *p) { printf("rt%d_free %d\n", MARK, cudaFree(p)); }

#ifdef PROGRAM
int main(int argc, char **argv) {
    void *p = rtuser_run(strtoull(argv[1], NULL, 10) << 20);
    if (p) rtuser_end(p);
    return 0;
}
#endif
