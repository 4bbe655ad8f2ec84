/* weights.h for many rows; few.c has a few.  A block of weight rows is decoded to float32 once and
 * multiplied with FL_WEIGHTS_X rows, tile by tile, along K in pieces that stay in the first-level
 * cache; between pieces the accumulators (16 lanes each) lie in scratch. */
#include "ops/cpu/few.h"

#include "ops/cpu/weights_read.h"

/* Tiles of vp, weight rows by rows of x: accumulators and operands have to fit the register file.
 */
#if defined(__AVX512F__)
enum { TW = 4, TX = 4 };
#else
enum { TW = 2, TX = 6 };
#endif

FL_INLINE void sums(const vf *acc, int n, float *out)
{
    FL_UNROLL
    for (int i = 0; i < n; i += 4)
        vf_sum4(acc[i], acc[i + 1], acc[i + 2], acc[i + 3], out + i);
}

/* ---- many rows ---- */

typedef struct block {
    float w[FL_WEIGHTS_W][FL_WEIGHTS_K];
    float acc[FL_WEIGHTS_X * FL_WEIGHTS_W][16]; /* tile by tile */
} block;

/* The first k elements of a row, in whole vectors. */
FL_INLINE void decode_row(fl_dtype t, wrow w, int64_t k, float *out)
{
    int64_t at = 0;
    for (; at + 32 <= k; at += 32) {
        vf_store(out + at, load16(t, w, at));
        vf_store(out + at + 16, load16(t, w, at + 16));
    }
    for (; at < k; at += 16)
        vf_store(out + at, load_rest(t, w, at, k - at < 16 ? (int)(k - at) : 16));
}

FL_INLINE void decode(const fl_product *b, fl_dtype t, int64_t n, int64_t k0, int64_t k, block *s)
{
    for (int i = 0; i < FL_WEIGHTS_W && n + i < b->n1; i++)
        decode_row(t, row_at(b->w, t, n + i, k0), k, s->w[i]);
}

/* lanes[i * TX + j] (+)= w[i] . x[j] over k elements, a multiple of 16, a register's width of lanes
 * at a time. */
FL_INLINE void tile(const float (*w)[FL_WEIGHTS_K], const float *const *x, int64_t k, bool add,
                    float (*lanes)[16])
{
    for (int part = 0; part < 16; part += FL_PART) {
        vp acc[TW * TX];
        FL_UNROLL
        for (int a = 0; a < TW * TX; a++)
            acc[a] = add ? vp_load(lanes[a] + part) : vp_zero();
        for (int64_t at = part; at < k; at += 16) {
            vp wv[TW];
            FL_UNROLL
            for (int i = 0; i < TW; i++)
                wv[i] = vp_load(w[i] + at);
            FL_UNROLL
            for (int j = 0; j < TX; j++) {
                vp xv = vp_load(x[j] + at);
                FL_UNROLL
                for (int i = 0; i < TW; i++)
                    acc[i * TX + j] = vp_fma(wv[i], xv, acc[i * TX + j]);
            }
        }
        FL_UNROLL
        for (int a = 0; a < TW * TX; a++)
            vp_store(lanes[a] + part, acc[a]);
    }
}

/* Sums the accumulators of a tile into outputs [n, n + TW) x [m, m + TX), as far as they exist. */
static void finish(const fl_product *b, int64_t n, int64_t m, float (*lanes)[16])
{
    vf acc[TW * TX];
    float out[TW * TX];
    FL_UNROLL
    for (int a = 0; a < TW * TX; a++)
        acc[a] = vf_load(lanes[a]);
    sums(acc, TW * TX, out);
    for (int j = 0; j < TX && m + j < b->m; j++) {
        float *y = fl_list_row(b->y, m + j) + (n - b->n0);
        for (int i = 0; i < TW && n + i < b->n1; i++)
            y[i] = out[i * TX + j];
    }
}

/* Adds a piece of K, k elements from k0 on, to all tiles of a block, or finishes them. */
static void piece(const fl_product *b, int64_t n, int64_t m0, int64_t k0, int64_t k, block *s)
{
    int64_t m1 = b->m - m0 < FL_WEIGHTS_X ? b->m : m0 + FL_WEIGHTS_X;
    int64_t nn = b->n1 - n < FL_WEIGHTS_W ? b->n1 - n : FL_WEIGHTS_W;
    int64_t whole = k / 16 * 16;
    float(*lanes)[16] = s->acc, rest[TX][16]; /* rest: what follows `whole`, filled up with 0 */
    for (int64_t m = m0; m < m1; m += TX) {
        const float *x[TX], *x_rest[TX];
        for (int j = 0; j < TX; j++) {
            x[j] = fl_list_row(b->x, m + j < m1 ? m + j : m1 - 1) + k0;
            x_rest[j] = rest[j];
            if (whole < k)
                vf_store(rest[j], vf_loadn(x[j] + whole, (int)(k - whole)));
        }
        for (int64_t i = 0; i < nn; i += TW, lanes += TW * TX) {
            tile((const float(*)[FL_WEIGHTS_K])s->w[i], x, whole, k0 > 0, lanes);
            if (whole < k)
                tile((const float(*)[FL_WEIGHTS_K])(s->w[i] + whole), x_rest, 16, true, lanes);
            if (k0 + k == b->w->shape[1])
                finish(b, n + i, m, lanes);
        }
    }
}

FL_INLINE void many_rows(const fl_product *b, fl_dtype t, block *s)
{
    int64_t width = b->w->shape[1];
    for (int64_t n = b->n0; n < b->n1; n += FL_WEIGHTS_W) {
        for (int64_t m = 0; m < b->m; m += FL_WEIGHTS_X) {
            for (int64_t k0 = 0; k0 < width; k0 += FL_WEIGHTS_K) {
                int64_t k = width - k0 < FL_WEIGHTS_K ? width - k0 : FL_WEIGHTS_K;
                decode(b, t, n, k0, k, s);
                piece(b, n, m, k0, k, s);
            }
        }
    }
}

#define WEIGHTS_OF(TYPE)                                                                           \
    static void row_##TYPE(const fl_tensor *w, int64_t n, float *out)                              \
    {                                                                                              \
        decode_row(FL_##TYPE, row_at(w, FL_##TYPE, n, 0), w->shape[1], out);                       \
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
