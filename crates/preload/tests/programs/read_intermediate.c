/* Reads that begin in the middle, reach over the end, and begin behind it. */
#include "check.h"
int main(void) {
    int fd = open("file", O_RDWR | O_CREAT | O_TRUNC, 0644);
    block(fd, 0, 'x', 5000);
    block(fd, 2500, 'y', 10);
    char buffer[100];
    off_t starts[] = {0, 2450, 2505, 4990, 5000, 9000};
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++) {
        memset(buffer, 0, sizeof buffer);
        ssize_t got = pread(fd, buffer, sizeof buffer - 1, starts[i]);
        printf("%ld: %zd %s\n", (long)starts[i], got, buffer);
    }
    stdchk_checkpoint();
    return 0;
}
