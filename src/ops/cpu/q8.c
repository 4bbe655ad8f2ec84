/* q8.h in two forms.  A few rows: weight rows are streamed once, decoded in registers.  Many rows:
 * a panel of weight rows is decoded to bytes once, piece by piece along K, and multiplied with
 * FL_Q8_X rows; between pieces the accumulators (16 lanes each) lie in scratch.  Both add the
 * chunks of a row in ascending order. */
#include "ops/cpu/q8.h"

#include "ops/cpu/q8_codes.h"

enum { CHUNK = FL_Q8_CHUNK, GROUP = FL_MX_GROUP, GROUPS = CHUNK / GROUP };

/* Tiles, weight rows by rows of x.  FEW_*: decoded in registers, FEW_ONE of them with one or two
 * rows of x, which keeps the memory busy.  TW, TX: of a panel. */
#if defined(__AVX512F__)
enum { FEW_W = 2, FEW_X = 4, FEW_ONE = 4, TW = 4, TX = 4 };
#else
enum { FEW_W = 2, FEW_X = 2, FEW_ONE = 2, TW = 2, TX = 2 };
#endif
enum { FEW = 9 }; /* rows of x from which a panel pays */

/* ---- quantising ---- */

/* Elements [from, from + n) of a chunk, n a multiple of 16, share a scale. */
static void quantise_group(fl_dtype t, const float *x, fl_q8_chunk *c, int from, int n)
{
    vi top = vi_set1(0);
    for (int i = from; i < from + n; i += FL_LANES)
        top = vi_max(top, vf_bits(vf_abs(vf_load(x + i))));
    int32_t bits = vi_hmax(top), q[FL_LANES];
    float most, d;
    memcpy(&most, &bits, sizeof most);
    bool finite = bits < 0x7f800000;
    d = finite ? most / 127 : NAN;
    vf by = vf_set1(finite && d > 0 ? d : INFINITY); /* everything becomes 0 */
    vf low = vf_set1(-127), high = vf_set1(127);     /* d may be denormal and too small */
    for (int i = from; i < from + n; i += FL_LANES) {
        vf a = vf_max(low, vf_min(high, vf_div(vf_load(x + i), by)));
        vi_store(q, vf_to_vi(finite ? a : vf_zero()));
        for (int j = 0; j < FL_LANES; j += 2) {
            c->even[(i + j) / 2] = (int8_t)q[j];
            c->odd[(i + j) / 2] = (int8_t)q[j + 1];
        }
        for (int l = 0; l < FL_LANES; l += 8) {
            int32_t sum = 0;
            for (int j = l; j < l + 8; j++)
                sum += q[j];
            c->start[(i + l) / 8] = (t == FL_MXFP4 ? -12 : -128) * sum;
            c->scale[(i + l) / 8] = t == FL_MXFP4 ? d * 0.5f : d;
        }
    }
}

void fl_q8_quantise(const float *x, const fl_q8 *rows, int64_t i)
{
    int64_t chunks = fl_q8_chunks(rows->width);
    fl_q8_chunk *c = rows->chunk + i * chunks;
    int group = rows->weights == FL_MXFP4 ? GROUP : CHUNK;
    for (int64_t k = 0; k < rows->width; k += CHUNK, c++) {
        float rest[CHUNK] = {0};
        const float *from = x + k;
        if (rows->width - k < CHUNK) {
            memcpy(rest, from, (size_t)(rows->width - k) * sizeof *rest);
            from = rest;
        }
        for (int at = 0; at < CHUNK; at += group)
            quantise_group(rows->weights, from, c, at, group);
    }
}

/* ---- reading weights ---- */

/* A row of a weight: MXFP4, or Q8. */
typedef struct wrow {
    const uint8_t *data, *scale;
    const float *block_scale;
} wrow;

typedef struct job {
    const fl_tensor *w;
    int64_t n0, n1, m;
    const fl_q8 *x;
    const int32_t *index;
    int64_t first;
    const fl_row_list *y;
} job;

/* Weight row n, or the last one, from chunk c on. */
FL_INLINE wrow row_at(const job *b, fl_dtype t, int64_t n, int64_t c)
{
    int64_t chunks = fl_q8_chunks(b->x->width), width = b->x->width;
    const uint8_t *data = b->w->data;
    n = n < b->n1 ? n : b->n1 - 1;
    if (t == FL_Q8)
        return (wrow){data + (n * chunks + c) * CHUNK, NULL, b->w->block_scale + n * chunks + c};
    return (wrow){data + (n * width + c * CHUNK) / 2, b->w->scale + (n * width + c * CHUNK) / GROUP,
                  NULL};
}

