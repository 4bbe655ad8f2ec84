/* Element types: names, sizes, and exact decoding to float32.
 *
 * Bytes come from mapped files at offsets that the header reader has checked for alignment, and
 * the integers in a safetensors file are little-endian, as on every machine we build for. */
#include "checkpoint/tensor.h"

#include <stdio.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "safetensors data is read in place: a little-endian machine is needed"
#endif

static const struct {
    const char *name;
    int bits;
} dtypes[FL_DTYPE_COUNT] = {
#define DTYPE_ROW(name, text, bits) {text, bits},
    FL_DTYPE_MAP(DTYPE_ROW)
#undef DTYPE_ROW
};

const float fl_e2m1_table[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                 -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

const char *fl_dtype_name(fl_dtype dtype)
{
    return (unsigned)dtype < FL_DTYPE_COUNT ? dtypes[dtype].name : "?";
}

int fl_dtype_bits(fl_dtype dtype)
{
    return (unsigned)dtype < FL_DTYPE_COUNT ? dtypes[dtype].bits : 0;
}

bool fl_dtype_parse(const char *text, size_t len, fl_dtype *out)
{
    for (int i = 0; i < FL_DTYPE_COUNT; i++) {
        if (i < FL_MXFP4 && strlen(dtypes[i].name) == len &&
            memcmp(dtypes[i].name, text, len) == 0) {
            *out = (fl_dtype)i;
            return true;
        }
    }
    return false;
}

bool fl_shape_elements(const int64_t *shape, int ndim, int64_t *out)
{
    /* A zero anywhere makes the product zero, but must not hide an absurd dim beside it. */
    int64_t n = 1;
    bool empty = false;
    for (int i = 0; i < ndim; i++) {
        if (shape[i] < 0)
            return false;
        if (shape[i] == 0)
            empty = true;
        else if (__builtin_mul_overflow(n, shape[i], &n) || n > INT64_MAX / 64)
            return false;
    }
    *out = empty ? 0 : n;
    return true;
}

int64_t fl_tensor_elements(const fl_tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->ndim; i++)
        n *= t->shape[i];
    return n;
}

static int64_t q8_blocks(int64_t row)
{
    return (row + FL_Q8_BLOCK - 1) / FL_Q8_BLOCK;
}

int64_t fl_dtype_bytes(fl_dtype dtype, int64_t elements, int64_t row)
{
    if (dtype == FL_MXFP4)
        return elements / 2 + elements / FL_MX_GROUP;
    if (dtype == FL_Q8)
        return row > 0 ? elements / row * q8_blocks(row) * (FL_Q8_BLOCK + (int64_t)sizeof(float))
                       : 0;
    int64_t bytes = elements * (fl_dtype_bits(dtype) / 8);
    if (dtype == FL_F8_BLOCK && row > 0)
        bytes += fl_f8_blocks(elements / row) * fl_f8_blocks(row) * (int64_t)sizeof(float);
    return bytes;
}

int64_t fl_dtype_data_bytes(fl_dtype dtype, int64_t elements, int64_t row)
{
    if (dtype == FL_Q8)
        return row > 0 ? elements / row * q8_blocks(row) * FL_Q8_BLOCK : 0;
    return elements * fl_dtype_bits(dtype) / 8;
}

int64_t fl_tensor_bytes(const fl_tensor *t)
{
    return fl_dtype_bytes(t->dtype, fl_tensor_elements(t), t->ndim ? t->shape[t->ndim - 1] : 1);
}

char *fl_shape_text(const int64_t *shape, int ndim, char *out, size_t size)
{
    size_t at = 0;
    for (int i = 0; i <= ndim && at < size; i++) {
        int n;
        if (i == ndim)
            n = snprintf(out + at, size - at, ndim ? "]" : "[]");
        else
            n = snprintf(out + at, size - at, "%s%lld", i ? ", " : "[", (long long)shape[i]);
        at += n > 0 ? (size_t)n : 0;
    }
    return out;
}

