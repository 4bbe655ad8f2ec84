/* What this machine can do: the yardstick that speeds of kernels and of whole steps are held
 * against.  Measured when asked, by code of one processor level, in about a second. */
#ifndef FL_OPS_LIMITS_H
#define FL_OPS_LIMITS_H

#include "base/cpu.h"
#include "base/pool.h"

/* Of all threads of a pool together.  A multiply-add is two operations; 0: the level has no
 * instruction for it. */
typedef struct fl_machine {
    double f32, bf16, int8; /* operations per second, from registers: float32 fused multiply-adds,
                               BF16 dot products, 8-bit dot products; level AMX: those of
                               tiles */
    double memory, cache;   /* bytes read per second from memory, and from the last cache */
} fl_machine;

/* isa: at most fl_cpu_isa(). */
FL_MUST_CHECK fl_status fl_machine_measure(fl_pool *pool, fl_isa isa, fl_machine *out,
                                           fl_error *err);

/* Bytes per second of reading a file around the page cache, all threads in turn taking the next
 * piece.  FL_UNSUPPORTED where the file system cannot. */
FL_MUST_CHECK fl_status fl_machine_disk(fl_pool *pool, const char *path, double *out,
                                        fl_error *err);

/* The measuring code of one level; rates in units of work per call. */
typedef struct fl_limits_probe {
    float (*f32)(int64_t rounds);                /* 512 operations a round */
    float (*bf16)(int64_t rounds);               /* 1024; NULL: none */
    float (*int8)(int64_t rounds);               /* 2048; NULL: none */
    float (*read)(const float *data, int64_t n); /* n: a multiple of 256 */
} fl_limits_probe;

#endif
