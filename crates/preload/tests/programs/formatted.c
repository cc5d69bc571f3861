/* dprintf, in all its forms, over what was there. */
#include "check.h"
#include <stdarg.h>
static int say(int fd, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int length = vdprintf(fd, format, arguments);
    va_end(arguments);
    return length;
}
int main(void) {
    int fd = open("file", O_RDWR | O_CREAT | O_TRUNC, 0644);
    long long start = stdchk_checkpoint();
    CHECK(dprintf(fd, "%05d", 7) == 5);
    show("file");
    long long middle = stdchk_checkpoint();
    CHECK(lseek(fd, 0, SEEK_SET) == 0 && say(fd, "%s-%c", "other", 'c') == 7);
    show("file");
    CHECK(dprintf(-1, "x") == -1 && errno == EBADF);
    CHECK(stdchk_restore(middle) == 0);
    if (stdchk_active()) show("file");
    CHECK(stdchk_restore(start) == 0);
    if (stdchk_active()) show("file");
    return 0;
}
