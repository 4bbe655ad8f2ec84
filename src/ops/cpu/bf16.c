/* bf16.h in two forms.  A few groups of rows: weight rows are streamed once, brought to BF16 in
 * registers and multiplied with a group; for the next groups what came out is kept in the
 * first-level cache.  Lines are asked for ahead in the order in which they lie, as in few.c.  More
 * rows: a panel of weight rows is brought to BF16 once, in the order in which tiles read it, and
 * multiplied group by group while the next panel is filled.  A piece of a group lies in the
 * first-level cache, two panels in the second. */
#include "ops/cpu/bf16.h"
#include "ops/cpu/few.h"

#if defined(__AVX512BF16__)

#include "ops/cpu/pairs.h"
#include "ops/cpu/weights_read.h"

/* Tiles, weight rows by rows of x: 24 accumulators of 32 registers.  MXFP4 rows are short and take
 * long to decode: with one row of x ONE of them keep the processor busy. */
enum { FEW = 3 }; /* groups up to which the first form is faster */
enum { X = FL_BF16_X, W = 4, ONE = 8, STEP = FL_ROUNDED_STEP, PIECE = FL_BF16_PIECE };
/* Vectors that are brought to BF16 at a time, and how many shares ahead they are asked for. */
enum { UNIT = 16, AHEAD = 4 };

/* Row by row, since more than 16 in one loop would not be unrolled. */
FL_INLINE void clear(int nw, int nx, vf *acc)
{
    FL_UNROLL
    for (int j = 0; j < nx; j++) {
        FL_UNROLL
        for (int i = 0; i < nw; i++)
            acc[j * nw + i] = vf_zero();
    }
}

FL_INLINE vi join(vf low, vf high)
{
    return vf_bits(vf_round(low, high));
}

void fl_bf16_round(const fl_row_list *x, int64_t m, int64_t g, const fl_rounded *to, int64_t first)
{
    for (int64_t i = g * X; i < (g + 1) * X; i++) {
        uint16_t *out = to->data + (first + g * X) * fl_rounded_bytes(to->width) / 2 + i % X * STEP;
        for (int64_t k = 0; k < to->width; k += STEP, out += X * STEP) {
            vf low = vf_zero(), high = vf_zero();
            int64_t n = i < m ? to->width - k : 0;
            if (n > 0)
                low = vf_loadn(fl_list_row(x, i) + k, n < 16 ? (int)n : 16);
            if (n > 16)
                high = vf_loadn(fl_list_row(x, i) + k + 16, n < 32 ? (int)n - 16 : 16);
            _mm512_storeu_si512(out, join(low, high));
        }
    }
}

/* Elements [k, k + 32) of a row, of which n exist. */
FL_INLINE vi load32(fl_dtype t, wrow w, int64_t k, int64_t n)
{
    if (t == FL_BF16) {
        const uint16_t *p = (const uint16_t *)(const void *)w.data + k;
        return n >= STEP ? _mm512_loadu_si512(p)
                         : _mm512_maskz_loadu_epi16((1u << (unsigned)n) - 1u, p);
    }
    if (t == FL_Q8) { /* as they are stored: even ones, odd ones; a row ends with zeros */
        const int8_t *even =
            (const int8_t *)w.data + k / FL_Q8_BLOCK * FL_Q8_BLOCK + k % FL_Q8_BLOCK / 2;
        vf scale = vf_set1(w.block_scale[k / FL_Q8_BLOCK]);
        return vf_bits(vf_zip(vf_mul(vf_load_i8(even), scale),
                              vf_mul(vf_load_i8(even + FL_Q8_BLOCK / 2), scale)));
    }
    if (n >= STEP)
        return join(load16(t, w, k), load16(t, w, k + 16));
    return join(load_rest(t, w, k, n < 16 ? (int)n : 16),
                n > 16 ? load_rest(t, w, k + 16, (int)n - 16) : vf_zero());
}

typedef struct job {
    const fl_tensor *w;
    int64_t n0, n1; /* weight rows */
    const fl_rounded *x;
    int64_t first; /* row of x */
    const fl_row_list *y;
    int64_t m;
    bool second; /* fl_few_fetch */
} job;

/* Group g of x, from element k on. */
FL_INLINE const uint16_t *group_at(const job *b, int64_t g, int64_t k)
{
    return b->x->data + (b->first + g * X) * fl_rounded_bytes(b->x->width) / 2 + k * X;
}