fl_status fl_tensor_mxfp4(const fl_tensor *packed, const fl_tensor *scale, fl_tensor *out,
                          fl_error *err)
{
    char p[128], s[128];
    fl_shape_text(packed->shape, packed->ndim, p, sizeof p);
    fl_shape_text(scale->shape, scale->ndim, s, sizeof s);
    if (packed->dtype != FL_U8 || (scale->dtype != FL_U8 && scale->dtype != FL_F8_E8M0))
        return fl_fail(err, FL_FORMAT, "MXFP4 codes are %s and scales %s, U8 and U8 are needed",
                       fl_dtype_name(packed->dtype), fl_dtype_name(scale->dtype));
    bool fits = packed->ndim >= 2 && packed->ndim == scale->ndim;
    int last = packed->ndim - 1;
    for (int i = 0; fits && i < last; i++)
        fits = packed->shape[i] == scale->shape[i];
    /* Divided rather than multiplied: the dims may be anything. */
    if (!fits || packed->shape[last] % (FL_MX_GROUP / 2) != 0 ||
        packed->shape[last] / (FL_MX_GROUP / 2) != scale->shape[last])
        return fl_fail(err, FL_FORMAT,
                       "MXFP4 codes %s and scales %s do not fit: [out, in / 2] and [out, in / 32] "
                       "are needed",
                       p, s);
    if (!packed->data != !scale->data)
        return fl_fail(err, FL_NOTFOUND, "MXFP4 %s are here but the %s are not",
                       packed->data ? "codes" : "scales", packed->data ? "scales" : "codes");
    fl_tensor t = *packed;
    t.dtype = FL_MXFP4;
    t.scale = scale->data;
    int64_t n;
    if (__builtin_mul_overflow(packed->shape[last], (int64_t)2, &t.shape[last]) ||
        !fl_shape_elements(t.shape, t.ndim, &n))
        return fl_fail(err, FL_FORMAT, "MXFP4 codes %s are too large", p);
    *out = t;
    return FL_OK;
}

