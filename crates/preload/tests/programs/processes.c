/* Children take part: fork, vfork and exec, popen, system, and a shell's redirections. */
#include "check.h"
int main(void) {
    FILE *s = fopen("file", "w");
    fputs("parent ", s);
    fflush(s);
    long long here = stdchk_checkpoint();
    if (fork() == 0) {
        fputs("child ", s);
        exit(0);
    }
    wait(NULL);
    CHECK(system("echo system >> file; rm -f absent; echo new > other") == 0);
    FILE *p = popen("cat >> file", "w");
    fputs("popen\n", p);
    CHECK(pclose(p) == 0);
    if (vfork() == 0) {
        execl("/bin/sh", "sh", "-c", "echo vfork >> file", (char *)NULL);
        _exit(1);
    }
    wait(NULL);
    char *const bare[] = {"PATH=/bin:/usr/bin", NULL};
    if (fork() == 0) execle("/bin/sh", "sh", "-c", "echo bare >> file; mv other third", (char *)NULL, bare);
    wait(NULL);
    show("file");
    CHECK(stdchk_restore(here) == 0);
    if (stdchk_active()) {
        struct stat about;
        CHECK(stat("file", &about) == 0 && about.st_size == 7);
        CHECK(access("other", F_OK) != 0 && access("third", F_OK) != 0);
    }
    return 0;
}
