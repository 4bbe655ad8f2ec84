/* Cases of rope. */
#include "support/ops_gen.h"

#include "ops/def/def_internal.h"

#include <math.h>

static void make_rope(tc *c)
{
    rng *r = c->random;
    tc_step_random(c, 20, rng_one_in(r, 3) ? 5000 : 200);
    int64_t heads = rng_int(r, 1, 5), width = 2 * rng_int(r, 1, 40);
    int64_t before = rng_int(r, 0, 20), after = rng_int(r, 0, 20);
    int64_t d = before + width + after;
    int x = rng_one_in(r, 2) ? tc_rows(c, FL_ROWS_TOKENS, FL_F32, 2, (int64_t[]){heads, d})
                             : tc_rows(c, FL_ROWS_TOKENS, FL_F32, 1, &d);
    ops_special(c, x, true);
    tc_number(c, "offset", (double)before);
    tc_number(c, "width", (double)width);
    tc_number(c, "theta", rng_one_in(r, 2) ? 1e4 : 8e6);
    if (rng_one_in(r, 2))
        tc_text(c, "pairing", "half");
    if (rng_one_in(r, 2)) {
        tc_number(c, "factor", rng_float(r, 1, 50));
        tc_number(c, "context", (double)rng_int(r, 16, 4096));
    }
}

/* Both elements of a pair go into each result. */
static void rope_magnitude(tc *c, bool fast, ops_magnitude *m)
{
    (void)fast;
    const fl_rope *rope = c->prep;
    const fl_type *t = &c->in_type[0];
    int64_t width = fl_type_width(t), d = t->dim[t->ndim - 1];
    for (int32_t r = 0; r < tc_n_rows(c, t->rows); r++) {
        const float *x = tc_f32(c, 0, r);
        float *out = m->out[0] + r * width;
        for (int64_t j = 0; j < rope->pairs; j++) {
            for (int64_t i = rope->first + j * rope->step; i < width; i += d)
                out[i] = out[i + rope->gap] = fabsf(x[i]) + fabsf(x[i + rope->gap]);
        }
    }
}

const ops_gen ops_gen_rope = {"rope", make_rope, rope_magnitude, 2e-6, false};