FL_INLINE wrow weight_at(const job *b, fl_dtype t, int64_t n)
{
    return row_at(b->w, t, n < b->n1 ? n : b->n1 - 1, 0);
}

/* The sums of acc[j * nw + i] go to outputs [m, m + nx) x [n, n + nw), as far as they exist. */
FL_INLINE void put(const job *b, int nw, int nx, int64_t n, int64_t m, bool add, const vf *acc)
{
    float out[W * X];
    if (nw * nx == 4)
        vf_sum4(acc[0], acc[1], acc[2], acc[3], out);
    FL_UNROLL
    for (int a = 0; a + 8 <= nw * nx; a += 8)
        _mm256_storeu_ps(out + a, vf_sum8(acc + a));
    for (int j = 0; j < nx && m + j < b->m; j++) {
        float *y = fl_list_row(b->y, m + j) + (n - b->n0);
        const float *sum = out + j * nw;
        if (n + nw <= b->n1) {
            FL_UNROLL
            for (int i = 0; i < nw; i += 4) {
                __m128 s = _mm_loadu_ps(sum + i);
                _mm_storeu_ps(y + i, add ? _mm_add_ps(_mm_loadu_ps(y + i), s) : s);
            }
        } else {
            for (int i = 0; n + i < b->n1; i++)
                y[i] = add ? y[i] + sum[i] : sum[i];
        }
    }
}

/* ---- a few groups ---- */

/* Where a tile has its weights from: as they are stored, so but to be kept in BF16, or kept. */
typedef enum source { STORED, KEEP, KEPT } source;

/* One step of few_tile: n elements from k on. */
FL_INLINE void few_step(fl_dtype t, int nw, int nx, source from, const wrow *w, const uint16_t *x,
                        int64_t k, int64_t n, vi *kept, vf *acc)
{
    vi wv[ONE];
    FL_UNROLL
    for (int i = 0; i < nw; i++)
        wv[i] = from == KEPT ? kept[i] : load32(t, w[i], k, n);
    FL_UNROLL
    for (int i = 0; i < nw && from == KEEP; i++)
        kept[i] = wv[i];
    FL_UNROLL
    for (int j = 0; j < nx; j++) {
        vi xv = _mm512_loadu_si512(x + j * STEP);
        FL_UNROLL
        for (int i = 0; i < nw; i++)
            acc[j * nw + i] = vf_dot(acc[j * nw + i], wv[i], xv);
    }
}

/* Outputs of the first nx rows of group g and weight rows [n, n + nw), from a piece of both.  next:
 * what to fetch meanwhile, or NULL. */
FL_INLINE void few_tile(const job *b, fl_dtype t, int nw, int nx, source from, int64_t n, int64_t g,
                        int64_t k, int64_t end, const unsigned char *next, vi *kept)
{
    bool add = k > 0;
    wrow w[ONE];
    vf acc[W * X];
    const uint16_t *x = group_at(b, g, k);
    FL_UNROLL
    for (int i = 0; i < nw; i++)
        w[i] = weight_at(b, t, n + i);
    clear(nw, nx, acc);
    for (; k + STEP <= end; k += STEP, x += X * STEP, kept += nw) {
        if (next) {
            fl_few_fetch(next, nw * bytes_of(t, STEP), b->second);
            next += nw * bytes_of(t, STEP);
        }
        few_step(t, nw, nx, from, w, x, k, STEP, kept, acc);
    }
    if (k < end)
        few_step(t, nw, nx, from, w, x, k, end - k, kept, acc);
    put(b, nw, nx, n, g * X, add, acc);
}

/* All groups, from a piece of K. */
FL_INLINE void few_groups(const job *b, fl_dtype t, int64_t n, int64_t k0, int64_t k1,
                          const unsigned char *next, vi *kept)
{
    int64_t left = b->m, g = 0;
    if (left > X) {
        few_tile(b, t, W, X, t == FL_BF16 ? STORED : KEEP, n, g++, k0, k1, next, kept);
        for (left -= X; left > 4; left -= X)
            few_tile(b, t, W, X, t == FL_BF16 ? STORED : KEPT, n, g++, k0, k1, NULL, kept);
        if (left > 2)
            few_tile(b, t, W, 4, t == FL_BF16 ? STORED : KEPT, n, g, k0, k1, NULL, kept);
        else if (left > 0)
            few_tile(b, t, W, 2, t == FL_BF16 ? STORED : KEPT, n, g, k0, k1, NULL, kept);
    } else if (left > 4) {
        few_tile(b, t, W, X, STORED, n, g, k0, k1, next, kept);
    } else if (left > 2) {
        few_tile(b, t, W, 4, STORED, n, g, k0, k1, next, kept);
    } else {
        few_tile(b, t, W, 2, STORED, n, g, k0, k1, next, kept);
    }
}

