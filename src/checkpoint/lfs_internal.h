/* Git LFS leaves a small text, a pointer, where a file was not downloaded. */
#ifndef FL_CHECKPOINT_LFS_INTERNAL_H
#define FL_CHECKPOINT_LFS_INTERNAL_H

#include <stdbool.h>
#include <string.h>

/* Whether these are the first bytes of one. */
static inline bool fl_is_lfs_pointer(const void *bytes, size_t n)
{
    static const char head[] = "version https://git-lfs";
    return n >= sizeof head - 1 && memcmp(bytes, head, sizeof head - 1) == 0;
}

#endif
