/* A simulation of MPI ranks that asks for its checkpoints itself. In every step each rank appends to a log, overwrites a
 * field of its own and its parts of a field that all share; every CHECKPOINT steps rank 0 writes the step into `state` and,
 * between two barriers, calls stdchk_checkpoint(). Usage: ranks KILL_AT; at that step everything is killed in the midst of
 * its writes: the driver (whose process is in the variable DRIVER), mpirun, and all ranks. */
#include <errno.h>
#include <fcntl.h>
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "stdchk.h"

#define CHECK(condition)                                                                      \
    do {                                                                                      \
        if (!(condition)) {                                                                   \
            fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno); \
            MPI_Abort(MPI_COMM_WORLD, 1);                                                     \
        }                                                                                     \
    } while (0)

enum { STEPS = 12, CHECKPOINT = 3, PART = 5000, PARTS = 40, WRITES = 4 };
static int rank, ranks, shared, own;
static FILE *history;

/* Overwrites one part of a field; parts begin and end within pages, and neighbours belong to different ranks. */
static void overwrite(int file, int part, int step) {
    char bytes[PART];
    memset(bytes, 'a' + (step + rank) % 26, sizeof bytes);
    CHECK(pwrite(file, bytes, sizeof bytes, (off_t)part * PART) == PART);
}

static void compute(int step, int writes) {
    fprintf(history, "rank %d of %d, step %d\n", rank, ranks, step);
    for (int i = 0; i < writes; i++) {
        overwrite(own, (step * 7 + i) % PARTS, step);
        overwrite(shared, (step * 3 + i) % PARTS * ranks + rank, step);
    }
    CHECK(fflush(history) == 0);
}

/* Each rank gets another number of its writes done. */
static void go_down(int step) {
    compute(step, rank % WRITES);
    if (rank == 0) {
        CHECK(getenv("DRIVER") != NULL);
        kill(atoi(getenv("DRIVER")), SIGKILL);
        kill(getppid(), SIGKILL);
    }
    raise(SIGKILL);
}

static int first_step(void) {
    int step = 0;
    if (rank == 0) {
        FILE *state = fopen("state", "r");
        if (state != NULL) CHECK(fscanf(state, "%d", &step) == 1 && fclose(state) == 0);
        printf("from step %d\n", step);
        fflush(stdout);
    }
    CHECK(MPI_Bcast(&step, 1, MPI_INT, 0, MPI_COMM_WORLD) == MPI_SUCCESS);
    return step;
}

static void checkpoint(int step) {
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        FILE *state = fopen("state", "w");
        CHECK(state != NULL && fprintf(state, "%d\n", step) > 0 && fclose(state) == 0);
        CHECK(stdchk_checkpoint() >= 0);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

int main(int count, char **arguments) {
    CHECK(count == 2 && MPI_Init(&count, &arguments) == MPI_SUCCESS);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    char name[32];
    snprintf(name, sizeof name, "log.%d", rank);
    CHECK((history = fopen(name, "a")) != NULL);
    snprintf(name, sizeof name, "field.%d", rank);
    CHECK((own = open(name, O_RDWR | O_CREAT, 0644)) >= 0);
    CHECK((shared = open("field", O_RDWR | O_CREAT, 0644)) >= 0);
    for (int step = first_step() + 1; step <= STEPS; step++) {
        if (step == atoi(arguments[1])) go_down(step);
        compute(step, WRITES);
        if (step % CHECKPOINT == 0) checkpoint(step);
    }
    CHECK(fclose(history) == 0 && close(own) == 0 && close(shared) == 0);
    MPI_Finalize();
    return 0;
}
