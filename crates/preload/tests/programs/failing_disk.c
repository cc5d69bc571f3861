/* Overwrites more files than a restore holds open, after a new name; then goes back, while the disk can't make durable what is
 * put back: `syncfs` says that it is full. The exit code is the `errno` of the restore. */
#include "check.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

enum { FILES = 80 };

static void let_syncfs_fail(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_syncfs, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSPC),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof filter / sizeof *filter, .filter = filter};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

int main(void) {
    char name[20];
    long long here = stdchk_checkpoint();
    close(open("new", O_WRONLY | O_CREAT, 0644));
    for (int i = 0; i < FILES; i++) {
        snprintf(name, sizeof name, "file%d", i);
        int fd = open(name, O_WRONLY);
        CHECK(fd >= 0 && write(fd, "after", 5) == 5 && close(fd) == 0);
    }
    let_syncfs_fail();
    return stdchk_restore(here) == 0 ? 0 : errno;
}
