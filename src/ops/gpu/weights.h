/* Weights as kernels read them: in their stored format, decoded to float32 in registers.
 *
 * A lane reads a group of consecutive elements, 16 bytes of any format (of MXFP4 that is one group
 * with one scale); lane l of a warp reads the groups l, l + 32, ... of a row.  A product of a row
 * with a vector is summed by each lane over its groups in ascending order and then over the lanes:
 * that order is a function of the row's length and format alone, whatever else a kernel computes
 * beside it, and so are the bits of the result. */
#ifndef FL_OPS_GPU_WEIGHTS_H
#define FL_OPS_GPU_WEIGHTS_H

#include "ops/gpu/gpu.h"

/* A matrix [n, k] or a stack of them at equal distances. */
typedef struct gpu_weight {
    const uint8_t *data, *scale;
    int64_t data_step, scale_step; /* bytes from one tensor to the next */
    int64_t n, k;                  /* rows are k elements; of Q8, k rounded up to whole blocks */
} gpu_weight;

/* Vectors [first, first + n) of a list, which all meet this tensor of a stack. */
typedef struct gpu_run {
    int32_t tensor, first, n;
} gpu_run;

static inline gpu_weight gpu_weight_of(const fl_arg *a)
{
    const fl_tensor *t = a->tensors;
    gpu_weight w = {};
    w.data = (const uint8_t *)t[0].data;
    w.scale = t[0].scale ? t[0].scale : (const uint8_t *)t[0].block_scale;
    if (a->type.n_tensors > 1) {
        w.data_step = (const uint8_t *)t[1].data - w.data;
        const uint8_t *next = t[1].scale ? t[1].scale : (const uint8_t *)t[1].block_scale;
        w.scale_step = next ? next - w.scale : 0;
    }
    w.k = a->type.dim[a->type.ndim - 1];
    w.n = fl_type_width(&a->type) / w.k;
    if (a->type.dtype == FL_Q8)
        w.k = (w.k + FL_Q8_BLOCK - 1) / FL_Q8_BLOCK * FL_Q8_BLOCK;
    return w;
}

/* Runs CODE with T set to the format at compile time; not for Q8, which only linear reads. */
#define GPU_FOR_DTYPE(dtype, CODE)                                                                 \
    switch (dtype) {                                                                               \
    case FL_F32: {                                                                                 \
        enum { T = FL_F32 };                                                                       \
        CODE;                                                                                      \
        break;                                                                                     \
    }                                                                                              \
    case FL_BF16: {                                                                                \
        enum { T = FL_BF16 };                                                                      \
        CODE;                                                                                      \
        break;                                                                                     \
    }                                                                                              \
    case FL_F16: {                                                                                 \
        enum { T = FL_F16 };                                                                       \
        CODE;                                                                                      \
        break;                                                                                     \
    }                                                                                              \
    case FL_F8_BLOCK: {                                                                            \
        enum { T = FL_F8_BLOCK };                                                                  \
        CODE;                                                                                      \
        break;                                                                                     \
    }                                                                                              \
    default: {                                                                                     \
        enum { T = FL_MXFP4 };                                                                     \
        CODE;                                                                                      \
    }                                                                                              \
    }

/* Elements of 16 bytes. */
template <int T> struct gpu_group {
    enum { N = T == FL_F32 ? 4 : T == FL_F8_BLOCK || T == FL_Q8 ? 16 : T == FL_MXFP4 ? 32 : 8 };
};

#ifdef __CUDACC__

static __device__ inline float half_bits(uint32_t bits)
{
    __half_raw h;
    h.x = (unsigned short)bits;
    return __half2float(h);
}

/* The bits of E4M3 ("fn") moved into a half are 2^-8 times the number, those of E2M1 2^-14 times:
 * what decodes them multiplies with this, or the vector that they meet was. */
template <int T> static __device__ inline float lacking(void)
{
    return T == FL_F8_BLOCK ? 256.0f : T == FL_MXFP4 ? 16384.0f : 1.0f;
}

