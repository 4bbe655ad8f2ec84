/* What the self-test of a device runs: at least one call of every operator that a plan can give it
 * (cast is folded away).  Products come in sizes for the kernels that take any and in sizes for
 * those that take whole tiles. */
#include "ops/self_test_internal.h"

#include "ops/def/def_internal.h"

#include <math.h>

/* A number around 1 in size, of either sign, never 0. */
static float number(fl_trial *t)
{
    t->dice = t->dice * 1664525u + 1013904223u;
    float x = 0.25f + (float)(t->dice >> 9) / (float)(1 << 23);
    return t->dice & 256 ? x : -x;
}

static fl_type *add(fl_trial *t, fl_rows rows, fl_dtype dtype, int64_t d0, int64_t d1)
{
    int i = t->n_in++;
    fl_type *type = &t->in_type[i];
    *type = (fl_type){.rows = rows, .dtype = dtype, .ndim = d1 ? 2 : 1, .n_tensors = 1};
    type->state = rows == FL_ROWS_STATE ? 0 : -1;
    type->dim[0] = d0;
    type->dim[1] = d1;
    t->types[i] = type;
    for (int64_t k = 0; k < FL_TRIAL_ELEMENTS; k++)
        t->here[i][k] = number(t);
    return type;
}

static float *add_rows(fl_trial *t, int64_t d0, int64_t d1)
{
    add(t, FL_ROWS_TOKENS, FL_F32, d0, d1);
    return t->here[t->n_in - 1];
}

static void add_weight(fl_trial *t, fl_dtype dtype, int32_t n, int64_t d0, int64_t d1)
{
    int i = t->n_in;
    unsigned char *data = (unsigned char *)t->here[i];
    add(t, FL_ROWS_CONST, dtype, d0, d1)->n_tensors = n;
    size_t elements = (size_t)(d0 * (d1 ? d1 : 1)), groups = elements / FL_MX_GROUP;
    size_t bytes = elements * (size_t)fl_dtype_bits(dtype) / 8;
    if (dtype == FL_BF16) {
        for (size_t k = 0; k < elements * (size_t)n; k++)
            ((uint16_t *)(void *)data)[k] = fl_f32_to_bf16(number(t));
    }
    unsigned char *scale = data + bytes * (size_t)n;
    for (size_t k = 0; k < groups * (size_t)n && dtype == FL_MXFP4; k++)
        scale[k] = (unsigned char)(126 + k % 3);
    for (int32_t k = 0; k < n; k++) {
        fl_tensor *x = &t->tensors[i][k];
        *x = (fl_tensor){.dtype = dtype, .ndim = d1 ? 2 : 1, .shape = {d0, d1}};
        x->data = data + (size_t)k * bytes;
        if (dtype == FL_MXFP4)
            x->scale = scale + (size_t)k * groups;
    }
}

static void add_state(fl_trial *t, bool paged, int64_t elements)
{
    t->state = t->n_in;
    add(t, FL_ROWS_STATE, FL_F32, elements, 0)->paged = paged;
}

static void set(fl_trial *t, int i, double value)
{
    t->attr[i].f = value;
    t->attr[i].i = (int64_t)value;
}

/* ---- rows, norms, elements ---- */

static void make_embed(fl_trial *t)
{
    add_weight(t, FL_BF16, 1, 40, 100);
}

static void make_gather_logits(fl_trial *t)
{
    add_rows(t, 100, 0);
}

static void make_pick(fl_trial *t)
{
    add_rows(t, 700, 0);
}

static void make_cache_write(fl_trial *t)
{
    add_state(t, true, 48);
    add_rows(t, 32, 0);
    add_rows(t, 16, 0);
}

static void make_rmsnorm(fl_trial *t)
{
    add_rows(t, 200, 0);
    add_weight(t, FL_F32, 1, 200, 0);
    set(t, FL_RMSNORM_EPS, 1e-5);
}

static void make_l2norm(fl_trial *t)
{
    add_rows(t, 3, 60);
    set(t, FL_L2NORM_EPS, 1e-6);
}

static void make_layernorm(fl_trial *t)
{
    add_rows(t, 200, 0);
    add_weight(t, FL_F32, 1, 200, 0);
    add_weight(t, FL_F32, 1, 200, 0);
    set(t, FL_LAYERNORM_EPS, 1e-5);
}

static void make_rope(fl_trial *t)
{
    add_rows(t, 2, 64);
    set(t, FL_ROPE_WIDTH, 32);
    set(t, FL_ROPE_THETA, 10000);
    t->attr[FL_ROPE_PAIRING].text = "interleaved";
}

static void make_residual_mix(fl_trial *t)
{
    add_weight(t, FL_F32, 1, 200, 0);
    for (int i = 0; i < 3; i++)
        add_rows(t, 200, 0);
    set(t, FL_RESIDUAL_MIX_EPS, 1e-5);
}

static void make_expr(fl_trial *t)
{
    add_rows(t, 2, 100);
    add_rows(t, 2, 100);
    add_weight(t, FL_F32, 1, 2, 1);
    t->attr[FL_EXPR_TEXT].text = "b*tanh(x/b)*sigmoid(x) * softplus(y) + w*exp(-abs(y))";
    t->attr[FL_EXPR_NAMES].text = "x,y,w";
    t->attr[FL_EXPR_CONSTS].text = "b=4";
}

