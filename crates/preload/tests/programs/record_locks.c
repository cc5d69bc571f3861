/* Record locks of `fcntl` are held whatever is written, mapped, truncated, or taken as a checkpoint: a process loses them when
 * it closes any descriptor of their file. */
#include "check.h"

/* Asked by a child, to whom the locks of its parent are those of another process. */
static void show_lock(const char *after, int fd) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 10};
        CHECK(fcntl(fd, F_GETLK, &lock) == 0);
        _exit(lock.l_type == F_UNLCK);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    printf("%s: %s\n", after, WEXITSTATUS(status) ? "lost" : "held");
}

int main(void) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 10};
    int fd = open("data", O_RDWR | O_CREAT, 0644), only = open("file", O_WRONLY), mapped = open("a", O_RDWR);
    block(fd, 0, 'd', 3 << 20);
    CHECK(stdchk_checkpoint() >= 0);
    CHECK(fcntl(fd, F_SETLK, &lock) == 0 && lockf(only, F_TLOCK, 10) == 0 && fcntl(mapped, F_SETLK, &lock) == 0);
    block(fd, 0, 'e', 2 << 20);
    show_lock("a large write", fd);
    CHECK(ftruncate(fd, 100) == 0 && fchmod(fd, 0640) == 0);
    show_lock("truncate and chmod", fd);
    block(only, 0, 'w', 5);
    show_lock("an overwrite of what can't be read", only);
    char *bytes = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, mapped, 0);
    CHECK(bytes != MAP_FAILED);
    bytes[0] = 'm';
    show_lock("a mapping", mapped);
    CHECK(stdchk_checkpoint() >= 0);
    show_lock("a checkpoint", fd);
    show_lock("a checkpoint", only);
    show_lock("a checkpoint", mapped);
    block(only, 0, 'x', 5);
    bytes[1] = 'n';
    CHECK(close(open("other", O_WRONLY | O_CREAT, 0644)) == 0 && stdchk_checkpoint() >= 0);
    show_lock("another one", only);
    show_lock("another one", mapped);
    return 0;
}
