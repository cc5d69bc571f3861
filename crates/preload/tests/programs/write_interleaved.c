/* Interleaved writes that do not overlap. */
#include "check.h"
int main(void) {
    int fd = open("file", O_RDWR | O_CREAT | O_TRUNC, 0644);
    long long start = stdchk_checkpoint();
    for (int i = 0; i < 10; i++) block(fd, i * 8192, 97 + i, 1000);
    show("file");
    long long middle = stdchk_checkpoint();
    for (int i = 0; i < 10; i++) block(fd, i * 8192 + 4096, 65 + i, 1000);
    show("file");
    CHECK(stdchk_restore(middle) == 0);
    if (stdchk_active()) show("file");
    CHECK(stdchk_restore(start) == 0);
    if (stdchk_active()) show("file");
    return 0;
}