FL_INLINE void few(const job *b, fl_dtype t, vi *kept)
{
    int64_t width = b->x->width, nw = b->m == 1 && t == FL_MXFP4 ? ONE : W;
    int64_t row = bytes_of(t, t == FL_Q8 ? fl_f8_blocks(width) * FL_Q8_BLOCK : width);
    int64_t ahead = nw * row < FL_FEW_AHEAD ? FL_FEW_AHEAD : nw * row;
    const unsigned char *end = (const unsigned char *)b->w->data + b->w->shape[0] * row;
    for (int64_t n = b->n0; n < b->n1; n += nw) {
        const unsigned char *next = (const unsigned char *)b->w->data + n * row + ahead;
        if (next >= end)
            next = NULL;
        for (int64_t k0 = 0; k0 < width; k0 += PIECE) {
            int64_t k1 = width - k0 < PIECE ? width : k0 + PIECE;
            if (b->m > 1)
                few_groups(b, t, n, k0, k1, next, kept);
            else if (t == FL_MXFP4)
                few_tile(b, t, ONE, 1, STORED, n, 0, k0, k1, next, kept);
            else
                few_tile(b, t, W, 1, STORED, n, 0, k0, k1, next, kept);
            next = next ? next + nw * bytes_of(t, k1 - k0) : NULL;
        }
    }
}

/* ---- more rows ---- */

/* A piece of weight rows [n, n + rows), elements [k0, k1): what a panel holds, four rows by four,
 * step by step.  No rows: there is nothing left. */
typedef struct place {
    int64_t n, rows, k0, k1;
} place;

static place place_at(const job *b, int64_t n, int64_t k0)
{
    int64_t width = b->x->width, rows = b->n1 - n < FL_BF16_PANEL ? b->n1 - n : FL_BF16_PANEL;
    return (place){n, rows > 0 ? rows : 0, k0, width - k0 < PIECE ? width : k0 + PIECE};
}

static place place_after(const job *b, const place *p)
{
    return p->k1 < b->x->width ? place_at(b, p->n, p->k1) : place_at(b, p->n + FL_BF16_PANEL, 0);
}

/* A share of a panel: UNIT vectors of row r from vector s on, or the end of a row. */
typedef struct share {
    int64_t r, s;
} share;

typedef struct filling {
    place p;
    int64_t steps, rows; /* vectors of a row; rows: whole tiles */
    vi *panel;
    share next, fetched; /* to be filled, to be asked for */
} filling;

static int64_t shares(const filling *f)
{
    return f->rows * ((f->steps + UNIT - 1) / UNIT);
}

FL_INLINE void advance(const filling *f, share *at)
{
    at->s += UNIT;
    if (at->s >= f->steps)
        *at = (share){at->r + 1, 0};
}

/* Asks for the bytes of a share. */
FL_INLINE void fetch(const job *b, fl_dtype t, filling *f)
{
    const unsigned char *from =
        weight_at(b, t, f->p.n + f->fetched.r).data + bytes_of(t, f->p.k0 + f->fetched.s * STEP);
    FL_UNROLL
    for (int64_t i = 0; i < bytes_of(t, UNIT * STEP); i += FL_CACHE_LINE)
        __builtin_prefetch(from + i, 0, 2);
    advance(f, &f->fetched);
}

/* Brings a share to BF16. */
FL_INLINE void fill(const job *b, fl_dtype t, filling *f)
{
    wrow w = weight_at(b, t, f->p.n + f->next.r);
    vi *out = f->panel + f->next.r / W * W * f->steps + f->next.s * W + f->next.r % W;
    int64_t k = f->p.k0 + f->next.s * STEP;
    fetch(b, t, f);
    if (k + UNIT * STEP <= f->p.k1) {
        FL_UNROLL
        for (int64_t i = 0; i < UNIT; i++)
            out[i * W] = load32(t, w, k + i * STEP, STEP);
    } else {
        for (; k < f->p.k1; k += STEP, out += W)
            *out = load32(t, w, k, f->p.k1 - k);
    }
    advance(f, &f->next);
}

