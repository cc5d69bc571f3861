/* A stream held at a checkpoint: position, push-back characters, and the pointer itself after fclose. */
#include "check.h"
int main(void) {
    FILE *s = fopen("file", "w");
    fputs("0123456789", s);
    fclose(s);
    s = fopen("file", "r");
    CHECK(fgetc(s) == '0' && fgetc(s) == '1' && ungetc('X', s) == 'X');
    long long here = stdchk_checkpoint();
    CHECK(fgetc(s) == 'X' && fgetc(s) == '2');
    CHECK(fclose(s) == 0);
    int fd = open("file", O_WRONLY | O_TRUNC);
    CHECK(write(fd, "changed", 7) == 7);
    CHECK(stdchk_restore(here) == 0);
    if (!stdchk_active()) return 0;
    CHECK(fgetc(s) == 'X' && fgetc(s) == '2' && fgetc(s) == '3');
    CHECK(fclose(s) == 0);
    return 0;
}
