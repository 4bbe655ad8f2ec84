/* conv1d: each worker takes some channels through all rows of all sequences, 16 channels at a time,
 * so that a tail is read before it is moved on.  The weights, [channel][tap], are laid out by tap
 * once per 16 channels. */
#include "ops/cpu/cpu_internal.h"
#include "ops/cpu/simd.h"

#include "base/pool.h"

enum { MAX_TAPS = 16, WORTH = 1024 }; /* WORTH: channels x rows that are worth a worker */

typedef struct lane_group {
    const fl_arg *x, *y;
    const fl_seq_rows *seq;
    int64_t c, taps, channels; /* first channel; channels: of the whole row */
    int n;                     /* channels of this group, 1..16 */
    float *tail;               /* of channel c: entry j at tail[j * channels] */
    vf w[MAX_TAPS];
} lane_group;

/* The input `from` rows into the sequence's part of the step; negative ones lie in the tail. */
static vf input(const lane_group *g, int64_t from)
{
    return vf_loadn(from < 0 ? g->tail + (from + g->taps - 1) * g->channels
                             : fl_row_f32(g->x, g->seq->row0 + from) + g->c,
                    g->n);
}

static void run_group(const lane_group *g)
{
    int64_t rows = g->seq->n_rows;
    for (int64_t r = 0; r < rows; r++) {
        vf sum = vf_zero();
        for (int64_t j = 0; j < g->taps; j++)
            sum = vf_fma(g->w[j], input(g, r - (g->taps - 1) + j), sum);
        vf_storen(fl_row_f32(g->y, g->seq->row0 + r) + g->c, sum, g->n);
    }
    for (int64_t j = 0; j < g->taps - 1; j++) /* ascending: reads entries not yet overwritten */
        vf_storen(g->tail + j * g->channels, input(g, rows - (g->taps - 1) + j), g->n);
}

static void run(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    (void)phase;
    lane_group g = {.x = &call->in[0], .y = &call->out[0]};
    int64_t begin, end;
    g.channels = fl_type_width(&g.x->type);
    g.taps = call->in[1].type.dim[call->in[1].type.ndim - 1];
    const float *w = call->in[1].data;
    const fl_state_pool *pool = &step->states[call->in[2].type.state];
    int64_t grain = (WORTH / (step->n_rows + 1) + FL_LANES) / FL_LANES * FL_LANES;
    fl_split(g.channels, grain, worker->thread, worker->n_threads, &begin, &end);
    for (g.c = begin; g.c < end; g.c += FL_LANES) {
        g.n = end - g.c < FL_LANES ? (int)(end - g.c) : FL_LANES;
        for (int64_t j = 0; j < g.taps; j++) {
            float lanes[FL_LANES] = {0};
            for (int i = 0; i < g.n; i++)
                lanes[i] = w[(g.c + i) * g.taps + j];
            g.w[j] = vf_load(lanes);
        }
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
