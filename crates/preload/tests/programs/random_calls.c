/* A random program of file calls, from a seed: prints what every call returned, so that a run under the library can be
 * compared with one on the plain kernel, call by call. Usage: random_calls SEED STEPS. */
#include "check.h"
#include <dirent.h>
#include <sys/uio.h>

enum { FDS = 6, STREAMS = 3, MAPS = 2, MAPPED = 12288 };
static const char *names[] = {"a", "b", "dir/a", "dir/b", "dir", "dir/sub", "link", "file/x", "kept", "absent/x", "dir/sub/", "link/"};
static unsigned long state;
static int fds[FDS], null;
static FILE *streams[STREAMS];
static struct { char *bytes; int fd; } maps[MAPS];
static char bytes[20000];

static unsigned long random_below(unsigned long limit) {
    state = state * 6364136223846793005UL + 1442695040888963407UL;
    return (state >> 33) % limit;
}

static const char *name(void) { return names[random_below(sizeof names / sizeof *names)]; }

static void say(const char *what, long result) { printf("%s %ld %d\n", what, result, result < 0 ? errno : 0); }

static void use_descriptor(int slot) {
    int fd = fds[slot];
    size_t length = random_below(6000);
    off_t offset = random_below(12000);
    struct iovec parts[2] = {{bytes, length}, {bytes + 1, 10}};
    switch (random_below(12)) {
    case 0: say("write", write(fd, bytes, length)); break;
    case 1: say("pwrite", pwrite(fd, bytes, length, offset)); break;
    case 2: say("writev", writev(fd, parts, 2)); break;
    case 3: say("pwritev", pwritev(fd, parts, 2, offset)); break;
    case 4: say("lseek", lseek(fd, offset, SEEK_SET)); break;
    case 5: say("ftruncate", ftruncate(fd, offset)); break;
    case 6: say("read", read(fd, bytes, length)); break;
    case 7: say("fallocate", fallocate(fd, 0, offset, length)); break;
    case 8: {
        struct stat about = {0};
        say("fstat", fstat(fd, &about));
        if (S_ISREG(about.st_mode)) say("size", about.st_size); /* a deleted directory is kept, and has one */
        break;
    }
    case 9: {
        int other = fds[random_below(FDS)];
        say("dup2", dup2(fd, other) >= 0 ? 0 : -1);
        break;
    }
    case 10: say("copy", copy_file_range(fd, NULL, fds[random_below(FDS)], NULL, length, 0)); break;
    /* Never free, so that no stream gets the number of one of these and is written to behind its back. */
    case 11: say("dup2", dup2(null, fd) >= 0 ? 0 : -1); break;
    }
}

/* Opens a file that has no name yet, and may get one. */
static int open_unnamed(void) {
    char opened[32];
    int fd = open(name(), O_TMPFILE | O_RDWR, 0644);
    snprintf(opened, sizeof opened, "/proc/self/fd/%d", fd);
    if (fd >= 0) say("write", write(fd, bytes, random_below(6000)));
    if (fd >= 0 && random_below(4)) say("linkat", linkat(AT_FDCWD, opened, AT_FDCWD, name(), AT_SYMLINK_FOLLOW));
    return fd;
}

