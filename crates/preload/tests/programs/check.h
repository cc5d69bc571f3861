/* What every verification program uses: it prints what it sees, so that runs with and without the library compare. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <wchar.h>
#include "../../include/stdchk.h"

#define CHECK(condition)                                                                     \
    do {                                                                                     \
        if (!(condition)) {                                                                  \
            fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno); \
            _exit(1);                                                                        \
        }                                                                                    \
    } while (0)

static inline void block(int fd, off_t offset, char letter, size_t length) {
    char *bytes = malloc(length);
    memset(bytes, letter, length);
    CHECK(pwrite(fd, bytes, length, offset) == (ssize_t)length);
    free(bytes);
}

/* Prints a file as runs of equal bytes. */
static inline void show(const char *path) {
    int fd = open(path, O_RDONLY);
    if (fd < 0) {
        printf("%s: absent\n", path);
        return;
    }
    printf("%s:", path);
    unsigned char buffer[4096];
    ssize_t got;
    long run = 0;
    int last = -1;
    while ((got = read(fd, buffer, sizeof buffer)) > 0) {
        for (ssize_t i = 0; i < got; i++) {
            if (buffer[i] != last && run) { printf(" %ldx%02x", run, last); run = 0; }
            last = buffer[i];
            run++;
        }
    }
    if (run) printf(" %ldx%02x", run, last);
    printf("\n");
    close(fd);
}
