/* The variadic entry points: each takes its optional arguments off the stack and goes on in Rust.
 *
 * The exported names (open, fcntl, execl, ...) are trampolines in src/hooks/variadic.rs that jump here with all
 * registers untouched: Rust cannot yet define a variadic function, and a Rust shared library exports no C symbol. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

/* More arguments than that give E2BIG, as the kernel would for their size. */
enum { EXEC_ARGUMENTS_MAX = 4096 };

extern int stdchk_preload_open(int directory, const char *path, int flags, mode_t mode);
extern int stdchk_preload_fcntl(int fd, int command, void *argument);
extern int stdchk_preload_execve(const char *path, char *const argv[], char *const envp[], int search);
extern char **environ;

static int creates(int flags) { return (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE; }

#define MODE_ARGUMENT(last, flags, mode)          \
    mode_t mode = 0;                              \
    if (creates(flags)) {                         \
        va_list arguments;                        \
        va_start(arguments, last);                \
        mode = va_arg(arguments, mode_t);         \
        va_end(arguments);                        \
    }

int stdchk_variadic_open(const char *path, int flags, ...) {
    MODE_ARGUMENT(flags, flags, mode)
    return stdchk_preload_open(AT_FDCWD, path, flags, mode);
}

int stdchk_variadic_openat(int directory, const char *path, int flags, ...) {
    MODE_ARGUMENT(flags, flags, mode)
    return stdchk_preload_open(directory, path, flags, mode);
}

/* `dprintf` reaches the kernel inside the C library, in some versions past the stream table: here it is formatted first
 * and then goes through the hook of `write`. */
int stdchk_variadic_vdprintf(int fd, const char *format, va_list arguments) {
    char *text;
    int length = vasprintf(&text, format, arguments);
    if (length < 0) return -1;
    int done = 0;
    while (done < length) {
        ssize_t wrote = write(fd, text + done, length - done);
        if (wrote < 0) break;
        done += wrote;
    }
    int cause = errno;
    free(text);
    errno = cause;
    return done < length ? -1 : length;
}

int stdchk_variadic_vdprintf_checked(int fd, int flag, const char *format, va_list arguments) {
    (void)flag;
    return stdchk_variadic_vdprintf(fd, format, arguments);
}

#define FORMATTED(fd, format)                                       \
    va_list arguments;                                              \
    va_start(arguments, format);                                    \
    int length = stdchk_variadic_vdprintf(fd, format, arguments);   \
    va_end(arguments);                                              \
    return length;

int stdchk_variadic_dprintf(int fd, const char *format, ...) { FORMATTED(fd, format) }

int stdchk_variadic_dprintf_checked(int fd, int flag, const char *format, ...) {
    (void)flag;
    FORMATTED(fd, format)
}

int stdchk_variadic_fcntl(int fd, int command, ...) {
    va_list arguments;
    va_start(arguments, command);
    void *argument = va_arg(arguments, void *);
    va_end(arguments);
    return stdchk_preload_fcntl(fd, command, argument);
}

/* Collects the arguments of an execl form; the environment follows the closing null in execle. */
#define EXEC_ARGUMENTS(first, argv, after)                                   \
    char *argv[EXEC_ARGUMENTS_MAX + 1];                                      \
    va_list arguments;                                                       \
    size_t count = 0;                                                        \
    va_start(arguments, first);                                              \
    argv[count] = (char *)first;                                             \
    while (argv[count] != NULL && count < EXEC_ARGUMENTS_MAX) {              \
        argv[++count] = va_arg(arguments, char *);                           \
    }                                                                        \
    if (argv[count] != NULL) {                                               \
        va_end(arguments);                                                   \
        errno = E2BIG;                                                       \
        return -1;                                                           \
    }                                                                        \
    char *const *after = environ;

int stdchk_variadic_execl(const char *path, const char *first, ...) {
    EXEC_ARGUMENTS(first, argv, envp)
    va_end(arguments);
    return stdchk_preload_execve(path, argv, envp, 0);
}

int stdchk_variadic_execlp(const char *path, const char *first, ...) {
    EXEC_ARGUMENTS(first, argv, envp)
    va_end(arguments);
    return stdchk_preload_execve(path, argv, envp, 1);
}

int stdchk_variadic_execle(const char *path, const char *first, ...) {
    EXEC_ARGUMENTS(first, argv, envp)
    envp = va_arg(arguments, char *const *);
    va_end(arguments);
    return stdchk_preload_execve(path, argv, envp, 0);
}

extern void *stdchk_preload_real_dlopen(void);
extern void stdchk_preload_loaded(void);

/* Newly loaded objects are looked at. The C library takes the caller of `dlopen` by its return address, and looks for a name
 * without a slash where that object says: there the call is a jump, and what was loaded is looked at later. */
void *stdchk_variadic_dlopen(const char *file, int mode) {
    void *(*real)(const char *, int) = (void *(*)(const char *, int))stdchk_preload_real_dlopen();
    if (file == NULL || strchr(file, '/') == NULL || strchr(file, '$') != NULL) return real(file, mode);
    void *object = real(file, mode);
    stdchk_preload_loaded();
    return object;
}