FL_INLINE void next_chunk(fl_dtype t, wrow *w)
{
    if (t == FL_Q8) {
        w->data += CHUNK;
        w->block_scale++;
    } else {
        w->data += CHUNK / 2;
        w->scale += GROUPS;
    }
}

/* 2^(s - 127) of four groups: the bits of s become the exponent; 0 is denormal, half the least one.
 * 255, which is NaN, becomes infinity: the sum is then no finite number either. */
FL_INLINE vf scales(const uint8_t *s)
{
    int32_t bytes;
    memcpy(&bytes, s, sizeof bytes);
    return vi_float(vi_max(vi_shl(spread(bytes), 23), vi_set1(0x00400000)));
}

FL_INLINE codes codes_of(fl_dtype t, wrow w)
{
    return t == FL_Q8 ? (codes){load64(w.data), load64(w.data + 64)} : decode(load64(w.data));
}

FL_INLINE vf scale_of(fl_dtype t, wrow w)
{
    return t == FL_Q8 ? vf_set1(*w.block_scale) : scales(w.scale);
}

/* What is left of an MXFP4 row after its whole chunks, filled up with zeros. */
typedef struct rest {
    uint8_t data[CHUNK / 2], scale[GROUPS];
} rest;

static wrow fill_up(wrow w, int64_t elements, rest *r)
{
    *r = (rest){0};
    memcpy(r->data, w.data, (size_t)elements / 2);
    memcpy(r->scale, w.scale, (size_t)elements / GROUP);
    return (wrow){r->data, r->scale, NULL};
}

static const fl_q8_chunk *x_row(const job *b, int64_t i)
{
    i = i < b->m ? i : b->m - 1;
    return b->x->chunk + (b->index ? b->index[i] : b->first + i) * fl_q8_chunks(b->x->width);
}

/* ---- products ---- */

/* acc[i * nx + j] += w[i] . x[j], lane by lane, over one chunk. */
FL_INLINE void add_chunk(fl_dtype t, int nw, int nx, const codes *w, const vf *scale,
                         const fl_q8_chunk *const *x, vf *acc)
{
    FL_UNROLL
    for (int j = 0; j < nx; j++) {
        vi even = load64(x[j]->even), odd = load64(x[j]->odd), start = vi_load(x[j]->start);
        vf s = vf_load(x[j]->scale);
        FL_UNROLL
        for (int i = 0; i < nw; i++) {
            vi sum = t == FL_Q8 ? dot_signed(start, w[i], even, odd) : dot(start, w[i], even, odd);
            acc[i * nx + j] = vf_fma(vi_to_vf(sum), vf_mul(scale[i], s), acc[i * nx + j]);
        }
    }
}

#if defined(__AVX512F__)
/* The same with Q8 weights, whose scale is one number: the products of the scales are made four at
 * a time and broadcast from memory, where the multiply-add takes them at no cost; left in registers
 * they would need a product or a shuffle each. */
FL_INLINE void add_q8_chunk(const codes *w, __m128 scale, const fl_q8_chunk *const *x, vf *acc)
{
    FL_UNROLL
    for (int j = 0; j < TX; j++) {
        vi even = load64(x[j]->even), odd = load64(x[j]->odd), start = vi_load(x[j]->start);
        float both[4];
        _mm_storeu_ps(both, _mm_mul_ps(scale, _mm_set1_ps(x[j]->scale[0])));
        __asm__("" : "+m"(both));
        FL_UNROLL
        for (int i = 0; i < TW; i++)
            acc[i * TX + j] = vf_fma(vi_to_vf(dot_signed(start, w[i], even, odd)), vf_set1(both[i]),
                                     acc[i * TX + j]);
    }
}
#endif

FL_INLINE void store(const job *b, int nw, int nx, int64_t n, int64_t m, const vf *acc)
{
    for (int j = 0; j < nx && m + j < b->m; j++) {
        float *y = fl_list_row(b->y, m + j) + (n - b->n0);
        for (int i = 0; i < nw && n + i < b->n1; i++)
            y[i] = vf_sum(acc[i * nx + j]);
    }
}

