/* A file system exerciser after fsx: random changes to one file, by every way to change it, against a copy in memory;
 * checkpoints and restores anywhere. Usage: exerciser SEED; says what it did. */
#include "check.h"

enum { SIZE_MAX_ = 3 << 20, STEPS = 300, SNAPSHOTS = 6, PAGE = 4096 };

static unsigned char model[SIZE_MAX_], bytes[SIZE_MAX_];
static long size;
static int fd;
static FILE *stream;
static unsigned long state;
static long done[10];

static struct { long long index; long size; unsigned char *bytes; } snapshots[SNAPSHOTS];
static int snapshot_count;

static long below(long limit) {
    state = state * 6364136223846793005UL + 1442695040888963407UL;
    return (long)((state >> 20) % (unsigned long)limit);
}

/* Mostly small, sometimes large, never beyond the end of the model. */
static long some_length(long offset) {
    long limit = below(8) == 0 ? 300000 : below(3) == 0 ? 20000 : 3000;
    long length = 1 + below(limit);
    return length < SIZE_MAX_ - offset ? length : SIZE_MAX_ - offset;
}

static void fill(long offset, long length) {
    memset(bytes, (int)below(256), length);
    memcpy(model + offset, bytes, length);
    if (offset + length > size) size = offset + length;
}

static void verify(long offset, long length) {
    if (offset + length > size) length = size - offset;
    if (length <= 0) return;
    CHECK(pread(fd, bytes, length, offset) == length);
    for (long i = 0; i < length; i++) {
        if (bytes[i] == model[offset + i]) continue;
        fprintf(stderr, "byte %ld is %d, not %d\n", offset + i, bytes[i], model[offset + i]);
        _exit(1);
    }
}

static void verify_all(void) {
    struct stat about;
    CHECK(fstat(fd, &about) == 0 && about.st_size == size);
    verify(0, size);
}

static void write_somewhere(int way) {
    long offset = below(SIZE_MAX_ - 1), length = some_length(offset);
    fill(offset, length);
    if (way == 0) CHECK(pwrite(fd, bytes, length, offset) == length);
    if (way == 1) CHECK(lseek(fd, offset, SEEK_SET) == offset && write(fd, bytes, length) == length);
    if (way == 2) {
        CHECK(fseek(stream, offset, SEEK_SET) == 0 && fwrite(bytes, 1, length, stream) == (size_t)length);
        CHECK(fflush(stream) == 0);
    }
    if (way == 3) {
        pid_t child = fork();
        if (child == 0) _exit(pwrite(fd, bytes, length, offset) == length ? 0 : 1);
        int status;
        CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    }
}

/* Pages all over one mebibyte: what is saved ahead must be what was there. */
static void overwrite_pages(void) {
    long region = below(SIZE_MAX_ >> 20) << 20;
    for (long i = 20 + below(40); i > 0; i--) {
        long offset = region + below(256) * PAGE;
        fill(offset, PAGE);
        CHECK(pwrite(fd, bytes, PAGE, offset) == PAGE);
    }
}

static void cut(void) {
    long to = below(SIZE_MAX_);
    CHECK(ftruncate(fd, to) == 0);
    if (to < size) memset(model + to, 0, size - to);
    size = to;
}

static void punch(void) {
    long offset = below(SIZE_MAX_ - 1), length = some_length(offset);
    CHECK(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, length) == 0);
    if (offset < size) memset(model + offset, 0, offset + length < size ? length : size - offset);
}

/* In a child: a mapping is saved at every checkpoint while its process lives. */
static void map_and_change(void) {
    if (size < PAGE) return;
    long offset = below(size - 100);
    int value = (int)below(256);
    pid_t child = fork();
    if (child == 0) {
        unsigned char *mapped = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (mapped == MAP_FAILED) _exit(1);
        memset(mapped + offset, value, 100);
        _exit(0);
    }
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    memset(model + offset, value, 100);
}

static void checkpoint(void) {
    if (snapshot_count == SNAPSHOTS) return;
    long long index = stdchk_checkpoint();
    CHECK(index >= 0);
    unsigned char *copy = malloc(SIZE_MAX_);
    memcpy(copy, model, SIZE_MAX_);
    snapshots[snapshot_count].index = index;
    snapshots[snapshot_count].size = size;
    snapshots[snapshot_count++].bytes = copy;
}

static void go_back(void) {
    if (snapshot_count == 0 || !stdchk_active()) return;
    int to = (int)below(snapshot_count);
    CHECK(stdchk_restore(snapshots[to].index) == 0);
    memcpy(model, snapshots[to].bytes, SIZE_MAX_);
    size = snapshots[to].size;
    while (snapshot_count > to + 1) free(snapshots[--snapshot_count].bytes);
    verify_all();
}

static void reopen(void) {
    CHECK(close(fd) == 0);
    fd = open("old", O_RDWR);
    CHECK(fd >= 0);
}

static void step(void) {
    long kind = below(100);
    int which = kind < 30 ? 0 : kind < 40 ? 1 : kind < 48 ? 2 : kind < 58 ? 3 : kind < 64 ? 4 : kind < 72 ? 5 : kind < 76 ? 6
              : kind < 90 ? 7 : kind < 95 ? 8 : 9;
    done[which]++;
    switch (which) {
    case 0: write_somewhere(0); break;
    case 1: write_somewhere(1); break;
    case 2: write_somewhere(2); break;
    case 3: overwrite_pages(); break;
    case 4: below(2) ? cut() : punch(); break;
    case 5: checkpoint(); break;
    case 6: go_back(); break;
    case 7: verify(below(SIZE_MAX_), 100000); break;
    case 8: below(2) ? write_somewhere(3) : reopen(); break;
    default: map_and_change();
    }
}

int main(int count, char **arguments) {
    CHECK(count == 2);
    state = strtoul(arguments[1], NULL, 10);
    fd = open("old", O_RDWR);
    stream = fopen("old", "r+");
    CHECK(fd >= 0 && stream);
    setvbuf(stream, NULL, _IOFBF, 5000);
    size = lseek(fd, 0, SEEK_END);
    CHECK(size <= SIZE_MAX_ && pread(fd, model, size, 0) == size);
    for (int i = 0; i < STEPS; i++) step();
    verify_all();
    printf("%ld checkpoints, %ld restores\n", done[5], done[6]);
    return 0;
}
