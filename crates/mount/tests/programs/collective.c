/*! Four ranks write one file through MPI-IO and read it back: what checkpoint libraries above MPI do to a file system.

Relies on MPI alone. The idea: every way of MPI-IO that takes another path to the file gets a part of it: collective
writes of interleaved blocks (two-phase exchange), independent writes with gaps (data sieving, which locks, reads and
writes back), the shared file pointer (a hidden file beside it), and atomic mode (locks around every access). Byte `at` of
the file is `(at * 7 + part) % 251`, whoever writes it; every rank reads all of it back, and aborts on a difference. */

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { BLOCK = 10007, BLOCKS = 25, PARTS = 4 };

static int rank, ranks;

static void check(int code, const char *what) {
    if (code == MPI_SUCCESS) return;
    char text[MPI_MAX_ERROR_STRING];
    int length;
    MPI_Error_string(code, text, &length);
    fprintf(stderr, "rank %d: %s: %s\n", rank, what, text);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static unsigned char byte_at(long at, int part) { return (unsigned char)((at * 7 + part) % 251); }

/* What this rank writes of a part: its block of each row of `ranks` blocks. */
static void fill(unsigned char *bytes, int part) {
    for (long block = 0; block < BLOCKS; block++)
        for (long at = 0; at < BLOCK; at++)
            bytes[block * BLOCK + at] = byte_at((block * ranks + rank) * BLOCK + at, part);
}

static void view_of_rank(MPI_File file, MPI_Offset start) {
    MPI_Datatype row;
    check(MPI_Type_vector(BLOCKS, BLOCK, ranks * BLOCK, MPI_BYTE, &row), "a type");
    check(MPI_Type_commit(&row), "a type");
    check(MPI_File_set_view(file, start + (MPI_Offset)rank * BLOCK, MPI_BYTE, row, "native", MPI_INFO_NULL), "a view");
    check(MPI_Type_free(&row), "a type");
}

static void write_ordered(MPI_File file, unsigned char *bytes, MPI_Offset start) {
    check(MPI_File_set_view(file, start, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL), "a view");
    for (long block = 0; block < BLOCKS; block++)
        check(MPI_File_write_ordered(file, bytes + block * BLOCK, BLOCK, MPI_BYTE, MPI_STATUS_IGNORE), "ordered writes");
}

static void compare(MPI_File file, MPI_Offset size) {
    MPI_Offset found;
    check(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL), "a view");
    check(MPI_File_get_size(file, &found), "the size");
    unsigned char *bytes = malloc((size_t)size * PARTS);
    check(MPI_File_read_at_all(file, 0, bytes, (int)size * PARTS, MPI_BYTE, MPI_STATUS_IGNORE), "collective reads");
    for (int part = 0; part < PARTS; part++)
        for (long at = 0; at < size; at++)
            if (found != size * PARTS || bytes[part * size + at] != byte_at(at, part)) {
                fprintf(stderr, "rank %d: part %d differs at %ld; %ld bytes\n", rank, part, at, (long)found);
                MPI_Abort(MPI_COMM_WORLD, 1);
            }
    free(bytes);
}

int main(int count, char **arguments) {
    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Offset size = (MPI_Offset)ranks * BLOCKS * BLOCK;
    unsigned char *bytes = malloc(BLOCKS * BLOCK);
    MPI_File file;
    check(MPI_File_open(MPI_COMM_WORLD, arguments[1], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file), "open");
    check(MPI_File_set_size(file, 0), "set size");

    fill(bytes, 0);
    view_of_rank(file, 0);
    check(MPI_File_write_all(file, bytes, BLOCKS * BLOCK, MPI_BYTE, MPI_STATUS_IGNORE), "collective writes");

    fill(bytes, 1);
    view_of_rank(file, size);
    check(MPI_File_write(file, bytes, BLOCKS * BLOCK, MPI_BYTE, MPI_STATUS_IGNORE), "writes with gaps");
    check(MPI_File_sync(file), "sync");

    fill(bytes, 2);
    write_ordered(file, bytes, 2 * size);

    fill(bytes, 3);
    check(MPI_File_set_atomicity(file, 1), "atomic mode");
    view_of_rank(file, 3 * size);
    check(MPI_File_write(file, bytes, BLOCKS * BLOCK, MPI_BYTE, MPI_STATUS_IGNORE), "atomic writes");
    MPI_Barrier(MPI_COMM_WORLD);

    compare(file, size);
    check(MPI_File_close(&file), "close");
    free(bytes);
    if (rank == 0) printf("%ld bytes by %d ranks\n", (long)size * PARTS, ranks);
    MPI_Finalize();
    return 0;
}
