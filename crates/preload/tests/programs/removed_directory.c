/* Nothing comes into being in a directory that was removed, though a process works in it, or has it open. */
#include "check.h"

static void say(const char *what, long result) { printf("%s %ld %d\n", what, result < 0 ? -1 : 0, result < 0 ? errno : 0); }

int main(void) {
    CHECK(mkdir("left", 0755) == 0);
    int left = open("left", O_RDONLY | O_DIRECTORY);
    CHECK(left >= 0 && chdir("kept") == 0);
    CHECK(stdchk_checkpoint() >= 0);
    CHECK(rmdir("../left") == 0 && rmdir("../kept") == 0);
    say("open", open("x", O_WRONLY | O_CREAT, 0644));
    say("fopen", fopen("x", "w") == NULL ? -1 : 0);
    say("mkdir", mkdir("x", 0755));
    say("symlink", symlink("a", "x"));
    say("openat", openat(left, "x", O_WRONLY | O_CREAT | O_TRUNC, 0644));
    say("mkdirat", mkdirat(left, "x", 0755));
    say("linkat", linkat(AT_FDCWD, "../a", left, "x", 0));
    say("renameat", renameat(AT_FDCWD, "../a", left, "x"));
    say("open to read", open("x", O_RDONLY));
    say("unlink", unlink("x"));
    return 0;
}
