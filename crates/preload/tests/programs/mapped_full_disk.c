/* A checkpoint that can't save a mapped file, since the disk is full. The program goes on and writes what no checkpoint holds. */
#include "check.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

enum { SIZE = 4 << 20 };

static void let_pwritev_fail(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pwritev, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSPC),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof filter / sizeof *filter, .filter = filter};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

int main(void) {
    int fd = open("large", O_RDWR | O_CREAT | O_TRUNC, 0644);
    block(fd, 0, 'a', SIZE);
    char *map = mmap(0, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED);
    CHECK(stdchk_checkpoint() >= 0);
    memset(map, 'b', 4);
    memset(map + SIZE / 2, 'b', 4);
    let_pwritev_fail();
    CHECK(stdchk_checkpoint() == -1 && errno == ENOSPC);
    memset(map, 'c', 4);
    return 0;
}
