/* weights.h in two forms.  A few rows: weight rows are streamed once, decoded in registers and
 * multiplied with up to TX rows.  Many rows: a block of weight rows is decoded to float32 once and
 * multiplied with FL_WEIGHTS_X rows, tile by tile, along K in pieces that stay in the first-level
 * cache; between pieces the accumulators (16 lanes each) lie in scratch. */
#include "ops/cpu/weights.h"

#include "ops/cpu/simd.h"

/* Tile sizes: accumulators and operands have to fit the register file. */
#if defined(__AVX512F__)
enum { TW = 4, TX = 4, TW_ONE = 8 };
#else
enum { TW = 2, TX = 3, TW_ONE = 4 };
#endif
enum { FEW = 12, MAX_TILE = 16 };

/* ---- reading weights ---- */

/* 2^(s - 127) as the bits of a float32; 255 is NaN. */
#define E8M0(s) ((uint32_t)(s) << 23 | ((s) == 0 || (s) == 255 ? 0x00400000u : 0))
#define E8M0_4(s) E8M0(s), E8M0((s) + 1), E8M0((s) + 2), E8M0((s) + 3)
#define E8M0_16(s) E8M0_4(s), E8M0_4((s) + 4), E8M0_4((s) + 8), E8M0_4((s) + 12)
#define E8M0_64(s) E8M0_16(s), E8M0_16((s) + 16), E8M0_16((s) + 32), E8M0_16((s) + 48)
static const uint32_t e8m0[256] = {E8M0_64(0), E8M0_64(64), E8M0_64(128), E8M0_64(192)};

/* A row of a weight. */
typedef struct wrow {
    const unsigned char *data;
    const uint8_t *scale;
} wrow;

/* Row n of w, a tensor of type t, from element k on, a multiple of 32. */
FL_INLINE wrow row_at(const fl_tensor *w, fl_dtype t, int64_t n, int64_t k)
{
    const unsigned char *data = w->data;
    int64_t at = n * w->shape[1] + k;
    if (t == FL_MXFP4)
        return (wrow){data + at / 2, w->scale + at / FL_MX_GROUP};
    return (wrow){data + at * (t == FL_F32 ? 4 : 2), NULL};
}

/* Elements [k, k + 32): two vectors.  k is a multiple of 32. */
FL_INLINE void load32(fl_dtype t, wrow w, int64_t k, vf out[2])
{
    if (t == FL_MXFP4) {
        float scale;
        memcpy(&scale, &e8m0[w.scale[k / FL_MX_GROUP]], sizeof scale);
        vmx table = vmx_table(scale);
        out[0] = vmx_load(table, w.data + k / 2);
        out[1] = vmx_load(table, w.data + k / 2 + 8);
    } else if (t == FL_F32) {
        const float *p = (const float *)w.data + k;
        out[0] = vf_load(p);
        out[1] = vf_load(p + 16);
    } else {
        const uint16_t *p = (const uint16_t *)w.data + k;
        out[0] = t == FL_BF16 ? vf_load_bf16(p) : vf_load_f16(p);
        out[1] = t == FL_BF16 ? vf_load_bf16(p + 16) : vf_load_f16(p + 16);
    }
}

/* n <= 16 elements from k on; never asked of MXFP4, whose rows are whole groups of 32. */
FL_INLINE vf load_rest(fl_dtype t, wrow w, int64_t k, int n)
{
    if (t == FL_F32)
        return vf_loadn((const float *)w.data + k, n);
    const uint16_t *p = (const uint16_t *)w.data + k;
    return t == FL_BF16 ? vf_loadn_bf16(p, n) : vf_loadn_f16(p, n);
}

/* ---- tiles: acc[i * nx + j] += w[i] . x[j] lane by lane, over k elements ---- */

FL_INLINE void tile(fl_dtype t, int nw, int nx, const wrow *w, const float *const *x, int64_t k,
                    vf *acc)
{
    int64_t at = 0;
    for (; at + 32 <= k; at += 32) {
        vf wv[TW_ONE][2];
        FL_UNROLL
        for (int i = 0; i < nw; i++)
            load32(t, w[i], at, wv[i]);
        FL_UNROLL
        for (int h = 0; h < 2; h++) {
            FL_UNROLL
            for (int j = 0; j < nx; j++) {
                vf xv = vf_load(x[j] + at + 16 * h);
                FL_UNROLL
                for (int i = 0; i < nw; i++)
                    acc[i * nx + j] = vf_fma(wv[i][h], xv, acc[i * nx + j]);
            }
        }
    }
    for (; at < k; at += 16) {
        int n = k - at < 16 ? (int)(k - at) : 16;
        FL_UNROLL
        for (int i = 0; i < nw; i++) {
            vf wv = load_rest(t, w[i], at, n);
            FL_UNROLL
            for (int j = 0; j < nx; j++)
                acc[i * nx + j] = vf_fma(wv, vf_loadn(x[j] + at, n), acc[i * nx + j]);
        }
    }
}

FL_INLINE void sums(const vf *acc, int n, float *out)
{
    FL_UNROLL
    for (int i = 0; i + 4 <= n; i += 4)
        vf_sum4(acc[i], acc[i + 1], acc[i + 2], acc[i + 3], out + i);
    FL_UNROLL
    for (int i = n / 4 * 4; i < n; i++)
        out[i] = vf_sum(acc[i]);
}

typedef struct job {
    const fl_tensor *w;
    int64_t n0, n1; /* weight rows */
    const fl_row_list *x, *y;
    int64_t m;
} job;

/* Outputs [n, n + nw) x [m, m + nx), as far as they exist; what lies beyond is computed from the
 * last row again and dropped. */
