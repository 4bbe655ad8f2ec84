/* Growable arrays.  `FL_VEC(int32_t) ids = {0};  if (!fl_vec_push(&ids, 7)) return nomem;` The
 * array owns data; release with fl_vec_free.  Growth doubles; the old array stays on failure. */
#ifndef FL_BASE_VEC_H
#define FL_BASE_VEC_H

#include "base/mem.h"

#include <stdbool.h>
#include <string.h>

#define FL_VEC(T)                                                                                  \
    struct {                                                                                       \
        T *data;                                                                                   \
        size_t n, cap;                                                                             \
    }

/* Makes room for `more` further elements; false when memory ran out. */
#define fl_vec_reserve(v, more)                                                                    \
    fl_vec_grow_(&(v)->data, (v)->n, &(v)->cap, (more), sizeof *(v)->data)

#define fl_vec_push(v, x) (fl_vec_reserve(v, 1) && ((v)->data[(v)->n++] = (x), true))

#define fl_vec_append(v, src, count)                                                               \
    (fl_vec_reserve(v, count) &&                                                                   \
     ((count) ? (void)memcpy((v)->data + (v)->n, (src), (count) * sizeof *(v)->data) : (void)0,    \
      (v)->n += (count), true))

#define fl_vec_free(v) (fl_free((v)->data), (v)->data = NULL, (v)->n = (v)->cap = 0)

/* data points to a T *, whatever T is; memcpy reads and writes it without lying about its type. */
static inline bool fl_vec_grow_(void *data, size_t n, size_t *cap, size_t more, size_t size)
{
    size_t need;
    if (__builtin_add_overflow(n, more, &need))
        return false;
    if (need <= *cap)
        return true;
    size_t cap_new = *cap ? *cap : 8;
    while (cap_new < need) {
        if (__builtin_mul_overflow(cap_new, (size_t)2, &cap_new))
            return false;
    }
    void *p;
    memcpy(&p, data, sizeof p);
    p = fl_realloc_array(p, cap_new, size);
    if (!p)
        return false;
    memcpy(data, &p, sizeof p);
    *cap = cap_new;
    return true;
}

/* A byte string under construction. */
typedef FL_VEC(char) fl_buf;

/* Borrowed bytes. */
typedef struct fl_bytes {
    const char *data;
    size_t len;
} fl_bytes;

#endif
