/* Appending to a file opened after the checkpoint (RARE). */
#include "check.h"
int main(void) {
    int fd = open("file", O_RDWR | O_CREAT | O_TRUNC, 0644);
    long long start = stdchk_checkpoint();
    block(fd, 0, 97, 3000); close(fd);
    show("file");
    long long middle = stdchk_checkpoint();
    fd = open("file", O_WRONLY | O_APPEND); CHECK(write(fd, "appended", 8) == 8);
    show("file");
    CHECK(stdchk_restore(middle) == 0);
    if (stdchk_active()) show("file");
    CHECK(stdchk_restore(start) == 0);
    if (stdchk_active()) show("file");
    return 0;
}