/* Outputs [n, n + nw) x [m, m + nx), as far as they exist; what lies beyond is computed from the
 * last row again and dropped. */
FL_INLINE void few_tile(const job *b, fl_dtype t, int nw, int nx, int64_t n, int64_t m)
{
    int64_t width = b->x->width, left = width % CHUNK,
            ahead = nw * (t == FL_Q8 ? width : width / 2);
    int64_t whole = t == FL_Q8 ? fl_q8_chunks(width) : width / CHUNK;
    wrow w[FEW_ONE];
    codes c[FEW_ONE];
    vf scale[FEW_ONE], acc[2 * FEW_ONE > FEW_W * FEW_X ? 2 * FEW_ONE : FEW_W * FEW_X];
    const fl_q8_chunk *x[FEW_X];
    FL_UNROLL
    for (int i = 0; i < nw; i++)
        w[i] = row_at(b, t, n + i, 0);
    FL_UNROLL
    for (int j = 0; j < nx; j++)
        x[j] = x_row(b, m + j);
    FL_UNROLL
    for (int a = 0; a < nw * nx; a++)
        acc[a] = vf_zero();
    for (int64_t k = 0; k < whole; k++) {
        FL_UNROLL
        for (int i = 0; i < nw; i++) { /* the same place of the next nw rows is fetched ahead */
            __builtin_prefetch(w[i].data + ahead);
            if (t == FL_Q8)
                __builtin_prefetch(w[i].data + ahead + FL_CACHE_LINE);
            c[i] = codes_of(t, w[i]);
            scale[i] = scale_of(t, w[i]);
            next_chunk(t, &w[i]);
        }
        add_chunk(t, nw, nx, c, scale, x, acc);
        FL_UNROLL
        for (int j = 0; j < nx; j++)
            x[j]++;
    }
    if (t == FL_MXFP4 && left) {
        rest r;
        for (int i = 0; i < nw; i++) {
            w[i] = fill_up(w[i], left, &r);
            c[i] = codes_of(t, w[i]);
            scale[i] = scale_of(t, w[i]);
        }
        add_chunk(t, nw, nx, c, scale, x, acc);
    }
    store(b, nw, nx, n, m, acc);
}

FL_INLINE void few_rows(const job *b, fl_dtype t)
{
    for (int64_t n = b->n0; n < b->n1; n += FEW_ONE) {
        int64_t m = 0;
        for (; b->m - m > 2; m += FEW_X) {
            for (int64_t i = n; i < n + FEW_ONE && i < b->n1; i += FEW_W)
                few_tile(b, t, FEW_W, FEW_X, i, m);
        }
        if (b->m - m == 2)
            few_tile(b, t, FEW_ONE, 2, n, m);
        else if (b->m - m == 1)
            few_tile(b, t, FEW_ONE, 1, n, m);
    }
}

/* ---- many rows ---- */

typedef struct panel {
    vi code[FL_Q8_W / TW][FL_Q8_PIECE][TW][2]; /* even, odd */
    vf scale[FL_Q8_W / TW][FL_Q8_PIECE][TW];
    float acc[FL_Q8_X * FL_Q8_W][16]; /* tile by tile */
} panel;

/* Chunks [c0, c0 + nc) of the weight rows from n on. */
FL_INLINE void fill_panel(const job *b, fl_dtype t, int64_t n, int64_t c0, int64_t nc, panel *p)
{
    int64_t width = b->x->width, left = width - (c0 + nc - 1) * CHUNK; /* of the last chunk */
    int64_t ahead = FL_Q8_W * (t == FL_Q8 ? fl_q8_chunks(width) * CHUNK : width / 2);
    for (int i = 0; i < FL_Q8_W && n + i < b->n1 + TW - 1; i++) {
        wrow w = row_at(b, t, n + i, c0);
        for (int64_t c = 0; c < nc; c++) {
            __builtin_prefetch(w.data + ahead); /* the next panel, while this one is multiplied */
            if (t == FL_Q8)
                __builtin_prefetch(w.data + ahead + FL_CACHE_LINE);
            rest r;
            wrow from = t == FL_MXFP4 && c == nc - 1 && left < CHUNK ? fill_up(w, left, &r) : w;
            codes v = codes_of(t, from);
            p->code[i / TW][c][i % TW][0] = v.even;
            p->code[i / TW][c][i % TW][1] = v.odd;
#if defined(__AVX512F__)
            if (t == FL_Q8)
                ((float *)p->scale[i / TW][c])[i % TW] = *from.block_scale;
            else
#endif
                p->scale[i / TW][c][i % TW] = scale_of(t, from);
            next_chunk(t, &w);
        }
    }
}

