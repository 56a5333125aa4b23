// Memory of one process in another: legacy handles for plain memory, descriptors for pages; what is refused.
#include "conf.h"
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>

// A second process that has no driver yet: forked before this one starts its own would be simplest, but every case
// starts with a driver; so the program starts itself, with a socket, as `PROGRAM IMAGE child FD`.
struct message { struct ipc handle; ptr offset; int kind; };

static int talk(pid_t *child) {
    int ends[2];
    char fd[16];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends)) return -1;
    snprintf(fd, sizeof fd, "%d", ends[1]);
    *child = fork();
    if (*child == 0) {
        close(ends[0]);
        setenv("CONFORMANCE_CHILD", fd, 1);
        execl("/proc/self/exe", "ipc", getenv("CONFORMANCE_IMAGE"), "0", "-1", (char *)NULL);
        _exit(4);
    }
    close(ends[1]);
    return ends[0];
}
static void send_all(int socket, const void *bytes, size_t n, int fd) {
    struct iovec part = {(void *)bytes, n};
    union { char room[CMSG_SPACE(sizeof(int))]; struct cmsghdr align; } control;
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1};
    memset(&control, 0, sizeof control);
    if (fd >= 0) {
        m.msg_control = &control, m.msg_controllen = sizeof control;
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &fd, sizeof fd);
    }
    if (sendmsg(socket, &m, 0) != (ssize_t)n) word("send", "failed");
}
static int receive(int socket, void *bytes, size_t n) {
    struct iovec part = {bytes, n};
    union { char room[CMSG_SPACE(sizeof(int))]; struct cmsghdr align; } control;
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    int fd = -1;
    if (recvmsg(socket, &m, MSG_WAITALL) != (ssize_t)n) return -2;
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    if (c && c->cmsg_type == SCM_RIGHTS) memcpy(&fd, CMSG_DATA(c), sizeof fd);
    return fd;
}

// What the other process finds: codes and words.
struct answer { int rc[8]; uint32_t words[4]; };

static void as_child(int socket) {
    struct message m;
    struct answer a;
    memset(&a, 0, sizeof a);
    int fd = receive(socket, &m, sizeof m);
    ptr p = 0;
    uint64_t page = 0;
    if (m.kind == 0) {
        a.rc[0] = cuIpcOpenMemHandle_v2(&p, m.handle, 1);
    } else {
        a.rc[0] = cuMemImportFromShareableHandle(&page, (void *)(intptr_t)fd, AS_FD);
        if (a.rc[0] == 0) a.rc[1] = cuMemAddressReserve(&p, PAGE, 0, 0, 0) ?: cuMemMap(p, PAGE, 0, page, 0);
        if (a.rc[0] == 0 && a.rc[1] == 0) a.rc[1] = grant(p, PAGE, 0, READ_WRITE);
    }
    if (a.rc[0] == 0) {
        ptr start = 0;
        size_t bytes = 0;
        a.words[0] = word_at(p + m.offset);
        a.rc[2] = fill(p + m.offset + 4, 22, 4, NULL) ?: cuCtxSynchronize();
        a.rc[3] = cuMemGetAddressRange_v2(&start, &bytes, p);
        a.words[1] = (uint32_t)bytes;
        if (m.kind == 0) {
            a.rc[4] = cuMemFree_v2(p);
            a.rc[5] = cuIpcOpenMemHandle_v2(&start, m.handle, 1);
            a.words[2] = start == p;
            a.rc[6] = cuIpcCloseMemHandle(p);
            a.rc[7] = cuIpcCloseMemHandle(p);
        } else {
            a.rc[4] = cuMemUnmap(p, PAGE) ?: cuMemRelease(page);
        }
    }
    send_all(socket, &a, sizeof a, -1);
    _exit(0);
}

static void ask(const struct message *m, int fd, ptr at) {
    pid_t child = 0;
    struct answer a;
    int socket = talk(&child), status = 0;
    memset(&a, 0xFF, sizeof a);
    send_all(socket, m, sizeof *m, fd);
    if (receive(socket, &a, sizeof a) == -2) word("child", "silent");
    waitpid(child, &status, 0);
    close(socket);
    for (int i = 0; i < 8; i++) printf(" %d=%d", i, a.rc[i]);
    fact("seen", a.words[0]), fact("bytes", a.words[1]), fact("again_same", a.words[2]);
    fact("written", word_at(at + m->offset + 4));
}

