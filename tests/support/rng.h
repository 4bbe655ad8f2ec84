/* A small seeded generator for property tests (splitmix64): the same seed gives the same case on
 * every machine. */
#ifndef FL_TEST_RNG_H
#define FL_TEST_RNG_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct rng {
    uint64_t state;
} rng;

static inline uint64_t rng_next(rng *r)
{
    uint64_t z = r->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* In [low, high], both included. */
static inline int64_t rng_int(rng *r, int64_t low, int64_t high)
{
    return low + (int64_t)(rng_next(r) % (uint64_t)(high - low + 1));
}

static inline bool rng_one_in(rng *r, int n)
{
    return rng_int(r, 1, n) == 1;
}

static inline float rng_float(rng *r, float low, float high)
{
    return low + (high - low) * (float)(rng_next(r) >> 40) * 0x1p-24f;
}

/* Close to a normal deviate: the sum of twelve uniform ones. */
static inline float rng_normal(rng *r)
{
    float sum = -6;
    for (int i = 0; i < 12; i++)
        sum += rng_float(r, 0, 1);
    return sum;
}

#endif
