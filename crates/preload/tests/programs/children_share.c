/* A parent and its child overwrite the same part of a large file, the child what the parent has overwritten since the fork. */
#include "check.h"
static const off_t MIB = 1L << 20;
int main(void) {
    int fd = open("large", O_RDWR | O_CREAT, 0644), ends[2];
    block(fd, 0, '.', 3 * MIB + 100);
    long long here = stdchk_checkpoint();
    CHECK(here >= 0 && pipe(ends) == 0);
    block(fd, 10, 'p', 5000);
    if (fork() == 0) {
        char byte;
        CHECK(read(ends[0], &byte, 1) == 1);
        block(fd, MIB + 20, 'c', 5000);
        _exit(0);
    }
    block(fd, MIB + 10, 'p', 9000);
    block(fd, 3 * MIB - 10, 'p', 300);
    CHECK(write(ends[1], "", 1) == 1);
    int ended;
    CHECK(wait(&ended) > 0 && ended == 0);
    show("large");
    CHECK(stdchk_restore(here) == 0);
    if (stdchk_active()) {
        struct stat about;
        CHECK(fstat(fd, &about) == 0 && about.st_size == 3 * MIB + 100);
        char found[4096];
        for (off_t at = 0; at < about.st_size; at += sizeof found) {
            ssize_t got = pread(fd, found, sizeof found, at);
            for (ssize_t i = 0; i < got; i++) CHECK(found[i] == '.');
        }
    }
    return 0;
}
