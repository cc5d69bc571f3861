/* A file with holes, one of them past 4 GiB. */
#include "check.h"
int main(void) {
    int fd = open("file", O_RDWR | O_CREAT | O_TRUNC, 0644);
    block(fd, 10000, 'a', 10);
    show("file");
    stdchk_checkpoint();
    off_t far = 5LL << 30;
    block(fd, far, 'z', 10);
    struct stat about;
    CHECK(fstat(fd, &about) == 0);
    char buffer[30];
    CHECK(pread(fd, buffer, 20, far - 10) == 20);
    printf("%lld %d %d %c\n", (long long)about.st_size, buffer[0], buffer[9], buffer[10]);
    CHECK(ftruncate(fd, 10005) == 0);
    show("file");
    return 0;
}
