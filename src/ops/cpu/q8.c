#include "ops/cpu/q8.h"

#include <math.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

enum { GROUP = FL_MX_GROUP, PARTS = 8, ROWS = 4 }; /* ROWS: rows of x that share a decoded group */

void fl_q8_quantise(const float *x, const fl_q8 *rows, int64_t i)
{
    int8_t *q = rows->q + i * rows->width;
    float *d = rows->d + i * rows->width / GROUP;
    for (int64_t g = 0; g < rows->width / GROUP; g++, x += GROUP, q += GROUP) {
        float most = 0;
        bool finite = true;
        for (int j = 0; j < GROUP; j++) {
            most = fabsf(x[j]) > most ? fabsf(x[j]) : most;
            finite &= isfinite(x[j]) != 0;
        }
        d[g] = finite ? most / 127 : NAN;
        for (int j = 0; j < GROUP; j++) {
            float scaled = d[g] > 0 ? rintf(x[j] / d[g]) : 0;
            q[j] = (int8_t)(scaled > 127 ? 127 : scaled < -127 ? -127 : scaled);
        }
    }
}

#if defined(__AVX2__)

typedef __m256 lanes;

/* A group of codes: their magnitudes, doubled, and the same with their signs, in element order. */
typedef struct codes {
    __m256i magnitude, value;
} codes;

static inline codes decode(const unsigned char *packed)
{
    const __m256i magnitudes = _mm256_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, 1, 2, 3, 4, 6, 8, 12, 0,
                                                1, 2, 3, 4, 6, 8, 12, 0, 1, 2, 3, 4, 6, 8, 12);
    const __m256i values =
        _mm256_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12, 0, 1, 2, 3, 4, 6,
                         8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
    const __m128i low = _mm_set1_epi8(15);
    __m128i b = _mm_loadu_si128((const __m128i *)packed);
    __m128i even = _mm_and_si128(b, low), odd = _mm_and_si128(_mm_srli_epi16(b, 4), low);
    __m256i c = _mm256_set_m128i(_mm_unpackhi_epi8(even, odd), _mm_unpacklo_epi8(even, odd));
    return (codes){_mm256_shuffle_epi8(magnitudes, c), _mm256_shuffle_epi8(values, c)};
}

static inline lanes add_group(lanes acc, codes c, const int8_t *q, float scale)
{
    __m256i x = _mm256_loadu_si256((const __m256i *)q);
    __m256i signedx = _mm256_sign_epi8(x, c.value);
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
    __m256i parts = _mm256_dpbusd_epi32(_mm256_setzero_si256(), c.magnitude, signedx);
#else
    /* At most 2 * 12 * 127 in 16 bits: nothing saturates. */
    __m256i pairs = _mm256_maddubs_epi16(c.magnitude, signedx);
    __m256i parts = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#endif
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(parts), _mm256_set1_ps(scale), acc);
}

static inline lanes no_lanes(void)
{
    return _mm256_setzero_ps();
}

static inline void store_lanes(float *out, lanes acc)
{
    _mm256_storeu_ps(out, acc);
}

#else

typedef struct lanes {
    float x[PARTS];
} lanes;

typedef struct codes {
    int8_t value[GROUP];
} codes;

static codes decode(const unsigned char *packed)
{
    static const int8_t values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    codes c;
    for (int j = 0; j < GROUP; j++)
        c.value[j] = values[packed[j / 2] >> j % 2 * 4 & 15];
    return c;
}

static lanes add_group(lanes acc, codes c, const int8_t *q, float scale)
{
    for (int p = 0; p < PARTS; p++) {
        int32_t sum = 0;
        for (int j = 0; j < GROUP / PARTS; j++)
            sum += c.value[p * (GROUP / PARTS) + j] * q[p * (GROUP / PARTS) + j];
        acc.x[p] = fmaf((float)sum, scale, acc.x[p]);
    }
    return acc;
}

static lanes no_lanes(void)
{
    return (lanes){{0}};
}

static void store_lanes(float *out, lanes acc)
{
    for (int p = 0; p < PARTS; p++)
        out[p] = acc.x[p];
}

#endif

static float sum_lanes(lanes acc)
{
    float x[PARTS];
    store_lanes(x, acc);
    return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
}

/* Row n of w with m <= ROWS rows of x, at[i] being their numbers. */
static void one_weight_row(const fl_tensor *w, int64_t n, const fl_q8 *x, const int64_t *at, int m,
                           float *out)
{
    const unsigned char *packed = (const unsigned char *)w->data + n * x->width / 2;
    const uint8_t *scale = w->scale + n * x->width / GROUP;
    lanes acc[ROWS];
    for (int i = 0; i < m; i++)
        acc[i] = no_lanes();
    for (int64_t g = 0; g < x->width / GROUP; g++) {
        codes c = decode(packed + g * GROUP / 2);
        float half = fl_e8m0_to_f32(scale[g]) * 0.5f; /* the codes are doubled */
        for (int i = 0; i < m; i++)
            acc[i] = add_group(acc[i], c, x->q + at[i] * x->width + g * GROUP,
                               half * x->d[at[i] * (x->width / GROUP) + g]);
    }
    for (int i = 0; i < m; i++)
        out[i] = sum_lanes(acc[i]);
}

void fl_q8_mul(const fl_tensor *w, int64_t n0, int64_t n1, const fl_q8 *x, const int32_t *index,
               int64_t first, const fl_row_list *y, int64_t m)
{
    for (int64_t i = 0; i < m; i += ROWS) {
        int64_t at[ROWS] = {0};
        float out[ROWS];
        int count = m - i < ROWS ? (int)(m - i) : ROWS;
        for (int j = 0; j < count; j++)
            at[j] = index ? index[i + j] : first + i + j;
        for (int64_t n = n0; n < n1; n++) {
            one_weight_row(w, n, x, at, count, out);
            for (int j = 0; j < count; j++)
                fl_list_row(y, i + j)[n - n0] = out[j];
        }
    }
}
