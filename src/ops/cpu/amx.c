/* amx.h: tiles of weights, 16 rows by 32 elements, times tiles of x, 16 pairs of elements by 16
 * columns, in blocks of two by two.  Weights are read where they lie when they are BF16 and few
 * rows are multiplied with them; else a panel of them is brought to tiles in scratch first, once
 * for all rows of x.  Sums have weight rows for rows, and are turned on their way to y. */
#include "ops/cpu/amx.h"

#if defined(FL_AMX)

#include "ops/cpu/amx_unit.h"
#include "ops/cpu/matmul.h"
#include "ops/cpu/weights_read.h"
#if defined(__AMX_BF16__)
#include "ops/cpu/amx_mxfp4.h"
#endif

enum { FEW = 2, NARROW = 2 * SIDE, PIECE = FL_AMX_PIECE }; /* groups; weight rows of a panel then */

void fl_amx_round(const fl_row_list *x, int64_t m, int64_t g, const fl_amx *to, int64_t first)
{
    int64_t i = g * SIDE, columns = m - i < SIDE ? m - i : SIDE;
    uint16_t *out = to->data + (first + i) * fl_amx_bytes(to->width) / 2;
    for (int64_t k = 0; k < to->width; k += STEP, out += columns * STEP) {
        int n = to->width - k < STEP ? (int)(to->width - k) : STEP;
        for (int64_t c = 0; c < columns; c++) {
            const float *p = fl_list_row(x, i + c) + k;
            vf low = vf_loadn(p, n < 16 ? n : 16),
               high = n > 16 ? vf_loadn(p + 16, n - 16) : vf_zero();
            vb_scatter(out + 2 * c, columns, vb_join(low, high));
        }
    }
}

/* Elements [k, k + 32) of a row, of which n exist. */
FL_INLINE vb load32(fl_dtype t, wrow w, int64_t k, int64_t n)
{
    if (t == FL_BF16)
        return vb_loadn((const uint16_t *)(const void *)w.data + k, n);
#if defined(__AMX_BF16__)
    if (t == FL_MXFP4)
        return mx_group(w.data + k / 2, w.scale[k / FL_MX_GROUP]);
#endif
    if (n >= STEP)
        return vb_join(load16(t, w, k), load16(t, w, k + 16));
    return vb_join(load_rest(t, w, k, n < 16 ? (int)n : 16),
                   n > 16 ? load_rest(t, w, k + 16, (int)n - 16) : vf_zero());
}

typedef struct job {
    const fl_tensor *w;
    int64_t n0, n1; /* weight rows */
    const fl_amx *x;
    int64_t first; /* column of x */
    const fl_row_list *y;
    int64_t m, panel; /* rows of x, weight rows of a panel */
    uint16_t *tiles;  /* of weights: 16 rows after 16, step by step */
    float (*sum)[SIDE * SIDE], *turned;
} job;

FL_INLINE wrow weight_at(const job *b, fl_dtype t, int64_t n)
{
    return row_at(b->w, t, n < b->n1 ? n : b->n1 - 1, 0);
}

/* ---- a panel of weights ---- */

/* Brings a piece of the panel from weight row n on to tiles.  When few rows of x will be multiplied
 * with it, the memory has to be kept busy: the same place of the next panel is fetched. */
FL_INLINE void fill(const job *b, fl_dtype t, int64_t n, int64_t rows, int64_t k0, int64_t k1)
{
    int64_t steps = fl_amx_steps(k1 - k0);
    for (int64_t r = 0; r < (rows + SIDE - 1) / SIDE * SIDE; r++) {
        wrow w = weight_at(b, t, n + r), next = w;
        if (b->panel == NARROW)
            next = weight_at(b, t, n + r + NARROW);
        uint16_t *out = b->tiles + r / SIDE * steps * TILE + r % SIDE * STEP;
        for (int64_t k = k0; k < k1; k += STEP, out += TILE) {
            if (next.data != w.data && bytes_of(t, k) % FL_CACHE_LINE == 0)
                __builtin_prefetch(next.data + bytes_of(t, k), 0, 2);
            vb_store(out, load32(t, w, k, k1 - k));
        }
    }
}