FL_INLINE void few_tile(const job *b, fl_dtype t, int nw, int nx, int64_t n, int64_t m)
{
    wrow w[TW_ONE];
    const float *x[TX];
    vf acc[MAX_TILE];
    float out[MAX_TILE];
    FL_UNROLL
    for (int i = 0; i < nw; i++)
        w[i] = row_at(b->w, t, n + i < b->n1 ? n + i : b->n1 - 1, 0);
    FL_UNROLL
    for (int j = 0; j < nx; j++)
        x[j] = fl_list_row(b->x, m + j < b->m ? m + j : b->m - 1);
    FL_UNROLL
    for (int i = 0; i < nw * nx; i++)
        acc[i] = vf_zero();
    tile(t, nw, nx, w, x, b->w->shape[1], acc);
    sums(acc, nw * nx, out);
    for (int j = 0; j < nx && m + j < b->m; j++) {
        float *y = fl_list_row(b->y, m + j) + (n - b->n0);
        for (int i = 0; i < nw && n + i < b->n1; i++)
            y[i] = out[i * nx + j];
    }
}

FL_INLINE void few_rows(const job *b, fl_dtype t)
{
    if (b->m == 1) {
        for (int64_t n = b->n0; n < b->n1; n += TW_ONE)
            few_tile(b, t, TW_ONE, 1, n, 0);
    } else {
        for (int64_t n = b->n0; n < b->n1; n += TW) {
            for (int64_t m = 0; m < b->m; m += TX)
                few_tile(b, t, TW, TX, n, m);
        }
    }
}

/* ---- many rows ---- */

typedef struct block {
    float w[FL_WEIGHTS_W][FL_WEIGHTS_K];
    float acc[FL_WEIGHTS_X * FL_WEIGHTS_W][16]; /* tile by tile */
} block;

FL_INLINE void decode(const job *b, fl_dtype t, int64_t n, int64_t k0, int64_t k, block *s)
{
    for (int i = 0; i < FL_WEIGHTS_W && n + i < b->n1; i++) {
        wrow w = row_at(b->w, t, n + i, k0);
        int64_t at = 0;
        for (; at + 32 <= k; at += 32) {
            vf v[2];
            load32(t, w, at, v);
            vf_store(&s->w[i][at], v[0]);
            vf_store(&s->w[i][at + 16], v[1]);
        }
        for (; at < k; at += 16)
            vf_store(&s->w[i][at], load_rest(t, w, at, k - at < 16 ? (int)(k - at) : 16));
    }
}

/* Adds a piece of K to all tiles of a block, or finishes them. */
static void piece(const job *b, int64_t n, int64_t m0, int64_t k0, int64_t k, block *s)
{
    int64_t nm = b->m - m0 < FL_WEIGHTS_X ? b->m - m0 : FL_WEIGHTS_X;
    int64_t nn = b->n1 - n < FL_WEIGHTS_W ? b->n1 - n : FL_WEIGHTS_W;
    float(*lanes)[16] = s->acc;
    for (int64_t j = 0; j < nm; j += TX) {
        const float *x[TX];
        for (int jj = 0; jj < TX; jj++)
            x[jj] = fl_list_row(b->x, m0 + (j + jj < nm ? j + jj : nm - 1)) + k0;
        for (int64_t i = 0; i < nn; i += TW, lanes += TW * TX) {
            wrow w[TW];
            vf acc[TW * TX];
            FL_UNROLL
            for (int ii = 0; ii < TW; ii++)
                w[ii] = (wrow){(const unsigned char *)s->w[i + ii], NULL};
            FL_UNROLL
            for (int a = 0; a < TW * TX; a++)
                acc[a] = k0 ? vf_load(lanes[a]) : vf_zero();
            tile(FL_F32, TW, TX, w, x, k, acc);
            if (k0 + k < b->w->shape[1]) {
                FL_UNROLL
                for (int a = 0; a < TW * TX; a++)
                    vf_store(lanes[a], acc[a]);
                continue;
            }
            float out[TW * TX];
            sums(acc, TW * TX, out);
            for (int jj = 0; jj < TX && j + jj < nm; jj++) {
                float *y = fl_list_row(b->y, m0 + j + jj) + (n + i - b->n0);
                for (int ii = 0; ii < TW && i + ii < nn; ii++)
                    y[ii] = out[ii * TX + jj];
            }
        }
    }
}

FL_INLINE void many_rows(const job *b, fl_dtype t, block *s)
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
    static void weights_##TYPE(const job *b, block *s)                                             \
    {                                                                                              \
        if (b->m < FEW)                                                                            \
            few_rows(b, FL_##TYPE);                                                                \
        else                                                                                       \
            many_rows(b, FL_##TYPE, s);                                                            \
    }
WEIGHTS_OF(BF16)
WEIGHTS_OF(F16)
WEIGHTS_OF(F32)
WEIGHTS_OF(MXFP4)

void fl_weights_mul(const fl_tensor *w, int64_t n0, int64_t n1, const fl_row_list *x,
                    const fl_row_list *y, int64_t m, void *scratch)
{
    _Static_assert(sizeof(block) == FL_WEIGHTS_SCRATCH, "scratch holds one block");
    const job b = {w, n0, n1, x, y, m};
    switch (w->dtype) {
    case FL_BF16:
        weights_BF16(&b, scratch);
        break;
    case FL_F16:
        weights_F16(&b, scratch);
        break;
    case FL_MXFP4:
        weights_MXFP4(&b, scratch);
        break;
    default:
        weights_F32(&b, scratch);
    }
}
