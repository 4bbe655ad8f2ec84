/* Products of rows rounded to BF16 with weights, by the tile instructions of processors that have
 * them (AMX, TDPBF16PS): precision "fast".
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

#include "ops/cpu/rounded.h"

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
    FL_AMX_SIDE = 16, /* rows of x, which are columns of tiles, of a group; weight rows of a tile */
    FL_AMX_PIECE = 2048, /* elements of a row in a panel */
    FL_AMX_PANEL = 128,  /* weight rows of a panel */
    /* Bytes of scratch fl_amx_mul needs: a panel, four tiles of sums, and one turned. */
    FL_AMX_SCRATCH = FL_AMX_PANEL * FL_AMX_PIECE * 2 + 5 * FL_AMX_SIDE * FL_AMX_SIDE * 4
};

#define fl_amx_round FL_CPU_NAME(fl_amx_round)
#define fl_amx_mul FL_CPU_NAME(fl_amx_mul)

/* Rounds group g of the m rows of x; the columns of x begin at column `first`.  In a step the
 * columns of a group, as many as there are, lie side by side pair of elements by pair. */
void fl_amx_round(const fl_row_list *x, int64_t m, int64_t g, const fl_rounded *to, int64_t first);

/* y[i][n - n0] = (column first + i of x) . w[n] for i < m and n0 <= n < n1.  The groups of x, as
 * they were rounded, begin at `first`.  w: fl_rounded_type.  scratch: 64-aligned. */
void fl_amx_mul(const fl_tensor *w, int64_t n0, int64_t n1, const fl_rounded *x, int64_t first,
                const fl_row_list *y, int64_t m, void *scratch);

#endif
