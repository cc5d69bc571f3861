/* A file that is opened without a name, mapped, and then given one: changed through the mapping after a checkpoint. */
#include "check.h"
int main(void) {
    char opened[32];
    int fd = open("kept", O_TMPFILE | O_RDWR, 0644);
    block(fd, 0, 'a', 8192);
    char *map = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED);
    snprintf(opened, sizeof opened, "/proc/self/fd/%d", fd);
    CHECK(linkat(AT_FDCWD, opened, AT_FDCWD, "named", AT_SYMLINK_FOLLOW) == 0);
    long long here = stdchk_checkpoint();
    memset(map + 100, 'x', 5000);
    show("named");
    CHECK(stdchk_restore(here) == 0);
    for (int at = 0; stdchk_active() && at < 8192; at++) CHECK(map[at] == 'a');
    return 0;
}
