/* Reading the rows of weights of every type into vectors: what weights.c and bf16.c begin with. */
#ifndef FL_OPS_CPU_WEIGHTS_READ_H
#define FL_OPS_CPU_WEIGHTS_READ_H

#include "base/mem.h"
#include "ops/cpu/simd.h"

/* 2^(s - 127) as the bits of a float32; 255 is NaN. */
#define E8M0(s) ((uint32_t)(s) << 23 | ((s) == 0 || (s) == 255 ? 0x00400000u : 0))
#define E8M0_4(s) E8M0(s), E8M0((s) + 1), E8M0((s) + 2), E8M0((s) + 3)
#define E8M0_16(s) E8M0_4(s), E8M0_4((s) + 4), E8M0_4((s) + 8), E8M0_4((s) + 12)
#define E8M0_64(s) E8M0_16(s), E8M0_16((s) + 16), E8M0_16((s) + 32), E8M0_16((s) + 48)
static const uint32_t e8m0[256] = {E8M0_64(0), E8M0_64(64), E8M0_64(128), E8M0_64(192)};

/* A row of a weight. */
typedef struct wrow {
    const unsigned char *data;
    const uint8_t *scale;     /* MXFP4 */
    const float *block_scale; /* F8_BLOCK, Q8 */
} wrow;

FL_INLINE int64_t bytes_of(fl_dtype t, int64_t elements)
{
    return t == FL_MXFP4                    ? elements / 2
           : t == FL_F8_BLOCK || t == FL_Q8 ? elements
                                            : elements * (t == FL_F32 ? 4 : 2);
}

/* Row n of w, a tensor of type t, from element k on, a multiple of 128. */
FL_INLINE wrow row_at(const fl_tensor *w, fl_dtype t, int64_t n, int64_t k)
{
    const unsigned char *data = w->data;
    int64_t at = n * w->shape[1] + k;
    if (t == FL_Q8) { /* rows are whole blocks */
        int64_t block = n * fl_f8_blocks(w->shape[1]) + k / FL_Q8_BLOCK;
        return (wrow){data + block * FL_Q8_BLOCK, NULL, w->block_scale + block};
    }
    wrow r = {data + bytes_of(t, at), NULL, NULL};
    if (t == FL_MXFP4)
        r.scale = w->scale + at / FL_MX_GROUP;
    if (t == FL_F8_BLOCK)
        r.block_scale =
            w->block_scale + n / FL_F8_SIDE * fl_f8_blocks(w->shape[1]) + k / FL_F8_SIDE;
    return r;
}

/* Elements [k, k + 16); k is a multiple of 16. */
FL_INLINE vf load16(fl_dtype t, wrow w, int64_t k)
{
    if (t == FL_F32)
        return vf_load((const float *)w.data + k);
    if (t == FL_MXFP4) {
        float scale;
        memcpy(&scale, &e8m0[w.scale[k / FL_MX_GROUP]], sizeof scale);
        return vmx_load(vmx_table(scale), w.data + k / 2);
    }
    if (t == FL_F8_BLOCK)
        return vf_mul(vf_load_e4m3(w.data + k), vf_set1(w.block_scale[k / FL_F8_SIDE]));
    if (t == FL_Q8) {
        const int8_t *even =
            (const int8_t *)w.data + k / FL_Q8_BLOCK * FL_Q8_BLOCK + k % FL_Q8_BLOCK / 2;
        return vf_mul(vf_load_pairs(even, even + FL_Q8_BLOCK / 2),
                      vf_set1(w.block_scale[k / FL_Q8_BLOCK]));
    }
    const uint16_t *p = (const uint16_t *)w.data + k;
    return t == FL_BF16 ? vf_load_bf16(p) : vf_load_f16(p);
}

/* n <= 16 elements from k on; never asked of MXFP4, whose rows are whole groups of 32. */
FL_INLINE vf load_rest(fl_dtype t, wrow w, int64_t k, int n)
{
    if (t == FL_F32)
        return vf_loadn((const float *)w.data + k, n);
    if (t == FL_Q8) /* a row ends with zeros */
        return load16(t, w, k);
    if (t == FL_F8_BLOCK)
        return vf_mul(vf_loadn_e4m3(w.data + k, n), vf_set1(w.block_scale[k / FL_F8_SIDE]));
    const uint16_t *p = (const uint16_t *)w.data + k;
    return t == FL_BF16 ? vf_loadn_bf16(p, n) : vf_loadn_f16(p, n);
}

#endif
