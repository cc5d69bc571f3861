/* The workloads of the benchmark: figure 5.1's three tests, random overwrites, calls on unprotected files, and the time
 * of a checkpoint and a restore. Usage: workloads NAME BYTES; prints nanoseconds per operation. */
#include "check.h"
#include <time.h>

enum { BLOCK = 8192, SMALL = 4096, CALLS = 200000, CHANGED = 1 << 20 };
static char bytes[BLOCK];

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}

static double report(double begin, long operations) { return (now() - begin) / operations; }

static double block_write(long size) {
    int fd = open("new", O_WRONLY | O_CREAT | O_TRUNC, 0644);
    double begin = now();
    for (long i = 0; i < size / BLOCK; i++) CHECK(write(fd, bytes, BLOCK) == BLOCK);
    return report(begin, size / BLOCK);
}

static double rewrite(long size) {
    block_write(size);
    int fd = open("new", O_RDWR);
    double begin = now();
    for (long i = 0; i < size / BLOCK; i++) {
        CHECK(read(fd, bytes, BLOCK) == BLOCK);
        bytes[0]++;
        CHECK(lseek(fd, -BLOCK, SEEK_CUR) >= 0 && write(fd, bytes, BLOCK) == BLOCK);
    }
    return report(begin, size / BLOCK);
}

static double block_read(long size) {
    int fd = open("old", O_RDONLY);
    double begin = now();
    for (long i = 0; i < size / BLOCK; i++) CHECK(read(fd, bytes, BLOCK) == BLOCK);
    return report(begin, size / BLOCK);
}

/* Overwrites of a file that was there before: ten of each block, so that the first one, which saves, is one in ten. */
static double random_pwrite(long size) {
    int fd = open("old", O_RDWR);
    unsigned long at = 1;
    double begin = now();
    for (long i = 0; i < size / SMALL * 10; i++) {
        at = at * 6364136223846793005UL + 1442695040888963407UL;
        CHECK(pwrite(fd, bytes, SMALL, (at >> 20) % (size / SMALL) * SMALL) == SMALL);
    }
    return report(begin, size / SMALL * 10);
}

static double random_stdio(long size) {
    FILE *stream = fopen("old", "r+");
    unsigned long at = 1;
    double begin = now();
    for (long i = 0; i < size / SMALL * 10; i++) {
        at = at * 6364136223846793005UL + 1442695040888963407UL;
        fseek(stream, (at >> 20) % (size / SMALL) * SMALL, SEEK_SET);
        CHECK(fwrite(bytes, SMALL, 1, stream) == 1);
    }
    fclose(stream);
    return report(begin, size / SMALL * 10);
}

static double first_overwrites(long size) {
    int fd = open("old", O_RDWR);
    double begin = now();
    for (long i = 0; i < size / SMALL; i++) CHECK(pwrite(fd, bytes, SMALL, i * 7919 % (size / SMALL) * SMALL) == SMALL);
    return report(begin, size / SMALL);
}

static double unprotected_write(long size) {
    (void)size;
    int fd = open("/dev/null", O_WRONLY);
    double begin = now();
    for (long i = 0; i < CALLS; i++) CHECK(write(fd, bytes, 1) == 1);
    return report(begin, CALLS);
}

static double unprotected_open(long size) {
    (void)size;
    double begin = now();
    for (long i = 0; i < CALLS / 10; i++) close(open("/dev/null", O_RDONLY));
    return report(begin, CALLS / 10);
}

/* One megabyte changed in a file of any size. */
static double checkpoint(long size) {
    int fd = open("old", O_RDWR);
    for (long i = 0; i < CHANGED / SMALL; i++) block(fd, i * 7919 % (size / SMALL) * SMALL, 'c', SMALL);
    double begin = now();
    CHECK(stdchk_checkpoint() >= 0);
    return report(begin, 1);
}

static double restore(long size) {
    int fd = open("old", O_RDWR);
    long long here = stdchk_checkpoint();
    for (long i = 0; i < CHANGED / SMALL; i++) block(fd, i * 7919 % (size / SMALL) * SMALL, 'c', SMALL);
    double begin = now();
    CHECK(stdchk_restore(here) == 0);
    return report(begin, 1);
}

int main(int count, char **arguments) {
    CHECK(count == 3);
    static const struct { const char *name; double (*run)(long); } all[] = {
        {"block_write", block_write}, {"rewrite", rewrite}, {"block_read", block_read},
        {"random_pwrite", random_pwrite}, {"random_stdio", random_stdio}, {"first_overwrites", first_overwrites},
        {"unprotected_write", unprotected_write}, {"unprotected_open", unprotected_open},
        {"checkpoint", checkpoint}, {"restore", restore},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (strcmp(all[i].name, arguments[1]) == 0) printf("%.1f\n", all[i].run(atol(arguments[2])));
    }
    return 0;
}
