/* Every family of stream calls, on one file each; the trees must be equal with and without the library. */
#include "check.h"
int main(void) {
    FILE *s = fopen("narrow", "w");
    putc('a', s);
    fputc('b', s);
    putc_unlocked('c', s);
    fputs("def", s);
    fwrite("ghi", 1, 3, s);
    fprintf(s, "%d %s\n", 42, "x");
    fclose(s);
    s = fopen("narrow", "r+");
    char text[64];
    CHECK(getc(s) == 'a' && fgetc(s) == 'b' && getc_unlocked(s) == 'c' && fgets(text, 4, s));
    CHECK(ungetc('Z', s) == 'Z' && fgetc(s) == 'Z');
    fseek(s, 0, SEEK_CUR);
    fwrite_unlocked("OVER", 1, 4, s);
    fclose(s);
    show("narrow");
    s = fopen("wide", "w");
    fputws(L"wide text", s);
    fwprintf(s, L" %ls\n", L"more");
    fclose(s);
    show("wide");
    s = fopen("late", "w");
    setvbuf(s, NULL, _IOFBF, 100000);
    for (int i = 0; i < 3000; i++) putc_unlocked('0' + i % 10, s);
    s = fopen("narrow", "a");
    fputs("end", s);
    FILE *again = freopen("reopened", "w", s);
    fputs("after", again);
    dprintf(fileno(again), "direct");
    FILE *temporary = tmpfile();
    CHECK(fputs("t", temporary) >= 0 && fclose(temporary) == 0);
    char name[] = "made.XXXXXX";
    int fd = mkstemp(name);
    CHECK(fd >= 0 && write(fd, "m", 1) == 1 && rename(name, "made") == 0);
    return 0; /* "late" is written by the flush at exit */
}
