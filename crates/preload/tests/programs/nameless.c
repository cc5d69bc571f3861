/* Files without a name, held open over a checkpoint: one of tmpfile, one that was deleted while open, one of O_TMPFILE. */
#include "check.h"
#include <dirent.h>
enum { LENGTH = 10000 };

static void expect(int fd, char letter) {
    char found[LENGTH + 1];
    CHECK(pread(fd, found, sizeof found, 0) == LENGTH);
    for (int i = 0; i < LENGTH; i++) CHECK(found[i] == letter);
}

int main(void) {
    FILE *stream = tmpfile();
    CHECK(stream != NULL);
    char name[] = "gone-XXXXXX";
    int fds[] = {fileno(stream), mkstemp(name), open(".", O_TMPFILE | O_RDWR, 0600)};
    CHECK(unlink(name) == 0);
    CHECK(fprintf(stream, "%*d", LENGTH, 7) == LENGTH && fflush(stream) == 0);
    for (int i = 0; i < 3; i++) block(fds[i], 0, 'a' + i, LENGTH);
    long long here = stdchk_checkpoint();
    for (int i = 0; i < 3; i++) {
        block(fds[i], 5000, 'x', 3 * LENGTH);
        CHECK(i == 1 || ftruncate(fds[i], 100) == 0);
    }
    CHECK(fputs("more", stream) >= 0 && stdchk_restore(here) == 0);
    if (!stdchk_active()) return 0;
    for (int i = 0; i < 3; i++) expect(fds[i], 'a' + i);
    CHECK(ftell(stream) == LENGTH && fclose(stream) == 0);
    return 0;
}