FL_INLINE void panel_tile(const panel *p, fl_dtype t, int64_t strip, int64_t nc,
                          const fl_q8_chunk *const *rows, bool add, float (*lanes)[16])
{
    vf acc[TW * TX];
    const fl_q8_chunk *x[TX];
    FL_UNROLL
    for (int j = 0; j < TX; j++)
        x[j] = rows[j];
    FL_UNROLL
    for (int a = 0; a < TW * TX; a++)
        acc[a] = add ? vf_load(lanes[a]) : vf_zero();
    for (int64_t c = 0; c < nc; c++) {
        codes w[TW];
        FL_UNROLL
        for (int i = 0; i < TW; i++)
            w[i] = (codes){p->code[strip][c][i][0], p->code[strip][c][i][1]};
#if defined(__AVX512F__)
        if (t == FL_Q8)
            add_q8_chunk(w, _mm_load_ps((const float *)p->scale[strip][c]), x, acc);
        else
#endif
            add_chunk(t, TW, TX, w, p->scale[strip][c], x, acc);
        FL_UNROLL
        for (int j = 0; j < TX; j++)
            x[j]++;
    }
    FL_UNROLL
    for (int a = 0; a < TW * TX; a++)
        vf_store(lanes[a], acc[a]);
}

/* Adds chunks [c0, c0 + nc) to all tiles of weight rows from n and rows of x from m0, or finishes
 * them. */
FL_INLINE void piece(const job *b, fl_dtype t, int64_t n, int64_t m0, int64_t c0, int64_t nc,
                     panel *p)
{
    int64_t m1 = b->m - m0 < FL_Q8_X ? b->m : m0 + FL_Q8_X;
    int64_t nn = b->n1 - n < FL_Q8_W ? b->n1 - n : FL_Q8_W;
    bool last = c0 + nc == fl_q8_chunks(b->x->width);
    float(*lanes)[16] = p->acc;
    for (int64_t m = m0; m < m1; m += TX) {
        const fl_q8_chunk *x[TX];
        for (int j = 0; j < TX; j++)
            x[j] = x_row(b, m + j) + c0;
        for (int64_t i = 0; i < nn; i += TW, lanes += TW * TX) {
            panel_tile(p, t, i / TW, nc, x, c0 > 0, lanes);
            if (last) {
                vf acc[TW * TX];
                FL_UNROLL
                for (int a = 0; a < TW * TX; a++)
                    acc[a] = vf_load(lanes[a]);
                store(b, TW, TX, n + i, m, acc);
            }
        }
    }
}

FL_INLINE void many_rows(const job *b, fl_dtype t, panel *p)
{
    int64_t chunks = fl_q8_chunks(b->x->width);
    for (int64_t n = b->n0; n < b->n1; n += FL_Q8_W) {
        for (int64_t m = 0; m < b->m; m += FL_Q8_X) {
            for (int64_t c = 0; c < chunks; c += FL_Q8_PIECE) {
                int64_t nc = chunks - c < FL_Q8_PIECE ? chunks - c : FL_Q8_PIECE;
                fill_panel(b, t, n, c, nc, p);
                piece(b, t, n, m, c, nc, p);
            }
        }
    }
}

static void mul_mxfp4(const job *b, panel *p)
{
    if (b->m < FEW)
        few_rows(b, FL_MXFP4);
    else
        many_rows(b, FL_MXFP4, p);
}

static void mul_q8(const job *b, panel *p)
{
    if (b->m < FEW)
        few_rows(b, FL_Q8);
    else
        many_rows(b, FL_Q8, p);
}

void fl_q8_mul(const fl_tensor *w, int64_t n0, int64_t n1, const fl_q8 *x, const int32_t *index,
               int64_t first, const fl_row_list *y, int64_t m, void *scratch)
{
    _Static_assert(sizeof(panel) <= FL_Q8_SCRATCH, "scratch holds a panel");
    const job b = {w, n0, n1, m, x, index, first, y};
    if (w->dtype == FL_Q8)
        mul_q8(&b, scratch);
    else
        mul_mxfp4(&b, scratch);
}
