/* weights.h for many rows; few.c has a few.
 *
 * A panel of weight rows is decoded to float32 once, along K in chunks, and stays in the
 * second-level cache while the rows of x pass, a group at a time and along K in pieces: a piece of
 * a group and the accumulators of its tiles (16 lanes each) stay in the first-level cache while the
 * panel passes.  From chunk to chunk the accumulators lie in scratch.  Meanwhile the next piece of
 * x and the weights of the next panel are asked for, a line with each step of a tile. */
#include "ops/cpu/few.h"

#include "ops/cpu/weights_read.h"

/* Tiles of vp, weight rows by rows of x: accumulators and operands have to fit the register file.
 */
#if defined(__AVX512F__)
enum { TW = 4, TX = 6 };
#else
enum { TW = 2, TX = 6 };
#endif
enum { PANEL = FL_WEIGHTS_PANEL, CHUNK = FL_WEIGHTS_K, X = FL_WEIGHTS_X, PIECE = 512, STEP = 16 };
enum { ASKED = PIECE / STEP * FL_CACHE_LINE }; /* bytes that a tile asks for */

/* ---- many rows ---- */

/* A chunk of the rows of a panel, TW by TW, vector by vector; accumulators, tile by tile. */
typedef struct block {
    float w[PANEL * CHUNK];
    float acc[X * PANEL][16];
} block;

/* Elements [k0, k0 + k) of weight rows [n, n + rows) and of rows [m, m_end) of x.  No weight rows:
 * nothing is left. */
typedef struct place {
    int64_t n, rows, m, m_end, k0, k;
} place;

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t parts(int64_t n, int64_t of)
{
    return (n + of - 1) / of;
}

/* The first k elements of a row, in whole vectors that are `step` elements apart. */
FL_INLINE void decode_row(fl_dtype t, wrow w, int64_t k, float *out, int64_t step)
{
    int64_t at = 0;
    for (; at + 32 <= k; at += 32, out += 2 * step) {
        vf_store(out, load16(t, w, at));
        vf_store(out + step, load16(t, w, at + 16));
    }
    for (; at < k; at += 16, out += step)
        vf_store(out, load_rest(t, w, at, k - at < 16 ? (int)(k - at) : 16));
}

FL_INLINE void decode(const fl_product *b, fl_dtype t, const place *p, float *out)
{
    for (int64_t i = 0; i < p->rows; i++)
        decode_row(t, row_at(b->w, t, p->n + i, p->k0), p->k,
                   out + i / TW * TW * CHUNK + i % TW * STEP, TW * STEP);
}

/* lanes[j * TW + i] = (add ? itself : 0) + w[i] . x[j] over k elements, a multiple of 16, a
 * register's width of lanes at a time.  next: what to ask for. */
static void tile(const float *w, const float *const *x, int64_t k, bool add, float (*lanes)[16],
                 const unsigned char *next)
{
    for (int part = 0; part < STEP; part += FL_PART) {
        vp acc[TX * TW];
        const float *from = w + part;
        FL_UNROLL
        for (int j = 0; j < TX; j++) {
            FL_UNROLL
            for (int i = 0; i < TW; i++)
                acc[j * TW + i] = add ? vp_load(lanes[j * TW + i] + part) : vp_zero();
        }
        for (int64_t at = part; at < k; at += STEP, from += TW * STEP, next += FL_CACHE_LINE) {
            vp wv[TW];
            __builtin_prefetch(next);
            FL_UNROLL
            for (int i = 0; i < TW; i++)
                wv[i] = vp_load(from + i * STEP);
            FL_UNROLL
            for (int j = 0; j < TX; j++) {
                vp xv = vp_load(x[j] + at);
                FL_UNROLL
                for (int i = 0; i < TW; i++)
                    acc[j * TW + i] = vp_fma(wv[i], xv, acc[j * TW + i]);
            }
        }
        FL_UNROLL
        for (int j = 0; j < TX; j++) {
            FL_UNROLL
            for (int i = 0; i < TW; i++)
                vp_store(lanes[j * TW + i] + part, acc[j * TW + i]);
        }
    }
}

