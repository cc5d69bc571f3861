/* Seeks of descriptors and streams: sets, from the current position, from the end, and what a restore makes of them. */
#include "check.h"
int main(void) {
    int fd = open("file", O_RDWR | O_CREAT | O_TRUNC, 0644);
    block(fd, 0, 'a', 100);
    printf("%ld ", (long)lseek(fd, 10, SEEK_SET));
    printf("%ld ", (long)lseek(fd, 5, SEEK_CUR));
    printf("%ld ", (long)lseek(fd, -1, SEEK_END));
    printf("%ld\n", (long)lseek(fd, -1000, SEEK_SET));
    FILE *stream = fopen("file", "r+");
    fpos_t position;
    CHECK(fseek(stream, 20, SEEK_SET) == 0 && fgetpos(stream, &position) == 0);
    CHECK(fputs("xyz", stream) >= 0 && ftell(stream) == 23);
    long long here = stdchk_checkpoint();
    CHECK(fseeko(stream, -5, SEEK_END) == 0 && fputs("END", stream) >= 0);
    CHECK(lseek(fd, 50, SEEK_SET) == 50);
    CHECK(stdchk_restore(here) == 0);
    if (stdchk_active()) CHECK(ftell(stream) == 23 && lseek(fd, 0, SEEK_CUR) == 99);
    CHECK(fsetpos(stream, &position) == 0 && fgetc(stream) == 'x');
    rewind(stream);
    CHECK(fgetc(stream) == 'a');
    return 0;
}
