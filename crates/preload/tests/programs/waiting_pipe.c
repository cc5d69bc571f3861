/* Children wait to open a pipe for writing, as a shell's `>` does, and for a pipe's bytes to move into a file: a checkpoint
 * waits for neither. */
#include "check.h"
#include <sys/ioctl.h>
static void in_child(void (*work)(void)) {
    if (fork() == 0) {
        work();
        exit(0);
    }
}
static int ends[2];
static void open_pipe(void) {
    close(ends[1]);
    int fd = open("fifo", O_WRONLY | O_CREAT | O_TRUNC, 0644);
    CHECK(fd >= 0 && write(fd, "x", 1) == 1);
}
static void move(void) {
    close(ends[1]);
    int fd = open("file", O_RDWR);
    CHECK(splice(ends[0], NULL, fd, NULL, 6, 0) == 6);
}
int main(void) {
    CHECK(mkfifo("fifo", 0644) == 0 && pipe(ends) == 0);
    in_child(open_pipe);
    in_child(move);
    usleep(50000); /* Long enough for both to be waiting, most of the time; the checkpoint is right in any case. */
    CHECK(stdchk_checkpoint() >= 0);
    char byte;
    int fifo = open("fifo", O_RDONLY);
    CHECK(read(fifo, &byte, 1) == 1 && write(ends[1], "spliced", 6) == 6);
    CHECK(wait(NULL) > 0 && wait(NULL) > 0);
    CHECK(unlink("fifo") == 0);
    show("file");
    return 0;
}
