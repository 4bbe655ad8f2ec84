/* The small matrix product that attention, the indexer and the chunked delta rule are made of:
 *
 *   c[i][l] = sum over k ascending of a[i][k] * b[k][l]      i < m, l < 16 * nv
 *
 * One fused multiply-add per term, in the order of k, starting from 0 or (add) from c itself.  An
 * element of c is a chain of its own, so its bits depend neither on the other rows nor on how the
 * product is cut into tiles, and they are the same at every processor level. */
#ifndef FL_OPS_CPU_MATMUL_H
#define FL_OPS_CPU_MATMUL_H

#include "ops/cpu/cpu_internal.h"

#define fl_matmul FL_CPU_NAME(fl_matmul)
#define fl_matmul_scaled FL_CPU_NAME(fl_matmul_scaled)
#define fl_matmul_pairs FL_CPU_NAME(fl_matmul_pairs)
#define fl_transpose FL_CPU_NAME(fl_transpose)

/* lda, ldb, ldc: elements from one row to the next.  c must not overlap a or b. */
void fl_matmul(int64_t m, int nv, int64_t k, const float *a, int64_t lda, const float *b,
               int64_t ldb, float *c, int64_t ldc, bool add);

/* c[i][l] = times[i] * c[i][l] + the sum, the product rounded before it; a[i][k] lies at i * lda +
 * k * step. */
void fl_matmul_scaled(int64_t m, int nv, int64_t k, const float *a, int64_t lda, int64_t step,
                      const float *b, int64_t ldb, const float *times, float *c, int64_t ldc);

#if defined(__AVX512BF16__)
/* The same of words (pairs.h), k of them: a term is both products of a word, added as the dot
 * instruction does it.  c begins with 0, with c (add) or with times[i] * c[i][l] (unless NULL). */
void fl_matmul_pairs(int64_t m, int nv, int64_t k, const float *a, int64_t lda, int64_t step,
                     const float *b, int64_t ldb, const float *times, float *c, int64_t ldc,
                     bool add);
#endif

/* out[l][r] = in[r][l] for n rows of `width` elements.  Rows of out are ldo apart and a multiple of
 * 16 wide: the columns from n up to the next multiple are written as zero. */
void fl_transpose(int n, int64_t width, const float *in, int64_t ldi, float *out, int64_t ldo);

#endif