/* Asks for the bytes that fill will read: part `part` of `parts`. */
FL_INLINE void fetch(const job *b, fl_dtype t, int64_t n, int64_t k0, int64_t part, int64_t parts)
{
    int64_t k = b->x->width - k0 < PIECE ? b->x->width - k0 : PIECE;
    for (int64_t r = b->panel * part / parts; r < b->panel * (part + 1) / parts; r++) {
        const unsigned char *p = weight_at(b, t, n + r).data + bytes_of(t, k0);
        for (int64_t i = 0; i < bytes_of(t, k); i += FL_CACHE_LINE)
            __builtin_prefetch(p + i, 0, 2);
    }
}

/* ---- blocks ---- */

/* Two tiles of weights next to each other, as they lie in memory. */
typedef struct operand {
    const uint16_t *tile[2];
    int64_t stride, step; /* bytes from row to row, elements from step to step */
    int64_t ahead;        /* bytes to the place to fetch, or 0 */
} operand;

/* Up to 16 columns of x. */
typedef struct column {
    const uint16_t *data;
    int64_t n, row; /* row: of y */
} column;

static column column_at(const job *b, int64_t g, int64_t k)
{
    int64_t row = g * SIDE, n = b->m - row < SIDE ? b->m - row : SIDE;
    n = n < 0 ? 0 : n;
    return (column){b->x->data + (b->first + row) * fl_amx_bytes(b->x->width) / 2 + k * n, n, row};
}

/* Sums of 16 weight rows from n on, and y: one way and the other. */
static void get(const job *b, int64_t n, const column *x, float *sum)
{
    int rows = b->n1 - n < SIDE ? (int)(b->n1 - n) : SIDE;
    for (int64_t j = 0; j < x->n; j++)
        vf_store(b->turned + j * SIDE, vf_loadn(fl_list_row(b->y, x->row + j) + (n - b->n0), rows));
    fl_transpose((int)x->n, SIDE, b->turned, SIDE, sum, SIDE);
}

static void put(const job *b, int64_t n, const column *x, const float *sum)
{
    int rows = b->n1 - n < SIDE ? (int)(b->n1 - n) : SIDE;
    fl_transpose(SIDE, SIDE, sum, SIDE, b->turned, SIDE);
    for (int64_t j = 0; j < x->n; j++)
        vf_storen(fl_list_row(b->y, x->row + j) + (n - b->n0), vf_load(b->turned + j * SIDE), rows);
}

/* Outputs of nw tiles of weights from row n on and nx groups of columns.  Tiles 0 to 3 hold the
 * sums, 4 and 5 weights, 6 and 7 columns. */
FL_INLINE void block(const job *b, int nw, int nx, const operand *w, int64_t n, const column *x,
                     int64_t steps, bool add)
{
    unit u;
    const uint16_t *w0 = w->tile[0], *w1 = w->tile[1], *x0 = x[0].data, *x1 = x[1].data;
    int64_t stride0 = x[0].n * 4, stride1 = x[1].n * 4, last = nw * nx;
    for (int i = 0; add && i < last; i++)
        get(b, n + i / nx * SIDE, &x[i % nx], b->sum[i]);
    if (!add)
        memset(b->sum, 0, (size_t)last * sizeof *b->sum);
    /* What was written is in memory before the tiles read it: the compiler does not know that they
     * do. */
    __asm__ volatile("" ::: "memory");
    TILE_LOAD(&u, 0, b->sum[0], 64);
    if (last > 1)
        TILE_LOAD(&u, 1, b->sum[1], 64);
    if (last > 2) {
        TILE_LOAD(&u, 2, b->sum[2], 64);
        TILE_LOAD(&u, 3, b->sum[3], 64);
    }
    for (int64_t s = 0; s < steps; s++) {
        if (w->ahead) {
            FL_UNROLL
            for (int r = 0; r < SIDE; r++)
                __builtin_prefetch((const char *)w0 + w->ahead + r * w->stride, 0, 2);
            if (nw > 1) {
                FL_UNROLL
                for (int r = 0; r < SIDE; r++)
                    __builtin_prefetch((const char *)w1 + w->ahead + r * w->stride, 0, 2);
            }
        }
        TILE_LOAD(&u, 4, w0, w->stride);
        TILE_LOAD(&u, 6, x0, stride0);
        TILE_DOT(&u, 0, 4, 6);
        if (nx > 1) {
            TILE_LOAD(&u, 7, x1, stride1);
            TILE_DOT(&u, 1, 4, 7);
        }
        if (nw > 1) {
            TILE_LOAD(&u, 5, w1, w->stride);
            if (nx > 1) {
                TILE_DOT(&u, 2, 5, 6);
                TILE_DOT(&u, 3, 5, 7);
            } else {
                TILE_DOT(&u, 1, 5, 6);
            }
        }
        w0 += w->step;
        w1 += w->step;
        x0 += stride0 * (STEP / 4);
        x1 += stride1 * (STEP / 4);
    }
    TILE_STORE(&u, 0, b->sum[0]);
    if (last > 1)
        TILE_STORE(&u, 1, b->sum[1]);
    if (last > 2) {
        TILE_STORE(&u, 2, b->sum[2]);
        TILE_STORE(&u, 3, b->sum[3]);
    }
    for (int i = 0; i < last; i++)
        put(b, n + i / nx * SIDE, &x[i % nx], b->sum[i]);
}

