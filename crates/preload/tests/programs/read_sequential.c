/* Reads of a whole file, in pieces that do not divide it. */
#include "check.h"
int main(void) {
    int fd = open("file", O_RDWR | O_CREAT | O_TRUNC, 0644);
    for (int i = 0; i < 26; i++) block(fd, i * 1000, 'a' + i, 1000);
    CHECK(lseek(fd, 0, SEEK_SET) == 0);
    char buffer[777];
    long total = 0, sum = 0;
    ssize_t got;
    while ((got = read(fd, buffer, sizeof buffer)) > 0) {
        for (ssize_t i = 0; i < got; i++) sum += buffer[i];
        total += got;
    }
    printf("%ld bytes, sum %ld\n", total, sum);
    stdchk_checkpoint();
    return 0;
}
