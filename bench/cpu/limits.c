#include "cpu/limits.h"

#include "ops/cpu/cpu_internal.h"
#include "ops/cpu/simd.h"

/* Sixteen independent chains of vf (eight where a vector takes two registers). */
#if defined(__AVX512F__)
enum { CHAINS = 16 };
#else
enum { CHAINS = 6 };
#endif

static float fma_rounds(int64_t rounds)
{
    volatile float one = 1.0f; /* else the compiler makes it an addition, or one half of a vector */
    float start[16];
    for (int i = 0; i < 16; i++)
        start[i] = one * (float)i;
    vf acc[CHAINS], a = vf_set1(one), b = vf_set1(1e-30f);
    FL_UNROLL
    for (int i = 0; i < CHAINS; i++)
        acc[i] = vf_add(vf_load(start), vf_set1((float)i));
    for (int64_t r = 0; r < rounds * 16 / CHAINS; r++) {
        FL_UNROLL
        for (int i = 0; i < CHAINS; i++)
            acc[i] = vf_fma(acc[i], a, b);
    }
    float sum = 0;
    for (int i = 0; i < CHAINS; i++)
        sum += vf_sum(acc[i]);
    return sum;
}

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
const fl_limits_probe FL_CPU_NAME(fl_limits_probe) = {fma_rounds, read_all};
