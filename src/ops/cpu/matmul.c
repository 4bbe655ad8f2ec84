/* fl_matmul in register tiles, and the transpose that brings keys into lanes (matmul.h). */
#include "ops/cpu/matmul.h"

#include "ops/cpu/simd.h"

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

void fl_transpose(int n, int64_t width, const float *in, int64_t ldi, float *out, int64_t ldo)
{
    int end = (n + FL_LANES - 1) / FL_LANES * FL_LANES;
    for (int r = 0; r < end; r += FL_PART) {
        const float *rows = in + r * ldi;
        int m = r < n ? n - r : 0;
        int64_t l = 0;
        if (m >= FL_PART) {
            m = FL_PART;
            for (; l + 4 <= width; l += 4)
                vp_columns(rows + l, ldi, out + l * ldo + r, ldo);
        }
        for (; l < width; l += 4) { /* fewer rows or columns: by way of a full tile */
            float tile[FL_PART * 4] = {0}, turned[4 * FL_PART];
            size_t columns = width - l < 4 ? (size_t)(width - l) : 4;
            for (int i = 0; i < m; i++)
                memcpy(tile + 4 * i, rows + i * ldi + l, columns * sizeof *tile);
            vp_columns(tile, 4, turned, FL_PART);
            for (size_t c = 0; c < columns; c++)
                vp_store(out + (l + (int64_t)c) * ldo + r, vp_load(turned + c * FL_PART));
        }
    }
}