static float float_from(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static uint32_t bits_of(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

float fl_bf16_to_f32(uint16_t x)
{
    return float_from((uint32_t)x << 16);
}

uint16_t fl_f32_to_bf16(float x)
{
    uint32_t bits = bits_of(x);
    /* Rounding would carry a NaN with a low payload into infinity: set its quiet bit instead. */
    if ((bits & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Widens a binary format with 1 sign bit, `exp` exponent bits and `man` mantissa bits that has
 * IEEE infinities and NaNs.  Subnormals become normal floats by an exact product. */
static inline float widen(uint32_t x, int exp, int man)
{
    uint32_t sign = x >> (exp + man) << 31;
    uint32_t e = x >> man & ((1u << exp) - 1), m = x & ((1u << man) - 1);
    int bias = (1 << (exp - 1)) - 1;
    if (e == (1u << exp) - 1)
        return float_from(sign | 0x7f800000 | m << (23 - man));
    if (e == 0) {
        float unit = float_from((uint32_t)(127 + 1 - bias - man) << 23);
        return float_from(sign | bits_of((float)m * unit));
    }
    return float_from(sign | (e + 127 - (uint32_t)bias) << 23 | m << (23 - man));
}

float fl_f16_to_f32(uint16_t x)
{
    return widen(x, 5, 10);
}

/* E4M3 as in checkpoints ("fn"): the top exponent holds numbers too, only all ones is NaN. */
float fl_e4m3_to_f32(uint8_t x)
{
    if ((x & 0x7f) == 0x7f)
        return float_from((uint32_t)x >> 7 << 31 | 0x7fc00000);
    if ((x & 0x78) == 0x78)
        return float_from((uint32_t)x >> 7 << 31 | (8u + 127) << 23 | (x & 7u) << 20);
    return widen(x, 4, 3);
}

uint8_t fl_f32_to_e4m3(float x)
{
    uint32_t bits = bits_of(x), sign = bits >> 24 & 0x80, size = bits & 0x7fffffff;
    if (size > 0x7f800000)
        return (uint8_t)(sign | 0x7f);
    if (size >= 0x43e00000) /* 448 */
        return (uint8_t)(sign | 0x7e);
    if (size < 0x3c800000) /* 2^-6: a multiple of 2^-9 */
        return (uint8_t)(sign | (uint32_t)(float_from(size) * 512 + 0x1p23f - 0x1p23f));
    size += 0x7ffff + (size >> 20 & 1);
    return (uint8_t)(sign | ((size >> 20) - ((127 - 7) << 3)));
}

float fl_e8m0_to_f32(uint8_t x)
{
    if (x == 0)
        return float_from(0x00400000); /* 2^-127 is subnormal */
    return float_from(x == 255 ? 0x7fc00000 : (uint32_t)x << 23);
}

static void mxfp4_to_f32(const fl_tensor *t, int64_t first, int64_t n, float *out)
{
    /* Rows are a multiple of the group, so element i of the flattened tensor is in group i / 32. */
    const uint8_t *codes = t->data;
    for (int64_t i = first; i < first + n; i += 2) {
        float s = fl_e8m0_to_f32(t->scale[i / FL_MX_GROUP]);
        uint8_t c = codes[i / 2];
        *out++ = fl_e2m1_table[c & 15] * s;
        *out++ = fl_e2m1_table[c >> 4] * s;
    }
}

static void f8_block_to_f32(const fl_tensor *t, int64_t first, int64_t n, float *out)
{
    const uint8_t *byte = t->data;
    int64_t width = t->shape[t->ndim - 1], pitch = fl_f8_blocks(width);
    for (int64_t i = first; i < first + n; i++) {
        int64_t block = i / width / FL_F8_SIDE * pitch + i % width / FL_F8_SIDE;
        *out++ = fl_e4m3_to_f32(byte[i]) * t->block_scale[block];
    }
}

/* Where element k of a block of Q8 stands. */
static int q8_place(int64_t k)
{
    return (int)(k % FL_Q8_BLOCK / 2 + k % 2 * (FL_Q8_BLOCK / 2));
}

static void q8_to_f32(const fl_tensor *t, int64_t first, int64_t n, float *out)
{
    const int8_t *q = t->data;
    int64_t width = t->shape[t->ndim - 1], blocks = q8_blocks(width);
    for (int64_t i = first; i < first + n; i++) {
        int64_t k = i % width, block = i / width * blocks + k / FL_Q8_BLOCK;
        *out++ = (float)q[block * FL_Q8_BLOCK + q8_place(k)] * t->block_scale[block];
    }
}

void fl_tensor_to_q8(const fl_tensor *from, const fl_tensor *to, int64_t begin, int64_t end)
{
    int64_t width = from->shape[1], blocks = q8_blocks(width);
    for (int64_t b = begin * blocks; b < end * blocks; b++) {
        int64_t k = b % blocks * FL_Q8_BLOCK, n = width - k < FL_Q8_BLOCK ? width - k : FL_Q8_BLOCK;
        float x[FL_Q8_BLOCK] = {0}, most = 0;
        if (fl_tensor_to_f32(from, b / blocks * width + k, n, x) != FL_OK)
            x[0] = float_from(0x7fc00000);
        uint32_t top = 0; /* as bits: a NaN is above all */
        for (int i = 0; i < FL_Q8_BLOCK; i++) {
            uint32_t bits = bits_of(x[i]) & 0x7fffffff;
            top = bits > top ? bits : top;
        }
        most = float_from(top);
        float d = top < 0x7f800000 ? most / 127 : float_from(0x7fc00000);
        float by = d > 0 ? 1 / d : 0; /* a denormal d has no inverse: the block becomes 0 */
        by = by <= 3.4e38f ? by : 0;
        int8_t *q = (int8_t *)to->data + b * FL_Q8_BLOCK;
        ((float *)to->block_scale)[b] = d;
        for (int i = 0; i < FL_Q8_BLOCK; i++) {
            /* Adding and taking away 1.5 * 2^23 rounds to nearest even. */
            float r = d > 0 ? x[i] * by + 0x1.8p23f : 0x1.8p23f;
            q[q8_place(i)] = (int8_t)(r - 0x1.8p23f);
        }
    }
}

fl_status fl_tensor_to_f32(const fl_tensor *t, int64_t first, int64_t n, float *out)
{
    int64_t total = fl_tensor_elements(t);
    if (!t->data || first < 0 || n < 0 || first > total || n > total - first)
        return FL_ARGUMENT;
    const uint16_t *half = t->data;
    const uint8_t *byte = t->data;
    switch (t->dtype) {
    case FL_F32:
        if (n)
            memcpy(out, (const float *)t->data + first, (size_t)n * sizeof *out);
        return FL_OK;
    case FL_BF16:
        for (int64_t i = 0; i < n; i++)
            out[i] = fl_bf16_to_f32(half[first + i]);
        return FL_OK;
    case FL_F16:
        for (int64_t i = 0; i < n; i++)
            out[i] = fl_f16_to_f32(half[first + i]);
        return FL_OK;
    case FL_F8_E4M3:
        for (int64_t i = 0; i < n; i++)
            out[i] = fl_e4m3_to_f32(byte[first + i]);
        return FL_OK;
    case FL_F8_E5M2:
        for (int64_t i = 0; i < n; i++)
            out[i] = widen(byte[first + i], 5, 2);
        return FL_OK;
    case FL_MXFP4:
        if (first % 2 || n % 2 || !t->scale)
            return FL_ARGUMENT;
        mxfp4_to_f32(t, first, n, out);
        return FL_OK;
    case FL_F8_BLOCK:
        if (t->ndim < 1 || !t->block_scale)
            return FL_ARGUMENT;
        f8_block_to_f32(t, first, n, out);
        return FL_OK;
    case FL_Q8:
        if (t->ndim < 1 || !t->block_scale)
            return FL_ARGUMENT;
        q8_to_f32(t, first, n, out);
        return FL_OK;
    default:
        return FL_UNSUPPORTED;
    }
}
