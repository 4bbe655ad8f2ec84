/* Cases of linear. */
#include "support/ops_gen.h"

#include <math.h>

/* Scales at the low end, where 2^(s - 127) is a denormal float, and at the high end. */
static void odd_scales(tc *c, int i)
{
    const fl_tensor *t = c->in[i].tensors;
    for (int64_t g = 0; g < fl_tensor_elements(t) / FL_MX_GROUP; g++) {
        if (rng_one_in(c->random, 6))
            ((uint8_t *)t->scale)[g] =
                (uint8_t)(rng_one_in(c->random, 2) ? rng_int(c->random, 0, 3)
                                                   : rng_int(c->random, 180, 190));
    }
}

static void make_linear(tc *c)
{
    static const fl_dtype types[] = {FL_F32, FL_BF16, FL_F16, FL_F8_BLOCK, FL_Q8, FL_MXFP4};
    rng *r = c->random;
    tc_step_random(c, rng_one_in(r, 3) ? 70 : 10, 200);
    fl_dtype type = types[rng_int(r, 0, 5)];
    int64_t k = rng_int(r, 1, rng_one_in(r, 4) ? 1100 : 130);
    if (rng_one_in(r, 20))
        k = rng_int(r, 2030, 4200); /* more than a piece of bf16.h */
    if (type == FL_MXFP4)
        k = (k + 31) / 32 * 32;
    bool heads = k % 2 == 0 && rng_one_in(r, 2);
    int x = tc_rows(c, ops_row_symbol(c), FL_F32, heads ? 2 : 1,
                    heads ? (int64_t[]){2, k / 2} : (int64_t[]){k, 0});
    ops_special(c, x, true);
    int n = rng_one_in(r, 3) ? (int)rng_int(r, 2, 4) : 1;
    bool many = k <= 130 && rng_one_in(r, 10); /* outputs, for kernels that count blocks */
    for (int i = 0; i < n; i++) {
        if (rng_one_in(r, 5)) /* weights of unlike types side by side */
            type = types[rng_int(r, 0, k % 32 == 0 ? 5 : 4)];
        int64_t outputs = many && rng_one_in(r, 2) ? rng_int(r, 500, 1500)
                                                   : rng_int(r, 1, rng_one_in(r, 4) ? 150 : 20);
        int w = tc_const(c, type, 1, 2, (int64_t[]){outputs, k});
        if (type == FL_MXFP4 && rng_one_in(r, 4))
            odd_scales(c, w);
    }
}

/* The sum of the absolute products.  Fast: both factors rounded to BF16, and what is below the
 * least normal number taken for zero. */
static void linear_magnitude(tc *c, bool fast, ops_magnitude *m)
{
    int64_t k = fl_type_width(&c->in_type[0]);
    for (int i = 1; i < c->n_in; i++) {
        const float *w = ops_decode(c, c->in[i].tensors);
        int64_t n = c->in_type[i].dim[0];
        for (int32_t r = 0; r < tc_n_rows(c, c->in_type[0].rows); r++) {
            const float *x = tc_f32(c, 0, r);
            for (int64_t o = 0; o < n; o++) {
                double sum = 0, factors = 0;
                for (int64_t j = 0; j < k; j++) {
                    sum += fabs((double)x[j] * w[o * k + j]);
                    factors += 4 + fabs((double)x[j]) + fabs((double)w[o * k + j]);
                }
                if (fast)
                    sum += (sum * 0x1.1p-7 + factors * 0x1p-126) / ops_gen_linear.tolerance;
                m->out[i - 1][r * n + o] = (float)sum;
            }
        }
    }
}

const ops_gen ops_gen_linear = {"linear", make_linear, linear_magnitude, 2e-6, false};
