/* 64 threads write to files of their own and to a common one, while checkpoints are taken. */
#include "check.h"
enum { THREADS = 64, ROUNDS = 50 };
static int common;
static void *work(void *argument) {
    long number = (long)argument;
    char name[20];
    snprintf(name, sizeof name, "file%ld", number);
    int fd = open(name, O_RDWR | O_CREAT, 0644);
    for (int i = 0; i < ROUNDS; i++) {
        block(fd, (i % 7) * 1000, 'a' + i % 26, 1500);
        block(common, number * 100, 'A' + i % 26, 100);
    }
    close(fd);
    return NULL;
}
int main(void) {
    common = open("common", O_RDWR | O_CREAT, 0644);
    block(common, 0, '.', THREADS * 100);
    long long here = stdchk_checkpoint();
    pthread_t threads[THREADS];
    for (long i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, work, (void *)i) == 0);
    for (int i = 0; i < 5; i++) CHECK(stdchk_checkpoint() >= 0);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    show("common");
    show("file7");
    CHECK(stdchk_restore(here) == 0);
    if (stdchk_active()) {
        char all[THREADS * 100];
        CHECK(pread(common, all, sizeof all, 0) == sizeof all);
        for (size_t i = 0; i < sizeof all; i++) CHECK(all[i] == '.');
        CHECK(access("file7", F_OK) != 0);
    }
    return 0;
}
