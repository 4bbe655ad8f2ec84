#include "ops/cpu/q8.h"

#include "base/mem.h"
#include "ops/cpu/simd.h"

enum { GROUP = FL_MX_GROUP, GROUPS = FL_Q8_CHUNK / GROUP };

/* Tiles: weight rows by rows of x; with one row of x more weight rows keep the memory busy. */
#if defined(__AVX512F__)
enum { TW = 2, TX = 4, TW_ONE = 4 };
#else
enum { TW = 2, TX = 2, TW_ONE = 2 };
#endif

/* ---- quantising ---- */

static void quantise_group(const float *x, fl_q8_chunk *c, int g)
{
    vf a = vf_load(x), b = vf_load(x + FL_LANES);
    int32_t bits = vi_hmax(vi_max(vf_bits(vf_abs(a)), vf_bits(vf_abs(b))));
    float most, d, q[GROUP];
    memcpy(&most, &bits, sizeof most);
    bool finite = bits < 0x7f800000;
    d = finite ? most / 127 : NAN;
    vf by = vf_set1(finite && d > 0 ? d : INFINITY); /* everything becomes 0 */
    vf low = vf_set1(-127), high = vf_set1(127);     /* d may be denormal and too small */
    a = finite ? vf_max(low, vf_min(high, vf_div(a, by))) : vf_zero();
    b = finite ? vf_max(low, vf_min(high, vf_div(b, by))) : vf_zero();
    vf_store(q, vi_to_vf(vf_to_vi(a)));
    vf_store(q + FL_LANES, vi_to_vf(vf_to_vi(b)));
    for (int i = 0; i < GROUP / 2; i++) {
        c->even[g * GROUP / 2 + i] = (int8_t)q[2 * i];
        c->odd[g * GROUP / 2 + i] = (int8_t)q[2 * i + 1];
    }
    for (int l = 0; l < GROUP / 8; l++) {
        float sum = 0;
        for (int i = 0; i < 8; i++)
            sum += q[8 * l + i];
        c->start[g * GROUP / 8 + l] = -12 * (int32_t)sum;
        c->scale[g * GROUP / 8 + l] = d * 0.5f;
    }
}

void fl_q8_quantise(const float *x, const fl_q8 *rows, int64_t i)
{
    int64_t chunks = fl_q8_chunks(rows->width);
    fl_q8_chunk *c = rows->chunk + i * chunks;
    if (rows->width % FL_Q8_CHUNK)
        memset(&c[chunks - 1], 0, sizeof *c);
    for (int64_t k = 0; k < rows->width; k += GROUP)
        quantise_group(x + k, &c[k / FL_Q8_CHUNK], (int)(k % FL_Q8_CHUNK / GROUP));
}

/* ---- 64 bytes in a vi, four to a lane ---- */

FL_INLINE vi load64(const void *bytes)
{
    vi v;
    memcpy(&v, bytes, sizeof v);
    return v;
}

/* 128 packed codes: the even and the odd elements as unsigned bytes, doubled and 12 too large. */
typedef struct codes {
    vi even, odd;
} codes;

static const uint8_t doubled[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

/* The index of a byte shuffle that makes a lane of byte g and three zeros. */
#define BYTE(g) ((int)0x80808000 + (g))

#if defined(__AVX512F__)

FL_INLINE vi look_up(vi c)
{
    vi table = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)doubled));
    return _mm512_shuffle_epi8(table, _mm512_and_si512(c, _mm512_set1_epi8(15)));
}

FL_INLINE codes decode(vi c)
{
    return (codes){look_up(c), look_up(_mm512_srli_epi16(c, 4))};
}

/* start + the products of four even and four odd bytes, lane by lane.  In 16 bits a sum is at most
 * 4 * 24 * 127: nothing saturates. */
FL_INLINE vi dot(vi start, codes w, vi even, vi odd)
{
#if defined(__AVX512VNNI__)
    return _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(start, w.even, even), w.odd, odd);
#else
    vi pairs =
        _mm512_add_epi16(_mm512_maddubs_epi16(w.even, even), _mm512_maddubs_epi16(w.odd, odd));
    return vi_add(start, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
#endif
}