/* The sums of a tile to outputs [n, n + TW) x [m, m + TX), as far as they exist. */
static void finish(const fl_product *b, int64_t n, int64_t m, const float (*lanes)[16])
{
    vf acc[TX * TW];
    float out[TX * TW];
    FL_UNROLL
    for (int j = 0; j < TX; j++) {
        FL_UNROLL
        for (int i = 0; i < TW; i++)
            acc[j * TW + i] = vf_load(lanes[j * TW + i]);
    }
    int a = 0;
#if defined(__AVX512F__)
    FL_UNROLL
    for (; a < TX * TW; a += 8)
        _mm256_storeu_ps(out + a, vf_sum8(acc + a));
#endif
    for (; a < TX * TW; a += 4)
        vf_sum4(acc[a], acc[a + 1], acc[a + 2], acc[a + 3], out + a);
    for (int j = 0; j < TX && m + j < b->m; j++) {
        float *y = fl_list_row(b->y, m + j) + (n - b->n0);
        if (n + TW <= b->n1) {
            memcpy(y, out + j * TW, TW * sizeof *y);
        } else {
            for (int i = 0; n + i < b->n1; i++)
                y[i] = out[j * TW + i];
        }
    }
}

/* Asks for the outputs of a group: their rows lie far apart. */
static void fetch_outputs(const fl_product *b, const place *p, int64_t m)
{
    for (int64_t j = m; j < m + TX && j < p->m_end; j++) {
        const float *y = fl_list_row(b->y, j) + (p->n - b->n0);
        for (int64_t i = 0; i < p->rows; i += FL_CACHE_LINE / 4)
            __builtin_prefetch(y + i, 1);
    }
}

/* A piece of a group: so many elements of rows [m, m + TX), the last row again for those that do
 * not exist. */
typedef struct piece {
    const float *x[TX], *rest_of[TX];
    float rest[TX][16];            /* what follows the last whole vector, filled up with 0 */
    int64_t whole;                 /* elements of x */
    bool more;                     /* there is a rest */
    const unsigned char *next[TX]; /* the next piece */
} piece;

static void piece_at(const fl_product *b, const place *p, int64_t m, int64_t k0, piece *to)
{
    int64_t k = least(PIECE, p->k - k0);
    to->whole = k / STEP * STEP;
    to->more = to->whole < k;
    for (int j = 0; j < TX; j++) {
        const float *row = fl_list_row(b->x, least(m + j, p->m_end - 1)) + p->k0;
        const float *after = fl_list_row(b->x, least(m + TX + j, p->m_end - 1)) + p->k0;
        to->x[j] = row + k0;
        to->next[j] = (const unsigned char *)(k0 + PIECE < p->k ? row + k0 + PIECE : after);
        to->rest_of[j] = to->rest[j];
        if (to->more)
            vf_store(to->rest[j], vf_loadn(to->x[j] + to->whole, (int)(k - to->whole)));
    }
}

/* Part `at` of the weights of a place, as many bytes as a tile asks for. */
FL_INLINE const unsigned char *weights_at(const fl_product *b, fl_dtype t, const place *p,
                                          int64_t at)
{
    int64_t row = bytes_of(t, p->k), byte = at * ASKED;
    return row_at(b->w, t, p->n + byte / row, p->k0).data + byte % row;
}

/* Adds a chunk of K to all tiles of a panel, or finishes them.  Of the tiles of a piece the first
 * TX ask for the next piece, the others for the weights of `next`, so late that they are still
 * there when they are wanted. */
FL_INLINE void multiply(const fl_product *b, fl_dtype t, const place *p, const place *next,
                        block *s)
{
    int64_t width = b->w->shape[1], tiles = parts(p->rows, TW);
    int64_t asking = parts(p->m_end - p->m, TX) * parts(p->k, PIECE) * (tiles - TX);
    int64_t at = least(0, parts(next->rows * bytes_of(t, next->k), ASKED) - asking);
    float(*lanes)[16] = s->acc;
    for (int64_t m = p->m; m < p->m_end; m += TX) {
        if (p->k0 + p->k == width)
            fetch_outputs(b, p, m);
        for (int64_t k0 = 0; k0 < p->k; k0 += PIECE) {
            piece now;
            piece_at(b, p, m, k0, &now);
            for (int64_t i = 0; i < tiles; i++) {
                const float *w = s->w + i * TW * CHUNK + k0 * TW;
                float(*acc)[16] = lanes + i * TX * TW;
                const unsigned char *ask = now.next[i < TX ? i : 0];
                if (i >= TX && at++ >= 0)
                    ask = weights_at(b, t, next, at - 1);
                tile(w, now.x, now.whole, p->k0 + k0 > 0, acc, ask);
                if (now.more)
                    tile(w + now.whole * TW, now.rest_of, STEP, true, acc, ask);
                if (p->k0 + k0 + PIECE >= width)
                    finish(b, p->n + i * TW, m, (const float(*)[16])acc);
            }
        }
        if (width > CHUNK)
            lanes += tiles * TX * TW;
    }
}

