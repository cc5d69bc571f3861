/* feof, ferror and clearerr, also across a checkpoint. */
#include "check.h"
int main(void) {
    FILE *stream = fopen("file", "w");
    CHECK(fputs("ab", stream) >= 0 && !ferror(stream));
    CHECK(fgetc(stream) == EOF && ferror(stream));
    clearerr(stream);
    CHECK(!ferror(stream) && fclose(stream) == 0);
    stream = fopen("file", "r");
    CHECK(fgetc(stream) == 'a' && !feof(stream) && fgetc(stream) == 'b' && !feof(stream));
    CHECK(fgetc(stream) == EOF && feof(stream));
    long long here = stdchk_checkpoint();
    clearerr(stream);
    rewind(stream);
    CHECK(!feof(stream) && fgetc(stream) == 'a');
    CHECK(stdchk_restore(here) == 0);
    if (stdchk_active()) CHECK(feof(stream) && fgetc(stream) == EOF);
    return 0;
}
