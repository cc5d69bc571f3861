/* Cutting and extending across checkpoints. */
#include "check.h"
int main(void) {
    int fd = open("file", O_RDWR | O_CREAT | O_TRUNC, 0644);
    long long start = stdchk_checkpoint();
    block(fd, 0, 97, 20000); CHECK(ftruncate(fd, 9000) == 0);
    show("file");
    long long middle = stdchk_checkpoint();
    CHECK(ftruncate(fd, 100) == 0); CHECK(ftruncate(fd, 15000) == 0); block(fd, 14000, 98, 10);
    show("file");
    CHECK(stdchk_restore(middle) == 0);
    if (stdchk_active()) show("file");
    CHECK(stdchk_restore(start) == 0);
    if (stdchk_active()) show("file");
    return 0;
}
