/* stdchk.h: file-state checkpoints from C and C++.
 *
 *   cc job.c -lstdchk
 *
 * Under `stdchk run` these calls act; anywhere else they do nothing and succeed.
 *
 *   long long here = stdchk_checkpoint();   files, descriptors and streams as they are now: an index, or -1 and errno
 *   stdchk_restore(here);                   everything as it was then: 0, or -1 and errno
 *   stdchk_active();                        1 under `stdchk run`, else 0
 *
 * libstdchk is a shared library, and has to be one: the run's own calls come before those of a shared library, and would
 * come after those of a static one.
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
