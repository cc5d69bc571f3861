/* A shared writable mapping, through two checkpoints. */
#include "check.h"
int main(void) {
    int fd = open("file", O_RDWR | O_CREAT | O_TRUNC, 0644);
    long long start = stdchk_checkpoint();
    block(fd, 0, 97, 8192); char *map = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0); CHECK(map != MAP_FAILED); map[0] = 120;
    show("file");
    long long middle = stdchk_checkpoint();
    map[5000] = 121; memset(map + 100, 122, 50);
    show("file");
    CHECK(stdchk_restore(middle) == 0);
    if (stdchk_active()) show("file");
    CHECK(stdchk_restore(start) == 0);
    if (stdchk_active()) show("file");
    return 0;
}
