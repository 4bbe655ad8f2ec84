/* mla, the expanded form, for rows in whole blocks of the chunk grid that see every position up to
 * their own (mla_expand_mma.cu): a window of cached rows is expanded to the keys and values of
 * every head once, and attention goes over them with keys and values as long as they are, where the
 * absorbed form multiplies with whole latents.
 *
 * Maxima, sums and values of a row are kept from window to window as they are, so the length of a
 * window does not show in a result, nor does what else is in the step. */
#ifndef FL_OPS_GPU_MLA_EXPAND_H
#define FL_OPS_GPU_MLA_EXPAND_H

#include "ops/gpu/mla.h"

/* Everything that is multiplied lies in tiles: 64 rows of 64 BF16 numbers, as wgmma reads them. */
enum { EXPAND_TILE = 8192 /* bytes */, EXPAND_SIDE = 64 };
enum { EXPAND_LATENT = 512, EXPAND_NOPE = 128, EXPAND_PE = 64, EXPAND_VALUES = 128 }; /* at most */
static const int64_t EXPAND_SCRATCH = (int64_t)256 << 20; /* of a window */

typedef struct mla_expand {
    mla_args a;     /* row0, rows: whole blocks of one sequence */
    int seq;        /* this one */
    int64_t first;  /* the block of its positions that row0 begins */
    int64_t block0; /* the window: blocks of its positions */
    int blocks;
    int planes;             /* tiles across a latent */
    float2 *run;            /* [rows][heads]: maximum and sum; the values wait in the output */
    unsigned char *latents; /* [blocks][planes][parts of a cached number] tiles of 64 positions */
    unsigned char *pe;      /* [blocks][parts]: what keys of all heads have in common */
    unsigned char *own;     /* [heads][blocks][4][parts]: keys, then values, which are transposed */
} mla_expand;

static inline bool mla_expand_fits(fl_dtype kv_b, int64_t latent, int64_t nope, int64_t pe,
                                   int64_t dv)
{
    return kv_b == FL_BF16 && latent % 8 == 0 && latent <= EXPAND_LATENT && nope <= EXPAND_NOPE &&
           pe <= EXPAND_PE && dv <= EXPAND_VALUES;
}

/* Parts of a cached number: those that are BF16 numbers anyway have one. */
static inline int mla_expand_cached_parts(fl_dtype cache, int parts)
{
    return cache == FL_BF16 || cache == FL_F8_E4M3 ? 1 : parts;
}

static inline int64_t mla_expand_planes(int64_t latent)
{
    return (latent + EXPAND_SIDE - 1) / EXPAND_SIDE;
}

static inline int64_t mla_expand_run_bytes(int64_t heads, int64_t rows)
{
    return (heads * rows * 8 + 1023) / 1024 * 1024;
}

/* Bytes of a block of a window. */
static inline int64_t mla_expand_block_bytes(int64_t heads, int64_t latent, int cached, int parts)
{
    return (mla_expand_planes(latent) * cached + parts + heads * 4 * parts) * EXPAND_TILE;
}

/* The most blocks of a window when there are so many in all. */
static inline int64_t mla_expand_window(int64_t heads, int64_t latent, int cached, int parts,
                                        int64_t all)
{
    int64_t fit = EXPAND_SCRATCH / mla_expand_block_bytes(heads, latent, cached, parts);
    return fit < 1 ? 1 : gpu_min(fit, all);
}

static inline int64_t mla_expand_scratch(int64_t heads, int64_t latent, fl_dtype cache, int parts,
                                         const fl_limits *limits)
{
    int cached = mla_expand_cached_parts(cache, parts);
    int64_t all = (limits->max_context + EXPAND_SIDE - 1) / EXPAND_SIDE;
    return mla_expand_run_bytes(heads, limits->max_rows) +
           mla_expand_window(heads, latent, cached, parts, all) *
               mla_expand_block_bytes(heads, latent, cached, parts);
}

/* Rows a.row0 on, a.rows of them, which are whole blocks of sequence seq from its block `first` on;
 * cache: its type; parts: of an activation, 1 or 3. */
void mla_expand_rows(const mla_args &a, fl_dtype cache, int parts, int seq, int64_t first,
                     void *scratch, gpu_queue *q);

/* Its last step, for a window that is expanded. */
void mla_expand_attend(const mla_expand &e, int parts, gpu_queue *q);

#endif
