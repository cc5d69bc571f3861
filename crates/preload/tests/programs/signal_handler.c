/* A signal handler that writes to a protected file while the program is inside malloc and stdio. */
#include "check.h"
#include <signal.h>
#include <sys/time.h>
static int fd;
static volatile long ticks;
static void tick(int signal) {
    (void)signal;
    char letter = 'a' + ticks++ % 26;
    pwrite(fd, &letter, 1, 0);
}
int main(void) {
    fd = open("ticks", O_RDWR | O_CREAT, 0644);
    block(fd, 0, '.', 100);
    long long here = stdchk_checkpoint();
    signal(SIGALRM, tick);
    struct itimerval often = {{0, 200}, {0, 200}};
    CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
    FILE *s = fopen("file", "w");
    while (ticks < 300) {
        void *memory = malloc(1000);
        fprintf(s, "%p\n", memory);
        fflush(s);
        free(memory);
    }
    memset(&often, 0, sizeof often);
    setitimer(ITIMER_REAL, &often, NULL);
    fclose(s);
    CHECK(unlink("file") == 0 && stdchk_restore(here) == 0);
    block(fd, 0, '.', 1);
    show("ticks");
    return 0;
}
