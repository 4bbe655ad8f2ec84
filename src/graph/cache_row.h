/* The row of a paged cache: how n float32 elements are kept in one item of a pool.
 *
 *   F32            n floats
 *   BF16           n halves, nearest even
 *   F8_E4M3, I8    n codes; then, from fl_cache_scales_at(n) on, one float32 scale for each 128
 *                  elements (the last group may be shorter); element = code * scale, rounded once
 *
 * What is not F32 is filled up with zero bytes to a multiple of 16, so rows, and the scales in
 * them, begin at a multiple of 16.  A row of up to 128 elements has one scale.
 *
 * Encoding is defined to the bit, here and for whoever writes caches elsewhere.  Let `top` be the
 * largest magnitude of a group.  I8: the scale is top / 127, a code is x * (127 / top) rounded to
 * nearest even, each step in float32.  F8_E4M3: the scale is the smallest power of two s with
 * top <= 448 s, a code is x / s rounded to nearest even, so that an element is a BF16 number too.
 * Below 2^-100 a group becomes zeros with scale 0.  A group with a NaN or an infinity has codes 0
 * and the scale NaN (0x7fc00000): all of it is NaN. */
#ifndef FL_GRAPH_CACHE_ROW_H
#define FL_GRAPH_CACHE_ROW_H

#include "checkpoint/tensor.h"

enum { FL_CACHE_GROUP = 128, FL_CACHE_ALIGN = 16 };

static inline int64_t fl_cache_align(int64_t bytes)
{
    return (bytes + FL_CACHE_ALIGN - 1) / FL_CACHE_ALIGN * FL_CACHE_ALIGN;
}

static inline bool fl_cache_scaled(fl_dtype t)
{
    return t == FL_F8_E4M3 || t == FL_I8;
}

static inline bool fl_cache_type(fl_dtype t) /* whether a paged state may have it */
{
    return t == FL_F32 || t == FL_BF16 || fl_cache_scaled(t);
}

static inline int64_t fl_cache_groups(int64_t n)
{
    return (n + FL_CACHE_GROUP - 1) / FL_CACHE_GROUP;
}

/* Where the scales of a row of n codes begin, in bytes. */
static inline int64_t fl_cache_scales_at(int64_t n)
{
    return fl_cache_align(n);
}

static inline const float *fl_cache_scales(const void *row, int64_t n)
{
    return (const float *)((const unsigned char *)row + fl_cache_scales_at(n));
}

/* Bytes of a row of n elements; n is at most INT64_MAX / 64. */
static inline int64_t fl_cache_row_bytes(fl_dtype t, int64_t n)
{
    if (t == FL_F32)
        return n * (int64_t)sizeof(float);
    if (t == FL_BF16)
        return fl_cache_align(n * (int64_t)sizeof(uint16_t));
    return fl_cache_align(fl_cache_scales_at(n) + fl_cache_groups(n) * (int64_t)sizeof(float));
}

/* Writes all bytes of a row. */
void fl_cache_encode(fl_dtype t, int64_t n, const float *x, void *row);
void fl_cache_decode(fl_dtype t, int64_t n, const void *row, float *x);

#endif
