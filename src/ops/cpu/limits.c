/* The measuring loops of limits.h: sixteen chains of an instruction that do not wait for each
 * other.  Chains start from different numbers and factors come from memory, or the compiler would
 * compute one chain for all, or something simpler than a product. */
#include "ops/limits.h"

#include "ops/cpu/amx_unit.h"
#include "ops/cpu/cpu_internal.h"
#include "ops/cpu/simd.h"

enum { ROUND = 16 }; /* vectors in a round */

/* As many as the registers hold. */
#if defined(__AVX512F__)
enum { CHAINS = 16 };
#else
enum { CHAINS = 6 };
#endif

static float f32_rounds(int64_t rounds)
{
    volatile float one = 1.0f;
    float start[16];
    for (int i = 0; i < 16; i++)
        start[i] = one * (float)i;
    vf acc[CHAINS], a = vf_set1(one), b = vf_set1(1e-30f);
    FL_UNROLL
    for (int i = 0; i < CHAINS; i++)
        acc[i] = vf_add(vf_load(start), vf_set1((float)i));
    for (int64_t r = 0; r < rounds * ROUND / CHAINS; r++) {
        FL_UNROLL
        for (int i = 0; i < CHAINS; i++)
            acc[i] = vf_fma(acc[i], a, b);
    }
    float sum = 0;
    for (int i = 0; i < CHAINS; i++)
        sum += vf_sum(acc[i]);
    return sum;
}

#if defined(__AVX512BF16__)
static float bf16_rounds(int64_t rounds)
{
    volatile float one = 1.0f;
    __m512bh a = _mm512_cvtne2ps_pbh(_mm512_set1_ps(one), _mm512_set1_ps(one));
    __m512 acc[CHAINS];
    FL_UNROLL
    for (int i = 0; i < CHAINS; i++)
        acc[i] = _mm512_set1_ps((float)i);
    for (int64_t r = 0; r < rounds * ROUND / CHAINS; r++) {
        FL_UNROLL
        for (int i = 0; i < CHAINS; i++)
            acc[i] = _mm512_dpbf16_ps(acc[i], a, a);
    }
    float sum = 0;
    for (int i = 0; i < CHAINS; i++)
        sum += _mm512_reduce_add_ps(acc[i]);
    return sum;
}
#else
#define bf16_rounds NULL
#endif

/* One register of 8-bit products, four summed into a 32-bit lane. */
#if defined(__AVX512F__)
typedef __m512i bytes;
#define SET1(x) _mm512_set1_epi32(x)
#if defined(__AVX512VNNI__)
#define DOT(acc, a) _mm512_dpbusd_epi32(acc, a, a)
#else
#define DOT(acc, a)                                                                                \
    _mm512_add_epi32(acc,                                                                          \
                     _mm512_madd_epi16(_mm512_maddubs_epi16(a, _mm512_xor_si512(acc, a)), one16))
#define ONE16 _mm512_set1_epi16(1)
#endif
#elif defined(__AVX2__)
typedef __m256i bytes;
#define SET1(x) _mm256_set1_epi32(x)
#define DOT(acc, a)                                                                                \
    _mm256_add_epi32(acc,                                                                          \
                     _mm256_madd_epi16(_mm256_maddubs_epi16(a, _mm256_xor_si256(acc, a)), one16))
#define ONE16 _mm256_set1_epi16(1)
#endif

#if defined(DOT)
static float int8_rounds(int64_t rounds)
{
    volatile int factor = 0x01020301;
    bytes a = SET1(factor), acc[CHAINS];
#if defined(ONE16)
    bytes one16 = ONE16;
#endif
    int64_t turns = rounds * ROUND * 64 / (CHAINS * (int64_t)sizeof(bytes));
    FL_UNROLL
    for (int i = 0; i < CHAINS; i++)
        acc[i] = SET1(i);
    for (int64_t r = 0; r < turns; r++) {
        FL_UNROLL
        for (int i = 0; i < CHAINS; i++)
            acc[i] = DOT(acc[i], a);
    }
    int32_t lanes[CHAINS][sizeof(bytes) / 4];
    float sum = 0;
    memcpy(lanes, acc, sizeof acc);
    for (int i = 0; i < CHAINS; i++)
        sum += (float)lanes[i][0];
    return sum;
}
#else
#define int8_rounds NULL
#endif

#if defined(FL_AMX_TILES)
/* Four tiles of sums from two and two others: what a product of two by two tiles does. */
#define TILE_ROUNDS(NAME, INSTRUCTION)                                                             \
    static float NAME(int64_t rounds)                                                              \
    {                                                                                              \
        unit_begin();                                                                              \
        for (int64_t r = 0; r < rounds / 64; r++) {                                                \
            INSTRUCTION(0, 4, 6);                                                                  \
            INSTRUCTION(1, 4, 7);                                                                  \
            INSTRUCTION(2, 5, 6);                                                                  \
            INSTRUCTION(3, 5, 7);                                                                  \
        }                                                                                          \
        unit_end();                                                                                \
        return 0;                                                                                  \
    }
TILE_ROUNDS(bf16_tiles, _tile_dpbf16ps)
TILE_ROUNDS(int8_tiles, _tile_dpbusd)
#endif

static float read_all(const float *p, int64_t n)
{
    vi any[8];
    FL_UNROLL
    for (int i = 0; i < 8; i++)
        any[i] = vi_set1(0);
    for (int64_t k = 0; k < n; k += 128) {
        FL_UNROLL
        for (int i = 0; i < 8; i++)
            any[i] = vi_or(any[i], vi_load((const int32_t *)p + k + 16 * i));
    }
    int32_t m = 0;
    for (int i = 0; i < 8; i++)
        m |= vi_hmax(any[i]);
    return (float)m;
}

extern const fl_limits_probe FL_CPU_NAME(fl_limits_probe);
const fl_limits_probe FL_CPU_NAME(fl_limits_probe) = {f32_rounds, bf16_rounds, int8_rounds,
                                                      read_all};
#if defined(FL_AMX_TILES)
extern const fl_limits_probe fl_limits_probe_amx;
const fl_limits_probe fl_limits_probe_amx = {f32_rounds, bf16_tiles, int8_tiles, read_all};
#endif