static void legacy(size_t size, size_t inside) {
    struct message m = {.offset = 0};
    ptr p = 0;
    if (getenv("CONFORMANCE_CHILD")) as_child(atoi(getenv("CONFORMANCE_CHILD")));
    RC("alloc", cuMemAlloc_v2(&p, size));
    RC("set", cuMemsetD32_v2(p, 11, size / 4) ?: cuCtxSynchronize());
    int rc = cuIpcGetMemHandle(&m.handle, p + inside);
    RC("get", rc);
    if (rc == 0) ask(&m, -1, p);
    if (rc == 0) RC("open_own", cuIpcOpenMemHandle_v2(&(ptr){0}, m.handle, 1));
    RC("free", cuMemFree_v2(p));
    if (rc == 0) RC("freed", cuIpcGetMemHandle(&m.handle, p));
}
static void legacy_handle(void) { legacy(8 * MIB, 0); }
static void legacy_handle_of_the_inside(void) { legacy(8 * MIB, 3 * MIB); }

static void descriptor(int place) {
    struct message m = {.kind = 1};
    struct make how_to = how(place);
    uint64_t page = 0;
    ptr p = 0;
    int fd = -1;
    how_to.handle_types = AS_FD;
    int rc = cuMemCreate(&page, PAGE, &how_to, 0);
    RC("create", rc);
    if (rc != 0) return;
    RC("map", cuMemAddressReserve(&p, PAGE, 0, 0, 0) ?: cuMemMap(p, PAGE, 0, page, 0) ?: grant(p, PAGE, 0, READ_WRITE));
    RC("set", cuMemsetD32_v2(p, 12, PAGE / 4) ?: cuCtxSynchronize());
    RC("export", cuMemExportToShareableHandle(&fd, page, AS_FD, 0));
    ask(&m, fd, p);
    close(fd);
    RC("end", cuMemUnmap(p, PAGE) ?: cuMemRelease(page) ?: cuMemAddressFree(p, PAGE));
}
static void descriptor_of_the_device(void) { descriptor(ON_DEVICE); }
static void descriptor_of_the_node(void) { descriptor(ON_NODE); }

static void refusals(void) {
    struct ipc h;
    struct range r;
    void *pinned = NULL;
    obj e = NULL, plain = NULL;
    ptr p = 0;
    memset(&h, 0, sizeof h);
    RC("open", range_open(&r, "dn") ?: cuMemAllocHost_v2(&pinned, 4096));
    RC("page", cuIpcGetMemHandle(&h, r.at));
    RC("host_page", cuIpcGetMemHandle(&h, r.at + PAGE));
    RC("pinned", cuIpcGetMemHandle(&h, (ptr)(uintptr_t)pinned));
    RC("unknown", cuIpcGetMemHandle(&h, 12345));
    RC("null", cuIpcGetMemHandle(&h, 0));
    RC("alloc", cuMemAlloc_v2(&p, 4 * MIB));
    RC("null_out", cuIpcGetMemHandle(NULL, p));
    memset(&h, 0x55, sizeof h);
    RC("garbage", cuIpcOpenMemHandle_v2(&(ptr){0}, h, 1));
    RC("no_flags", cuIpcOpenMemHandle_v2(&(ptr){0}, h, 0));
    RC("close_plain", cuIpcCloseMemHandle(p));
    RC("events", cuEventCreate(&e, 6) ?: cuEventCreate(&plain, 2));
    RC("event", cuIpcGetEventHandle(&h, e));
    RC("plain_event", cuIpcGetEventHandle(&h, plain));
    RC("end", cuEventDestroy_v2(e) ?: cuEventDestroy_v2(plain) ?: cuMemFree_v2(p) ?: cuMemFreeHost(pinned));
    range_close(&r);
}

// The first case is also the way in of the second process.
CASES({"legacy_handle", legacy_handle}, {"legacy_handle_of_the_inside", legacy_handle_of_the_inside},
      {"descriptor_of_the_device", descriptor_of_the_device}, {"descriptor_of_the_node", descriptor_of_the_node},
      {"refusals", refusals});