static __device__ inline float e4m3_low(uint32_t x)
{
    float v = half_bits((x & 0x80) << 8 | (x & 0x7f) << 7);
    return (x & 0x7f) == 0x7f ? __uint_as_float(0x7fc00000) : v;
}

/* 2^(x - 127); 255 is NaN. */
static __device__ inline float e8m0(uint32_t x)
{
    return __uint_as_float(x == 255 ? 0x7fc00000 : x == 0 ? 0x00400000 : x << 23);
}

/* What multiplies every element of a group. */
template <int T>
static __device__ inline float group_scale(const gpu_weight &w, int64_t tensor, int64_t n,
                                           int64_t k)
{
    const uint8_t *s = w.scale + tensor * w.scale_step;
    if (T == FL_MXFP4)
        return e8m0(s[(n * w.k + k) / FL_MX_GROUP]);
    if (T == FL_F8_BLOCK)
        return ((const float *)
                    s)[n / FL_F8_SIDE * ((w.k + FL_F8_SIDE - 1) / FL_F8_SIDE) + k / FL_F8_SIDE];
    if (T == FL_Q8)
        return ((const float *)s)[(n * w.k + k) / FL_Q8_BLOCK];
    return 1;
}

/* Elements 4 j to 4 j + 3 of a group; not yet times the scale, nor times what they lack. */
template <int T> static __device__ inline void unpack4(const uint4 &raw, int j, float out[4])
{
    const uint32_t word[4] = {raw.x, raw.y, raw.z, raw.w};
    if (T == FL_F32) {
        for (int i = 0; i < 4; i++)
            out[i] = __uint_as_float(word[i]);
    } else if (T == FL_BF16) {
        for (int i = 0; i < 4; i++) {
            uint32_t w = word[2 * j + i / 2];
            out[i] = __uint_as_float(i % 2 ? w & 0xffff0000 : w << 16);
        }
    } else if (T == FL_F16) {
        for (int i = 0; i < 4; i++)
            out[i] = half_bits(word[2 * j + i / 2] >> (i % 2 * 16));
    } else if (T == FL_F8_BLOCK) {
        for (int i = 0; i < 4; i++)
            out[i] = e4m3_low(word[j] >> (8 * i) & 0xff);
    } else if (T == FL_Q8) {
        for (int i = 0; i < 4; i++)
            out[i] = (float)(int8_t)(word[j] >> (8 * i));
    } else {
        /* Nibbles i and i + 4 of a word become two halves: sign to bit 15, the rest to bits 11 to
         * 9. */
        for (int i = 0; i < 4; i++) {
            uint32_t t = word[j / 2] >> (4 * i);
            uint32_t two = (t << 12 & 0x80008000) | (t << 9 & 0x0e000e00);
            out[i] = half_bits(j % 2 ? two >> 16 : two);
        }
    }
}

/* One element, decoded. */
template <int T>
static __device__ inline float weight_at(const gpu_weight &w, int64_t tensor, int64_t n, int64_t k)
{
    const uint8_t *d = w.data + tensor * w.data_step;
    int64_t i = n * w.k + k;
    if (T == FL_F32)
        return ((const float *)d)[i];
    if (T == FL_BF16)
        return __uint_as_float((uint32_t)((const uint16_t *)d)[i] << 16);
    if (T == FL_F16)
        return half_bits(((const uint16_t *)d)[i]);
    if (T == FL_F8_BLOCK)
        return e4m3_low(d[i]) * lacking<T>() * group_scale<T>(w, tensor, n, k);
    uint32_t c = d[i / 2] >> (i % 2 * 4) & 15;
    return half_bits((c & 8) << 12 | (c & 7) << 9) * lacking<T>() * group_scale<T>(w, tensor, n, k);
}

/* The 16 bytes of the group that begins at element k of row n.  Rows that are no whole number of
 * groups are gathered element by element; what lies beyond the row is zero. */
