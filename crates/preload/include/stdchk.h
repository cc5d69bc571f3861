/* stdchk.h: file-state checkpoints from C and C++.
 *
 * Link with libstdchk (`cc -shared -fPIC -o libstdchk.so crates/preload/c/stdchk.c`). Run under `stdchk run`, these calls
 * act; anywhere else they do nothing and succeed. They must come from a shared library: the run's own comes before it.
 *
 *   long long here = stdchk_checkpoint();   files, descriptors and streams as they are now: an index, or -1 and errno
 *   stdchk_restore(here);                   everything as it was then: 0, or -1 and errno
 *   stdchk_active();                        1 under `stdchk run`, else 0
 *
 * From Fortran: `bind(C)` interfaces to the same three names with `integer(c_long_long)` and `integer(c_int)`.
 */
#ifndef STDCHK_H
#define STDCHK_H

#ifdef __cplusplus
extern "C" {
#endif

long long stdchk_checkpoint(void);
int stdchk_restore(long long index);
int stdchk_active(void);

#ifdef __cplusplus
}
#endif

#endif
