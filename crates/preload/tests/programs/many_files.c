/* Ten thousand open files across a checkpoint. */
#include "check.h"
#include <sys/resource.h>
enum { FILES = 10000 };
int main(void) {
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = FILES + 100;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    static int fds[FILES];
    char name[20];
    for (int i = 0; i < FILES; i++) {
        snprintf(name, sizeof name, "f%d", i);
        fds[i] = open(name, O_RDWR | O_CREAT, 0644);
        CHECK(fds[i] >= 0 && write(fds[i], "1", 1) == 1);
    }
    long long here = stdchk_checkpoint();
    CHECK(here >= 0);
    for (int i = 0; i < FILES; i++) CHECK(write(fds[i], "2", 1) == 1);
    for (int i = 0; i < FILES; i += 3) close(fds[i]);
    CHECK(stdchk_restore(here) == 0);
    if (!stdchk_active()) return 0;
    for (int i = 0; i < FILES; i++) {
        char two[2];
        CHECK(lseek(fds[i], 0, SEEK_CUR) == 1 && pread(fds[i], two, 2, 0) == 1 && two[0] == '1');
    }
    return 0;
}
