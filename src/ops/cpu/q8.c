/* q8.h in two forms.  A few rows: weight rows are streamed once, decoded in registers.  Many rows:
 * a panel of weight rows is decoded to bytes once and multiplied with all rows of x while the next
 * panel is decoded.  Where the exponents of a weight row differ by at most three, which is nearly
 * always, a panel takes the differences up (q8_codes.h): what remains of the scales of the row is
 * one factor for its sum.  That changes no bit, since factors are powers of two: rows whose scales
 * are near the ends of float32, where it could, are left as they are. */
#include "ops/cpu/q8.h"

#include "ops/cpu/few.h"
#include "ops/cpu/q8_codes.h"

enum { CHUNK = FL_Q8_CHUNK, PIECE = FL_Q8_PIECE, GROUP = FL_MX_GROUP, GROUPS = CHUNK / GROUP };

/* Tiles, weight rows by rows of x.  FEW_*: decoded in registers, FEW_ONE of them with one or two
 * rows of x, which keeps the memory busy.  W, X: of a panel; there every output has an accumulator
 * of integers and one of floats. */
#if defined(__AVX512F__)
enum { FEW_W = 2, FEW_X = 4, FEW_ONE = 4, W = 4, X = 3 };
#else
enum { FEW_W = 2, FEW_X = 2, FEW_ONE = 2, W = 2, X = 2 };
#endif
/* Accumulators of a tile; rows of x from which a panel pays; rows of a panel asked for ahead. */
enum { MOST = 12, FEW = 9, AHEAD = 4 };

/* ---- quantising ---- */

/* Group g of a chunk, 32 elements.  Returns whether its scale is tame. */
static bool quantise_group(const float *x, fl_q8_chunk *c, int g)
{
    vi top = vi_max(vf_bits(vf_abs(vf_load(x))), vf_bits(vf_abs(vf_load(x + FL_LANES))));
    int32_t bits = vi_hmax(top);
    float most, d;
    memcpy(&most, &bits, sizeof most);
    bool finite = bits < 0x7f800000;
    d = finite ? most / 127 : NAN;
    vf by = vf_set1(finite && d > 0 ? d : INFINITY); /* everything becomes 0 */
    vf low = vf_set1(-127), high = vf_set1(127);     /* d may be denormal and too small */
    int at = (g % 4 * 2 + g / 4) * 8;                /* byte of its first lane */
    for (int i = 0; i < 2; i++) {
        vf a = vf_max(low, vf_min(high, vf_div(vf_load(x + i * FL_LANES), by)));
        apart(vf_to_vi(finite ? a : vf_zero()), c->part[2 * i] + at, c->part[2 * i + 1] + at);
    }
    c->scale[at / 4] = c->scale[at / 4 + 1] = d * 0.5f;
    return bits == 0 || (d > 0x1p-40f && d < 0x1p40f);
}

void fl_q8_quantise(const float *x, const fl_q8 *rows, int64_t i)
{
    int64_t chunks = fl_q8_chunks(rows->width);
    fl_q8_chunk *c = rows->chunk + i * chunks;
    bool tame = true;
    for (int64_t k = 0; k < rows->width; k += CHUNK, c++) {
        float rest[CHUNK] = {0};
        const float *from = x + k;
        if (rows->width - k < CHUNK) {
            memcpy(rest, from, (size_t)(rows->width - k) * sizeof *rest);
            from = rest;
        }
        for (int g = 0; g < GROUPS; g++)
            tame &= quantise_group(from + g * GROUP, c, g);
        vi sum = vi_set1(0), ones = vi_set1(0x01010101);
        for (int p = 0; p < 4; p++)
            sum = dot(sum, ones, load64(c->part[p]));
        vi_store(c->start, vi_sub(vi_set1(0), vi_add(vi_shl(sum, 3), vi_shl(sum, 2))));
    }
    rows->tame[i] = tame;
}

/* ---- reading ---- */

/* A row of a weight. */
typedef struct wrow {
    const uint8_t *data, *scale;
} wrow;

typedef struct job {
    const fl_tensor *w;
    int64_t n0, n1, m;
    const fl_q8 *x;
    const int32_t *index;
    int64_t first;
    const fl_row_list *y;
    bool second; /* fl_few_fetch */
} job;