/* ---- products ---- */

static void make_linear(fl_trial *t)
{
    add_rows(t, 160, 0);
    add_weight(t, FL_BF16, 1, 40, 160);
    add_weight(t, FL_MXFP4, 1, 40, 160);
}

static void make_linear_tiles(fl_trial *t)
{
    add_rows(t, 256, 0);
    add_weight(t, FL_BF16, 1, 256, 256);
}

static void make_linear_mxfp4(fl_trial *t)
{
    add_rows(t, 256, 0);
    add_weight(t, FL_MXFP4, 1, 256, 256);
}

static void make_route(fl_trial *t)
{
    add_rows(t, 48, 0);
    add_weight(t, FL_F32, 1, 48, 0);
    set(t, FL_ROUTE_TOPK, 5);
    set(t, FL_ROUTE_RENORMALIZE, 1);
    t->attr[FL_ROUTE_FUNC].text = "sigmoid";
}

static void add_choice(fl_trial *t)
{
    add(t, FL_ROWS_TOKENS, FL_I32, 2, 0);
    for (int k = 0; k < FL_TRIAL_ROWS * 2; k++)
        ((int32_t *)(void *)t->here[t->n_in - 1])[k] = k % 2;
    add_rows(t, 2, 0);
}

static void make_experts(fl_trial *t)
{
    add_rows(t, 64, 0);
    add_choice(t);
    add_weight(t, FL_MXFP4, 2, 32, 64);
    add_weight(t, FL_MXFP4, 2, 32, 64);
    add_weight(t, FL_MXFP4, 2, 64, 32);
    t->attr[FL_EXPERTS_ACT].text = "silu(g)*u";
}

static void make_experts_tiles(fl_trial *t)
{
    add_rows(t, 256, 0);
    add_choice(t);
    add_weight(t, FL_MXFP4, 2, 128, 256);
    add_weight(t, FL_MXFP4, 2, 128, 256);
    add_weight(t, FL_MXFP4, 2, 256, 128);
    t->attr[FL_EXPERTS_ACT].text = "silu(g)*u";
}

/* ---- across rows ---- */

static void make_conv1d(fl_trial *t)
{
    add_rows(t, 100, 0);
    add_weight(t, FL_F32, 1, 100, 4);
    add_state(t, false, 300);
}

static void make_delta_rule(fl_trial *t)
{
    for (int i = FL_DELTA_Q; i <= FL_DELTA_G; i++)
        add_rows(t, 2, 128);
    for (int k = 0; k < FL_TRIAL_ELEMENTS; k++) { /* decays, and keys of length about 1 */
        t->here[FL_DELTA_G][k] = -fabsf(t->here[FL_DELTA_G][k]);
        t->here[FL_DELTA_K][k] *= 0.1f;
    }
    float *beta = add_rows(t, 2, 0);
    for (int k = 0; k < FL_TRIAL_ELEMENTS; k++)
        beta[k] = fabsf(beta[k]) / 2;
    add_state(t, false, 2 * 128 * 128);
}

static void make_mla(fl_trial *t)
{
    add_rows(t, 4, 48);
    add_weight(t, FL_BF16, 1, 4 * (32 + 16), 32);
    add_state(t, true, 48);
    set(t, FL_MLA_V_DIM, 16);
    set(t, FL_MLA_SCALE, 0.02);
}

static void make_index_select(fl_trial *t)
{
    add_rows(t, 4, 32);
    add_rows(t, 4, 0);
    add_state(t, true, 32);
    set(t, FL_INDEX_SELECT_TOPK, 20);
    set(t, FL_INDEX_SELECT_SCALE, 1);
}

/* As many heads as there are, and so as much shared memory. */
static void make_index_select_wide(fl_trial *t)
{
    add_rows(t, 64, 128);
    add_rows(t, 64, 0);
    add_state(t, true, 128);
    set(t, FL_INDEX_SELECT_TOPK, 20);
    set(t, FL_INDEX_SELECT_SCALE, 0.01);
}

const fl_trial_kind fl_trial_kinds[] = {{"embed", make_embed, false},
                                        {"gather_logits", make_gather_logits, false},
                                        {"pick", make_pick, false},
                                        {"cache_write", make_cache_write, false},
                                        {"rmsnorm", make_rmsnorm, false},
                                        {"l2norm", make_l2norm, false},
                                        {"layernorm", make_layernorm, false},
                                        {"rope", make_rope, false},
                                        {"residual_mix", make_residual_mix, false},
                                        {"expr", make_expr, false},
                                        {"linear", make_linear, false},
                                        {"linear", make_linear_tiles, false},
                                        {"linear", make_linear_mxfp4, false},
                                        {"route", make_route, false},
                                        {"experts", make_experts, false},
                                        {"experts", make_experts_tiles, false},
                                        {"conv1d", make_conv1d, false},
                                        {"delta_rule", make_delta_rule, false},
                                        {"mla", make_mla, false},
                                        {"index_select", make_index_select, false},
                                        {"index_select", make_index_select_wide, true}};
const int fl_trial_count = sizeof fl_trial_kinds / sizeof *fl_trial_kinds;
