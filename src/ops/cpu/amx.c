/* amx.h: tiles of weights, 16 rows by 32 elements, times tiles of x, 16 pairs of elements by 16
 * columns, in blocks of two by two.  Weights are read where they lie when they are BF16 and few
 * rows are multiplied with them; else a panel of them is brought to tiles in scratch first, once
 * for all rows of x.  Sums have weight rows for rows, and are turned on their way to y. */
#include "ops/cpu/amx.h"

#if defined(FL_AMX)

#include "ops/cpu/amx_unit.h"
#include "ops/cpu/matmul.h"
#include "ops/cpu/weights_read.h"
#if defined(FL_AMX_TILES)
#include "ops/cpu/amx_mxfp4.h"
#endif

/* With up to FEW groups of columns a panel has NARROW weight rows, brought to tiles BATCH elements
 * at a time, which stay in the first-level cache. */
enum { FEW = 2, NARROW = 2 * SIDE, BATCH = 256, PIECE = FL_AMX_PIECE };

void fl_amx_round(const fl_row_list *x, int64_t m, int64_t g, const fl_rounded *to, int64_t first)
{
    int64_t i = g * SIDE, columns = m - i < SIDE ? m - i : SIDE;
    uint16_t *out = to->data + (first + i) * fl_rounded_bytes(to->width) / 2;
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
#if defined(FL_AMX_TILES)
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
    const fl_rounded *x;
    int64_t first; /* column of x */
    const fl_row_list *y;
    int64_t m, panel; /* rows of x, weight rows of a panel */
    /* Brings elements [k0, k1) of weight rows from n on to tiles. */
    void (*fill)(const struct job *b, int64_t n, int64_t rows, int64_t k0, int64_t k1);
    uint16_t *tiles; /* of weights: 16 rows after 16, step by step */
    float (*sum)[SIDE * SIDE], *turned;
} job;

static bool few(const job *b)
{
    return b->panel == NARROW;
}

FL_INLINE wrow weight_at(const job *b, fl_dtype t, int64_t n)
{
    return row_at(b->w, t, n < b->n1 ? n : b->n1 - 1, 0);
}

/* ---- weights ---- */

/* With few rows of x the memory has to be kept busy: the same place of the next panel is fetched.
 */
FL_INLINE void fill(const job *b, fl_dtype t, int64_t n, int64_t rows, int64_t k0, int64_t k1)
{
    int64_t steps = fl_rounded_steps(k1 - k0);
    for (int64_t r = 0; r < rows; r++) {
        wrow w = weight_at(b, t, n + r);
        uint16_t *out = b->tiles + r / SIDE * steps * TILE + r % SIDE * STEP;
        if (few(b) && n + r + NARROW < b->n1) {
            const unsigned char *next = weight_at(b, t, n + r + NARROW).data;
            for (int64_t i = bytes_of(t, k0); i < bytes_of(t, k1); i += FL_CACHE_LINE)
                __builtin_prefetch(next + i, 0, 2);
        }
        for (int64_t k = k0; k < k1; k += STEP, out += TILE)
            vb_store(out, load32(t, w, k, k1 - k));
    }
}

