/* Cases of rmsnorm, l2norm, layernorm and residual_mix. */
#include "support/ops_gen.h"

#include "ops/def/def_internal.h"

#include <math.h>

/* An activation whose last dim is a vector, with or without heads before it. */
static int64_t vectors(tc *c, bool large)
{
    int64_t heads = rng_one_in(c->random, 2) ? rng_int(c->random, 1, 5) : 0;
    int64_t d = rng_int(c->random, 1, rng_one_in(c->random, 4) ? 700 : 70);
    int x = heads ? tc_rows(c, ops_row_symbol(c), FL_F32, 2, (int64_t[]){heads, d})
                  : tc_rows(c, ops_row_symbol(c), FL_F32, 1, &d);
    if (large)
        ops_special(c, x, true);
    return d;
}

static void make_rmsnorm(tc *c)
{
    tc_step_random(c, 20, 200);
    int64_t d = vectors(c, true);
    if (!rng_one_in(c->random, 3))
        tc_const(c, FL_F32, 1, 1, &d);
    tc_number(c, "eps", rng_one_in(c->random, 2) ? 1e-5 : 1e-6);
}

static void make_l2norm(tc *c)
{
    tc_step_random(c, 20, 200);
    vectors(c, true);
    tc_number(c, "eps", 1e-6);
    if (rng_one_in(c->random, 2))
        tc_number(c, "scale", rng_float(c->random, -2, 2));
}

static void make_layernorm(tc *c)
{
    tc_step_random(c, 20, 200);
    int64_t d = vectors(c, true);
    if (rng_one_in(c->random, 3)) { /* a mean far from zero */
        float shift = rng_normal(c->random) * 30;
        for (int32_t r = 0; r < tc_n_rows(c, c->in_type[0].rows); r++) {
            for (int64_t i = 0; i < fl_type_width(&c->in_type[0]); i++)
                tc_f32(c, 0, r)[i] += shift;
        }
    }
    tc_const(c, FL_F32, 1, 1, &d);
    if (rng_one_in(c->random, 2))
        tc_const(c, FL_F32, 1, 1, &d);
    tc_number(c, "eps", 1e-6);
}

/* x - mean loses what x and mean have in common. */
static void layernorm_magnitude(tc *c, bool fast, ops_magnitude *m)
{
    (void)fast;
    int64_t width = fl_type_width(&c->in_type[0]), d = c->in_type[1].dim[0];
    const float *w = c->in[1].data, *b = c->n_in > 2 ? c->in[2].data : NULL;
    for (int64_t i = 0; i < tc_n_rows(c, c->in_type[0].rows) * width; i += d) {
        const float *x = tc_f32(c, 0, i / width) + i % width;
        float *out = m->out[0] + i;
        double mean = 0, variance = 0;
        for (int64_t j = 0; j < d; j++)
            mean += fabs(x[j]) / (double)d;
        double centre = 0;
        for (int64_t j = 0; j < d; j++)
            centre += x[j] / (double)d;
        for (int64_t j = 0; j < d; j++)
            variance += (x[j] - centre) * (x[j] - centre) / (double)d;
        double r = 1 / sqrt(variance + c->attr[FL_LAYERNORM_EPS].f);
        for (int64_t j = 0; j < d; j++)
            out[j] = (float)((fabs(x[j]) + mean) * r * fabs(w[j]) + out[j] * (1 + mean * r) +
                             (b ? fabs(b[j]) : 0));
    }
}

static void make_mix(tc *c)
{
    tc_step_random(c, 20, 200);
    fl_rows rows = ops_row_symbol(c);
    int64_t d = rng_int(c->random, 1, rng_one_in(c->random, 4) ? 700 : 70);
    int n = (int)rng_int(c->random, 1, 12);
    tc_const(c, FL_F32, 1, 1, &d);
    for (int64_t i = 0; i < d; i++)
        tc_f32(c, 0, 0)[i] *= 1 / sqrtf((float)d);
    for (int i = 0; i < n; i++)
        ops_special(c, tc_rows(c, rows, FL_F32, 1, &d), true);
    tc_number(c, "eps", 1e-5);
}

/* An error in a score moves its probability by as much, relatively. */
static void mix_magnitude(tc *c, bool fast, ops_magnitude *m)
{
    (void)fast;
    int64_t d = c->in_type[0].dim[0];
    const float *w = c->in[0].data;
    int n = c->n_in - 1;
    for (int32_t r = 0; r < tc_n_rows(c, c->in_type[1].rows); r++) {
        double score[TC_MAX_IN], high = -INFINITY, sum = 0, spread = 0;
        for (int i = 0; i < n; i++) {
            const float *v = tc_f32(c, i + 1, r);
            double squares = 0, dot = 0, parts = 0;
            for (int64_t j = 0; j < d; j++) {
                squares += (double)v[j] * v[j];
                dot += (double)v[j] * w[j];
                parts += fabs((double)v[j] * w[j]);
            }
            double norm = sqrt(squares / (double)d + c->attr[FL_RESIDUAL_MIX_EPS].f);
            score[i] = dot / norm;
            high = fmax(high, score[i]);
            spread = fmax(spread, parts / norm);
        }
        for (int i = 0; i < n; i++)
            sum += exp(score[i] - high);
        for (int64_t j = 0; j < d; j++) {
            double parts = 0;
            for (int i = 0; i < n; i++)
                parts += exp(score[i] - high) / sum * fabs(tc_f32(c, i + 1, r)[j]);
            m->out[0][r * d + j] = (float)(parts * (1 + 2 * spread));
        }
    }
}

const ops_gen ops_gen_rmsnorm = {"rmsnorm", make_rmsnorm, NULL, 2e-6, false};
const ops_gen ops_gen_l2norm = {"l2norm", make_l2norm, NULL, 2e-6, false};
const ops_gen ops_gen_layernorm = {"layernorm", make_layernorm, layernorm_magnitude, 4e-6, false};
const ops_gen ops_gen_residual_mix = {"residual_mix", make_mix, mix_magnitude, 2e-6, false};
