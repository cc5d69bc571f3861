/* A file of 6 GiB that is nearly all hole, overwritten in its data and in its holes beyond 4 GiB, and taken back. */
#include "check.h"
static const off_t GIB = 1L << 30;
static void expect(int fd, off_t offset, char letter, size_t length) {
    char found[8192];
    CHECK(pread(fd, found, length, offset) == (ssize_t)length);
    for (size_t i = 0; i < length; i++) CHECK(found[i] == letter);
}
static off_t blocks(int fd) {
    struct stat about;
    CHECK(fstat(fd, &about) == 0);
    return about.st_blocks;
}
int main(void) {
    int fd = open("large", O_RDWR | O_CREAT, 0644);
    CHECK(ftruncate(fd, 6 * GIB) == 0);
    block(fd, 5 * GIB + 100, 'd', 8000);
    long long here = stdchk_checkpoint();
    for (off_t at = 0; at < 6; at++) block(fd, at * GIB + 300, 'x', 5000);
    block(fd, 7 * GIB, 'e', 10);
    CHECK(ftruncate(fd, 5 * GIB + 1000) == 0);
    CHECK(lseek(fd, 0, SEEK_END) == 5 * GIB + 1000);
    expect(fd, 5 * GIB + 100, 'd', 200);
    expect(fd, 5 * GIB + 300, 'x', 700);
    CHECK(blocks(fd) * 512 < 10 << 20);
    if (!stdchk_active()) return 0;
    CHECK(stdchk_restore(here) == 0);
    CHECK(lseek(fd, 0, SEEK_END) == 6 * GIB);
    expect(fd, 5 * GIB, 0, 100);
    expect(fd, 5 * GIB + 100, 'd', 8000);
    for (off_t at = 0; at < 5; at++) expect(fd, at * GIB + 300, 0, 5000);
    expect(fd, 6 * GIB - 8000, 0, 8000);
    CHECK(blocks(fd) * 512 < 10 << 20);
    CHECK(unlink("large") == 0);
    return 0;
}
