/* Products of rows rounded to BF16 with weights, by the tile instructions of processors that have
 * them (AMX, TDPBF16PS): precision "fast".  BF16 and MXFP4 weights are taken exactly, those of Q8
 * and F8_BLOCK are rounded to BF16 too.
 *
 * Order of a sum: K in steps of 32 elements, ascending.  The 16 even elements of a step are summed
 * in one chain of fused multiply-adds from 0, the odd ones in another; both are added, and then the
 * sum so far.  So a result depends neither on how many rows are multiplied at once nor on how the
 * weight rows are shared out.  Numbers below the least normal one count as zero.
 *
 * FL_AMX is defined where this is compiled: at the level that has the instructions (FL_AMX_TILES),
 * and in plain C at the base level, which is the reference for their bits (amx_unit.h). */
#ifndef FL_OPS_CPU_AMX_H
#define FL_OPS_CPU_AMX_H

#include "ops/cpu/weights.h"

#if defined(__AMX_BF16__) || defined(__AMXBF16__) /* by gcc; by clang 14 */
#define FL_AMX_TILES 1
#endif
#if defined(FL_AMX_TILES)
#define FL_AMX 1
#define FL_AMX_TEXT(text) text "-amx"
#define FL_AMX_ISA FL_ISA_AMX
/* Before everything else of precision "fast"; or after the kernels with 8-bit rows, which read a
 * few rows' weights faster. */
enum { FL_AMX_PREFERENCE = FL_CPU_PREFERENCE + 20, FL_AMX_AFTER_8_BITS = FL_CPU_PREFERENCE + 5 };
#elif !defined(__AVX2__)
#define FL_AMX 1
#define FL_AMX_TEXT(text) FL_CPU_TEXT(text)
#define FL_AMX_ISA FL_CPU_ISA
enum { FL_AMX_PREFERENCE = -1, FL_AMX_AFTER_8_BITS = -1 }; /* a twin: only when named */
#endif

enum {
    FL_AMX_SIDE = 16,    /* rows of x, and of weights, of a tile */
    FL_AMX_STEP = 32,    /* elements of a row in it */
    FL_AMX_PIECE = 2048, /* elements of a row in a panel */
    FL_AMX_PANEL = 128,  /* weight rows of a panel */
    /* Bytes of scratch fl_amx_mul needs: a panel, four tiles of sums, and one turned. */
    FL_AMX_SCRATCH = FL_AMX_PANEL * FL_AMX_PIECE * 2 + 5 * FL_AMX_SIDE * FL_AMX_SIDE * 4
};

/* Rounded rows, as columns: up to FL_AMX_SIDE of them make a group, in which pair of elements after
 * pair, column by column, lie side by side. */
typedef struct fl_amx {
    uint16_t *data; /* 64-aligned, fl_amx_bytes */
    int64_t width;  /* elements of a row; filled up with zeros to whole steps */
} fl_amx;

static inline int64_t fl_amx_steps(int64_t width)
{
    return (width + FL_AMX_STEP - 1) / FL_AMX_STEP;
}

static inline int64_t fl_amx_groups(int64_t rows)
{
    return (rows + FL_AMX_SIDE - 1) / FL_AMX_SIDE;
}

/* Bytes of a row.  After the last one there is room for a cache line more: tiles of fewer columns
 * are read like full ones. */
static inline int64_t fl_amx_bytes(int64_t width)
{
    return fl_amx_steps(width) * FL_AMX_STEP * 2;
}

#define fl_amx_round FL_CPU_NAME(fl_amx_round)
#define fl_amx_mul FL_CPU_NAME(fl_amx_mul)

/* Rounds group g of the m rows of x; the columns of x begin at column `first`. */
void fl_amx_round(const fl_row_list *x, int64_t m, int64_t g, const fl_amx *to, int64_t first);

/* y[i][n - n0] = (column first + i of x) . w[n] for i < m and n0 <= n < n1.  The groups of x, as
 * they were rounded, begin at `first`.  w: fl_amx_type.  scratch: 64-aligned. */
void fl_amx_mul(const fl_tensor *w, int64_t n0, int64_t n1, const fl_amx *x, int64_t first,
                const fl_row_list *y, int64_t m, void *scratch);

/* True for the types of weights above. */
static inline bool fl_amx_type(fl_dtype t)
{
    return t == FL_BF16 || t == FL_MXFP4 || t == FL_F8_BLOCK || t == FL_Q8;
}

#endif
