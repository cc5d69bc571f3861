/* Two descriptors whose numbers were exchanged since the checkpoint. */
#include "check.h"
int main(void) {
    int a = open("one", O_RDWR | O_CREAT | O_APPEND, 0644), b = open("two", O_RDWR | O_CREAT, 0644);
    CHECK(write(a, "a", 1) == 1 && write(b, "b", 1) == 1);
    long long here = stdchk_checkpoint();
    int spare = dup(a);
    dup2(b, a);
    dup2(spare, b);
    close(spare);
    CHECK(stdchk_restore(here) == 0);
    if (!stdchk_active()) return 0;
    CHECK(write(a, "A", 1) == 1 && write(b, "B", 1) == 1);
    CHECK(fcntl(a, F_GETFL) & O_APPEND && !(fcntl(b, F_GETFL) & O_APPEND));
    close(a);
    close(b);
    FILE *file = fopen("one", "r");
    CHECK(fgetc(file) == 'a' && fgetc(file) == 'A' && fgetc(file) == EOF);
    return 0;
}