/* Writes through a mapping of a file that may be renamed, deleted or cut by then; makes one where there is none. */
static void use_mapping(int slot) {
    if (maps[slot].bytes == NULL) {
        int fd = fds[random_below(FDS)];
        char *bytes = mmap(NULL, MAPPED, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        say("mmap", bytes == MAP_FAILED ? -1 : 0);
        if (bytes != MAP_FAILED) maps[slot].bytes = bytes, maps[slot].fd = dup(fd);
        return;
    }
    struct stat about;
    CHECK(fstat(maps[slot].fd, &about) == 0);
    off_t end = about.st_size < MAPPED ? about.st_size : MAPPED, from = random_below(MAPPED);
    if (from < end) memset(maps[slot].bytes + from, 'm', 1 + random_below(end - from));
    if (random_below(8) == 0) {
        CHECK(munmap(maps[slot].bytes, MAPPED) == 0 && close(maps[slot].fd) == 0);
        maps[slot].bytes = NULL;
    }
}

static void use_stream(int slot) {
    FILE *stream = streams[slot];
    if (stream == NULL) {
        static const char *modes[] = {"r", "w", "a", "r+", "w+", "a+", "wx"};
        streams[slot] = fopen(name(), modes[random_below(7)]);
        say("fopen", streams[slot] == NULL ? -1 : 0);
        return;
    }
    switch (random_below(8)) {
    case 0: say("fwrite", fwrite(bytes, 1, random_below(6000), stream)); break;
    case 1: say("fputc", fputc('c', stream)); break;
    case 2: say("fprintf", fprintf(stream, "%ld\n", random_below(1000))); break;
    case 3: say("fseek", fseek(stream, random_below(9000), SEEK_SET)); break;
    case 4: say("fread", (fseek(stream, 0, SEEK_CUR), fread(bytes, 1, random_below(3000), stream))); break;
    case 5: say("ungetc", ungetc('u', stream)), say("again", fgetc(stream)), fseek(stream, 0, SEEK_CUR); break;
    case 6: say("fflush", fflush(stream)); break;
    /* Its answer is not compared: a stream that a checkpoint holds is laid aside, and fails for writes only. */
    case 7: fclose(stream); streams[slot] = NULL; break;
    }
}

static void use_name(void) {
    const char *one = name(), *other = name();
    switch (random_below(13)) {
    case 0: say("unlink", unlink(one)); break;
    case 1: say("rename", rename(one, other)); break;
    case 2: say("mkdir", mkdir(one, 0755)); break;
    case 3: say("rmdir", rmdir(one)); break;
    case 4: say("link", link(one, other)); break;
    case 5: say("symlink", symlink("a", one)); break;
    case 6: say("truncate", truncate(one, random_below(9000))); break;
    case 7: say("remove", remove(one)); break;
    case 8: say("exchange", renameat2(AT_FDCWD, one, AT_FDCWD, other, RENAME_EXCHANGE)); break;
    case 9: say("noreplace", renameat2(AT_FDCWD, one, AT_FDCWD, other, RENAME_NOREPLACE)); break;
    case 10: say("chmod", chmod(one, 0600 + random_below(64))); break;
    case 11: say("access", access(one, F_OK)); break;
    case 12: {
        struct dirent **list;
        int count = scandir(one, &list, NULL, alphasort);
        say("scandir", count);
        for (int i = 0; i < count; i++) printf(" %s", list[i]->d_name), free(list[i]);
        if (count >= 0) free(list), printf("\n");
        break;
    }
    }
}

int main(int count, char **arguments) {
    CHECK(count == 3);
    int steps = atoi(arguments[2]);
    state = strtoul(arguments[1], NULL, 10);
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = 'A' + i % 53;
    null = open("/dev/null", O_RDWR);
    for (int i = 0; i < FDS; i++) fds[i] = open("/dev/null", O_RDWR);
    for (int step = 0; step < steps; step++) {
        int slot = random_below(FDS);
        switch (random_below(13)) {
        case 0: case 1: {
            static const int flags[] = {O_RDONLY, O_WRONLY, O_RDWR, O_WRONLY | O_APPEND};
            int extra = (random_below(2) ? O_CREAT : 0) | (random_below(4) ? 0 : O_TRUNC) | (random_below(8) ? 0 : O_EXCL);
            int fd = random_below(8) ? open(name(), flags[random_below(4)] | extra, 0644) : open_unnamed();
            say("open", fd >= 0 ? 0 : -1);
            if (fd >= 0) CHECK(dup2(fd, fds[slot]) == fds[slot] && close(fd) == 0);
            break;
        }
        case 2: case 3: case 4: case 5: use_descriptor(slot); break;
        case 6: case 7: use_stream(random_below(STREAMS)); break;
        case 8: use_mapping(random_below(MAPS)); break;
        default: use_name();
        }
        if (random_below(20) == 0) {
            fflush(NULL); /* as a checkpoint does, so that both runs do it */
            CHECK(stdchk_checkpoint() >= 0);
            printf("checkpoint after %d\n", step + 1);
        }
    }
    return 0;
}