/* Weight row n, or the last one, from chunk c on. */
FL_INLINE wrow row_at(const job *b, int64_t n, int64_t c)
{
    int64_t at = (n < b->n1 ? n : b->n1 - 1) * b->x->width + c * CHUNK;
    return (wrow){(const uint8_t *)b->w->data + at / 2, b->w->scale + at / GROUP};
}

/* What is left of a row after its whole chunks, filled up with zeros. */
typedef struct rest {
    uint8_t data[CHUNK / 2], scale[GROUPS];
} rest;

/* Chunk c of a row, in `r` when it is not whole.  Groups that are filled up get the scale of the
 * first. */
FL_INLINE wrow chunk_at(const job *b, wrow w, int64_t c, rest *r)
{
    wrow at = {w.data + c * (CHUNK / 2), w.scale + c * GROUPS};
    int64_t left = b->x->width - c * CHUNK;
    if (left >= CHUNK)
        return at;
    memset(r->data, 0, sizeof r->data);
    memset(r->scale, *at.scale, sizeof r->scale);
    memcpy(r->data, at.data, (size_t)left / 2);
    memcpy(r->scale, at.scale, (size_t)left / GROUP);
    return (wrow){r->data, r->scale};
}

static int64_t x_row(const job *b, int64_t i)
{
    i = i < b->m ? i : b->m - 1;
    return b->index ? b->index[i] : b->first + i;
}

FL_INLINE const fl_q8_chunk *x_chunk(const job *b, int64_t i, int64_t c)
{
    return b->x->chunk + x_row(b, i) * fl_q8_chunks(b->x->width) + c;
}

/* ---- products ---- */

/* sum[j * nw + i] += w[i] . x[j] over a chunk; part p of weight row i is w[p * nw + i]. */
FL_INLINE void dots(int nw, int nx, const vi *w, const fl_q8_chunk *const *x, vi *sum)
{
    FL_UNROLL
    for (int p = 0; p < 4; p++) {
        FL_UNROLL
        for (int j = 0; j < nx; j++) {
            vi part = load64(x[j]->part[p]);
            FL_UNROLL
            for (int i = 0; i < nw; i++)
                sum[j * nw + i] = dot(sum[j * nw + i], w[p * nw + i], part);
        }
    }
}

/* acc[j * nw + i] += w[i] . x[j] over a chunk, lane by lane.  scale: of the weights; NULL: they
 * have taken it up, and are 8 * 12 too large. */
FL_INLINE void add_chunk(int nw, int nx, const vi *w, const vf *scale, const fl_q8_chunk *const *x,
                         vf *acc)
{
    vi sum[MOST];
    FL_UNROLL
    for (int j = 0; j < nx; j++) {
        vi start = vi_load(x[j]->start);
        start = scale ? start : vi_shl(start, 3);
        FL_UNROLL
        for (int i = 0; i < nw; i++)
            sum[j * nw + i] = start;
    }
    dots(nw, nx, w, x, sum);
    FL_UNROLL
    for (int j = 0; j < nx; j++) {
        vf s = vf_load(x[j]->scale);
        FL_UNROLL
        for (int i = 0; i < nw; i++)
            acc[j * nw + i] =
                vf_fma(vi_to_vf(sum[j * nw + i]), scale ? vf_mul(scale[i], s) : s, acc[j * nw + i]);
    }
}

/* The sums of a tile, times `by` (NULL: 1), to outputs [n, n + nw) x [m, m + nx), as far as they
 * exist. */
