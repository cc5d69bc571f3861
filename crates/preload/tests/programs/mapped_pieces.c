/* A large mapping of which a few bytes change between checkpoints. */
#include "check.h"
enum { SIZE = 4 << 20, STEPS = 8, DISTANCE = 300000 };
int main(void) {
    int fd = open("large", O_RDWR | O_CREAT | O_TRUNC, 0644);
    block(fd, 0, 'a', SIZE);
    char *map = mmap(0, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED);
    for (int step = 0; step < STEPS; step++) {
        CHECK(stdchk_checkpoint() >= 0);
        memset(map + step * DISTANCE, '0' + step, 4);
    }
    return 0;
}
