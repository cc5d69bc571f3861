/* A shared writable mapping of a file that is renamed under it, written to by a child whose parent is gone. */
#include "check.h"

int main(void) {
    int fd = open("file", O_RDWR | O_CREAT | O_TRUNC, 0644), parent[2];
    block(fd, 0, 'a', 8192);
    char *map = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), byte;
    CHECK(map != MAP_FAILED && pipe(parent) == 0);
    if (fork() != 0) return 0;
    CHECK(close(parent[1]) == 0 && read(parent[0], &byte, 1) == 0);
    CHECK(rename("file", "moved") == 0);
    long long middle = stdchk_checkpoint();
    map[0] = 'b';
    show("moved");
    CHECK(stdchk_restore(middle) == 0);
    if (stdchk_active()) show("moved");
    return 0;
}
