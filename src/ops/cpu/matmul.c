/* fl_matmul in register tiles, and the transpose that brings keys into lanes (matmul.h). */
#include "ops/cpu/matmul.h"

#include "ops/cpu/simd.h"

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

/* Rows and vectors of a tile: as many accumulators as the registers hold. */
#if defined(__AVX512F__)
enum { TILE_M = 4, TILE_N = 4 };
#else
enum { TILE_M = 2, TILE_N = 2 };
#endif

FL_INLINE void tile(int m, int n, int64_t k, const float *a, int64_t lda, const float *b,
                    int64_t ldb, float *c, int64_t ldc, bool add)
{
    vf sum[TILE_M][TILE_N];
    FL_UNROLL
    for (int i = 0; i < m; i++) {
        FL_UNROLL
        for (int j = 0; j < n; j++)
            sum[i][j] = add ? vf_load(c + i * ldc + j * FL_LANES) : vf_zero();
    }
    for (int64_t p = 0; p < k; p++, b += ldb) {
        vf row[TILE_N];
        FL_UNROLL
        for (int j = 0; j < n; j++)
            row[j] = vf_load(b + j * FL_LANES);
        FL_UNROLL
        for (int i = 0; i < m; i++) {
            vf x = vf_set1(a[i * lda + p]);
            FL_UNROLL
            for (int j = 0; j < n; j++)
                sum[i][j] = vf_fma(x, row[j], sum[i][j]);
        }
    }
    FL_UNROLL
    for (int i = 0; i < m; i++) {
        FL_UNROLL
        for (int j = 0; j < n; j++)
            vf_store(c + i * ldc + j * FL_LANES, sum[i][j]);
    }
}

/* All rows against n vectors of b. */
FL_INLINE void column(int64_t m, int n, int64_t k, const float *a, int64_t lda, const float *b,
                      int64_t ldb, float *c, int64_t ldc, bool add)
{
    for (; m >= TILE_M; m -= TILE_M, a += TILE_M * lda, c += TILE_M * ldc)
        tile(TILE_M, n, k, a, lda, b, ldb, c, ldc, add);
    for (; m > 0; m--, a += lda, c += ldc)
        tile(1, n, k, a, lda, b, ldb, c, ldc, add);
}

void fl_matmul(int64_t m, int nv, int64_t k, const float *a, int64_t lda, const float *b,
               int64_t ldb, float *c, int64_t ldc, bool add)
{
    int j = 0;
    for (; j + TILE_N <= nv; j += TILE_N)
        column(m, TILE_N, k, a, lda, b + j * FL_LANES, ldb, c + j * FL_LANES, ldc, add);
    for (; j < nv; j++)
        column(m, 1, k, a, lda, b + j * FL_LANES, ldb, c + j * FL_LANES, ldc, add);
}

/* A strip of four rows becomes four columns. */
static void strip(int64_t width, const float *in, int64_t ldi, float *out, int64_t ldo)
{
    int64_t l = 0;
#if defined(__SSE__)
    for (; l + 4 <= width; l += 4) {
        __m128 r0 = _mm_loadu_ps(in + l), r1 = _mm_loadu_ps(in + ldi + l);
        __m128 r2 = _mm_loadu_ps(in + 2 * ldi + l), r3 = _mm_loadu_ps(in + 3 * ldi + l);
        _MM_TRANSPOSE4_PS(r0, r1, r2, r3);
        _mm_storeu_ps(out + l * ldo, r0);
        _mm_storeu_ps(out + (l + 1) * ldo, r1);
        _mm_storeu_ps(out + (l + 2) * ldo, r2);
        _mm_storeu_ps(out + (l + 3) * ldo, r3);
    }
#endif
    for (; l < width; l++) {
        for (int r = 0; r < 4; r++)
            out[l * ldo + r] = in[r * ldi + l];
    }
}

void fl_transpose(int n, int64_t width, const float *in, int64_t ldi, float *out, int64_t ldo)
{
    int r = 0, end = (n + FL_LANES - 1) / FL_LANES * FL_LANES;
    for (; r + 4 <= n; r += 4)
        strip(width, in + r * ldi, ldi, out + r, ldo);
    for (; r < end; r++) {
        for (int64_t l = 0; l < width; l++)
            out[l * ldo + r] = r < n ? in[r * ldi + l] : 0.0f;
    }
}
