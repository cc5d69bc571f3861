/* Overwrites, appends, replaces, deletes and re-creates, then checkpoints, for ever: killed from outside. At checkpoint
 * n every file says n. */
#include "check.h"
int main(void) {
    int counter = open("counter", O_RDWR | O_CREAT, 0644);
    for (long long n = 1;; n++) {
        char text[32];
        int length = snprintf(text, sizeof text, "%08lld", n);
        CHECK(pwrite(counter, text, length, 0) == length);
        FILE *log = fopen("log", "a");
        fprintf(log, "%s\n", text);
        fclose(log);
        FILE *next = fopen("result.new", "w");
        fputs(text, next);
        fclose(next);
        CHECK(rename("result.new", "result") == 0);
        unlink("scratch");
        int scratch = open("scratch", O_WRONLY | O_CREAT | O_EXCL, 0644);
        CHECK(write(scratch, text, length) == length);
        close(scratch);
        CHECK(mkdir("directory", 0755) == 0 && rename("directory", "moved") == 0 && rmdir("moved") == 0);
        CHECK(stdchk_checkpoint() == n);
    }
}
