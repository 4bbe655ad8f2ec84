/* mla: what its kernels share.  Attention runs in the space of the cached latents, spread over the
 * chip by (row, group of heads, span of keys).
 *
 *   absorb    q' = scale * (UK^T q_nope, q_pe) per row and head
 *   attend    a span of keys for a group of heads: running softmax over blocks of keys
 *   merge     the spans of a row, then UV times the latent result
 *
 * How a row's keys are cut into spans depends on the shapes and on its number of keys alone, so its
 * sums do too.  Rows in whole blocks of the chunk grid (step.h) fill the chip by themselves: they
 * have one span.  With a selection the keys are its entries; those that are no visible position are
 * passed over. */
#ifndef FL_OPS_GPU_MLA_H
#define FL_OPS_GPU_MLA_H

#include "ops/gpu/cache.h"

enum { SPAN = 64, MAX_SPANS = 256, MAX_LATENT = 1024, FEW_HEADS = 16 };
enum { MLA_BLOCKS = 132 /* that a row with many keys is spread over, at least */ };
static const int64_t MLA_SCRATCH = (int64_t)128 << 20;

typedef struct mla_args {
    gpu_step step;
    gpu_rows q, o;
    const int32_t *select; /* NULL: every visible position */
    int64_t select_stride;
    gpu_weight kv_b;
    const unsigned char *base;
    int64_t item_bytes, row_bytes, scales_at; /* of a cached row; before its factors */
    int heads, nope, pe, dv, latent, n_select;
    float scale;
    int64_t row0, rows; /* of the pass */
    int most_spans;     /* that a row of this shape may have; 1: rows of whole blocks */
    int spans;          /* room for so many in `partial` */
    float *query;       /* [rows][heads][latent + pe] */
    float *partial;     /* [rows][heads][spans][latent + 2]: maximum, sum, values */
    float *united;      /* [rows][heads][latent]: the values of all spans, where `query` was */
} mla_args;

/* Keys that a row goes through, visible or not. */
static __device__ inline int64_t keys_of(const mla_args &a, int64_t row)
{
    return a.select ? a.n_select : (int64_t)a.step.pos[row] + 1;
}

static inline int most_spans(int64_t heads)
{
    int64_t groups = (heads + 2 * FEW_HEADS - 1) / (2 * FEW_HEADS);
    if (heads <= FEW_HEADS)
        return MAX_SPANS;
    return groups < MLA_BLOCKS / 2 ? (int)(MLA_BLOCKS / groups) : 2;
}

/* Keys of a span: whole turns of SPAN / 2. */
static __host__ __device__ inline int64_t span_length(int64_t keys, int most)
{
    const int64_t turn = SPAN / 2, least = SPAN;
    if (most == 1)
        return keys;
    int64_t span = ((keys + most - 1) / most + turn - 1) / turn * turn;
    return span < least ? least : span;
}

static __host__ __device__ inline int spans_of(int64_t keys, int most)
{
    int64_t span = span_length(keys, most);
    return (int)((keys + span - 1) / span);
}

/* The most spans that a row of up to so many keys can have. */
static inline int span_room(int64_t keys, int most)
{
    return keys > (int64_t)SPAN * most ? most : (int)((keys + SPAN - 1) / SPAN);
}

/* Absorb and merge in plain arithmetic (mla.cu); kv_b: its format. */
void mla_absorb(const mla_args &a, fl_dtype kv_b, gpu_queue *q);
void mla_merge(const mla_args &a, fl_dtype kv_b, gpu_queue *q);

/* ---- launching ---- */

static inline int64_t mla_row_bytes(int64_t heads, int64_t latent, int64_t pe, int spans)
{
    return heads * (latent + pe + spans * (latent + 2)) * (int64_t)sizeof(float);
}

static inline int64_t mla_pass_rows(int64_t bytes, int64_t max_rows)
{
    int64_t fit = MLA_SCRATCH / bytes;
    return fit < 1 ? 1 : gpu_min(fit, max_rows);
}