/* Rows of x that pass a panel: all that there are, or as many as have room for accumulators. */
static int64_t rows_at_once(const fl_product *b)
{
    int64_t groups = parts(b->m, TX), blocks = b->w->shape[1] > CHUNK ? parts(b->m, X) : 1;
    return parts(groups, blocks) * TX;
}

static place place_at(const fl_product *b, int64_t n, int64_t m, int64_t k0)
{
    return (place){.n = n,
                   .rows = least(PANEL, b->n1 - n),
                   .m = m,
                   .m_end = least(m + rows_at_once(b), b->m),
                   .k0 = k0,
                   .k = least(CHUNK, b->w->shape[1] - k0)};
}

static place place_after(const fl_product *b, const place *p)
{
    if (p->k0 + p->k < b->w->shape[1])
        return place_at(b, p->n, p->m, p->k0 + CHUNK);
    if (p->m_end < b->m)
        return place_at(b, p->n, p->m_end, 0);
    return p->n + PANEL < b->n1 ? place_at(b, p->n + PANEL, 0, 0) : (place){0};
}

FL_INLINE void many_rows(const fl_product *b, fl_dtype t, block *s)
{
    for (place p = place_at(b, b->n0, 0, 0), next; p.rows > 0; p = next) {
        next = place_after(b, &p);
        decode(b, t, &p, s->w);
        multiply(b, t, &p, &next, s);
    }
}

#define WEIGHTS_OF(TYPE)                                                                           \
    static void row_##TYPE(const fl_tensor *w, int64_t n, float *out)                              \
    {                                                                                              \
        decode_row(FL_##TYPE, row_at(w, FL_##TYPE, n, 0), w->shape[1], out, STEP);                 \
    }                                                                                              \
    static void weights_##TYPE(const fl_product *b, block *s)                                      \
    {                                                                                              \
        many_rows(b, FL_##TYPE, s);                                                                \
    }
WEIGHTS_OF(BF16)
WEIGHTS_OF(F16)
WEIGHTS_OF(F32)
WEIGHTS_OF(MXFP4)
WEIGHTS_OF(F8_BLOCK)
WEIGHTS_OF(Q8)

typedef struct of_type {
    void (*mul)(const fl_product *b, block *s);
    void (*row)(const fl_tensor *w, int64_t n, float *out);
} of_type;

static of_type functions_of(fl_dtype t)
{
    switch (t) {
    case FL_BF16:
        return (of_type){weights_BF16, row_BF16};
    case FL_F16:
        return (of_type){weights_F16, row_F16};
    case FL_MXFP4:
        return (of_type){weights_MXFP4, row_MXFP4};
    case FL_F8_BLOCK:
        return (of_type){weights_F8_BLOCK, row_F8_BLOCK};
    case FL_Q8:
        return (of_type){weights_Q8, row_Q8};
    default:
        return (of_type){weights_F32, row_F32};
    }
}

void fl_weights_mul(const fl_tensor *w, int64_t n0, int64_t n1, const fl_row_list *x,
                    const fl_row_list *y, int64_t m, void *scratch)
{
    _Static_assert(sizeof(block) == FL_WEIGHTS_SCRATCH, "scratch holds one block");
    const fl_product b = {w, n0, n1, x, y, m};
    if (m < FL_FEW)
        fl_few_mul(&b);
    else
        functions_of(w->dtype).mul(&b, scratch);
}

void fl_weights_row(const fl_tensor *w, int64_t n, float *out)
{
    functions_of(w->dtype).row(w, n, out);
}
