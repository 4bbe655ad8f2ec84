/* The operators that look across rows through the state of a sequence: delta_rule, mla and
 * index_select. */
#include "ops/def/def_internal.h"

/* These operators follow sequences, so their rows are those of the step. */
static fl_status token_rows(const fl_node_view *n, int i, fl_error *err)
{
    if (n->in[i]->rows != FL_ROWS_TOKENS)
        return fl_fail(err, FL_MODEL, "input %d has logit rows, expected token rows", i);
    return FL_OK;
}

/* ---- delta_rule ---- */

static fl_status infer_delta_rule(const fl_node_view *n, fl_type *out, int *n_out, fl_error *err)
{
    const fl_want q = {"q", FL_WANT_ACTIVATION, FL_WANT_F32, false, 2, {FL_ANY, FL_ANY}};
    FL_TRY(fl_def_want(n, FL_DELTA_Q, &q, err));
    FL_TRY(token_rows(n, FL_DELTA_Q, err));
    int64_t heads = n->in[FL_DELTA_Q]->dim[0], dk = n->in[FL_DELTA_Q]->dim[1];
    const fl_want v = {"v", FL_WANT_ACTIVATION, FL_WANT_F32, false, 2, {heads, FL_ANY}};
    FL_TRY(fl_def_want(n, FL_DELTA_V, &v, err));
    int64_t dv = n->in[FL_DELTA_V]->dim[1];
    const fl_want k = {"k", FL_WANT_ACTIVATION, FL_WANT_F32, false, 2, {heads, dk}};
    const fl_want g = {"g", FL_WANT_ACTIVATION, FL_WANT_F32, false, 2, {heads, dk}};
    const fl_want beta = {"beta", FL_WANT_ACTIVATION, FL_WANT_F32, false, 1, {heads}};
    int64_t elements;
    if (__builtin_mul_overflow(heads * dk, dv, &elements))
        return fl_fail(err, FL_MODEL, "the state of %lld heads of %lld x %lld is too large",
                       (long long)heads, (long long)dk, (long long)dv);
    const fl_want s = {"state", FL_WANT_RECURRENT, FL_WANT_F32, false, 1, {elements}};
    FL_TRY(fl_def_want(n, FL_DELTA_K, &k, err));
    FL_TRY(fl_def_want(n, FL_DELTA_G, &g, err));
    FL_TRY(fl_def_want(n, FL_DELTA_BETA, &beta, err));
    FL_TRY(fl_def_want(n, FL_DELTA_STATE, &s, err));
    for (int i = FL_DELTA_K; i <= FL_DELTA_BETA; i++)
        FL_TRY(fl_def_same_rows(n, i, FL_DELTA_Q, err));
    out[0] = fl_def_type(FL_ROWS_TOKENS, FL_F32, 2, (int64_t[]){heads, dv});
    *n_out = 1;
    return FL_OK;
}

static void cost_delta_rule(const fl_node_view *n, const fl_sizes *sizes, fl_cost *out)
{
    const fl_type *state = n->in[FL_DELTA_STATE];
    /* Per element of the state: decay, prediction, update and read. */
    out->flops = 7 * (double)sizes->rows * (double)fl_type_width(state);
    out->state_bytes = 2 * fl_def_bytes(state);
}

const fl_op fl_op_delta_rule = {
    .name = "delta_rule",
    .doc = "gated delta rule: S *= exp(g), S += beta k (v - k S), o = q S",
    .min_in = 6,
    .max_in = 6,
    .effect = true,
    .infer = infer_delta_rule,
    .cost = cost_delta_rule,
};

/* ---- mla ---- */

static fl_status infer_mla(const fl_node_view *n, fl_type *out, int *n_out, fl_error *err)
{
    const fl_want q = {"q", FL_WANT_ACTIVATION, FL_WANT_F32, false, 2, {FL_ANY, FL_ANY}};
    const fl_want kv_b = {"kv_b", FL_WANT_CONST, FL_WANT_MATRIX, false, 2, {FL_ANY, FL_ANY}};
    FL_TRY(fl_def_want(n, FL_MLA_Q, &q, err));
    FL_TRY(token_rows(n, FL_MLA_Q, err));
    FL_TRY(fl_def_want(n, FL_MLA_KV_B, &kv_b, err));
    FL_TRY(fl_def_number(n, FL_MLA_V_DIM, 1, 1 << 20, err));
    FL_TRY(fl_def_number(n, FL_MLA_SCALE, -1e6, 1e6, err));
    int64_t heads = n->in[FL_MLA_Q]->dim[0], qk = n->in[FL_MLA_Q]->dim[1];
    int64_t rows = n->in[FL_MLA_KV_B]->dim[0], latent = n->in[FL_MLA_KV_B]->dim[1];
    int64_t dv = n->attr[FL_MLA_V_DIM].i, nope = heads > 0 ? rows / heads - dv : 0;
    if (nope < 1 || nope > qk || rows % heads != 0)
        return fl_fail(err, FL_MODEL,
                       "input %d (kv_b) has %lld rows; %lld heads with v_dim %lld and queries of "
                       "%lld want %lld to %lld, the same number for each head",
                       FL_MLA_KV_B, (long long)rows, (long long)heads, (long long)dv, (long long)qk,
                       (long long)(heads * (dv + 1)), (long long)(heads * (dv + qk)));
    if (n->in[FL_MLA_KV_B]->dtype == FL_MXFP4 && latent % FL_MX_GROUP != 0)
        return fl_fail(err, FL_MODEL,
                       "input %d (kv_b) is MXFP4 with rows of %lld, not a multiple of %d",
                       FL_MLA_KV_B, (long long)latent, FL_MX_GROUP);
    const fl_want cache = {"cache", FL_WANT_PAGED, FL_WANT_CACHE, false, 1, {latent + qk - nope}};
    FL_TRY(fl_def_want(n, FL_MLA_CACHE, &cache, err));
    if (n->n_in > FL_MLA_SELECT && n->in[FL_MLA_SELECT]) {
        const fl_want select = {"select", FL_WANT_ACTIVATION, FL_WANT_I32, false, 1, {FL_ANY}};
        FL_TRY(fl_def_want(n, FL_MLA_SELECT, &select, err));
        FL_TRY(fl_def_same_rows(n, FL_MLA_SELECT, FL_MLA_Q, err));
    }
    out[0] = fl_def_type(FL_ROWS_TOKENS, FL_F32, 2, (int64_t[]){heads, dv});
    *n_out = 1;
    return FL_OK;
}

