/* Deletion and creation under the same name (RAD). */
#include "check.h"
int main(void) {
    int fd = open("file", O_RDWR | O_CREAT | O_TRUNC, 0644);
    long long start = stdchk_checkpoint();
    block(fd, 0, 97, 3000);
    show("file");
    long long middle = stdchk_checkpoint();
    CHECK(unlink("file") == 0); show("file"); int other = open("file", O_RDWR | O_CREAT | O_EXCL, 0600); block(other, 0, 98, 10); close(other); CHECK(unlink("file") == 0); other = open("file", O_WRONLY | O_CREAT, 0644); block(other, 0, 99, 20); close(other);
    show("file");
    CHECK(stdchk_restore(middle) == 0);
    if (stdchk_active()) show("file");
    CHECK(stdchk_restore(start) == 0);
    if (stdchk_active()) show("file");
    return 0;
}
