/* Tiles of BF16 parts, 64 rows of 64 numbers, on their way from memory to wgmma.
 *
 * One thread asks the copy engine for tiles, which come to a ring of slots; the warps of one or two
 * warpgroups wait for a tile, start its products, and give it back when these are done. */
#ifndef FL_OPS_GPU_TILES_H
#define FL_OPS_GPU_TILES_H

#include "ops/gpu/mma.h"
#include "ops/gpu/wgmma.h"

enum { SIDE = 64, TILE = 8192 /* bytes */, GROUPS = 2 /* that multiply */ };
enum { MEMBERS = (int)GROUPS * (int)WGMMA_THREADS, THREADS = (int)MEMBERS + (int)WGMMA_THREADS };
enum { MOST_SHARED = 227 << 10, MOST_SLOTS = 20, SLOT_BYTES = (int)TILE + 16 /* two barriers */ };

#ifdef __CUDACC__

template <int SLOTS> struct ring {
    unsigned char *room; /* SLOTS tiles and their barriers */
    int slot, oldest;    /* tiles from the oldest up to this one are being multiplied */
    uint32_t parity;

    __device__ uint64_t *full(int s) const { return (uint64_t *)(room + SLOTS * TILE) + s; }
    __device__ uint64_t *empty(int s) const { return full(SLOTS + s); }
    __device__ unsigned char *at(void) const { return room + slot * TILE; }
    /* By one thread; warps: that multiply what comes. */
    __device__ void make(int warps = MEMBERS / GPU_LANES) const
    {
        for (int s = 0; s < SLOTS; s++) {
            barrier_init(full(s), 1);
            barrier_init(empty(s), warps);
        }
        barriers_made();
    }
    __device__ void next(void)
    {
        if (++slot == SLOTS) {
            slot = 0;
            parity ^= 1;
        }
    }
    /* Of the warp that brings. */
    __device__ void bring(const unsigned char *tile)
    {
        barrier_wait(empty(slot), parity ^ 1);
        barrier_expect(full(slot), TILE);
        bulk_load(at(), tile, TILE, full(slot));
        next();
    }
    /* Of those who multiply: the tile is there. */
    __device__ void wait(void) const { barrier_wait(full(slot), parity); }
    /* Its products are on their way. */
    __device__ void start(void)
    {
        wgmma_commit();
        next();
    }
    /* All products but those of the last N tiles are done; COUNT tiles are given back. */
    template <int N, int COUNT> __device__ void settle(void)
    {
        wgmma_wait<N>();
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            if (threadIdx.x % GPU_LANES == 0)
                barrier_arrive(empty(oldest));
            oldest = oldest + 1 == SLOTS ? 0 : oldest + 1;
        }
    }
    /* Lets n tiles pass. */
    __device__ void pass(int n)
    {
        for (int i = 0; i < n; i++) {
            wait();
            next();
            settle<0, 1>();
        }
    }
};

/* Where elements c and c + 1 of a row lie in a tile. */
static __device__ inline int tile_at(int row, int c)
{
    return row * WGMMA_ROW_BYTES + (c / 8 ^ row % 8) * 16 + c % 8 * 2;
}

template <int PARTS>
static __device__ inline void put_pair(unsigned char *tile, int at, float x, float y)
{
    uint32_t both[PARTS];
    pair_parts<PARTS>(x, y, both);
#pragma unroll
    for (int p = 0; p < PARTS; p++)
        *(uint32_t *)(tile + p * TILE + at) = both[p];
}

#endif
#endif
