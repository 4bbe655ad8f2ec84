/* Cases of the operators that move rows, of pick and of conv1d: embed, gather_logits,
 * cache_write, cast. */
#include "ops/draw.h"
#include "support/ops_gen.h"

#include <math.h>
#include <string.h>

static fl_dtype float_type(tc *c)
{
    static const fl_dtype types[] = {FL_F32, FL_BF16, FL_F16};
    return types[rng_int(c->random, 0, 2)];
}

static void make_embed(tc *c)
{
    tc_step_random(c, 30, 200);
    int64_t vocab = rng_int(c->random, 1, 60);
    tc_const(c, float_type(c), 1, 2, (int64_t[]){vocab, rng_int(c->random, 1, 300)});
    int32_t *ids = (int32_t *)c->step.ids;
    for (int32_t i = 0; i < c->step.n_rows; i++) {
        ids[i] = (int32_t)rng_int(c->random, 0, vocab - 1);
        if (rng_one_in(c->random, 10)) /* not in the table */
            ids[i] = rng_one_in(c->random, 2) ? (int32_t)vocab : INT32_MIN;
    }
}

/* x of one or two dims. */
static int any_rows(tc *c, fl_rows rows, int64_t most)
{
    int64_t dim[2] = {rng_int(c->random, 1, 6), rng_int(c->random, 1, most)};
    int two = (int)rng_int(c->random, 0, 1);
    int x = tc_rows(c, rows, FL_F32, 1 + two, two ? dim : dim + 1);
    ops_special(c, x, true);
    return x;
}

static void make_gather(tc *c)
{
    tc_step_random(c, 30, 200);
    any_rows(c, FL_ROWS_TOKENS, 100);
}

/* Long rows and short ones, some with equal numbers, some with one that is not finite. */
/* How to take a token of each row: temperatures from nearly greedy to nearly flat. */
static void make_draws(tc *c, int in)
{
    rng *r = c->random;
    for (int32_t i = 0; i < tc_n_rows(c, c->in_type[in].rows); i++) {
        float temperature = expf((float)rng_int(r, -40, 40) / 10);
        float top_p = rng_one_in(r, 2) ? 1 : (float)rng_int(r, 0, 1000) / 1000;
        float min_p = rng_one_in(r, 2) ? 0 : (float)rng_int(r, 0, 100) / 100;
        int32_t top_k = rng_one_in(r, 2) ? 0 : (int32_t)rng_int(r, 1, 60);
        uint64_t random =
            (uint64_t)rng_int(r, 0, UINT32_MAX) << 32 | (uint64_t)rng_int(r, 0, UINT32_MAX);
        fl_draw d = fl_draw_of(temperature, top_k, top_p, min_p, random);
        if (rng_one_in(r, 8))
            d = (fl_draw){0};
        memcpy(tc_f32(c, in, i), &d, sizeof d);
    }
}

static void make_pick(tc *c)
{
    static const float odd[] = {NAN, INFINITY, -INFINITY};
    tc_step_random(c, 12, 200);
    bool drawn = !rng_one_in(c->random, 3); /* of few enough for a device to rank all of them */
    int64_t width = rng_int(c->random, 1, rng_one_in(c->random, 4) ? drawn ? 3000 : 9000 : 300);
    fl_rows symbol = ops_row_symbol(c);
    int x = tc_rows(c, symbol, FL_F32, 1, &width);
    if (drawn)
        make_draws(c, tc_rows(c, symbol, FL_I32, 1, (int64_t[]){FL_DRAW_WORDS}));
    else
        ops_special(c, x, false);
    for (int32_t r = 0; r < tc_n_rows(c, c->in_type[x].rows); r++) {
        float *row = tc_f32(c, x, r);
        for (int64_t i = 0; rng_one_in(c->random, 2) && i < width; i++)
            row[i] = (float)rng_int(c->random, -3, 3) * 0.0f + (float)rng_int(c->random, 0, 2);
        if (rng_one_in(c->random, 5))
            row[rng_int(c->random, 0, width - 1)] = odd[rng_int(c->random, 0, 2)];
    }
}

static void make_cache_write(tc *c)
{
    tc_step_random(c, 80, 200);
    int parts = (int)rng_int(c->random, 1, 3);
    int64_t dim[3], width = 0;
    for (int i = 0; i < parts; i++)
        width += dim[i] = rng_int(c->random, 1, rng_one_in(c->random, 4) ? 200 : 40);
    tc_cache_in(c, ops_cache_type(c), width);
    for (int i = 0; i < parts; i++)
        ops_special(c, tc_rows(c, FL_ROWS_TOKENS, FL_F32, 1, &dim[i]), true);
}

static void make_cast(tc *c)
{
    tc_step_random(c, 1, 0);
    if (rng_one_in(c->random, 3))
        tc_const(c, FL_MXFP4, 1, 2,
                 (int64_t[]){rng_int(c->random, 1, 9), 32 * rng_int(c->random, 1, 5)});
    else if (rng_one_in(c->random, 3))
        tc_const(c, FL_F8_BLOCK, 1, 2,
                 (int64_t[]){rng_int(c->random, 1, 300), rng_int(c->random, 1, 300)});
    else
        tc_const(c, float_type(c), 1, 2,
                 (int64_t[]){rng_int(c->random, 1, 9), rng_int(c->random, 1, 90)});
}

/* ---- conv1d ---- */

static void make_conv(tc *c)
{
    tc_step_random(c, 40, 200);
    int x = any_rows(c, FL_ROWS_TOKENS, 50);
    int64_t channels = fl_type_width(&c->in_type[x]), taps = rng_int(c->random, 2, 5);
    if (rng_one_in(c->random, 2))
        tc_const(c, FL_F32, 1, 2, (int64_t[]){channels, taps});
    else
        tc_const(c, FL_F32, 1, 3, (int64_t[]){channels, 1, taps});
    tc_state_in(c, false, (taps - 1) * channels);
}

static void conv_magnitude(tc *c, bool fast, ops_magnitude *m)
{
    (void)fast;
    const float *w = c->in[1].data;
    int64_t channels = fl_type_width(&c->in_type[0]),
            taps = c->in_type[1].dim[c->in_type[1].ndim - 1];
    fl_state_pool before = {c->states[0].initial, c->pools[0].item_bytes};
    for (int s = 0; s < c->step.n_seqs; s++) {
        const fl_seq_rows *q = &c->step.seqs[s];
        const float *tail = fl_state_slot(&before, q);
        for (int64_t i = 0; i < q->n_rows * channels; i++) {
            int64_t r = i / channels, ch = i % channels;
            double sum = 0;
            for (int64_t j = 0; j < taps; j++) {
                int64_t from = r - (taps - 1) + j;
                float v = from < 0 ? tail[(from + taps - 1) * channels + ch]
                                   : tc_f32(c, 0, q->row0 + from)[ch];
                sum += fabs((double)w[ch * taps + j] * v);
            }
            m->out[0][q->row0 * channels + i] = (float)sum;
        }
    }
}

const ops_gen ops_gen_embed = {"embed", make_embed, NULL, 0, false};
const ops_gen ops_gen_gather_logits = {"gather_logits", make_gather, NULL, 0, false};
const ops_gen ops_gen_pick = {"pick", make_pick, NULL, 0, false};
const ops_gen ops_gen_cache_write = {"cache_write", make_cache_write, NULL, 0, false};
const ops_gen ops_gen_cast = {"cast", make_cast, NULL, 0, false};
const ops_gen ops_gen_conv1d = {"conv1d", make_conv, conv_magnitude, 1e-6, false};
