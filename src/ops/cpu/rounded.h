/* Rows rounded to BF16, as the products of precision "fast" want them (bf16.h, amx.h): in groups of
 * so many rows, a group's step of elements after the other; how rows lie in a step is the product's
 * own matter.  The last step is filled up with zeros. */
#ifndef FL_OPS_CPU_ROUNDED_H
#define FL_OPS_CPU_ROUNDED_H

#include "ops/cpu/room.h"
#include "ops/cpu/weights.h"

enum { FL_ROUNDED_STEP = 32 };

typedef struct fl_rounded {
    uint16_t *data; /* 64-aligned */
    int64_t width;  /* elements of a row */
} fl_rounded;

static inline int64_t fl_rounded_steps(int64_t width)
{
    return (width + FL_ROUNDED_STEP - 1) / FL_ROUNDED_STEP;
}

/* Bytes of a row. */
static inline int64_t fl_rounded_bytes(int64_t width)
{
    return fl_rounded_steps(width) * FL_ROUNDED_STEP * 2;
}

/* Groups of `side` rows. */
static inline int64_t fl_rounded_groups(int64_t rows, int64_t side)
{
    return (rows + side - 1) / side;
}

/* Memory for so many rows and a cache line more: groups that lack rows are read like full ones. */
static inline fl_rounded fl_rounded_room(fl_room *r, int64_t rows, int64_t width)
{
    const fl_rounded x = {fl_room_take(r, rows, (size_t)fl_rounded_bytes(width)), width};
    (void)fl_room_take(r, 1, FL_CACHE_LINE);
    return x;
}

/* True for the types of weights that they are multiplied with.  BF16 and MXFP4 are taken exactly;
 * Q8 and F8_BLOCK are rounded to BF16 too, which is little beside the rounding behind them. */
static inline bool fl_rounded_type(fl_dtype t)
{
    return t == FL_BF16 || t == FL_MXFP4 || t == FL_F8_BLOCK || t == FL_Q8;
}

#endif
