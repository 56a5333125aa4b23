// Processes that share a machine and are killed at random points leave nothing behind and block nobody.
//   killed SEED      prints what one process alone can take before and after
#include "use.h"
#include <signal.h>
#include <sys/wait.h>

enum { ROUNDS = 12, TOGETHER = 4, MOST = 4096 };
static const size_t PIECE = (size_t)2 << 20;

static unsigned long state;
static unsigned long next_random(void) {
    state = state * 6364136223846793005ul + 1442695040888963407ul;
    return state >> 33;
}

static void begin(struct driver *d) {
    CUcontext context = NULL;
    find_default(d);
    CHECK(d->cuInit(0));
    CHECK(d->cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(d->cuCtxSetCurrent(context));
}

// Allocates and frees for ever.
static void churn(unsigned seed) {
    static CUdeviceptr held[MOST];
    struct driver d;
    int count = 0;
    state = seed;
    begin(&d);
    for (;;) {
        if (next_random() % 3 && count < MOST && d.cuMemAlloc(&held[count], PIECE * (1 + next_random() % 4)) == 0)
            count++;
        else if (count > 0)
            CHECK(d.cuMemFree(held[--count]));
    }
}

// Pieces that a process alone gets, in a child of its own.
static int alone(void) {
    int pipes[2], answer = -1;
    if (pipe(pipes)) exit(5);
    pid_t child = fork();
    if (child == 0) {
        struct driver d;
        CUdeviceptr piece;
        int got = 0;
        begin(&d);
        while (d.cuMemAlloc(&piece, PIECE) == 0) got++;
        if (write(pipes[1], &got, sizeof got) != sizeof got) _exit(5);
        _exit(0);
    }
    close(pipes[1]);
    if (read(pipes[0], &answer, sizeof answer) != sizeof answer) answer = -1;
    close(pipes[0]);
    waitpid(child, NULL, 0);
    return answer;
}

int main(int count, char **words) {
    unsigned seed = count > 1 ? atoi(words[1]) : 1;
    printf("before %d\n", alone());
    fflush(stdout);
    state = seed;
    int killed = 0;
    for (int round = 0; round < ROUNDS; round++) {
        pid_t children[TOGETHER];
        for (int i = 0; i < TOGETHER; i++) {
            unsigned own = next_random();
            children[i] = fork();
            if (children[i] == 0) churn(own);
        }
        for (int i = 0; i < TOGETHER; i++) {
            int status = 0;
            usleep(next_random() % 20000);
            kill(children[i], SIGKILL);
            waitpid(children[i], &status, 0);
            killed += WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
        }
    }
    printf("killed %d\nafter %d\n", killed, alone());
    return 0;
}
