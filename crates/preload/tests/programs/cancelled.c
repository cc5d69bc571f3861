/* Threads are cancelled inside calls: one that waits for a pipe, one that writes to a protected file. Their clean-up runs,
 * and a checkpoint does not wait for them. */
#include "check.h"
#include <sys/ioctl.h>
static int ends[2], fd;
static volatile int cleaned, writing;
static void clean(void *unused) {
    (void)unused;
    cleaned++;
}
static void *fill_pipe(void *unused) {
    char bytes[4096] = {0};
    pthread_cleanup_push(clean, unused);
    for (;;) write(ends[1], bytes, sizeof bytes);
    pthread_cleanup_pop(1);
}
static void *fill_file(void *unused) {
    pthread_cleanup_push(clean, unused);
    for (;; writing = 1) pwrite(fd, "x", 1, 0);
    pthread_cleanup_pop(1);
}
static void cancel(pthread_t thread) {
    void *result;
    CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
}
int main(void) {
    fd = open("file", O_RDWR);
    long long here = stdchk_checkpoint();
    CHECK(pipe(ends) == 0 && fcntl(ends[1], F_GETPIPE_SZ) > 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, fill_pipe, NULL) == 0);
    int held = 0;
    while (held < fcntl(ends[1], F_GETPIPE_SZ)) CHECK(ioctl(ends[0], FIONREAD, &held) == 0);
    cancel(thread);
    for (int round = 0; round < 20; round++) {
        writing = 0;
        CHECK(pthread_create(&thread, NULL, fill_file, NULL) == 0);
        while (!writing) usleep(100);
        cancel(thread);
    }
    printf("cleaned %d\n", cleaned);
    CHECK(stdchk_checkpoint() >= 0);
    show("file");
    CHECK(stdchk_restore(here) == 0);
    return 0;
}
