/* Reading and overwriting the same area (RARW). */
#include "check.h"
int main(void) {
    int fd = open("file", O_RDWR | O_CREAT | O_TRUNC, 0644);
    long long start = stdchk_checkpoint();
    block(fd, 0, 97, 3000);
    show("file");
    long long middle = stdchk_checkpoint();
    char buffer[100]; CHECK(pread(fd, buffer, 100, 0) == 100); memset(buffer, 66, 100); CHECK(pwrite(fd, buffer, 100, 0) == 100);
    show("file");
    CHECK(stdchk_restore(middle) == 0);
    if (stdchk_active()) show("file");
    CHECK(stdchk_restore(start) == 0);
    if (stdchk_active()) show("file");
    return 0;
}
