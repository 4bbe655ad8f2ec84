/* conv1d: each worker takes some channels through all rows of all sequences, a group of channels at
 * a time, so that a tail is read before it is moved on.  The weights, [channel][tap], are laid out
 * by tap once per group. */
#include "ops/cpu/cpu_internal.h"
#include "ops/cpu/matmul.h"
#include "ops/cpu/simd.h"

#include "base/pool.h"

enum { MAX_TAPS = 16, WORTH = 1024 }; /* WORTH: channels x rows that are worth a worker */
enum { WEIGHTS = 4096 };              /* of a group: they stay in the first-level cache */

typedef struct group {
    const fl_arg *x, *y;
    const fl_seq_rows *seq;
    int64_t c, taps, channels; /* first channel; channels: of the whole row */
    int n;                     /* channels of this group */
    float *tail;               /* of channel c: entry j at tail[j * channels] */
    int64_t ldw;
    float w[WEIGHTS]; /* [taps][ldw] */
} group;

/* The input `from` rows into the sequence's part of the step; negative ones lie in the tail. */
static const float *input(const group *g, int64_t from)
{
    return from < 0 ? g->tail + (from + g->taps - 1) * g->channels
                    : fl_row_f32(g->x, g->seq->row0 + from) + g->c;
}

static void load_weights(group *g, const float *w)
{
    for (int i = 0; i < g->n; i += FL_LANES)
        fl_transpose(g->n - i < FL_LANES ? g->n - i : FL_LANES, g->taps, w + (g->c + i) * g->taps,
                     g->taps, g->w + i, g->ldw);
}

FL_INLINE vf one_vector(const group *g, const float *const *in, int64_t taps, int i, int lanes)
{
    vf sum = vf_zero();
    for (int64_t j = 0; j < taps; j++) {
        vf x = lanes == FL_LANES ? vf_load(in[j] + i) : vf_loadn(in[j] + i, lanes);
        sum = vf_fma(vf_load(g->w + j * g->ldw + i), x, sum);
    }
    return sum;
}

FL_INLINE void one_row(const group *g, const float *const *in, int64_t taps, float *y)
{
    int i = 0;
    for (; i + FL_LANES <= g->n; i += FL_LANES)
        vf_store(y + i, one_vector(g, in, taps, i, FL_LANES));
    if (i < g->n)
        vf_storen(y + i, one_vector(g, in, taps, i, g->n - i), g->n - i);
}

static void run_group(const group *g)
{
    int64_t rows = g->seq->n_rows;
    for (int64_t r = 0; r < rows; r++) {
        const float *in[MAX_TAPS];
        float *y = fl_row_f32(g->y, g->seq->row0 + r) + g->c;
        for (int64_t j = 0; j < g->taps; j++)
            in[j] = input(g, r - (g->taps - 1) + j);
        if (g->taps == 4) /* as most have it: no loop */
            one_row(g, in, 4, y);
        else
            one_row(g, in, g->taps, y);
    }
    for (int64_t j = 0; j < g->taps - 1; j++) { /* ascending: reads entries not yet overwritten */
        const float *from = input(g, rows - (g->taps - 1) + j);
        memmove(g->tail + j * g->channels, from, (size_t)g->n * sizeof *from);
    }
}

static void run(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    (void)phase;
    group g = {.x = &call->in[0], .y = &call->out[0]};
    int64_t begin, end;
    g.channels = fl_type_width(&g.x->type);
    g.taps = call->in[1].type.dim[call->in[1].type.ndim - 1];
    const fl_state_pool *pool = &step->states[call->in[2].type.state];
    int64_t grain = (WORTH / (step->n_rows + 1) + FL_LANES) / FL_LANES * FL_LANES;
    fl_split(g.channels, grain, worker->thread, worker->n_threads, &begin, &end);
    g.ldw = WEIGHTS / g.taps / FL_LANES * FL_LANES;
    for (g.c = begin; g.c < end; g.c += g.ldw) {
        g.n = end - g.c < g.ldw ? (int)(end - g.c) : (int)g.ldw;
        load_weights(&g, call->in[1].data);
        for (int32_t s = 0; s < step->n_seqs; s++) {
            g.seq = &step->seqs[s];
            g.tail = (float *)fl_state_slot(pool, g.seq) + g.c;
            run_group(&g);
        }
    }
}

static bool fits(const fl_node_view *node)
{
    return node->in[1]->dim[node->in[1]->ndim - 1] <= MAX_TAPS;
}

static const fl_kernel kernels[] = {{.op = "conv1d",
                                     .name = FL_CPU_TEXT("simd"),
                                     .isa = FL_CPU_ISA,
                                     .preference = FL_CPU_PREFERENCE,
                                     .n_phases = 1,
                                     .run = run,
                                     .fits = fits}};
const fl_kernel_list FL_CPU_NAME(fl_cpu_kernels_conv) = FL_KERNEL_LIST(kernels);