static void any_block(const job *b, int64_t nw, const operand *w, int64_t n, const column *x,
                      int64_t steps, bool add)
{
    if (nw > 1 && x[1].n)
        block(b, 2, 2, w, n, x, steps, add);
    else if (nw > 1)
        block(b, 2, 1, w, n, x, steps, add);
    else if (x[1].n)
        block(b, 1, 2, w, n, x, steps, add);
    else
        block(b, 1, 1, w, n, x, steps, add);
}

/* Two tiles of the panel, i weight rows into it, in scratch or where they lie. */
FL_INLINE operand tiles_at(const job *b, bool direct, int64_t n, int64_t i, int64_t k0,
                           int64_t steps)
{
    if (!direct) {
        const uint16_t *p = b->tiles + i * steps * STEP;
        return (operand){{p, p + steps * TILE}, 64, TILE, 0};
    }
    int64_t width = b->x->width;
    const uint16_t *p = (const uint16_t *)b->w->data + (n + i) * width + k0;
    bool next = n + i + 2 * NARROW <= b->n1;
    return (operand){{p, p + SIDE * width}, width * 2, STEP, next ? NARROW * width * 2 : 0};
}

FL_INLINE void mul(const job *b, fl_dtype t)
{
    int64_t width = b->x->width, groups = fl_amx_groups(b->m);
    for (int64_t n = b->n0; n < b->n1; n += b->panel) {
        int64_t rows = b->n1 - n < b->panel ? b->n1 - n : b->panel;
        bool direct = t == FL_BF16 && groups <= FEW && rows % SIDE == 0 && width % STEP == 0;
        for (int64_t k0 = 0; k0 < width; k0 += PIECE) {
            int64_t k1 = width - k0 < PIECE ? width : k0 + PIECE, steps = fl_amx_steps(k1 - k0);
            int64_t next_n = k1 < width ? n : n + b->panel, next_k = k1 < width ? k1 : 0;
            if (!direct)
                fill(b, t, n, rows, k0, k1);
            for (int64_t g = 0; g < groups; g += 2) {
                if (groups > FEW && next_n < b->n1)
                    fetch(b, t, next_n, next_k, g / 2, (groups + 1) / 2);
                column x[2] = {column_at(b, g, k0), column_at(b, g + 1, k0)};
                for (int64_t i = 0; i < rows; i += 2 * SIDE) {
                    operand w = tiles_at(b, direct, n, i, k0, steps);
                    any_block(b, (rows - i + SIDE - 1) / SIDE, &w, n + i, x, steps, k0 > 0);
                }
            }
        }
    }
}

#define MUL_OF(TYPE)                                                                               \
    static void mul_##TYPE(const job *b)                                                           \
    {                                                                                              \
        mul(b, FL_##TYPE);                                                                         \
    }
MUL_OF(BF16)
MUL_OF(MXFP4)
MUL_OF(F8_BLOCK)
MUL_OF(Q8)

void fl_amx_mul(const fl_tensor *w, int64_t n0, int64_t n1, const fl_amx *x, int64_t first,
                const fl_row_list *y, int64_t m, void *scratch)
{
    uint16_t *tiles = scratch;
    float(*sum)[SIDE * SIDE] = (void *)(tiles + FL_AMX_PANEL * PIECE);
    job b = {w, n0, n1, x, first, y, m, FL_AMX_PANEL, tiles, sum, sum[4]};
    if (fl_amx_groups(m) <= FEW)
        b.panel = NARROW;
    unit_begin();
    if (w->dtype == FL_BF16)
        mul_BF16(&b);
    else if (w->dtype == FL_MXFP4)
        mul_MXFP4(&b);
    else if (w->dtype == FL_F8_BLOCK)
        mul_F8_BLOCK(&b);
    else
        mul_Q8(&b);
    unit_end();
}

#endif
