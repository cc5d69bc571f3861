/* One interval with every kind of change, then a checkpoint, then a restore to it: killed from outside at each system call
 * of the two. With an argument it leaves the restore out. */
#include "check.h"
int main(int count, char **arguments) {
    (void)arguments;
    int data = open("data", O_RDWR);
    CHECK(data >= 0);
    close(open("begin", O_WRONLY | O_CREAT, 0644));
    block(data, 4096, 'n', 4096);
    int log = open("log", O_WRONLY | O_APPEND);
    CHECK(write(log, "two\n", 4) == 4);
    CHECK(unlink("gone") == 0);
    int again = open("gone", O_WRONLY | O_CREAT | O_EXCL, 0644);
    CHECK(write(again, "again", 5) == 5);
    int next = open("result.new", O_WRONLY | O_CREAT, 0644);
    CHECK(write(next, "new", 3) == 3 && rename("result.new", "result") == 0);
    CHECK(mkdir("directory", 0755) == 0 && chmod("log", 0600) == 0);
    long long here = stdchk_checkpoint();
    CHECK(here >= 0);
    if (count > 1) return 0;
    block(data, 0, 'x', 9000);
    CHECK(ftruncate(log, 1) == 0 && unlink("result") == 0 && rmdir("directory") == 0);
    close(open("end", O_WRONLY | O_CREAT, 0644));
    CHECK(stdchk_restore(stdchk_active() ? here : 0) == 0);
    return 0;
}
