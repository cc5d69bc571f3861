/* The workloads of the measure `files`: Figure 5.1's three tests as bonnie++ does them, random overwrites, calls on files
 * that are not protected, and the time of a checkpoint and of a restore. The same program runs with and without the
 * library. Usage: files NAME BYTES, in a directory with a file `old` of so many bytes; prints nanoseconds per operation. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* There only under the library. */
extern long long stdchk_checkpoint(void) __attribute__((weak));
extern int stdchk_restore(long long) __attribute__((weak));

#define CHECK(condition)                                                                      \
    do {                                                                                      \
        if (!(condition)) {                                                                   \
            fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno); \
            _exit(1);                                                                         \
        }                                                                                     \
    } while (0)

/* bonnie++'s chunk, a page, calls of a row without data, bytes changed before a checkpoint, overwrites of each page. */
enum { BLOCK = 8192, PAGE = 4096, CALLS = 200000, CHANGED = 1 << 20, TIMES = 10 };
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
    CHECK(close(fd) == 0);
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

static long random_page(unsigned long *state, long size) {
    *state = *state * 6364136223846793005UL + 1442695040888963407UL;
    return (long)((*state >> 20) % (unsigned long)(size / PAGE)) * PAGE;
}

/* Of a file that was there before the checkpoint: one in TIMES overwrites of a page is its first, which saves. */
static double random_pwrite(long size) {
    int fd = open("old", O_RDWR);
    unsigned long state = 1;
    double begin = now();
    for (long i = 0; i < size / PAGE * TIMES; i++) CHECK(pwrite(fd, bytes, PAGE, random_page(&state, size)) == PAGE);
    return report(begin, size / PAGE * TIMES);
}

static double random_stdio(long size) {
    FILE *stream = fopen("old", "r+");
    unsigned long state = 1;
    double begin = now();
    for (long i = 0; i < size / PAGE * TIMES; i++) {
        CHECK(fseek(stream, random_page(&state, size), SEEK_SET) == 0);
        CHECK(fwrite(bytes, PAGE, 1, stream) == 1);
    }
    CHECK(fclose(stream) == 0);
    return report(begin, size / PAGE * TIMES);
}

/* Every page once, far from the one before. */
static double first_overwrites(long size) {
    int fd = open("old", O_RDWR);
    double begin = now();
    for (long i = 0; i < size / PAGE; i++) CHECK(pwrite(fd, bytes, PAGE, i * 7919 % (size / PAGE) * PAGE) == PAGE);
    return report(begin, size / PAGE);
}

static double unprotected_write(long size) {
    (void)size;
    int fd = open("/dev/null", O_WRONLY);
    double begin = now();
    for (long i = 0; i < CALLS; i++) CHECK(write(fd, bytes, 1) == 1);
    return report(begin, CALLS);
}

static double unprotected_pwrite(long size) {
    (void)size;
    int fd = open("/dev/null", O_WRONLY);
    double begin = now();
    for (long i = 0; i < CALLS; i++) CHECK(pwrite(fd, bytes, 1, i) == 1);
    return report(begin, CALLS);
}

static double unprotected_open(long size) {
    (void)size;
    double begin = now();
    for (long i = 0; i < CALLS / 4; i++) CHECK(close(open("/dev/null", O_RDONLY)) == 0);
    return report(begin, CALLS / 4 * 2);
}

static double unprotected_open_to_write(long size) {
    (void)size;
    double begin = now();
    for (long i = 0; i < CALLS / 4; i++) CHECK(close(open("/dev/null", O_WRONLY)) == 0);
    return report(begin, CALLS / 4 * 2);
}

/* What is written to once: the look at the file falls into the write. */
static double unprotected_open_and_write(long size) {
    (void)size;
    double begin = now();
    for (long i = 0; i < CALLS / 4; i++) {
        int fd = open("/dev/null", O_WRONLY);
        CHECK(write(fd, bytes, 1) == 1 && close(fd) == 0);
    }
    return report(begin, CALLS / 4 * 3);
}

static double unprotected_open_to_create(long size) {
    (void)size;
    double begin = now();
    for (long i = 0; i < CALLS / 4; i++) CHECK(close(open("/dev/null", O_WRONLY | O_CREAT | O_TRUNC, 0644)) == 0);
    return report(begin, CALLS / 4 * 2);
}

static int change(long size) {
    int fd = open("old", O_RDWR);
    for (long i = 0; i < CHANGED / PAGE; i++) CHECK(pwrite(fd, bytes, PAGE, i * 7919 % (size / PAGE) * PAGE) == PAGE);
    return fd;
}

/* What the disk takes for the same change. */
static double sync_change(long size) {
    int fd = change(size);
    double begin = now();
    CHECK(fsync(fd) == 0);
    return report(begin, 1);
}

static double checkpoint(long size) {
    CHECK(close(change(size)) == 0);
    double begin = now();
    CHECK(stdchk_checkpoint && stdchk_checkpoint() >= 0);
    return report(begin, 1);
}

static double restore(long size) {
    CHECK(stdchk_checkpoint && stdchk_restore);
    long long here = stdchk_checkpoint();
    CHECK(close(change(size)) == 0);
    double begin = now();
    CHECK(stdchk_restore(here) == 0);
    return report(begin, 1);
}

#define WORKLOAD(name) {#name, name}

int main(int count, char **arguments) {
    static const struct { const char *name; double (*run)(long); } all[] = {
        WORKLOAD(block_write), WORKLOAD(rewrite), WORKLOAD(block_read),
        WORKLOAD(random_pwrite), WORKLOAD(random_stdio), WORKLOAD(first_overwrites),
        WORKLOAD(unprotected_write), WORKLOAD(unprotected_pwrite),
        WORKLOAD(unprotected_open), WORKLOAD(unprotected_open_to_write),
        WORKLOAD(unprotected_open_and_write), WORKLOAD(unprotected_open_to_create),
        WORKLOAD(sync_change), WORKLOAD(checkpoint), WORKLOAD(restore),
    };
    CHECK(count == 3);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (strcmp(all[i].name, arguments[1]) != 0) continue;
        printf("%.1f\n", all[i].run(atol(arguments[2])));
        return 0;
    }
    fprintf(stderr, "there is no workload %s\n", arguments[1]);
    return 1;
}
