/* Closing a stream closes the descriptor that it was made from. */
#include "check.h"
int main(void) {
    int fd = open("file", O_RDWR | O_CREAT | O_TRUNC, 0644);
    FILE *stream = fdopen(fd, "w+");
    CHECK(fputs("text", stream) >= 0 && fclose(stream) == 0);
    CHECK(write(fd, "x", 1) == -1 && errno == EBADF && fcntl(fd, F_GETFL) == -1);
    show("file");
    return 0;
}
