/* Descriptors that are opened to write and first used in different ways: each way changes a file of its own. */
#include "check.h"
#include <sys/sendfile.h>

static const char *const names[] = {"flags", "copied", "sent", "mapped", "cut", "stream", "inherited", "closed"};
enum { FILES = sizeof names / sizeof *names };

int main(void) {
    int fds[FILES], unused[3];
    for (int i = 0; i < FILES; i++) {
        int fd = open(names[i], O_WRONLY | O_CREAT, 0644);
        block(fd, 0, '.', 9000);
        close(fd);
    }
    long long here = stdchk_checkpoint();
    for (int i = 0; i < FILES; i++) CHECK((fds[i] = open(names[i], i == 0 ? O_RDWR | O_APPEND : O_RDWR)) >= 0);
    for (int i = 0; i < 3; i++) unused[i] = open("/dev/null", O_WRONLY);
    /* Looked at while it appends; what shares its flags lets it overwrite. */
    int shared = dup(fds[0]);
    CHECK(write(fds[0], "end", 3) == 3 && fcntl(shared, F_SETFL, 0) == 0);
    CHECK(lseek(fds[0], 0, SEEK_SET) == 0 && write(fds[0], "over", 4) == 4);
    /* Through a copy that was made before anybody looked. */
    int copy = fcntl(fds[1], F_DUPFD, 100);
    CHECK(close(fds[1]) == 0 && write(copy, "copy", 4) == 4);
    CHECK(sendfile(fds[2], fds[0], &(off_t){0}, 100) == 100);
    char *map = mmap(NULL, 9000, PROT_READ | PROT_WRITE, MAP_SHARED, fds[3], 0);
    CHECK(map != MAP_FAILED);
    memset(map + 4000, 'm', 200);
    CHECK(munmap(map, 9000) == 0 && ftruncate(fds[4], 10) == 0);
    FILE *stream = fdopen(fds[5], "r+");
    CHECK(fputs("stream", stream) >= 0 && fclose(stream) == 0);
    if (fork() == 0) _exit(write(fds[6], "child", 5) != 5);
    wait(NULL);
    /* A number that was closed with others and is another file's now. */
    CHECK(close_range(fds[7], fds[7], 0) == 0);
    while (open(names[7], O_RDWR) < fds[7]) continue;
    CHECK(write(fds[7], "again", 5) == 5);
    for (int i = 0; i < 3; i++) CHECK(write(unused[i], "x", 1) == 1 && close(unused[i]) == 0);
    for (int i = 0; i < FILES; i++) show(names[i]);
    CHECK(stdchk_restore(here) == 0);
    for (int i = 0; stdchk_active() && i < FILES; i++) {
        struct stat about;
        char found[9000];
        int fd = open(names[i], O_RDONLY);
        CHECK(fd >= 0 && fstat(fd, &about) == 0 && about.st_size == 9000 && read(fd, found, 9000) == 9000);
        for (int at = 0; at < 9000; at++) CHECK(found[at] == '.');
    }
    return 0;
}
