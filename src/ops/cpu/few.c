/* few.h in tiles of some weight rows by some rows of x, all products of a tile in registers.
 *
 * Weight rows that are multiplied side by side are so many streams, and memory gives to several
 * streams at once much less than to one.  So the lines are asked for ahead in the order in which
 * they lie, row after row, while the rows that were asked for before are consumed side by side.
 *
 * The scales of MXFP4 are widened for a piece of a tile beforehand: with a second pointer for every
 * row the addresses would not fit the registers. */
#include "ops/cpu/few.h"

#include "ops/cpu/weights_read.h"

/* The most weight rows and rows of x of a tile, and the most accumulators. */
#if defined(__AVX512F__)
enum { MOST_W = 8, MOST_X = 6, MOST = 24 };
#else
enum { MOST_W = 4, MOST_X = 2, MOST = 4 };
#endif
enum { PIECE = 4096, GROUPS = PIECE / FL_MX_GROUP };

typedef struct tile {
    wrow w[MOST_W];
    const float *x[MOST_X];
    vf acc[MOST]; /* [i * nx + j]: w[i] . x[j] lane by lane */
    float scale[MOST_W][GROUPS];
} tile;

/* n scales of MXFP4 as numbers. */
static void widen(const uint8_t *s, int64_t n, float *out)
{
    int64_t i = 0;
    for (; i + FL_LANES <= n; i += FL_LANES) {
        vi v = vi_load_u8(s + i);
        vf finite = vi_float(vi_max(vi_shl(v, 23), vi_set1(0x00400000)));
        vf_store(out + i, vf_select(vi_eq(v, vi_set1(255)), vf_set1(NAN), finite));
    }
    for (; i < n; i++)
        memcpy(out + i, &e8m0[s[i]], sizeof *out);
}

/* Elements [k, k + 16) and [k + 16, k + 32) of a row; scale: of the group, for MXFP4. */
FL_INLINE void load32(fl_dtype t, wrow w, const float *scale, int64_t k, vf *low, vf *high)
{
    if (t == FL_MXFP4) {
        vmx table = vmx_table(*scale);
        *low = vmx_load(table, w.data + k / 2);
        *high = vmx_load(table, w.data + k / 2 + 8);
    } else if (t == FL_BF16) {
        vf_load_bf16_2((const uint16_t *)(const void *)w.data + k, low, high);
    } else {
        *low = load16(t, w, k);
        *high = load16(t, w, k + 16);
    }
}

/* acc += the products of 32 elements from k on. */
FL_INLINE void step(tile *s, fl_dtype t, int nw, int nx, int64_t k, int64_t group)
{
    if (nx == 1) {
        vf x_low = vf_load(s->x[0] + k), x_high = vf_load(s->x[0] + k + 16);
        FL_UNROLL
        for (int i = 0; i < nw; i++) {
            vf low, high;
            load32(t, s->w[i], &s->scale[i][group], k, &low, &high);
            s->acc[i] = vf_fma(low, x_low, s->acc[i]);
            s->acc[i] = vf_fma(high, x_high, s->acc[i]);
        }
        return;
    }
    FL_UNROLL
    for (int h = 0; h < 32; h += 16) {
        vf w[MOST_W];
        FL_UNROLL
        for (int i = 0; i < nw; i++)
            w[i] = t == FL_MXFP4
                       ? vmx_load(vmx_table(s->scale[i][group]), s->w[i].data + (k + h) / 2)
                       : load16(t, s->w[i], k + h);
        FL_UNROLL
        for (int j = 0; j < nx; j++) {
            vf x = vf_load(s->x[j] + k + h);
            FL_UNROLL
            for (int i = 0; i < nw; i++)
                s->acc[i * nx + j] = vf_fma(w[i], x, s->acc[i * nx + j]);
        }
    }
}

/* What follows the last whole 32 elements. */
FL_INLINE void rest(tile *s, fl_dtype t, int nw, int nx, int64_t k, int64_t end)
{
    for (; k < end; k += 16) {
        int n = end - k < 16 ? (int)(end - k) : 16;
        FL_UNROLL
        for (int i = 0; i < nw; i++) {
            vf w = load_rest(t, s->w[i], k, n);
            FL_UNROLL
            for (int j = 0; j < nx; j++)
                s->acc[i * nx + j] = vf_fma(w, vf_loadn(s->x[j] + k, n), s->acc[i * nx + j]);
        }
    }
}

/* Outputs [n, n + nw) x [m, m + nx), as far as they exist; what lies beyond is computed from the
 * last row again and dropped.  next: what to fetch meanwhile (second: fl_few_fetch), or NULL. */