FL_INLINE filling filling_of(const job *b, fl_dtype t, const place *p, vi *panel)
{
    filling f = {.p = *p, .steps = fl_rounded_steps(p->k1 - p->k0), .panel = panel};
    f.rows = (p->rows + W - 1) / W * W;
    for (int i = 0; i < AHEAD && p->rows; i++)
        fetch(b, t, &f);
    return f;
}

/* Asks for the outputs of a group in a panel: rows of y lie a power of two apart more often than
 * not, and then no cache keeps them from panel to panel. */
FL_INLINE void fetch_outputs(const job *b, const place *p, int64_t m)
{
    for (int64_t j = m; j < m + X && j < b->m; j++) {
        const float *y = fl_list_row(b->y, j) + (p->n - b->n0);
        for (int64_t i = 0; i < p->rows; i += FL_CACHE_LINE / 4)
            __builtin_prefetch(y + i, 1);
    }
}

/* Outputs [m, m + X) x [n, n + W) from a piece of both.  A line of every step of `next`, the group
 * that comes next, is asked for: all rows of x together are too large for the second-level cache.
 */
static void tile(const job *b, const vi *w, const uint16_t *x, const uint16_t *next, int64_t steps,
                 int64_t n, int64_t m, bool add)
{
    vf acc[W * X];
    clear(W, X, acc);
    for (int64_t s = 0; s < steps; s++, w += W, x += X * STEP, next += X * STEP) {
        __builtin_prefetch(next, 0, 2);
        FL_UNROLL
        for (int j = 0; j < X; j++) {
            vi xv = _mm512_load_si512(x + j * STEP);
            FL_UNROLL
            for (int i = 0; i < W; i++)
                acc[j * W + i] = vf_dot(acc[j * W + i], w[i], xv);
        }
    }
    put(b, W, X, n, m, add, acc);
}

/* All rows of x against a panel.  The next one is filled between the tiles, a little each time, so
 * that its bytes are long there when they are read and bringing them to BF16 hides among products.
 */
FL_INLINE void many(const job *b, fl_dtype t, vi *now, vi *next)
{
    int64_t groups = fl_rounded_groups(b->m, X);
    place p = place_at(b, b->n0, 0);
    filling f = filling_of(b, t, &p, now);
    for (int64_t i = shares(&f); i > 0; i--)
        fill(b, t, &f);
    while (p.rows) {
        int64_t steps = fl_rounded_steps(p.k1 - p.k0);
        const place q = place_after(b, &p);
        f = filling_of(b, t, &q, next);
        int64_t tiles = groups * ((p.rows + W - 1) / W), todo = shares(&f), due = 0;
        for (int64_t g = 0; g < groups; g++) {
            fetch_outputs(b, &p, g * X);
            for (int64_t i = 0; i < p.rows; i += W) {
                for (due += todo; due >= tiles; due -= tiles)
                    fill(b, t, &f);
                const uint16_t *ahead = group_at(b, g + 1 < groups ? g + 1 : 0, p.k0);
                tile(b, now + i * steps, group_at(b, g, p.k0), ahead + i / W % X * STEP, steps,
                     p.n + i, g * X, p.k0 > 0);
            }
        }
        vi *filled = next;
        next = now;
        now = filled;
        p = q;
    }
}

FL_INLINE void mul(const job *b, fl_dtype t, vi *panel)
{
    if (b->m <= FEW * X)
        few(b, t, panel);
    else
        many(b, t, panel, panel + FL_BF16_PANEL * PIECE / STEP);
}

#define MUL_OF(TYPE)                                                                               \
    static void mul_##TYPE(const job *b, vi *panel)                                                \
    {                                                                                              \
        mul(b, FL_##TYPE, panel);                                                                  \
    }
MUL_OF(BF16)
MUL_OF(MXFP4)
MUL_OF(F8_BLOCK)
MUL_OF(Q8)

void fl_bf16_mul(const fl_tensor *w, int64_t n0, int64_t n1, const fl_rounded *x, int64_t first,
                 const fl_row_list *y, int64_t m, void *scratch)
{
    if (m < 1) /* no weight is read */
        return;
    const job b = {w, n0, n1, x, first, y, m, fl_cpu_fetch_second()};
    if (w->dtype == FL_BF16)
        mul_BF16(&b, scratch);
    else if (w->dtype == FL_MXFP4)
        mul_MXFP4(&b, scratch);
    else if (w->dtype == FL_F8_BLOCK)
        mul_F8_BLOCK(&b, scratch);
    else
        mul_Q8(&b, scratch);
}

#endif