/* Of the absorbed form; the cached rows are counted once for each row of the step. */
static void cost_mla(const fl_node_view *n, const fl_sizes *sizes, fl_cost *out)
{
    double seen = (double)sizes->context, heads = (double)n->in[FL_MLA_Q]->dim[0];
    double weights = (double)fl_type_width(n->in[FL_MLA_KV_B]);
    double latent = (double)n->in[FL_MLA_KV_B]->dim[1];
    double cached = (double)n->in[FL_MLA_CACHE]->dim[0];
    if (n->n_in > FL_MLA_SELECT && n->in[FL_MLA_SELECT] &&
        seen > (double)n->in[FL_MLA_SELECT]->dim[0])
        seen = (double)n->in[FL_MLA_SELECT]->dim[0];
    out->flops = 2 * (double)sizes->rows * (weights + heads * seen * (cached + latent));
    out->weight_bytes = fl_def_bytes(n->in[FL_MLA_KV_B]);
    out->state_bytes = (double)sizes->rows * seen * fl_def_bytes(n->in[FL_MLA_CACHE]);
}

static const fl_attr_spec mla_attrs[] = {
    [FL_MLA_V_DIM] = {"v_dim", FL_ATTR_INT, .required = true},
    [FL_MLA_SCALE] = {"scale", FL_ATTR_FLOAT, .required = true}};

const fl_op fl_op_mla = {
    .name = "mla",
    .doc = "causal attention over cached latents, all or the selected",
    .min_in = 3,
    .max_in = 4,
    .attrs = mla_attrs,
    .n_attrs = 2,
    .infer = infer_mla,
    .cost = cost_mla,
};

/* ---- index_select ---- */

static fl_status infer_index_select(const fl_node_view *n, fl_type *out, int *n_out, fl_error *err)
{
    const fl_want q = {"q", FL_WANT_ACTIVATION, FL_WANT_F32, false, 2, {FL_ANY, FL_ANY}};
    FL_TRY(fl_def_want(n, FL_INDEX_Q, &q, err));
    FL_TRY(token_rows(n, FL_INDEX_Q, err));
    int64_t heads = n->in[FL_INDEX_Q]->dim[0], d = n->in[FL_INDEX_Q]->dim[1];
    const fl_want w = {"w", FL_WANT_ACTIVATION, FL_WANT_F32, false, 1, {heads}};
    const fl_want keys = {"keys", FL_WANT_PAGED, fl_index_key_types(d), false, 1, {d}};
    FL_TRY(fl_def_want(n, FL_INDEX_W, &w, err));
    FL_TRY(fl_def_same_rows(n, FL_INDEX_W, FL_INDEX_Q, err));
    FL_TRY(fl_def_want(n, FL_INDEX_KEYS, &keys, err));
    FL_TRY(fl_def_number(n, FL_INDEX_SELECT_TOPK, 1, 1 << 24, err));
    FL_TRY(fl_def_number(n, FL_INDEX_SELECT_SCALE, -1e6, 1e6, err));
    out[0] = fl_def_type(FL_ROWS_TOKENS, FL_I32, 1, &n->attr[FL_INDEX_SELECT_TOPK].i);
    *n_out = 1;
    return FL_OK;
}

static void cost_index_select(const fl_node_view *n, const fl_sizes *sizes, fl_cost *out)
{
    double heads = (double)n->in[FL_INDEX_Q]->dim[0], d = (double)n->in[FL_INDEX_Q]->dim[1];
    if (sizes->context <= n->attr[FL_INDEX_SELECT_TOPK].i)
        return; /* everything is taken, nothing scored */
    double pairs = (double)sizes->rows * (double)sizes->context;
    out->flops = 2 * pairs * heads * (d + 1);
    out->state_bytes = pairs * fl_def_bytes(n->in[FL_INDEX_KEYS]);
}

static const fl_attr_spec index_select_attrs[] = {
    [FL_INDEX_SELECT_TOPK] = {"topk", FL_ATTR_INT, .required = true},
    [FL_INDEX_SELECT_SCALE] = {"scale", FL_ATTR_FLOAT, .number = 1}};

const fl_op fl_op_index_select = {
    .name = "index_select",
    .doc = "the topk positions of largest sum_h scale w_h relu(q_h . k), ascending",
    .min_in = 3,
    .max_in = 3,
    .attrs = index_select_attrs,
    .n_attrs = 2,
    .infer = infer_index_select,
    .cost = cost_index_select,
};
