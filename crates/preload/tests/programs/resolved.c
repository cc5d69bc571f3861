/* `openat2` with ways of resolving of its own: what it cuts and creates is what comes back. */
#include "check.h"
#include <linux/openat2.h>
#include <sys/syscall.h>

static int open_in(int directory, const char *path, int flags, unsigned long long resolve) {
    struct open_how how = {.flags = flags, .mode = flags & O_CREAT ? 0644 : 0, .resolve = resolve};
    int fd = syscall(SYS_openat2, directory, path, &how, sizeof how);
    printf("%s %d\n", path, fd < 0 ? errno : 0);
    if (fd >= 0) CHECK(write(fd, "new", 3) == 3 && close(fd) == 0);
    return fd;
}

int main(void) {
    CHECK(mkdir("jail", 0755) == 0);
    int jail = open("jail", O_RDONLY | O_DIRECTORY);
    const char *names[] = {"a", "b", "c"};
    for (int i = 0; i < 3; i++) {
        int fd = openat(jail, names[i], O_WRONLY | O_CREAT, 0644);
        block(fd, 0, 'o', 5000);
        close(fd);
    }
    CHECK(symlinkat("/b", jail, "link") == 0 && symlinkat("/made", jail, "dangling") == 0);
    CHECK(stdchk_checkpoint() >= 0);
    open_in(jail, "/a", O_WRONLY | O_TRUNC, RESOLVE_IN_ROOT);
    open_in(jail, "/link", O_WRONLY | O_TRUNC, RESOLVE_IN_ROOT);
    open_in(jail, "../../new", O_WRONLY | O_CREAT, RESOLVE_IN_ROOT);
    open_in(jail, "dangling", O_WRONLY | O_CREAT | O_TRUNC, RESOLVE_IN_ROOT);
    open_in(jail, "c", O_WRONLY | O_TRUNC, RESOLVE_BENEATH);
    open_in(jail, "below", O_WRONLY | O_CREAT | O_EXCL, RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS);
    open_in(jail, "../a", O_WRONLY | O_TRUNC, RESOLVE_BENEATH);
    open_in(jail, "link", O_WRONLY | O_TRUNC, RESOLVE_NO_SYMLINKS);
    open_in(jail, "slash/", O_WRONLY | O_CREAT, RESOLVE_IN_ROOT);
    open_in(jail, "/", O_WRONLY | O_CREAT, RESOLVE_IN_ROOT);
    const char *made[] = {"jail/new", "jail/made", "jail/below"};
    for (int i = 0; i < 3; i++) printf("%s %d\n", made[i], access(made[i], F_OK));
    return 0;
}
