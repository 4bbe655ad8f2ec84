/* mla on matrix units: what a block has in shared memory, and how cached rows come there and become
 * BF16 numbers. */
#ifndef FL_OPS_GPU_MLA_MMA_H
#define FL_OPS_GPU_MLA_MMA_H

#include "ops/gpu/mla.h"
#include "ops/gpu/parts.h"

enum { TEAM = 4 /* warps per HEADS */, HEADS = 16, KEYS = 32, STEP = 16 };
enum { GROUPS = 5 /* of FL_CACHE_GROUP elements in a row, at most */ };

/* What follows from the cache's format F and the parts Q of a query. */
template <int F, int Q> struct form {
    enum {
        PARTS = F == FL_F32 && Q == 3 ? 3 : 1, /* of a cached element */
        RAW = F != FL_BF16,                    /* rows are not BF16 numbers as they are */
        SCALED = F == FL_I8,                   /* codes are multiplied by factors afterwards */
        SETS = F == FL_I8 ? 4 : 1,             /* of weights: one per group of values */
        ROOMS = F == FL_BF16 ? 2 : (int)PARTS, /* planes of KEYS rows */
    };
};

/* The fixed part of a block's shared memory. */
template <int F, int Q, int TILES> struct desk {
    float partial[TEAM][TILES * HEADS][KEYS + 8];
    uint16_t weight[form<F, Q>::SETS][Q][TILES * HEADS][KEYS + 8];
    float factor[GROUPS][KEYS];
    float shrink[TILES * HEADS], there[2][KEYS];
};

/* Elements from one row of a plane to the next: rows begin in different banks. */
static inline __host__ __device__ int pitch_of(int whole)
{
    return whole + 8;
}

/* The sizes of a row, known when the kernel is made: WHOLE elements of which LATENT are values; or
 * zero: at most so many that a warp has STEPS sums of 16 elements and COLS columns of 8. */
template <int WHOLE, int LATENT, int MAX_STEPS, int MAX_COLS> struct sizes {
    enum { STEPS = MAX_STEPS, COLS = MAX_COLS, EXACT = WHOLE != 0 };
    static __device__ inline int whole(const mla_args &a)
    {
        return WHOLE ? WHOLE : a.latent + a.pe;
    }
    static __device__ inline int latent(const mla_args &a) { return LATENT ? LATENT : a.latent; }
    /* Bytes of a cached row; where its factors begin. */
    template <int F> static __device__ inline int bytes(const mla_args &a)
    {
        const int codes = (WHOLE + 15) / 16 * 16, groups = (WHOLE + 127) / 128;
        if (!WHOLE)
            return F == FL_BF16 ? (a.latent + a.pe) * 2 : (int)a.row_bytes;
        return F == FL_F32 ? WHOLE * 4 : F == FL_BF16 ? WHOLE * 2 : codes + (groups + 3) / 4 * 16;
    }
};

/* The item of the key that this lane looks up, of KEYS from entry k0 on; -1: it is none. */
static __device__ inline int look_up(const mla_args &a, const gpu_seq &seq, const int32_t *select,
                                     int64_t k0, int64_t end, int64_t visible)
{
    int64_t at = k0 + threadIdx.x % KEYS;
    int64_t pos = at >= end ? -1 : select ? select[at] : at;
    return pos >= 0 && pos < visible ? (int)step_item(a.step, seq, pos) : -1;
}

/* Starts bringing this warp's share of the rows that the lanes looked up, `bytes` of each, to rows
 * `pitch` bytes apart; there[i]: whether key i is one.  Rows of no key become zero. */
