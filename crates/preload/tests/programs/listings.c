/* The root listed in every way: the store is not to be seen. */
#include "check.h"
#include <dirent.h>

static void say(const char *how, const struct dirent *entry) {
    if (entry->d_name[0] == '.' && entry->d_name[1] == 's') printf("%s: %s\n", how, entry->d_name);
}

static int compare(const struct dirent **one, const struct dirent **other) { return -alphasort(one, other); }

int main(void) {
    DIR *root = opendir(".");
    struct dirent entry, *found;
    CHECK(root != NULL && mkdir(".stdchk", 0755) == 0);
    long count = 0;
    for (; (found = readdir(root)) != NULL; count++) say("readdir", found);
    rewinddir(root);
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    for (; readdir_r(root, &entry, &found) == 0 && found != NULL; count++) say("readdir_r", found);
    CHECK(closedir(root) == 0);
    struct dirent **list;
    int listed = scandir(".", &list, NULL, compare);
    CHECK(listed > 0 && count == 2 * listed);
    for (int i = 0; i < listed; i++) printf("%s ", list[i]->d_name), free(list[i]);
    free(list);
    printf("\n");
    CHECK(system("ls -A; find . -name '.s*'; rm -rf ./* ./.[!.]*; ls -A") == 0);
    return 0;
}
