#include "ops/cpu/cache.h"

#include "ops/cpu/simd.h"

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