template <int WARPS>
static __device__ inline void bring_rows(const mla_args &a, int looked, unsigned char *to,
                                         int bytes, int pitch, float *there)
{
    const int lane = threadIdx.x % GPU_LANES, first = threadIdx.x / GPU_LANES * (KEYS / WARPS);
    const int pieces = bytes / 16, all = pieces * (KEYS / WARPS);
#pragma unroll
    for (int i0 = 0; i0 < all; i0 += GPU_LANES) {
        int i = i0 + lane, key = first + (i < all ? i / pieces : 0), c = i % pieces * 16;
        int item = __shfl_sync(0xffffffffu, looked, key, GPU_LANES);
        if (i < all)
            copy_or_zero(to + key * pitch + c, a.base + (item < 0 ? 0 : item) * a.item_bytes + c,
                         item >= 0);
    }
    copies_commit();
    if (threadIdx.x < KEYS)
        there[threadIdx.x] = looked >= 0 ? 1 : 0;
}

/* Two of four codes become BF16 numbers: a code's bits moved there are 2^-120 times what it means.
 */
static __device__ inline uint32_t two_codes(uint32_t word, uint32_t bytes, float by)
{
    uint32_t t = __byte_perm(word, 0, bytes), u = (t & 0x80008000) | (t >> 4 & 0x07f007f0);
    __nv_bfloat162 x;
    memcpy(&x, &u, 4);
    x = __hmul2(__hmul2(x, __float2bfloat162_rn(0x1p120f)), __float2bfloat162_rn(by));
    memcpy(&u, &x, 4);
    return u;
}

/* Code j of four whose signs are turned: 2^23 more than the float that has it for its last byte. */
static __device__ inline float signed_code(uint32_t turned, int j)
{
    return __uint_as_float(__byte_perm(turned, 0x4b000000, 0x7650 + j)) - (0x1p23f + 128);
}

/* Makes BF16 numbers of the rows that this warp brought. */
template <int F, int Q, int WARPS, typename SIZE>
static __device__ inline void convert_rows(const mla_args &a, const unsigned char *raw,
                                           uint16_t *plane, float factor[][KEYS])
{
    enum { PARTS = form<F, Q>::PARTS };
    const int lane = threadIdx.x % GPU_LANES, whole = SIZE::whole(a), pitch = pitch_of(whole);
    const int first = threadIdx.x / GPU_LANES * (KEYS / WARPS), bytes = SIZE::template bytes<F>(a);
    const int pieces = whole / 4, all = pieces * (KEYS / WARPS), scales = (whole + 15) / 16 * 16;
#pragma unroll 6
    for (int i0 = lane; i0 < all; i0 += GPU_LANES) {
        int key = first + i0 / pieces, c = i0 % pieces * 4;
        const unsigned char *row = raw + key * bytes;
        uint32_t lo[PARTS], hi[PARTS];
        if (F == FL_F32) {
            float4 x = *(const float4 *)(row + 4 * c);
            pair_parts<PARTS>(x.x, x.y, lo);
            pair_parts<PARTS>(x.z, x.w, hi);
        } else if (F == FL_I8) {
            uint32_t codes = *(const uint32_t *)(row + c) ^ 0x80808080;
            pair_parts<1>(signed_code(codes, 0), signed_code(codes, 1), lo);
            pair_parts<1>(signed_code(codes, 2), signed_code(codes, 3), hi);
        } else {
            uint32_t codes = *(const uint32_t *)(row + c);
            float by = ((const float *)(row + scales))[c / FL_CACHE_GROUP];
            lo[0] = two_codes(codes, 0x1404, by);
            hi[0] = two_codes(codes, 0x3424, by);
        }
#pragma unroll
        for (int p = 0; p < PARTS; p++)
            *(uint2 *)(plane + (p * KEYS + key) * pitch + c) = make_uint2(lo[p], hi[p]);
    }
    for (int i = lane; form<F, Q>::SCALED && i < GROUPS * (KEYS / WARPS); i += GPU_LANES) {
        int key = first + i / GROUPS, group = i % GROUPS;
        if (group * FL_CACHE_GROUP < whole)
            factor[group][key] = ((const float *)(raw + key * bytes + scales))[group];
    }
}

#endif
