/* Takes a checkpoint of its files and goes back to it; prints whether it runs under `stdchk run`, how long `data` is then, and
 * whether `other` is there. The same program as calls.f90 and calls.py. */
#include <stdchk.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

int main(void) {
    FILE *stream = fopen("data", "w");
    if (stream == NULL || fputs("one\n", stream) < 0) return 1;
    long long here = stdchk_checkpoint();
    if (here < 0 || fputs("two\n", stream) < 0 || fclose(stream) != 0) return 1;
    FILE *other = fopen("other", "w");
    if (other == NULL || fclose(other) != 0 || stdchk_restore(here) != 0) return 1;
    struct stat about;
    if (stat("data", &about) != 0) return 1;
    printf("%c %lld %c\n", stdchk_active() ? 'T' : 'F', (long long)about.st_size, access("other", F_OK) == 0 ? 'T' : 'F');
    return 0;
}