FL_INLINE void put(const job *b, int nw, int nx, int64_t n, int64_t m, bool add, const float *by,
                   const vf *acc)
{
    float out[MOST];
    int a = 0;
#if defined(__AVX512F__)
    for (; a + 8 <= nw * nx; a += 8)
        _mm256_storeu_ps(out + a, vf_sum8(acc + a));
#endif
    for (; a + 4 <= nw * nx; a += 4)
        vf_sum4(acc[a], acc[a + 1], acc[a + 2], acc[a + 3], out + a);
    for (; a < nw * nx; a++)
        out[a] = vf_sum(acc[a]);
    for (int j = 0; j < nx && m + j < b->m; j++) {
        float *y = fl_list_row(b->y, m + j) + (n - b->n0), *sum = out + j * nw;
#if defined(__AVX512F__)
        if (nw == 4 && n + nw <= b->n1) {
            __m128 s = _mm_loadu_ps(sum);
            s = by ? _mm_mul_ps(s, _mm_loadu_ps(by)) : s;
            _mm_storeu_ps(y, add ? _mm_add_ps(_mm_loadu_ps(y), s) : s);
            continue;
        }
#endif
        for (int i = 0; i < nw && n + i < b->n1; i++) {
            float s = by ? sum[i] * by[i] : sum[i];
            y[i] = add ? y[i] + s : s;
        }
    }
}

FL_INLINE void clear(int nw, int nx, vf *acc)
{
    FL_UNROLL
    for (int a = 0; a < nw * nx; a++)
        acc[a] = vf_zero();
}

/* Chunk c of nw weight rows; acc[i * nx + j].  One row after the other, so that its codes need no
 * more registers than there are.  whole: no chunk is filled up. */
FL_INLINE void few_chunk(const job *b, int nw, int nx, bool whole, const wrow *w, int64_t c,
                         const fl_q8_chunk *const *x, vf *acc)
{
    FL_UNROLL
    for (int i = 0; i < nw; i++) {
        rest r;
        vi code[4];
        wrow from = {w[i].data + c * (CHUNK / 2), w[i].scale + c * GROUPS};
        if (!whole)
            from = chunk_at(b, w[i], c, &r);
        decode(from.data, code, 1);
        vf scale = scales(from.scale);
        add_chunk(1, nx, code, &scale, x, acc + i * nx);
    }
}

/* next: what to fetch meanwhile, or NULL. */
FL_INLINE void few_tile(const job *b, int nw, int nx, int64_t n, int64_t m, const uint8_t *next)
{
    int64_t chunks = fl_q8_chunks(b->x->width);
    wrow w[FEW_ONE];
    const fl_q8_chunk *x[FEW_X];
    FL_UNROLL
    for (int i = 0; i < nw; i++)
        w[i] = row_at(b, n + i, 0);
    FL_UNROLL
    for (int j = 0; j < nx; j++)
        x[j] = x_chunk(b, m + j, 0);
    for (int64_t c0 = 0; c0 < chunks; c0 += PIECE) {
        vf acc[MOST], turned[MOST];
        clear(nw, nx, acc);
        for (int64_t c = c0; c < chunks && c < c0 + PIECE; c++) {
            if (next) {
                fl_few_fetch(next, nw * CHUNK / 2, b->second);
                next += nw * CHUNK / 2;
            }
            if ((c + 1) * CHUNK <= b->x->width)
                few_chunk(b, nw, nx, true, w, c, x, acc);
            else
                few_chunk(b, nw, nx, false, w, c, x, acc);
            FL_UNROLL
            for (int j = 0; j < nx; j++)
                x[j]++;
        }
        FL_UNROLL
        for (int i = 0; i < nw; i++) {
            FL_UNROLL
            for (int j = 0; j < nx; j++)
                turned[j * nw + i] = acc[i * nx + j];
        }
        put(b, nw, nx, n, m, c0 > 0, NULL, turned);
    }
}

/* What to fetch while weight rows [n, n + nw) are consumed (few.c). */
FL_INLINE const uint8_t *after(const job *b, int nw, int64_t n)
{
    int64_t row = b->x->width / 2, ahead = nw * row < FL_FEW_AHEAD ? FL_FEW_AHEAD : nw * row;
    return n * row + ahead < b->w->shape[0] * row ? (const uint8_t *)b->w->data + n * row + ahead
                                                  : NULL;
}

static void few_rows(const job *b)
{
    for (int64_t n = b->n0; n < b->n1; n += FEW_ONE) {
        int64_t m = 0;
        for (; b->m - m > 2; m += FEW_X) {
            for (int64_t i = n; i < n + FEW_ONE && i < b->n1; i += FEW_W)
                few_tile(b, FEW_W, FEW_X, i, m, m == 0 ? after(b, FEW_W, i) : NULL);
        }
        if (b->m - m == 2)
            few_tile(b, FEW_ONE, 2, n, m, m == 0 ? after(b, FEW_ONE, n) : NULL);
        else if (b->m - m == 1)
            few_tile(b, FEW_ONE, 1, n, m, m == 0 ? after(b, FEW_ONE, n) : NULL);
    }
}

