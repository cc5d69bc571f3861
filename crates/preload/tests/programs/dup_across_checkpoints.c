/* The set of duplicated descriptors at a checkpoint is there again after going back to it, offset shared. */
#include "check.h"
int main(void) {
    int fd = open("file", O_RDWR | O_CREAT | O_TRUNC, 0644);
    CHECK(write(fd, "0123456789", 10) == 10);
    int copy = dup(fd), far = fcntl(fd, F_DUPFD, 50), other = open("file", O_RDONLY);
    CHECK(lseek(other, 3, SEEK_SET) == 3);
    long long here = stdchk_checkpoint();
    close(copy);
    stdchk_checkpoint();
    close(fd);
    close(far);
    close(other);
    int reused = open("/dev/null", O_RDONLY);
    CHECK(stdchk_restore(here) == 0);
    if (!stdchk_active()) return 0;
    CHECK(reused == fd);
    CHECK(write(copy, "ab", 2) == 2 && write(fd, "cd", 2) == 2 && write(far, "ef", 2) == 2);
    CHECK(lseek(fd, 0, SEEK_CUR) == 16 && lseek(other, 0, SEEK_CUR) == 3);
    char letter;
    CHECK(read(other, &letter, 1) == 1 && letter == '3' && write(other, "x", 1) == -1);
    char all[20] = {0};
    CHECK(pread(fd, all, 20, 0) == 16 && strcmp(all, "0123456789abcdef") == 0);
    return 0;
}
