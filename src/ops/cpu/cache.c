#include "ops/cpu/cache.h"

#include "ops/cpu/pairs.h"

static void load_halves(int64_t n, const uint16_t *half, float *out)
{
    int64_t i = 0;
    for (; i + FL_LANES <= n; i += FL_LANES)
        vf_store(out + i, vf_load_bf16(half + i));
    if (i < n)
        vf_storen(out + i, vf_loadn_bf16(half + i, (int)(n - i)), (int)(n - i));
}

/* One group of codes of either type. */
FL_INLINE void load_group(bool e4m3, int64_t n, const uint8_t *code, vf scale, float *out)
{
    int64_t i = 0;
    for (; i + FL_LANES <= n; i += FL_LANES) {
        vf x = e4m3 ? vf_load_e4m3(code + i) : vf_load_i8((const int8_t *)code + i);
        vf_store(out + i, vf_mul(x, scale));
    }
    if (i < n) {
        int left = (int)(n - i);
        vf x = e4m3 ? vf_loadn_e4m3(code + i, left) : vf_loadn_i8((const int8_t *)code + i, left);
        vf_storen(out + i, vf_mul(x, scale), left);
    }
}

void fl_cache_load(fl_dtype t, int64_t n, const void *row, float *out)
{
    if (t == FL_F32) {
        memcpy(out, row, (size_t)n * sizeof *out);
        return;
    }
    if (t == FL_BF16) {
        load_halves(n, row, out);
        return;
    }
    const float *scale = fl_cache_scales(row, n);
    for (int64_t i = 0; i < n; i += FL_CACHE_GROUP) {
        int64_t k = n - i < FL_CACHE_GROUP ? n - i : FL_CACHE_GROUP;
        const uint8_t *code = (const uint8_t *)row + i;
        if (t == FL_I8)
            load_group(false, k, code, vf_set1(scale[i / FL_CACHE_GROUP]), out + i);
        else
            load_group(true, k, code, vf_set1(scale[i / FL_CACHE_GROUP]), out + i);
    }
}

#if defined(__AVX512BF16__)

/* Up to 16 elements of a row of type t from element i on, not yet scaled. */
FL_INLINE vf load_some(fl_dtype t, const void *row, int64_t i, int64_t left)
{
    int n = left < FL_LANES ? (int)left : FL_LANES;
    const uint8_t *code = (const uint8_t *)row + i;
    if (t == FL_F32)
        return vf_loadn((const float *)row + i, n);
    if (t == FL_I8)
        return n < FL_LANES ? vf_loadn_i8((const int8_t *)code, n)
                            : vf_load_i8((const int8_t *)code);
    return n < FL_LANES ? vf_loadn_e4m3(code, n) : vf_load_e4m3(code);
}

FL_INLINE void row_pairs(fl_dtype t, int64_t n, const void *row, float *out)
{
    const float *scale = fl_cache_scales(row, n);
    for (int64_t i = 0; i < n; i += 2 * FL_LANES) {
        vf low = load_some(t, row, i, n - i), high = vf_zero();
        if (n - i > FL_LANES)
            high = load_some(t, row, i + FL_LANES, n - i - FL_LANES);
        if (t != FL_F32) {
            vf by = vf_set1(scale[i / FL_CACHE_GROUP]);
            low = vf_mul(low, by);
            high = vf_mul(high, by);
        }
        vf_store(out + i / 2, vf_round(low, high));
    }
}

void fl_cache_pairs(fl_dtype t, int64_t n, const void *row, float *out)
{
    if (t == FL_F32) {
        row_pairs(FL_F32, n, row, out);
    } else if (t == FL_I8) {
        row_pairs(FL_I8, n, row, out);
    } else if (t == FL_F8_E4M3) {
        row_pairs(FL_F8_E4M3, n, row, out);
    } else {
        const uint16_t *half = row;
        int64_t i = 0;
        for (; i + 2 * FL_LANES <= n; i += 2 * FL_LANES)
            _mm512_storeu_si512(out + i / 2, _mm512_loadu_si512(half + i));
        if (i < n)
            _mm512_storeu_si512(out + i / 2,
                                _mm512_maskz_loadu_epi16((1u << (unsigned)(n - i)) - 1u, half + i));
    }
}

#endif
