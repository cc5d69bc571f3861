/* A file that is changed in roundabout ways, and taken back from each: asynchronous writes, `syscall`, a descriptor that came
 * over a socket, times set through a descriptor; a socket with a name; standard output that the C library replaces. */
#include "check.h"
#include <aio.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/xattr.h>

/* As in programs with gnulib. */
int renameat2(int from, const char *old, int to, const char *new, unsigned flags) {
    return (int)syscall(SYS_renameat2, from, old, to, new, flags);
}

static void write_later(int fd) {
    static char later[] = "later";
    struct aiocb request = {.aio_fildes = fd, .aio_buf = later, .aio_nbytes = 5, .aio_offset = 10};
    const struct aiocb *all[] = {&request};
    CHECK(aio_write(&request) == 0);
    while (aio_error(&request) == EINPROGRESS) aio_suspend(all, 1, NULL);
    CHECK(aio_return(&request) == 5);
    struct aiocb second = request;
    second.aio_offset = 4500, second.aio_lio_opcode = LIO_WRITE;
    struct aiocb *list[] = {&second, NULL};
    CHECK(lio_listio(LIO_WAIT, list, 2, NULL) == 0 && aio_return(&second) == 5);
}

static void write_by_number(int fd) {
    CHECK(syscall(SYS_pwrite64, fd, "number", 6L, 20L) == 6);
    int other = syscall(SYS_openat, AT_FDCWD, "file", O_RDWR | O_CREAT, 0644);
    CHECK(other >= 0 && syscall(SYS_write, other, "NUMBER", 6L) == 6 && syscall(SYS_close, other) == 0);
    CHECK(renameat2(AT_FDCWD, "file", AT_FDCWD, "by-number", 0) == 0);
    unsigned long long how[3] = {O_WRONLY | O_TRUNC};
    int cut = syscall(SYS_openat2, AT_FDCWD, "a", how, sizeof how);
    CHECK(cut >= 0 && write(cut, "cut", 3) == 3 && close(cut) == 0);
    struct timespec times[2] = {{1, 0}, {2, 0}};
    CHECK(syscall(SYS_fchmodat, AT_FDCWD, "a", 0600) == 0 && syscall(SYS_utimensat, AT_FDCWD, "a", times, 0) == 0);
    CHECK(syscall(SYS_mknodat, AT_FDCWD, "made", S_IFREG | 0600, 0) == 0);
    CHECK(syscall(SYS_write, -1, "", 0L) == -1 && errno == EBADF);
    CHECK(syscall(SYS_io_uring_setup, 0L, NULL) == -1 && (!stdchk_active() || errno == ENOSYS));
}

static void write_through_received(int fd) {
    int ends[2], received;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    union { struct cmsghdr head; char bytes[CMSG_SPACE(sizeof(int))]; } control = {.head = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS}};
    memcpy(CMSG_DATA(&control.head), &fd, sizeof fd);
    char byte = 'b';
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    CHECK(sendmsg(ends[0], &message, 0) == 1 && recvmsg(ends[1], &message, 0) == 1);
    memcpy(&received, CMSG_DATA(&control.head), sizeof received);
    CHECK(received != fd && pwrite(received, "received", 8, 30) == 8 && close(received) == 0);
}

/* An access control list that says no more than permissions do: version 2, then entries of tag, bits and id, for the owner, the
 * group and all others. The kernel keeps it as the permissions 0751. */
static const unsigned short list[] = {2, 0, 1, 7, 0xffff, 0xffff, 4, 5, 0xffff, 0xffff, 32, 1, 0xffff, 0xffff};

static void set_mode_by_attribute(int fd) {
    const char *name = "system.posix_acl_access";
    struct stat about;
    CHECK(fsetxattr(fd, name, list, sizeof list, 0) == 0);
    CHECK(fstat(fd, &about) == 0 && (about.st_mode & 07777) == 0751);
}

static void set_modes_of_paths(int fd) {
    const char *name = "system.posix_acl_access";
    (void)fd;
    CHECK(setxattr("a", name, list, sizeof list, 0) == 0);
    CHECK(syscall(SYS_lsetxattr, "file", name, list, sizeof list, 0L) == 0);
}

static void set_times(int fd) {
    struct timeval times[2] = {{1, 0}, {2, 0}};
    CHECK(futimes(fd, times) == 0);
}

static void make_socket(int fd) {
    (void)fd;
    struct sockaddr_un name = {.sun_family = AF_UNIX, .sun_path = "socket"};
    int made = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK(bind(made, (struct sockaddr *)&name, sizeof name) == 0 && close(made) == 0 && access("socket", F_OK) == 0);
}

int main(void) {
    static void (*const ways[])(int) = {write_later, write_by_number, write_through_received, set_times, make_socket,
                                         set_mode_by_attribute, set_modes_of_paths};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        int fd = open("a", O_RDWR);
        close(open("file", O_WRONLY | O_CREAT | O_TRUNC, 0644));
        struct stat before, after, other_before, other;
        CHECK(fstat(fd, &before) == 0 && stat("file", &other_before) == 0);
        long long here = stdchk_checkpoint();
        ways[i](fd);
        CHECK(stdchk_restore(here) == 0);
        if (!stdchk_active()) continue;
        CHECK(access("socket", F_OK) != 0 && access("by-number", F_OK) != 0 && access("file", F_OK) == 0);
        CHECK(fstat(fd, &after) == 0 && after.st_size == before.st_size && after.st_mtim.tv_sec == before.st_mtim.tv_sec);
        CHECK(stat("file", &other) == 0 && after.st_mode == before.st_mode && other.st_mode == other_before.st_mode);
        char found[5000];
        CHECK(pread(fd, found, sizeof found, 0) == 5000);
        for (int at = 0; at < 5000; at++) CHECK(found[at] == 'q');
        CHECK(close(fd) == 0);
    }
    return 0;
}
