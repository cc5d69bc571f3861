/* A thread waits for input, holding its stream's lock, while a checkpoint is taken and gone back to. */
#include "check.h"
static int ends[2];
static FILE *input;
static char line[100];
static void *work(void *unused) {
    CHECK(fgets(line, sizeof line, input) == line);
    return unused;
}
int main(void) {
    CHECK(pipe(ends) == 0);
    input = fdopen(ends[0], "r");
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, work, NULL) == 0);
    while (ftrylockfile(input) == 0) {
        funlockfile(input);
        usleep(100);
    }
    FILE *s = fopen("file", "w");
    fputs("kept", s);
    long long here = stdchk_checkpoint();
    CHECK(here >= 0);
    fputs(" lost", s);
    CHECK(stdchk_restore(here) == 0);
    if (stdchk_active()) {
        struct stat about;
        CHECK(stat("file", &about) == 0 && about.st_size == 4 && ftell(s) == 4);
    }
    CHECK(write(ends[1], "line\n", 5) == 5 && pthread_join(thread, NULL) == 0);
    printf("%s", line);
    return 0;
}