FL_INLINE void run(const fl_product *b, fl_dtype t, int nw, int nx, int64_t n, int64_t m,
                   const unsigned char *next, bool second)
{
    tile s;
    float out[MOST];
    int64_t k = 0, width = b->w->shape[1];
    FL_UNROLL
    for (int i = 0; i < nw; i++)
        s.w[i] = row_at(b->w, t, n + i < b->n1 ? n + i : b->n1 - 1, 0);
    FL_UNROLL
    for (int j = 0; j < nx; j++)
        s.x[j] = fl_list_row(b->x, m + j < b->m ? m + j : b->m - 1);
    FL_UNROLL
    for (int i = 0; i < nw; i++) {
        FL_UNROLL
        for (int j = 0; j < nx; j++)
            s.acc[i * nx + j] = vf_zero();
    }
    for (int64_t k0 = 0; k0 < width; k0 += PIECE) {
        int64_t end = width - k0 < PIECE ? width : k0 + PIECE;
        for (int i = 0; t == FL_MXFP4 && i < nw; i++)
            widen(s.w[i].scale + k0 / FL_MX_GROUP, (end - k0) / FL_MX_GROUP, s.scale[i]);
        for (; k + 32 <= end; k += 32) {
            if (next) {
                fl_few_fetch(next, nw * bytes_of(t, 32), second);
                next += nw * bytes_of(t, 32);
            }
            step(&s, t, nw, nx, k, (k - k0) / FL_MX_GROUP);
        }
    }
    rest(&s, t, nw, nx, k, width);
    FL_UNROLL
    for (int a = 0; a < nw * nx; a += 4)
        vf_sum4(s.acc[a], s.acc[a + 1], s.acc[a + 2], s.acc[a + 3], out + a);
    for (int j = 0; j < nx && m + j < b->m; j++) {
        float *y = fl_list_row(b->y, m + j) + (n - b->n0);
        for (int i = 0; i < nw && n + i < b->n1; i++)
            y[i] = out[i * nx + j];
    }
}

/* All rows of x in tiles of nw by nx. */
FL_INLINE void rows(const fl_product *b, fl_dtype t, int nw, int nx)
{
    int64_t row =
        bytes_of(t, t == FL_Q8 ? fl_f8_blocks(b->w->shape[1]) * FL_Q8_BLOCK : b->w->shape[1]);
    int64_t ahead = nw * row < FL_FEW_AHEAD ? FL_FEW_AHEAD : nw * row;
    const unsigned char *end = (const unsigned char *)b->w->data + b->w->shape[0] * row;
    bool second = fl_cpu_fetch_second();
    for (int64_t n = b->n0; n < b->n1; n += nw) {
        const unsigned char *next = (const unsigned char *)b->w->data + n * row + ahead;
        run(b, t, nw, nx, n, 0, next < end ? next : NULL, second);
        for (int64_t m = nx; m < b->m; m += nx)
            run(b, t, nw, nx, n, m, NULL, second);
    }
}

#if defined(__AVX512F__)
FL_INLINE void mul(const fl_product *b, fl_dtype t)
{
    if (b->m == 1)
        rows(b, t, t == FL_MXFP4 ? 8 : 4, 1); /* its rows are short, its lanes take longest */
    else if (b->m == 2)
        rows(b, t, 4, 2);
    else if (b->m <= 4 || b->m == 7 || b->m == 8)
        rows(b, t, 4, 4);
    else
        rows(b, t, 4, 6);
}
#else
FL_INLINE void mul(const fl_product *b, fl_dtype t)
{
    if (b->m == 1)
        rows(b, t, 4, 1);
    else
        rows(b, t, 2, 2);
}
#endif

#define MUL_OF(TYPE)                                                                               \
    static void mul_##TYPE(const fl_product *b)                                                    \
    {                                                                                              \
        mul(b, FL_##TYPE);                                                                         \
    }
MUL_OF(BF16)
MUL_OF(F16)
MUL_OF(F32)
MUL_OF(MXFP4)
MUL_OF(F8_BLOCK)
MUL_OF(Q8)

void fl_few_mul(const fl_product *b)
{
    if (b->m < 1) /* there is no row to stand in for those that a tile lacks */
        return;
    switch (b->w->dtype) {
    case FL_BF16:
        mul_BF16(b);
        break;
    case FL_F16:
        mul_F16(b);
        break;
    case FL_MXFP4:
        mul_MXFP4(b);
        break;
    case FL_F8_BLOCK:
        mul_F8_BLOCK(b);
        break;
    case FL_Q8:
        mul_Q8(b);
        break;
    default:
        mul_F32(b);
    }
}