/* Byte g to lanes 4 g .. 4 g + 3, as a number. */
FL_INLINE vi spread(int32_t bytes)
{
    return _mm512_shuffle_epi8(
        _mm512_set1_epi32(bytes),
        _mm512_set_epi32(BYTE(3), BYTE(3), BYTE(3), BYTE(3), BYTE(2), BYTE(2), BYTE(2), BYTE(2),
                         BYTE(1), BYTE(1), BYTE(1), BYTE(1), BYTE(0), BYTE(0), BYTE(0), BYTE(0)));
}

#elif defined(__AVX2__)

FL_INLINE __m256i look_up(__m256i c)
{
    __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)doubled));
    return _mm256_shuffle_epi8(table, _mm256_and_si256(c, _mm256_set1_epi8(15)));
}

FL_INLINE codes decode(vi c)
{
    return (codes){{look_up(c.lo), look_up(c.hi)},
                   {look_up(_mm256_srli_epi16(c.lo, 4)), look_up(_mm256_srli_epi16(c.hi, 4))}};
}

FL_INLINE __m256i dot_half(__m256i start, __m256i even_w, __m256i even, __m256i odd_w, __m256i odd)
{
    __m256i pairs =
        _mm256_add_epi16(_mm256_maddubs_epi16(even_w, even), _mm256_maddubs_epi16(odd_w, odd));
    return _mm256_add_epi32(start, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

/* start + the products of four even and four odd bytes, lane by lane.  In 16 bits a sum is at most
 * 4 * 24 * 127: nothing saturates. */
FL_INLINE vi dot(vi start, codes w, vi even, vi odd)
{
    return (vi){dot_half(start.lo, w.even.lo, even.lo, w.odd.lo, odd.lo),
                dot_half(start.hi, w.even.hi, even.hi, w.odd.hi, odd.hi)};
}

/* Byte g to lanes 4 g .. 4 g + 3, as a number. */
FL_INLINE vi spread(int32_t bytes)
{
    __m256i b = _mm256_set1_epi32(bytes);
    return (vi){_mm256_shuffle_epi8(b, _mm256_set_epi32(BYTE(1), BYTE(1), BYTE(1), BYTE(1), BYTE(0),
                                                        BYTE(0), BYTE(0), BYTE(0))),
                _mm256_shuffle_epi8(b, _mm256_set_epi32(BYTE(3), BYTE(3), BYTE(3), BYTE(3), BYTE(2),
                                                        BYTE(2), BYTE(2), BYTE(2)))};
}

#else

FL_INLINE codes decode(vi c)
{
    uint8_t packed[64], even[64], odd[64];
    codes w;
    memcpy(packed, &c, sizeof c);
    for (int i = 0; i < 64; i++) {
        even[i] = doubled[packed[i] & 15];
        odd[i] = doubled[packed[i] >> 4];
    }
    memcpy(&w.even, even, sizeof even);
    memcpy(&w.odd, odd, sizeof odd);
    return w;
}

/* start + the products of four even and four odd bytes, lane by lane. */
FL_INLINE vi dot(vi start, codes w, vi even, vi odd)
{
    uint8_t we[64], wo[64];
    int8_t e[64], o[64];
    memcpy(we, &w.even, sizeof we);
    memcpy(wo, &w.odd, sizeof wo);
    memcpy(e, &even, sizeof e);
    memcpy(o, &odd, sizeof o);
    for (int i = 0; i < 64; i++)
        start.x[i / 4] += we[i] * e[i] + wo[i] * o[i];
    return start;
}

/* Byte g to lanes 4 g .. 4 g + 3, as a number. */
FL_INLINE vi spread(int32_t bytes)
{
    uint8_t b[4];
    vi r;
    memcpy(b, &bytes, sizeof b);
    for (int l = 0; l < FL_LANES; l++)
        r.x[l] = b[l / 4];
    return r;
}

#endif

/* ---- products ---- */

/* A row of a weight. */
typedef struct wrow {
    const uint8_t *data, *scale;
} wrow;

/* 2^(s - 127) of four groups: the bits of s become the exponent; 0 is denormal, half the least one.
 * 255, which is NaN, becomes infinity: the sum is then no finite number either. */
FL_INLINE vf scales(const uint8_t *s)
{
    int32_t bytes;
    memcpy(&bytes, s, sizeof bytes);
    return vi_float(vi_max(vi_shl(spread(bytes), 23), vi_set1(0x00400000)));
}

/* acc[i * nx + j] += w[i] . x[j], lane by lane, over one chunk. */
FL_INLINE void add_chunk(int nw, int nx, const wrow *w, const fl_q8_chunk *const *x, vf *acc)
{
    codes c[TW_ONE];
    vf s[TW_ONE];
    FL_UNROLL
    for (int i = 0; i < nw; i++) {
        c[i] = decode(load64(w[i].data));
        s[i] = scales(w[i].scale);
    }
    FL_UNROLL
    for (int j = 0; j < nx; j++) {
        vi even = load64(x[j]->even);
        vi odd = load64(x[j]->odd);
        vi start = vi_load(x[j]->start);
        vf scale = vf_load(x[j]->scale);
        FL_UNROLL
        for (int i = 0; i < nw; i++)
            acc[i * nx + j] =
                vf_fma(vi_to_vf(dot(start, c[i], even, odd)), vf_mul(s[i], scale), acc[i * nx + j]);
    }
}

typedef struct job {
    const fl_tensor *w;
    int64_t n0, n1, m;
    const fl_q8 *x;
    const int32_t *index;
    int64_t first;
    const fl_row_list *y;
} job;

static const fl_q8_chunk *x_row(const job *b, int64_t i)
{
    i = i < b->m ? i : b->m - 1;
    return b->x->chunk + (b->index ? b->index[i] : b->first + i) * fl_q8_chunks(b->x->width);
}

/* Outputs [n, n + nw) x [m, m + nx), as far as they exist; what lies beyond is computed from the
 * last row again and dropped. */
FL_INLINE void tile(const job *b, int nw, int nx, int64_t n, int64_t m)
{
    int64_t width = b->x->width, whole = width / FL_Q8_CHUNK, rest = width % FL_Q8_CHUNK;
    wrow w[TW_ONE];
    const fl_q8_chunk *x[TX];
    vf acc[TW_ONE > TW * TX ? TW_ONE : TW * TX];
    FL_UNROLL
    for (int i = 0; i < nw; i++) {
        int64_t row = n + i < b->n1 ? n + i : b->n1 - 1;
        w[i].data = (const uint8_t *)b->w->data + row * width / 2;
        w[i].scale = b->w->scale + row * width / GROUP;
    }
    FL_UNROLL
    for (int j = 0; j < nx; j++)
        x[j] = x_row(b, m + j);
    FL_UNROLL
    for (int a = 0; a < nw * nx; a++)
        acc[a] = vf_zero();
    for (int64_t c = 0; c < whole; c++) {
        add_chunk(nw, nx, w, x, acc);
        FL_UNROLL
        for (int i = 0; i < nw; i++) { /* the same place of the next nw rows is fetched ahead */
            __builtin_prefetch(w[i].data + nw * width / 2);
            w[i].data += FL_Q8_CHUNK / 2;
            w[i].scale += GROUPS;
        }
        FL_UNROLL
        for (int j = 0; j < nx; j++)
            x[j]++;
    }
    if (rest) {
        uint8_t data[TW_ONE][FL_Q8_CHUNK / 2] = {{0}}, scale[TW_ONE][GROUPS] = {{0}};
        for (int i = 0; i < nw; i++) {
            memcpy(data[i], w[i].data, (size_t)rest / 2);
            memcpy(scale[i], w[i].scale, (size_t)rest / GROUP);
            w[i] = (wrow){data[i], scale[i]};
        }
        add_chunk(nw, nx, w, x, acc);
    }
    for (int j = 0; j < nx && m + j < b->m; j++) {
        float *y = fl_list_row(b->y, m + j) + (n - b->n0);
        for (int i = 0; i < nw && n + i < b->n1; i++)
            y[i] = vf_sum(acc[i * nx + j]);
    }
}

void fl_q8_mul(const fl_tensor *w, int64_t n0, int64_t n1, const fl_q8 *x, const int32_t *index,
               int64_t first, const fl_row_list *y, int64_t m)
{
    const job b = {w, n0, n1, m, x, index, first, y};
    for (int64_t n = n0; m == 1 && n < n1; n += TW_ONE)
        tile(&b, TW_ONE, 1, n, 0);
    for (int64_t n = n0; m > 1 && n < n1; n += TW) {
        for (int64_t i = 0; i < m; i += TX)
            tile(&b, TW, TX, n, i);
    }
}
