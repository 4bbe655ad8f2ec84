/* simd.h in plain C, for any processor: a vector is an array of 16, a function a loop. */
#ifndef FL_OPS_CPU_SIMD_BASE_H
#define FL_OPS_CPU_SIMD_BASE_H

typedef struct vf {
    float x[16];
} vf;
typedef struct vi {
    int32_t x[16];
} vi;
typedef vi vm; /* a lane is -1 or 0 */
typedef vf vmx;

/* r.x[i] = expr for every lane i */
#define FL_EACH(T, expr)                                                                           \
    do {                                                                                           \
        T r;                                                                                       \
        for (int i = 0; i < 16; i++)                                                               \
            r.x[i] = (expr);                                                                       \
        return r;                                                                                  \
    } while (0)

/* a * b + c rounded once.  Where the processor cannot, through double: the product is exact there;
 * the sum is rounded to odd, which keeps the second rounding, to float, right. */
FL_INLINE float vf_fma1(float a, float b, float c)
{
#if defined(FP_FAST_FMAF)
    return fmaf(a, b, c);
#else
    double p = (double)a * b, s = p + c, t = s - p;
    double e = (p - (s - t)) + (c - t); /* what s lost; NaN when s is not finite */
    uint64_t bits;
    memcpy(&bits, &s, sizeof bits);
    uint64_t inexact = (uint64_t)(e < 0 || e > 0), even = ~bits & 1;
    /* s truncated is s, or one less when the loss points to zero; odd follows either way */
    uint64_t down = (uint64_t)((e < 0) != (s < 0));
    bits = (inexact & even) ? (down ? bits - 1 : bits + 1) : bits;
    memcpy(&s, &bits, sizeof s);
    return (float)s;
#endif
}

FL_INLINE vm vm_and(vm a, vm b)
{
    FL_EACH(vm, a.x[i] & b.x[i]);
}
FL_INLINE vm vm_or(vm a, vm b)
{
    FL_EACH(vm, a.x[i] | b.x[i]);
}
FL_INLINE vm vm_not(vm a)
{
    FL_EACH(vm, ~a.x[i]);
}
FL_INLINE uint32_t vm_bits(vm a)
{
    uint32_t bits = 0;
    for (int i = 0; i < 16; i++)
        bits |= (uint32_t)(a.x[i] != 0) << i;
    return bits;
}

FL_INLINE vf vf_set1(float x)
{
    FL_EACH(vf, x);
}
FL_INLINE vf vf_zero(void)
{
    return vf_set1(0.0f);
}
FL_INLINE vf vf_load(const float *p)
{
    FL_EACH(vf, p[i]);
}
FL_INLINE vf vf_loadn(const float *p, int n)
{
    FL_EACH(vf, i < n ? p[i] : 0.0f);
}
FL_INLINE void vf_store(float *p, vf a)
{
    memcpy(p, a.x, sizeof a.x);
}
FL_INLINE void vf_storen(float *p, vf a, int n)
{
    memcpy(p, a.x, (size_t)n * sizeof *p);
}
FL_INLINE vf vf_loadn_bf16(const uint16_t *p, int n)
{
    FL_EACH(vf, fl_bf16_to_f32(i < n ? p[i] : 0));
}
FL_INLINE vf vf_load_bf16(const uint16_t *p)
{
    return vf_loadn_bf16(p, 16);
}
FL_INLINE void vf_load_bf16_2(const uint16_t *p, vf *low, vf *high)
{
    *low = vf_load_bf16(p);
    *high = vf_load_bf16(p + 16);
}
FL_INLINE vf vf_loadn_f16(const uint16_t *p, int n)
{
    FL_EACH(vf, fl_f16_to_f32(i < n ? p[i] : 0));
}
FL_INLINE vf vf_load_f16(const uint16_t *p)
{
    return vf_loadn_f16(p, 16);
}
FL_INLINE vf vf_loadn_e4m3(const uint8_t *p, int n)
{
    FL_EACH(vf, fl_e4m3_to_f32(i < n ? p[i] : 0));
}
FL_INLINE vf vf_load_e4m3(const uint8_t *p)
{
    return vf_loadn_e4m3(p, 16);
}
FL_INLINE vf vf_loadn_i8(const int8_t *p, int n)
{
    FL_EACH(vf, i < n ? p[i] : 0);
}
FL_INLINE vf vf_load_i8(const int8_t *p)
{
    return vf_loadn_i8(p, 16);
}
FL_INLINE vi vi_load_u8(const uint8_t *p)
{
    FL_EACH(vi, p[i]);
}
FL_INLINE vf vf_load_pairs(const int8_t *even, const int8_t *odd)
{
    FL_EACH(vf, i % 2 ? odd[i / 2] : even[i / 2]);
}
FL_INLINE vmx vmx_table(float scale)
{
    FL_EACH(vmx, fl_e2m1_table[i] * scale);
}
FL_INLINE vf vmx_load(vmx t, const uint8_t *codes)
{
    FL_EACH(vf, t.x[codes[i / 2] >> i % 2 * 4 & 15]);
}

