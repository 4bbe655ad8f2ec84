/* fl_matmul in register tiles, and the transpose that brings keys into lanes (matmul.h). */
#include "ops/cpu/matmul.h"

#include "ops/cpu/pairs.h"

/* Rows and vectors of a tile: as many accumulators as the registers hold.  One of a single vector
 * is taller, to have as many chains. */
#if defined(__AVX512F__)
enum { TILE_M = 4, TILE_N = 4, TALL = 8 };
#else
enum { TILE_M = 2, TILE_N = 2, TALL = 4 };
#endif

/* What one multiplies: numbers, or words of two. */
typedef enum what { FLOATS, PAIRS } what;

/* The operands: a[i * lda + k * step], and what c is multiplied with beforehand (times[i]; NULL:
 * with 1 or, unless add, with 0). */
typedef struct product {
    int64_t k;
    const float *a;
    int64_t lda, step;
    const float *b;
    int64_t ldb;
    float *c;
    int64_t ldc;
    bool add;
    const float *times;
} product;

FL_INLINE vf begin(const product *x, int i, const float *c)
{
    if (x->times)
        return vf_mul(vf_set1(x->times[i]), vf_load(c));
    return x->add ? vf_load(c) : vf_zero();
}

FL_INLINE vf term(what kind, vf a, vf b, vf sum)
{
#if defined(__AVX512BF16__)
    if (kind == PAIRS)
        return vf_dot(sum, vf_bits(a), vf_bits(b));
#else
    (void)kind;
#endif
    return vf_fma(a, b, sum);
}

FL_INLINE void tile(what kind, int m, int n, product x)
{
    vf sum[TALL][TILE_N];
    FL_UNROLL
    for (int i = 0; i < m; i++) {
        FL_UNROLL
        for (int j = 0; j < n; j++)
            sum[i][j] = begin(&x, i, x.c + i * x.ldc + j * FL_LANES);
    }
    for (int64_t p = 0; p < x.k; p++, x.a += x.step, x.b += x.ldb) {
        vf row[TILE_N];
        FL_UNROLL
        for (int j = 0; j < n; j++)
            row[j] = vf_load(x.b + j * FL_LANES);
        FL_UNROLL
        for (int i = 0; i < m; i++) {
            vf by = vf_set1(x.a[i * x.lda]);
            FL_UNROLL
            for (int j = 0; j < n; j++)
                sum[i][j] = term(kind, by, row[j], sum[i][j]);
        }
    }
    FL_UNROLL
    for (int i = 0; i < m; i++) {
        FL_UNROLL
        for (int j = 0; j < n; j++)
            vf_store(x.c + i * x.ldc + j * FL_LANES, sum[i][j]);
    }
}

FL_INLINE void advance(product *x, int rows)
{
    x->a += rows * x->lda;
    x->c += rows * x->ldc;
    if (x->times)
        x->times += rows;
}

/* All rows against n vectors of b, `tall` rows at a time. */
FL_INLINE void column(what kind, int64_t m, int n, int tall, product x)
{
    for (; m >= tall; m -= tall, advance(&x, tall))
        tile(kind, tall, n, x);
    for (; m > 0; m--, advance(&x, 1))
        tile(kind, 1, n, x);
}

FL_INLINE void multiply(what kind, int64_t m, int nv, product x)
{
    int j = 0;
    for (; j + TILE_N <= nv; j += TILE_N, x.b += TILE_N * FL_LANES, x.c += TILE_N * FL_LANES)
        column(kind, m, TILE_N, TILE_M, x);
    for (; j < nv; j++, x.b += FL_LANES, x.c += FL_LANES)
        column(kind, m, 1, TALL, x);
}

void fl_matmul(int64_t m, int nv, int64_t k, const float *a, int64_t lda, const float *b,
               int64_t ldb, float *c, int64_t ldc, bool add)
{
    product x = {k, a, lda, 1, b, ldb, c, ldc, add, NULL};
    multiply(FLOATS, m, nv, x);
}

void fl_matmul_scaled(int64_t m, int nv, int64_t k, const float *a, int64_t lda, int64_t step,
                      const float *b, int64_t ldb, const float *times, float *c, int64_t ldc)
{
    product x = {k, a, lda, step, b, ldb, c, ldc, true, times};
    multiply(FLOATS, m, nv, x);
}

#if defined(__AVX512BF16__)
void fl_matmul_pairs(int64_t m, int nv, int64_t k, const float *a, int64_t lda, int64_t step,
                     const float *b, int64_t ldb, const float *times, float *c, int64_t ldc,
                     bool add)
{
    product x = {k, a, lda, step, b, ldb, c, ldc, add, times};
    multiply(PAIRS, m, nv, x);
}
#endif

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