#define FILL_OF(TYPE)                                                                              \
    static void fill_##TYPE(const job *b, int64_t n, int64_t rows, int64_t k0, int64_t k1)         \
    {                                                                                              \
        fill(b, FL_##TYPE, n, rows, k0, k1);                                                       \
    }
FILL_OF(BF16)
FILL_OF(MXFP4)
FILL_OF(F8_BLOCK)
FILL_OF(Q8)

/* Asks for the bytes that fill will read: part `part` of `parts`. */
static void fetch(const job *b, int64_t n, int64_t k0, int64_t part, int64_t parts)
{
    fl_dtype t = b->w->dtype;
    int64_t k = b->x->width - k0 < PIECE ? b->x->width - k0 : PIECE;
    for (int64_t r = b->panel * part / parts; r < b->panel * (part + 1) / parts; r++) {
        const unsigned char *p = weight_at(b, t, n + r).data + bytes_of(t, k0);
        for (int64_t i = 0; i < bytes_of(t, k); i += FL_CACHE_LINE)
            __builtin_prefetch(p + i, 0, 2);
    }
}

/* ---- blocks ---- */

/* Tiles of weights: where those of the first 16 rows begin, and those of the next. */
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
    return (column){b->x->data + (b->first + row) * fl_rounded_bytes(b->x->width) / 2 + k * n, n,
                    row};
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

/* The same place of the next panel. */
FL_INLINE void fetch_next(const operand *w, const uint16_t *tile)
{
    FL_UNROLL
    for (int r = 0; r < SIDE; r++)
        __builtin_prefetch((const char *)tile + w->ahead + r * w->stride, 0, 2);
}

/* Tiles 0 to 3 hold sums, 4 and 5 weights, 6 and 7 columns, of which x moves on. */
FL_INLINE void add_steps(unit *u, int nw, int nx, const operand *w, column *x, int64_t steps)
{
    const uint16_t *w0 = w->tile[0], *w1 = w->tile[1];
    for (int64_t s = 0; s < steps; s++, w0 += w->step, w1 += w->step) {
        if (w->ahead) {
            fetch_next(w, w0);
            if (nw > 1)
                fetch_next(w, w1);
        }
        TILE_LOAD(u, 4, w0, w->stride);
        TILE_LOAD(u, 6, x[0].data, x[0].n * 4);
        TILE_DOT(u, 0, 4, 6);
        if (nx > 1) {
            TILE_LOAD(u, 7, x[1].data, x[1].n * 4);
            TILE_DOT(u, 1, 4, 7);
        }
        if (nw > 1) {
            TILE_LOAD(u, 5, w1, w->stride);
            TILE_DOT(u, 2, 5, 6);
            if (nx > 1)
                TILE_DOT(u, 3, 5, 7);
        }
        x[0].data += x[0].n * STEP;
        x[1].data += x[1].n * STEP;
    }
}

/* Where a block finds its weights. */
typedef struct place {
    int64_t n, k0, k1;     /* weight rows from n on, elements */
    bool direct;           /* in the weight itself */
    const uint16_t *panel; /* there; NULL: it brings them to tiles, batch by batch */
} place;

FL_INLINE operand operand_at(const job *b, const place *p, int64_t k, int64_t steps)
{
    if (p->direct) {
        int64_t width = b->x->width;
        const uint16_t *w = (const uint16_t *)b->w->data + p->n * width + k;
        bool next = p->n + 2 * NARROW <= b->n1;
        return (operand){{w, w + SIDE * width}, width * 2, STEP, next ? NARROW * width * 2 : 0};
    }
    const uint16_t *w = p->panel ? p->panel : b->tiles;
    return (operand){{w, w + steps * TILE}, SIDE * 4, TILE, 0};
}

/* Outputs of nw tiles of weights and nx groups of columns.  Sum i * 2 + j belongs to tile i and
 * group j. */
FL_INLINE void block(const job *b, int nw, int nx, const place *p, const column *columns)
{
    unit u;
    column x[2] = {columns[0], columns[1]};
    memset(b->sum, 0, 4 * sizeof *b->sum);
    for (int i = 0; i < nw && p->k0 > 0; i++) {
        for (int j = 0; j < nx; j++)
            get(b, p->n + i * SIDE, &x[j], b->sum[i * 2 + j]);
    }
    /* What was written is in memory before tiles read it: the compiler does not know that they do.
     */
    __asm__ volatile("" ::: "memory");
    TILE_LOAD(&u, 0, b->sum[0], SIDE * 4);
    TILE_LOAD(&u, 1, b->sum[1], SIDE * 4);
    TILE_LOAD(&u, 2, b->sum[2], SIDE * 4);
    TILE_LOAD(&u, 3, b->sum[3], SIDE * 4);
    int64_t batch = p->direct || p->panel ? p->k1 - p->k0 : BATCH;
    for (int64_t k = p->k0; k < p->k1; k += batch) {
        int64_t end = p->k1 - k < batch ? p->k1 : k + batch, steps = fl_rounded_steps(end - k);
        if (!p->direct && !p->panel)
            b->fill(b, p->n, nw * SIDE, k, end);
        __asm__ volatile("" ::: "memory");
        operand w = operand_at(b, p, k, steps);
        add_steps(&u, nw, nx, &w, x, steps);
    }
    TILE_STORE(&u, 0, b->sum[0]);
    TILE_STORE(&u, 1, b->sum[1]);
    TILE_STORE(&u, 2, b->sum[2]);
    TILE_STORE(&u, 3, b->sum[3]);
    for (int i = 0; i < nw; i++) {
        for (int j = 0; j < nx; j++)
            put(b, p->n + i * SIDE, &columns[j], b->sum[i * 2 + j]);
    }
}

static void any_block(const job *b, int64_t rows, const place *p, const column *x)
{
    if (rows > SIDE && x[1].n)
        block(b, 2, 2, p, x);
    else if (rows > SIDE)
        block(b, 2, 1, p, x);
    else if (x[1].n)
        block(b, 1, 2, p, x);
    else
        block(b, 1, 1, p, x);
}

/* Weight rows [n, n + rows), elements [k0, k1), times all columns. */
static void panel(const job *b, int64_t n, int64_t rows, int64_t k0, int64_t k1)
{
    int64_t groups = fl_rounded_groups(b->m, SIDE), steps = fl_rounded_steps(k1 - k0);
    int64_t next_n = k1 < b->x->width ? n : n + b->panel, next_k = k1 < b->x->width ? k1 : 0;
    place p = {n, k0, k1, false, NULL};
    if (few(b))
        p.direct = b->w->dtype == FL_BF16 && rows % SIDE == 0 && b->x->width % STEP == 0;
    else
        b->fill(b, n, (rows + SIDE - 1) / SIDE * SIDE, k0, k1);
    for (int64_t g = 0; g < groups; g += 2) {
        column x[2] = {column_at(b, g, k0), column_at(b, g + 1, k0)};
        if (!few(b) && next_n < b->n1)
            fetch(b, next_n, next_k, g / 2, (groups + 1) / 2);
        for (int64_t i = 0; i < rows; i += 2 * SIDE) {
            p.n = n + i;
            p.panel = few(b) ? NULL : b->tiles + i * steps * STEP;
            any_block(b, rows - i, &p, x);
        }
    }
}

void fl_amx_mul(const fl_tensor *w, int64_t n0, int64_t n1, const fl_rounded *x, int64_t first,
                const fl_row_list *y, int64_t m, void *scratch)
{
    uint16_t *tiles = scratch;
    float(*sum)[SIDE * SIDE] = (void *)(tiles + FL_AMX_PANEL * PIECE);
    job b = {w, n0, n1, x, first, y, m, FL_AMX_PANEL, NULL, tiles, sum, sum[4]};
    if (fl_rounded_groups(m, SIDE) <= FEW)
        b.panel = NARROW;
    b.fill = w->dtype == FL_BF16       ? fill_BF16
             : w->dtype == FL_MXFP4    ? fill_MXFP4
             : w->dtype == FL_F8_BLOCK ? fill_F8_BLOCK
                                       : fill_Q8;
    int64_t piece = few(&b) ? x->width : PIECE;
    unit_begin();
    for (int64_t n = n0; n < n1; n += b.panel) {
        for (int64_t k = 0; k < x->width; k += piece)
            panel(&b, n, n1 - n < b.panel ? n1 - n : b.panel, k,
                  x->width - k < piece ? x->width : k + piece);
    }
    unit_end();
}

#endif
