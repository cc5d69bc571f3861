/* Files created after the restore point disappear again, deleted ones come back. */
#include "check.h"
int main(void) {
    close(open("before", O_CREAT | O_WRONLY, 0644));
    long long here = stdchk_checkpoint();
    mkdir("directory", 0755);
    close(open("directory/new", O_CREAT | O_WRONLY, 0644));
    CHECK(symlink("before", "link") == 0 && link("before", "hard") == 0);
    CHECK(rename("before", "after") == 0);
    stdchk_checkpoint();
    CHECK(stdchk_restore(here) == 0);
    if (stdchk_active()) {
        CHECK(access("before", F_OK) == 0 && access("after", F_OK) != 0 && access("directory", F_OK) != 0);
        CHECK(access("link", F_OK) != 0 && access("hard", F_OK) != 0);
    }
    return 0;
}