/* ---- many rows ---- */

/* A piece of weight rows, W by W. */
typedef struct strip {
    vi code[PIECE][4][W];
    vf scale[PIECE][W]; /* unless folded */
    float by[W];        /* folded: 2^(least exponent) of a row */
    uint8_t least[W];
    bool folded;
} strip;

typedef struct panel {
    strip strip[FL_Q8_W / W];
} panel;

#if defined(FL_Q8_FOLDS)
/* The least and the greatest of n bytes. */
static void range(const uint8_t *s, int64_t n, uint8_t *least, uint8_t *most)
{
    __m128i low = _mm_set1_epi8((char)255), high = _mm_setzero_si128();
    for (int64_t i = 0; i < n; i += 16) {
        __mmask16 some = (__mmask16)(n - i < 16 ? (1 << (n - i)) - 1 : 0xffff);
        low = _mm_min_epu8(low, _mm_mask_loadu_epi8(low, some, s + i));
        high = _mm_max_epu8(high, _mm_maskz_loadu_epi8(some, s + i));
    }
    __m128i both = _mm_unpacklo_epi64(
        _mm_min_epu8(low, _mm_srli_si128(low, 8)),
        _mm_xor_si128(_mm_max_epu8(high, _mm_srli_si128(high, 8)), _mm_set1_epi8((char)255)));
    both = _mm_min_epu8(both, _mm_srli_epi64(both, 32));
    both = _mm_min_epu8(both, _mm_srli_epi64(both, 16));
    both = _mm_min_epu8(both, _mm_srli_epi64(both, 8));
    *least = (uint8_t)_mm_extract_epi8(both, 0);
    *most = (uint8_t)~_mm_extract_epi8(both, 8);
}

/* Whether W rows from n on can be folded, and their least exponents. */
static bool foldable(const job *b, int64_t n, int64_t c0, int64_t c1, uint8_t *least)
{
    int64_t end = c1 * CHUNK < b->x->width ? c1 * CHUNK : b->x->width;
    for (int i = 0; i < W; i++) {
        uint8_t most;
        range(row_at(b, n + i, c0).scale, (end - c0 * CHUNK) / GROUP, &least[i], &most);
        if (most - least[i] > FOLDS || least[i] < 127 - 40 || most > 127 + 40)
            return false;
    }
    return true;
}
#endif

/* What a panel holds: chunks [c0, c1) of weight rows [n, n + rows).  No rows: nothing is left. */
typedef struct place {
    int64_t n, rows, c0, c1;
    bool tame; /* folding is allowed */
} place;

static place place_at(const job *b, int64_t n, int64_t c0, bool tame)
{
    int64_t chunks = fl_q8_chunks(b->x->width), rows = b->n1 - n < FL_Q8_W ? b->n1 - n : FL_Q8_W;
    return (place){n, rows > 0 ? rows : 0, c0, chunks - c0 < PIECE ? chunks : c0 + PIECE, tame};
}

static place place_after(const job *b, const place *p)
{
    return p->c1 < fl_q8_chunks(b->x->width) ? place_at(b, p->n, p->c1, p->tame)
                                             : place_at(b, p->n + FL_Q8_W, 0, p->tame);
}

/* Rows of a panel, in whole tiles. */
static int64_t panel_rows(const place *p)
{
    return (p->rows + W - 1) / W * W;
}

/* Asks for row r of a panel, which will be decoded soon. */
static void fetch(const job *b, const place *p, int64_t r)
{
    wrow w = row_at(b, p->n + r, p->c0);
    for (int64_t i = 0; i < (p->c1 - p->c0) * (CHUNK / 2); i += FL_CACHE_LINE)
        __builtin_prefetch(w.data + i);
    for (int64_t i = 0; i < (p->c1 - p->c0) * GROUPS; i += FL_CACHE_LINE)
        __builtin_prefetch(w.scale + i);
}