/* The arguments of a call, but for the pass. */
static inline mla_args mla_args_of(const fl_call *call, const fl_step *step, const gpu_queue *q)
{
    const fl_arg *in = call->in;
    const fl_state_pool *pool = &step->states[in[FL_MLA_CACHE].type.state];
    mla_args a = {};
    a.step = q->step;
    a.q = gpu_rows_of(&in[FL_MLA_Q]);
    a.o = gpu_rows_of(&call->out[0]);
    if (call->n_in > FL_MLA_SELECT && in[FL_MLA_SELECT].data) {
        a.select = (const int32_t *)in[FL_MLA_SELECT].data;
        a.select_stride = in[FL_MLA_SELECT].stride;
        a.n_select = (int)in[FL_MLA_SELECT].type.dim[0];
    }
    a.kv_b = gpu_weight_of(&in[FL_MLA_KV_B]);
    a.base = pool->base;
    a.item_bytes = pool->item_bytes;
    a.heads = (int)in[FL_MLA_Q].type.dim[0];
    a.dv = (int)call->attr[FL_MLA_V_DIM].i;
    a.nope = (int)(a.kv_b.n / a.heads - a.dv);
    a.pe = (int)in[FL_MLA_Q].type.dim[1] - a.nope;
    a.latent = (int)a.kv_b.k;
    a.row_bytes = fl_cache_row_bytes(in[FL_MLA_CACHE].type.dtype, a.latent + a.pe);
    a.scales_at = fl_cache_scales_at(a.latent + a.pe);
    a.scale = (float)call->attr[FL_MLA_SCALE].f;
    return a;
}

/* Rows [row0, end) of the step, all of whole blocks of the grid or none, in as many passes as they
 * need. */
template <typename HOW>
static void mla_rows(mla_args a, const fl_call *call, int64_t row0, int64_t end, bool whole,
                     void *shared, gpu_queue *q)
{
    a.most_spans = whole ? 1 : most_spans(a.heads);
    a.spans = span_room(a.select ? a.n_select : q->max_context, a.most_spans);
    int64_t most = mla_pass_rows(mla_row_bytes(a.heads, a.latent, a.pe, a.spans), end - row0);
    a.query = a.united = (float *)shared;
    a.partial = a.query + most * a.heads * (a.latent + a.pe);
    fl_dtype kv_b = call->in[FL_MLA_KV_B].type.dtype;
    for (a.row0 = row0; a.row0 < end; a.row0 += a.rows) {
        a.rows = gpu_min(end - a.row0, most);
        HOW::absorb(a, kv_b, q);
        GPU_FOR_CACHE(call->in[FL_MLA_CACHE].type.dtype, HOW::template attend<F>(a, q));
        HOW::merge(a, kv_b, q);
        gpu_launched(q);
    }
}

/* A kernel's run; HOW launches what it consists of: absorb and merge for weights of a format,
 * attend for caches of format F; or takes whole blocks in another way (`expand`). */
template <typename HOW>
static void mla_run(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    (void)phase;
    gpu_queue *q = (gpu_queue *)worker->queue;
    mla_args a = mla_args_of(call, step, q);
    int64_t done = 0; /* rows before it are queued, or wait for company */
    for (int32_t i = 0; i < step->n_seqs && step->n_rows != step->n_seqs; i++) {
        const fl_seq_rows *s = &step->seqs[i];
        int begin, end;
        gpu_whole_blocks(s->pos0, s->n_rows, &begin, &end);
        if (begin == end)
            continue;
        mla_rows<HOW>(a, call, done, s->row0 + begin, false, worker->shared, q);
        done = s->row0 + end;
        a.row0 = s->row0 + begin;
        a.rows = end - begin;
        if (!HOW::expand(a, call, i, (s->pos0 + begin) / FL_PAGE_TOKENS, worker->shared, q))
            mla_rows<HOW>(a, call, a.row0, done, true, worker->shared, q);
    }
    mla_rows<HOW>(a, call, done, step->n_rows, false, worker->shared, q);
}

static inline void mla_scratch(const fl_node_view *n, const fl_limits *limits, size_t *per_worker,
                               size_t *shared)
{
    int64_t heads = n->in[FL_MLA_Q]->dim[0], latent = n->in[FL_MLA_KV_B]->dim[1];
    int64_t pe = n->in[FL_MLA_CACHE]->dim[0] - latent;
    bool selects = n->n_in > FL_MLA_SELECT && n->in[FL_MLA_SELECT];
    int most = most_spans(heads);
    int spans = span_room(selects ? n->in[FL_MLA_SELECT]->dim[0] : limits->max_context, most);
    int64_t bytes = mla_row_bytes(heads, latent, pe, spans);
    int64_t whole = mla_row_bytes(heads, latent, pe, 1);
    bytes *= mla_pass_rows(bytes, limits->max_rows);
    whole *= mla_pass_rows(whole, limits->max_rows);
    *per_worker = 0;
    *shared = (size_t)(bytes > whole ? bytes : whole);
}

#endif
