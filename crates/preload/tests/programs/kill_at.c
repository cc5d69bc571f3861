/* Runs a program and kills it at its Nth system call from the moment on when a file of this name exists: kill_at N FILE
 * PROGRAM... Exit code 0: killed there; 3: it ended before. */
#include "check.h"
#include <signal.h>
#include <sys/ptrace.h>

int main(int count, char **arguments) {
    CHECK(count >= 4);
    long left = atol(arguments[1]);
    pid_t pid = fork();
    if (pid == 0) {
        CHECK(ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0);
        execv(arguments[3], arguments + 3);
        _exit(127);
    }
    int status, begun = 0;
    CHECK(waitpid(pid, &status, 0) == pid && WIFSTOPPED(status));
    CHECK(ptrace(PTRACE_SETOPTIONS, pid, NULL, PTRACE_O_EXITKILL | PTRACE_O_TRACESYSGOOD) == 0);
    for (int entering = 1;;) {
        CHECK(ptrace(PTRACE_SYSCALL, pid, NULL, NULL) == 0 && waitpid(pid, &status, 0) == pid);
        if (!WIFSTOPPED(status)) return 3;
        if (WSTOPSIG(status) != (SIGTRAP | 0x80)) continue;
        if (!begun) begun = access(arguments[2], F_OK) == 0;
        if (begun && entering && left-- == 0) break;
        entering = !entering;
    }
    CHECK(kill(pid, SIGKILL) == 0 && waitpid(pid, &status, 0) == pid);
    return 0;
}