/* Decodes row r of a panel, in ascending order. */
static void fill(const job *b, const place *p, int64_t r, panel *to)
{
    strip *s = &to->strip[r / W];
    int i = (int)(r % W);
    wrow w = row_at(b, p->n + r, 0);
    rest left;
    if (r + AHEAD < panel_rows(p))
        fetch(b, p, r + AHEAD);
#if defined(FL_Q8_FOLDS)
    if (i == 0)
        s->folded = p->tame && foldable(b, p->n + r, p->c0, p->c1, s->least);
    if (s->folded) {
        for (int64_t c = p->c0; c < p->c1; c++) {
            wrow from = chunk_at(b, w, c, &left);
            decode_folded(from.data, from.scale, s->least[i], &s->code[c - p->c0][0][i], W);
        }
        s->by[i] = fl_e8m0_to_f32(s->least[i]);
        return;
    }
#else
    s->folded = false;
#endif
    for (int64_t c = p->c0; c < p->c1; c++) {
        wrow from = chunk_at(b, w, c, &left);
        decode(from.data, &s->code[c - p->c0][0][i], W);
        s->scale[c - p->c0][i] = scales(from.scale);
    }
}

FL_INLINE void panel_tile(const job *b, const strip *s, bool folded, int64_t n, int64_t m,
                          int64_t c0, int64_t c1)
{
    const fl_q8_chunk *x[X];
    vf acc[MOST];
    FL_UNROLL
    for (int j = 0; j < X; j++)
        x[j] = x_chunk(b, m + j, c0);
    clear(W, X, acc);
    for (int64_t c = 0; c < c1 - c0; c++) {
        add_chunk(W, X, s->code[c][0], folded ? NULL : s->scale[c], x, acc);
        FL_UNROLL
        for (int j = 0; j < X; j++)
            x[j]++;
    }
    put(b, W, X, n, m, c0 > 0, folded ? s->by : NULL, acc);
}

static void plain_tile(const job *b, const strip *s, int64_t n, int64_t m, int64_t c0, int64_t c1)
{
    panel_tile(b, s, false, n, m, c0, c1);
}

static void folded_tile(const job *b, const strip *s, int64_t n, int64_t m, int64_t c0, int64_t c1)
{
#if defined(FL_Q8_FOLDS)
    panel_tile(b, s, true, n, m, c0, c1);
#else
    plain_tile(b, s, n, m, c0, c1);
#endif
}

/* All rows of x against a panel; meanwhile the next one is decoded, a row at a time, so that its
 * bytes are there when they are read and decoding hides among products. */
static void many_rows(const job *b, panel *now, panel *next)
{
    int64_t tiles = (b->m + X - 1) / X;
    bool tame = true;
    for (int64_t i = 0; i < b->m; i++)
        tame &= b->x->tame[x_row(b, i)];
    place p = place_at(b, b->n0, 0, tame);
    for (int64_t r = 0; r < panel_rows(&p); r++)
        fill(b, &p, r, now);
    while (p.rows) {
        const place q = place_after(b, &p);
        int64_t todo = panel_rows(&q), filled = 0;
        for (int64_t t = 0; t < tiles; t++) {
            for (int64_t i = 0; i < p.rows; i += W) {
                const strip *s = &now->strip[i / W];
                (s->folded ? folded_tile : plain_tile)(b, s, p.n + i, t * X, p.c0, p.c1);
            }
            for (; filled < todo * (t + 1) / tiles; filled++)
                fill(b, &q, filled, next);
        }
        panel *done = now;
        now = next;
        next = done;
        p = q;
    }
}

void fl_q8_mul(const fl_tensor *w, int64_t n0, int64_t n1, const fl_q8 *x, const int32_t *index,
               int64_t first, const fl_row_list *y, int64_t m, void *scratch)
{
    _Static_assert(2 * sizeof(panel) <= FL_Q8_SCRATCH, "scratch holds two panels");
    const job b = {w, n0, n1, m, x, index, first, y, fl_cpu_fetch_second()};
    if (m < FEW)
        few_rows(&b);
    else
        many_rows(&b, scratch, (panel *)scratch + 1);
}