template <int T, bool WHOLE>
static __device__ inline uint4 load_group(const gpu_weight &w, int64_t tensor, int64_t n, int64_t k)
{
    enum { N = gpu_group<T>::N };
    const uint8_t *d = w.data + tensor * w.data_step;
    int64_t at = n * w.k + k;
    if (WHOLE)
        return __ldg((const uint4 *)(d + at * 16 / N));
    uint32_t word[4] = {0, 0, 0, 0};
    for (int i = 0; i < N; i++) { /* MXFP4 rows are whole groups, always */
        if (k + i >= w.k || T == FL_MXFP4)
            break;
        if (T == FL_F32)
            word[i % 4] = ((const uint32_t *)d)[at + i];
        else if (T == FL_F8_BLOCK)
            word[i / 4] |= (uint32_t)d[at + i] << (i % 4 * 8);
        else
            word[i / 2 % 4] |= (uint32_t)((const uint16_t *)d)[at + i] << (i % 2 * 16);
    }
    return make_uint4(word[0], word[1], word[2], word[3]);
}

/* Where element k of a vector lies in shared memory: each lane finds four elements of its group in
 * one access, and the lanes of a warp theirs side by side. */
template <int T> static __device__ inline int spread(int k)
{
    enum { N = gpu_group<T>::N };
    if (T == FL_Q8) /* of each block, the even elements stand before the odd ones */
        k = k / FL_Q8_BLOCK * FL_Q8_BLOCK + k % FL_Q8_BLOCK / 2 + k % 2 * (FL_Q8_BLOCK / 2);
    int group = k / N, in = k % N, lane = group % GPU_LANES, turn = group / GPU_LANES;
    return ((turn * (N / 4) + in / 4) * GPU_LANES + lane) * 4 + in % 4;
}

/* Adds to acc[o][r] this lane's part of row n0 + o (below n_end) times vector r, over the elements
 * [k0, k0 + len) of both; xs: the vectors in the order of `spread`, `room` floats each, times what
 * the weights lack. */
template <int T, bool WHOLE, int OUT, int R>
static __device__ inline void dot_rows(const gpu_weight &w, int64_t tensor, int64_t n0,
                                       int64_t n_end, int64_t k0, int len, const float *xs,
                                       int room, float acc[OUT][R])
{
    enum { N = gpu_group<T>::N };
    int lane = threadIdx.x % GPU_LANES;
    for (int k = lane * N, turn = 0; k < len; k += GPU_LANES * N, turn++) {
        uint4 raw[OUT];
        float scale[OUT], sum[OUT][R];
#pragma unroll
        for (int o = 0; o < OUT; o++) {
            int64_t n = n0 + o < n_end ? n0 + o : n_end - 1;
            raw[o] = load_group<T, WHOLE>(w, tensor, n, k0 + k);
            scale[o] = group_scale<T>(w, tensor, n, k0 + k);
#pragma unroll
            for (int r = 0; r < R; r++)
                sum[o][r] = 0;
        }
#pragma unroll
        for (int j = 0; j < N / 4; j++) {
            float4 x[R];
#pragma unroll
            for (int r = 0; r < R; r++)
                x[r] = ((const float4 *)(xs + r * room))[(turn * (N / 4) + j) * GPU_LANES + lane];
#pragma unroll
            for (int o = 0; o < OUT; o++) {
                float v[4];
                unpack4<T>(raw[o], j, v);
#pragma unroll
                for (int r = 0; r < R; r++) {
                    sum[o][r] = fmaf(v[0], x[r].x, sum[o][r]);
                    sum[o][r] = fmaf(v[1], x[r].y, sum[o][r]);
                    sum[o][r] = fmaf(v[2], x[r].z, sum[o][r]);
                    sum[o][r] = fmaf(v[3], x[r].w, sum[o][r]);
                }
            }
        }
#pragma unroll
        for (int o = 0; o < OUT; o++) {
#pragma unroll
            for (int r = 0; r < R; r++)
                acc[o][r] = T == FL_MXFP4 || T == FL_F8_BLOCK || T == FL_Q8
                                ? fmaf(sum[o][r], scale[o], acc[o][r])
                                : acc[o][r] + sum[o][r];
        }
    }
}

#endif
#endif
