// Two processes of one machine, one after the other step by step.
//   together budget|homes
#include "use.h"
#include "vgmem.h"
#include <signal.h>
#include <sys/wait.h>

static struct driver d;
static CUdeviceptr pieces[256];
static int held;

static int take(int most) {
    int got = 0;
    while (got < most && d.cuMemAlloc(&pieces[held], 2 << 20) == 0) held++, got++;
    return got;
}

static void release(void) {
    while (held) CHECK(d.cuMemFree(pieces[--held]));
}

// Steps at the request of the parent: t takes all it can, s takes ten pieces, f frees, w tells where
// the pages lie.
static void serve(int ordinal, int in, int out) {
    char step;
    find_default(&d);
    start(&d, ordinal);
    while (read(in, &step, 1) == 1) {
        int answer[4] = {0, 0, 0, 0};
        if (step == 't') answer[0] = take(256 - held);
        if (step == 's') answer[0] = take(10);
        if (step == 'f') release();
        if (step == 'w') {
            int (*page_of)(unsigned long long, vgmem_page *) = dlsym(RTLD_DEFAULT, "vgmem_page_of");
            for (int i = 0; i < held; i++) {
                vgmem_page page;
                if (page_of && page_of(pieces[i], &page)) answer[page.gpu < 0 ? 3 : page.gpu]++;
            }
        }
        if (write(out, answer, sizeof answer) != sizeof answer) exit(5);
    }
    exit(0);
}

static struct peer { pid_t pid; int to, from; } peers[2];

static void begin(int which, int ordinal) {
    int to[2], from[2];
    if (pipe(to) || pipe(from)) exit(6);
    pid_t pid = fork();
    if (pid == 0) {
        close(to[1]);
        close(from[0]);
        if (which) close(peers[0].to); // or the first would never see its end
        serve(ordinal, to[0], from[1]);
    }
    close(to[0]);
    close(from[1]);
    peers[which] = (struct peer){pid, to[1], from[0]};
}

static void ask(const char *label, int which, char step) {
    int answer[4];
    if (write(peers[which].to, &step, 1) != 1 || read(peers[which].from, answer, sizeof answer) != sizeof answer) {
        printf("%s lost\n", label);
        exit(7);
    }
    printf("%s %d %d %d %d\n", label, answer[0], answer[1], answer[2], answer[3]);
    fflush(stdout);
}

static void end(int which, int signal) {
    if (signal) kill(peers[which].pid, signal);
    close(peers[which].to);
    close(peers[which].from);
    waitpid(peers[which].pid, NULL, 0);
}

int main(int argc, char **argv) {
    if (!strcmp(argv[1], "budget")) {
        begin(0, 0);
        begin(1, 0);
        ask("first", 0, 't');
        ask("second", 1, 't');
        ask("first_frees", 0, 'f');
        ask("second_more", 1, 't');
        ask("second_frees", 1, 'f');
        ask("first_again", 0, 't');
        end(0, SIGKILL);
        ask("after_kill", 1, 't');
        end(1, 0);
    } else {
        begin(0, 0);
        ask("first", 0, 's');
        ask("first_where", 0, 'w');
        ask("first_frees", 0, 'f');
        begin(1, 1);
        ask("second", 1, 's');
        ask("second_frees", 1, 'f');
        // Both are known as homes now: each fills its own GPU, the host, and the other's GPU at last.
        ask("first_now", 0, 's');
        ask("first_where_now", 0, 'w');
        ask("first_rest", 0, 't');
        ask("first_where_at_last", 0, 'w');
        end(0, 0);
        end(1, 0);
    }
    return 0;
}