FL_INLINE vf vf_add(vf a, vf b)
{
    FL_EACH(vf, a.x[i] + b.x[i]);
}
FL_INLINE vf vf_sub(vf a, vf b)
{
    FL_EACH(vf, a.x[i] - b.x[i]);
}
FL_INLINE vf vf_mul(vf a, vf b)
{
    FL_EACH(vf, a.x[i] * b.x[i]);
}
FL_INLINE vf vf_div(vf a, vf b)
{
    FL_EACH(vf, a.x[i] / b.x[i]);
}
FL_INLINE vf vf_sqrt(vf a)
{
    FL_EACH(vf, sqrtf(a.x[i]));
}
FL_INLINE vf vf_fma(vf a, vf b, vf c)
{
    FL_EACH(vf, vf_fma1(a.x[i], b.x[i], c.x[i]));
}
FL_INLINE vf vf_neg(vf a)
{
    FL_EACH(vf, -a.x[i]);
}
FL_INLINE vf vf_abs(vf a)
{
    FL_EACH(vf, fabsf(a.x[i]));
}
FL_INLINE vf vf_min(vf a, vf b)
{
    FL_EACH(vf, a.x[i] < b.x[i] ? a.x[i] : b.x[i]);
}
FL_INLINE vf vf_max(vf a, vf b)
{
    FL_EACH(vf, a.x[i] > b.x[i] ? a.x[i] : b.x[i]);
}
FL_INLINE vm vf_lt(vf a, vf b)
{
    FL_EACH(vm, -(a.x[i] < b.x[i]));
}
FL_INLINE vm vf_le(vf a, vf b)
{
    FL_EACH(vm, -(a.x[i] <= b.x[i]));
}
FL_INLINE vm vf_eq(vf a, vf b)
{
    FL_EACH(vm, -(a.x[i] == b.x[i]));
}
FL_INLINE vf vf_select(vm m, vf a, vf b)
{
    FL_EACH(vf, m.x[i] ? a.x[i] : b.x[i]);
}

FL_INLINE vi vf_to_vi(vf a)
{
    FL_EACH(vi, (int32_t)lrintf(a.x[i]));
}
FL_INLINE vf vi_to_vf(vi a)
{
    FL_EACH(vf, (float)a.x[i]);
}
FL_INLINE vi vf_bits(vf a)
{
    vi r;
    memcpy(&r, &a, sizeof r);
    return r;
}
FL_INLINE vf vi_float(vi a)
{
    vf r;
    memcpy(&r, &a, sizeof r);
    return r;
}
FL_INLINE vi vi_set1(int32_t x)
{
    FL_EACH(vi, x);
}
FL_INLINE vi vi_load(const int32_t *p)
{
    FL_EACH(vi, p[i]);
}
FL_INLINE void vi_store(int32_t *p, vi a)
{
    memcpy(p, a.x, sizeof a.x);
}
/* Integer arithmetic wraps, as in the vector units. */
FL_INLINE vi vi_add(vi a, vi b)
{
    FL_EACH(vi, (int32_t)((uint32_t)a.x[i] + (uint32_t)b.x[i]));
}
FL_INLINE vi vi_sub(vi a, vi b)
{
    FL_EACH(vi, (int32_t)((uint32_t)a.x[i] - (uint32_t)b.x[i]));
}
FL_INLINE vi vi_and(vi a, vi b)
{
    FL_EACH(vi, a.x[i] & b.x[i]);
}
FL_INLINE vi vi_or(vi a, vi b)
{
    FL_EACH(vi, a.x[i] | b.x[i]);
}
FL_INLINE vi vi_xor(vi a, vi b)
{
    FL_EACH(vi, a.x[i] ^ b.x[i]);
}
FL_INLINE vi vi_shl(vi a, int n)
{
    FL_EACH(vi, (int32_t)((uint32_t)a.x[i] << n));
}
FL_INLINE vi vi_sar(vi a, int n)
{
    FL_EACH(vi, a.x[i] >> n);
}
FL_INLINE vi vi_max(vi a, vi b)
{
    FL_EACH(vi, a.x[i] > b.x[i] ? a.x[i] : b.x[i]);
}
FL_INLINE vm vi_lt(vi a, vi b)
{
    FL_EACH(vm, -(a.x[i] < b.x[i]));
}
FL_INLINE vm vi_eq(vi a, vi b)
{
    FL_EACH(vm, -(a.x[i] == b.x[i]));
}

FL_INLINE float vf_sum(vf a)
{
    for (int half = 8; half; half /= 2) {
        for (int i = 0; i < half; i++)
            a.x[i] += a.x[i + half];
    }
    return a.x[0];
}
FL_INLINE void vf_sum4(vf a, vf b, vf c, vf d, float *out)
{
    out[0] = vf_sum(a);
    out[1] = vf_sum(b);
    out[2] = vf_sum(c);
    out[3] = vf_sum(d);
}
FL_INLINE float vf_hmax(vf a)
{
    for (int half = 8; half; half /= 2) {
        for (int i = 0; i < half; i++)
            a.x[i] = a.x[i] > a.x[i + half] ? a.x[i] : a.x[i + half];
    }
    return a.x[0];
}
FL_INLINE int32_t vi_hmax(vi a)
{
    for (int i = 1; i < 16; i++)
        a.x[0] = a.x[i] > a.x[0] ? a.x[i] : a.x[0];
    return a.x[0];
}

typedef vf vp;
enum { FL_PART = 16 };
#define vp_zero vf_zero
#define vp_set1 vf_set1
#define vp_load vf_load
#define vp_store vf_store
#define vp_fma vf_fma
#define vp_max vf_max
FL_INLINE void vp_columns(const float *in, int64_t ldi, float *out, int64_t ldo)
{
    for (int r = 0; r < FL_PART; r++) {
        for (int l = 0; l < 4; l++)
            out[l * ldo + r] = in[r * ldi + l];
    }
}

#undef FL_EACH

#endif
