/* experts with float32 activations, straight from MXFP4, BF16, F16 or F32 stacks.
 *
 * Phase 0: hidden = act(W1 z, W3 z) of every pair, for this worker's share of the inner width.
 * Phase 1: W2 hidden of every pair and their weighted sums, for its share of the output columns. */
#include "ops/cpu/experts.h"
#include "ops/cpu/tile.h"
#include "ops/cpu/weights.h"

#include "base/pool.h"

/* Floats of a worker's buffer for gate and up, or for the parts of the output; more when one block
 * of columns of all pairs needs more. */
enum { BUFFER = 1 << 15, BLOCK = FL_WEIGHTS_W };

typedef struct room {
    fl_exp_groups groups;
    float *buffer;
    int64_t floats; /* of buffer */
    float *regs;    /* for fl_tile_run */
    void *weights;  /* for fl_weights_mul */
} room;

static room room_at(void *memory, const fl_exp_sizes *most, size_t *bytes)
{
    fl_room r = {memory, 0};
    room m = {.groups = fl_exp_groups_room(&r, most)};
    int64_t block = 2 * most->rows * most->k * BLOCK; /* gate and up, all pairs of one expert */
    m.floats = block > BUFFER ? block : BUFFER;
    m.buffer = fl_room_floats(&r, m.floats + 16); /* a tile reads whole vectors */
    m.regs = fl_room_floats(&r, FL_EXPR_MAX_REGS * FL_TILE);
    m.weights = fl_room_take(&r, FL_WEIGHTS_SCRATCH, 1);
    *bytes = r.used;
    return m;
}

/* As many columns as the buffer holds of n arrays, in blocks. */
static int64_t columns(const room *m, int64_t n)
{
    return m->floats / n / BLOCK * BLOCK;
}

static void hidden_of(const fl_call *call, const fl_exp_group *g, const room *m, int64_t from,
                      int64_t to, float *hidden, int64_t inner)
{
    const fl_arg *z = &call->in[FL_EXP_Z];
    int64_t width = to - from;
    const fl_row_list x = {z->data, z->stride, m->groups.row + g->first};
    const fl_row_list gate = {m->buffer, width, NULL}, up = {m->buffer + g->n * width, width, NULL};
    fl_weights_mul(&call->in[FL_EXP_W1].tensors[g->expert], from, to, &x, &gate, g->n, m->weights);
    fl_weights_mul(&call->in[FL_EXP_W3].tensors[g->expert], from, to, &x, &up, g->n, m->weights);
    for (int32_t i = 0; i < g->n; i++) {
        float *out = hidden + (g->first + i) * inner + from;
        for (int64_t c = 0; c < width; c += FL_TILE) {
            const float *in[] = {fl_list_row(&gate, i) + c, fl_list_row(&up, i) + c};
            fl_tile_run(call->prep, in, width - c < FL_TILE ? width - c : FL_TILE, m->regs,
                        out + c);
        }
    }
}

static void phase_hidden(const fl_call *call, const fl_exp_sizes *s, const room *m, float *hidden,
                         const fl_worker *worker)
{
    int64_t begin, end;
    fl_split(s->inner, BLOCK, worker->thread, worker->n_threads, &begin, &end);
    for (int32_t g = 0; g < m->groups.n; g++) {
        const fl_exp_group *group = &m->groups.group[g];
        int64_t step = columns(m, 2 * group->n);
        for (int64_t c = begin; c < end; c += step)
            hidden_of(call, group, m, c, c + step < end ? c + step : end, hidden, s->inner);
    }
}

static void phase_out(const fl_call *call, const fl_exp_sizes *s, const room *m, float *hidden,
                      const fl_worker *worker)
{
    int64_t begin, end, step = columns(m, s->rows * s->k);
    fl_split(s->z, BLOCK, worker->thread, worker->n_threads, &begin, &end);
    for (int64_t c = begin; c < end; c += step) {
        int64_t to = c + step < end ? c + step : end;
        for (int32_t g = 0; g < m->groups.n; g++) {
            const fl_exp_group *group = &m->groups.group[g];
            const fl_row_list x = {hidden + group->first * s->inner, s->inner, NULL};
            const fl_row_list y = {m->buffer, to - c, m->groups.pair + group->first};
            fl_weights_mul(&call->in[FL_EXP_W2].tensors[group->expert], c, to, &x, &y, group->n,
                           m->weights);
        }
        fl_exp_mix(call, s, m->buffer, c, to - c);
    }
}

static void run(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    int32_t rows = fl_rows_now(step, call->in[FL_EXP_Z].type.rows);
    if (rows == 0)
        return;
    fl_exp_sizes s = fl_exp_sizes_of(&call->in[FL_EXP_IDS].type, &call->in[FL_EXP_W1].type, rows);
    size_t bytes;
    room m = room_at(worker->scratch, &s, &bytes);
    fl_exp_find_groups(call, &s, &m.groups);
    if (phase == 0)
        phase_hidden(call, &s, &m, worker->shared, worker);
    else
        phase_out(call, &s, &m, worker->shared, worker);
}

static bool fits(const fl_node_view *node)
{
    return fl_weights_type(node->in[FL_EXP_W1]->dtype);
}

static void scratch(const fl_node_view *node, const fl_limits *limits, size_t *per_worker,
                    size_t *shared)
{
    int64_t rows = limits->max_rows > limits->max_logits ? limits->max_rows : limits->max_logits;
    fl_exp_sizes s = fl_exp_sizes_of(node->in[FL_EXP_IDS], node->in[FL_EXP_W1], rows);
    fl_room r = {NULL, 0};
    room_at(NULL, &s, per_worker);
    fl_room_floats(&r, s.rows * s.k * s.inner);
    *shared = r.used;
}

static const fl_kernel kernels[] = {{.op = "experts",
                                     .name = FL_CPU_TEXT("simd"),
                                     .isa = FL_CPU_ISA,
                                     .preference = FL_CPU_PREFERENCE,
                                     .n_phases = 2,
                                     .run = run,
                                     .fits = fits,
                                     .scratch = scratch}};
const fl_kernel_list FL_CPU_NAME(fl_cpu_kernels_experts) = FL_KERNEL_LIST(kernels);
