#include "graph/cache_row.h"

#include <string.h>

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float float_from(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

enum { TINY = (127 - 100) << 23, INFINITE = 0x7f800000 }; /* bits of 2^-100 and of infinity */

/* The largest magnitude of n numbers, as bits: a NaN is above all. */
static uint32_t top_of(int64_t n, const float *x)
{
    uint32_t top = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = bits_of(x[i]) & 0x7fffffff;
        top = bits > top ? bits : top;
    }
    return top;
}

/* The smallest power of two s with top <= 448 s; 448 is 1.75 * 2^8. */
static float power_for(uint32_t top)
{
    uint32_t exponent = top >> 23, mantissa = top & 0x7fffff;
    return float_from((exponent - 8 + (mantissa > 0x600000)) << 23);
}

static float encode_group(fl_dtype t, int64_t n, const float *x, uint8_t *code)
{
    uint32_t top = top_of(n, x);
    if (top < TINY || top >= INFINITE) {
        for (int64_t i = 0; i < n; i++)
            code[i] = 0;
        return top < TINY ? 0 : float_from(0x7fc00000);
    }
    if (t == FL_I8) {
        float most = float_from(top), by = 127 / most;
        for (int64_t i = 0; i < n; i++) {
            /* Adding and taking away 1.5 * 2^23 rounds to nearest even. */
            float r = x[i] * by + 0x1.8p23f;
            code[i] = (uint8_t)(int8_t)(r - 0x1.8p23f);
        }
        return most / 127;
    }
    float scale = power_for(top), by = 1 / scale;
    for (int64_t i = 0; i < n; i++)
        code[i] = fl_f32_to_e4m3(x[i] * by);
    return scale;
}

void fl_cache_encode(fl_dtype t, int64_t n, const float *x, void *row)
{
    if (t == FL_F32) {
        memcpy(row, x, (size_t)n * sizeof *x);
        return;
    }
    unsigned char *at = row;
    int64_t used = n;
    if (t == FL_BF16) {
        uint16_t *half = row;
        for (int64_t i = 0; i < n; i++)
            half[i] = fl_f32_to_bf16(x[i]);
        used = n * (int64_t)sizeof *half;
    } else {
        float *scale = (float *)(at + fl_cache_scales_at(n));
        memset(at + n, 0, (size_t)(fl_cache_scales_at(n) - n));
        for (int64_t i = 0; i < n; i += FL_CACHE_GROUP) {
            int64_t k = n - i < FL_CACHE_GROUP ? n - i : FL_CACHE_GROUP;
            *scale++ = encode_group(t, k, x + i, at + i);
        }
        used = (unsigned char *)scale - at;
    }
    memset(at + used, 0, (size_t)(fl_cache_row_bytes(t, n) - used));
}

void fl_cache_decode(fl_dtype t, int64_t n, const void *row, float *x)
{
    if (t == FL_F32) {
        memcpy(x, row, (size_t)n * sizeof *x);
        return;
    }
    const uint16_t *half = row;
    const uint8_t *code = row;
    const float *scale = fl_cache_scales(row, n);
    for (int64_t i = 0; i < n; i++) {
        if (t == FL_BF16)
            x[i] = fl_bf16_to_f32(half[i]);
        else
            x[i] = (t == FL_I8 ? (float)(int8_t)code[i] : fl_e4m3_to_f32(code[i])) *
                   scale[i / FL_CACHE_GROUP];
    }
}
