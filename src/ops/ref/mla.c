/* mla: keys and values are expanded from the cached latents one by one, scored, and summed under a
 * softmax.  Each worker takes some heads of all rows. */
#include "ops/ref/ref_internal.h"

#include "base/pool.h"
#include "graph/cache_row.h"
#include "ops/def/def_internal.h"

#include <math.h>

typedef struct sizes {
    int64_t heads, nope, pe, dv, latent;
} sizes;

static sizes sizes_of(const fl_type *q, const fl_type *kv_b, int64_t dv)
{
    sizes z = {.heads = q->dim[0], .dv = dv, .latent = kv_b->dim[1]};
    z.nope = kv_b->dim[0] / z.heads - dv;
    z.pe = q->dim[1] - z.nope;
    return z;
}

/* The i-th position that a row looks at, -1: none.  A row without a selection sees all positions up
 * to its own; an entry that is no such position is passed over. */
static int64_t seen(const int32_t *select, int64_t visible, int64_t i)
{
    int64_t p = select ? select[i] : i;
    return p >= 0 && p < visible ? p : -1;
}

/* One head of one row.  w: the head's rows of kv_b.  cached: the n rows that it looks at, those
 * that count.  p: room for n scores. */
static void attend(const sizes *z, const float *w, const float *q, double scale,
                   const float *cached, const int32_t *select, int64_t visible, int64_t n,
                   double *p, float *o)
{
    double top = -INFINITY, sum = 0;
    int64_t width = z->latent + z->pe;
    for (int64_t i = 0; i < n; i++) {
        const float *row = cached + i * width;
        if (seen(select, visible, i) < 0)
            continue;
        double score = fl_ref_dot(q + z->nope, row + z->latent, z->pe);
        for (int64_t d = 0; d < z->nope; d++)
            score += q[d] * fl_ref_dot(w + d * z->latent, row, z->latent);
        p[i] = score * scale;
        top = fmax(top, p[i]);
    }
    for (int64_t i = 0; i < n; i++) {
        p[i] = seen(select, visible, i) < 0 ? 0 : exp(p[i] - top);
        sum += p[i];
    }
    for (int64_t d = 0; d < z->dv; d++) {
        double value = 0;
        for (int64_t i = 0; i < n; i++) {
            if (seen(select, visible, i) >= 0)
                value +=
                    p[i] * fl_ref_dot(w + (z->nope + d) * z->latent, cached + i * width, z->latent);
        }
        o[d] = sum == 0 ? 0 : (float)(value / sum);
    }
}

/* Floats of one head's weights, rounded up so that doubles can follow. */
static int64_t weight_room(const sizes *z)
{
    return ((z->nope + z->dv) * z->latent + 1) / 2 * 2;
}

static void run(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    (void)phase;
    const fl_arg *in = call->in;
    const fl_arg *select =
        call->n_in > FL_MLA_SELECT && in[FL_MLA_SELECT].data ? &in[FL_MLA_SELECT] : NULL;
    const sizes z = sizes_of(&in[FL_MLA_Q].type, &in[FL_MLA_KV_B].type, call->attr[FL_MLA_V_DIM].i);
    const fl_state_pool *pool = &step->states[in[FL_MLA_CACHE].type.state];
    int64_t elements = (z.nope + z.dv) * z.latent, width = z.latent + z.pe, begin, end;
    float *w = worker->scratch, *cached = w + weight_room(&z);
    fl_split(z.heads, 1, worker->thread, worker->n_threads, &begin, &end);
    for (int32_t r = 0; r < step->n_rows; r++) {
        const int32_t *chosen = select ? (int32_t *)select->data + r * select->stride : NULL;
        int64_t visible = fl_step_pos(step, r) + 1, n = select ? select->type.dim[0] : visible;
        double *p = (double *)(cached + (n * width + 1) / 2 * 2);
        for (int64_t i = 0; i < n; i++) {
            int64_t pos = seen(chosen, visible, i);
            if (pos >= 0)
                fl_cache_decode(in[FL_MLA_CACHE].type.dtype, width,
                                fl_state_row(pool, &step->seqs[step->row_seq[r]], pos),
                                cached + i * width);
        }
        for (int64_t h = begin; h < end; h++) {
            fl_ref_decode(in[FL_MLA_KV_B].tensors, h * elements, elements, w);
            attend(&z, w, fl_row_f32(&in[FL_MLA_Q], r) + h * (z.nope + z.pe),
                   call->attr[FL_MLA_SCALE].f, cached, chosen, visible, n, p,
                   fl_row_f32(&call->out[0], r) + h * z.dv);
        }
    }
}

static void scratch(const fl_node_view *node, const fl_limits *limits, size_t *per_worker,
                    size_t *shared)
{
    const sizes z = sizes_of(node->in[FL_MLA_Q], node->in[FL_MLA_KV_B], node->attr[FL_MLA_V_DIM].i);
    int64_t most = limits->max_context;
    if (node->n_in > FL_MLA_SELECT && node->in[FL_MLA_SELECT])
        most = node->in[FL_MLA_SELECT]->dim[0];
    int64_t cached = (most * (z.latent + z.pe) + 1) / 2 * 2;
    *per_worker =
        (size_t)(weight_room(&z) + cached) * sizeof(float) + (size_t)most * sizeof(double);
    *shared = 0;
}

static const fl_kernel kernels[] = {
    {.op = "mla", .name = "ref", .n_phases = 1, .run = run, .scratch = scratch}};
const fl_kernel_list fl_ref_kernels_mla = FL_KERNEL_LIST(kernels);
