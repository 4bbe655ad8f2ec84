/* experts, straight from MXFP4, FP8, BF16, F16 or F32 stacks, in two precisions.
 *
 * exact  phase 0: hidden = act(W1 z, W3 z) of every pair, for this worker's share of the inner
 * width; phase 1: W2 hidden of every pair and their weighted sums, for its share of the columns.
 * fast   the same on 8-bit rows (q8.h, MXFP4 only), each phase after one that quantises its rows.
 * tiles  the same on rows rounded to BF16 (amx.h), each phase after one that rounds its rows.
 */
#include "ops/cpu/experts.h"
#include "ops/cpu/amx.h"
#include "ops/cpu/few.h"
#include "ops/cpu/q8.h"
#include "ops/cpu/tile.h"

#include "base/pool.h"
#include "base/taken.h"

/* A worker's buffer for gate and up, or for the parts of the output, has as many floats as a step
 * can fill, BUFFER at most: more when one block of columns of all pairs needs more.  Every further
 * pass over the columns reads all hidden rows again. */
enum { BUFFER = 1 << 19, BLOCK = FL_WEIGHTS_W };
/* Bytes of weights of a part that another worker may take over, in steps of up to so many rows: as
 * in linear.c. */
enum { PART = 131072, STREAMED = 16 };

enum form { EXACT, FAST, TILES };
static const int64_t mul_scratch[] = {FL_WEIGHTS_SCRATCH, FL_Q8_SCRATCH, FL_AMX_SCRATCH};

/* A worker's memory. */
typedef struct room {
    fl_exp_groups groups;
    float *buffer;
    int64_t floats; /* of buffer */
    float *regs;    /* for fl_tile_run */
    void *weights;  /* for the product: mul_scratch */
} room;

static room room_at(void *memory, const fl_exp_sizes *most, enum form form, size_t *bytes)
{
    fl_room r = {memory, 0};
    room m = {.groups = fl_exp_groups_room(&r, most)};
    int64_t pairs = most->rows * most->k, block = 2 * pairs * BLOCK; /* gate and up, one expert */
    int64_t full = pairs * (2 * most->inner + most->z);
    m.floats = full < BUFFER ? full : BUFFER;
    m.floats = block > m.floats ? block : m.floats;
    m.buffer = fl_room_floats(&r, m.floats + 16); /* a tile reads whole vectors */
    m.regs = fl_room_floats(&r, FL_EXPR_MAX_REGS * FL_TILE);
    m.weights = fl_room_take(&r, mul_scratch[form], 1);
    *bytes = r.used;
    return m;
}

/* What all workers share.  The 8-bit rows are for precision fast, those in BF16 for tiles. */
typedef struct common {
    float *hidden;            /* [rows * k][inner], pairs in the order of the groups */
    fl_q8 z8;                 /* [rows] */
    fl_q8 hidden8;            /* [rows * k] */
    fl_rounded z16, hidden16; /* [rows * k], in the order of the groups */
} common;

static fl_q8 take_q8(fl_room *r, int64_t rows, int64_t width)
{
    fl_q8_chunk *chunk = fl_room_take(r, rows * fl_q8_chunks(width), sizeof *chunk);
    return (fl_q8){chunk, fl_room_take(r, rows, sizeof(bool)), width};
}

static common common_at(void *memory, const fl_exp_sizes *s, enum form form, size_t *bytes)
{
    fl_room r = {memory, 0};
    common c = {.hidden = fl_room_floats(&r, s->rows * s->k * s->inner)};
    if (form == FAST) {
        c.z8 = take_q8(&r, s->rows, s->z);
        c.hidden8 = take_q8(&r, s->rows * s->k, s->inner);
    } else if (form == TILES) {
        c.z16 = fl_rounded_room(&r, s->rows * s->k, s->z);
        c.hidden16 = fl_rounded_room(&r, s->rows * s->k, s->inner);
    }
    *bytes = r.used;
    return c;
}

/* One call, as a worker sees it. */
typedef struct job {
    const fl_call *call;
    const fl_worker *worker;
    fl_exp_sizes size;
    room room;
    common common;
    enum form form;
} job;

/* As many columns as the buffer holds of n arrays, in blocks. */
static int64_t columns(const room *m, int64_t n)
{
    return m->floats / n / BLOCK * BLOCK;
}

/* Asks for the first bytes of what is multiplied after the next product: rows from `row` on of
 * input w of the call, of a group's expert.  No product sees the next one coming. */
static void fetch(const job *b, int w, const fl_exp_group *g, int64_t row)
{
    const fl_tensor *t = &b->call->in[w].tensors[g->expert];
    const unsigned char *p =
        (const unsigned char *)t->data + row * t->shape[1] * fl_dtype_bits(t->dtype) / 8;
    fl_few_fetch(p, FL_FEW_AHEAD, fl_cpu_fetch_second());
}

/* The rows of a group: of z, or of what phase_hidden left. */
static fl_row_list rows_of(const job *b, const fl_exp_group *g, bool hidden)
{
    const fl_arg *z = &b->call->in[FL_EXP_Z];
    int64_t inner = b->size.inner;
    return hidden ? (fl_row_list){b->common.hidden + g->first * inner, inner, NULL}
                  : (fl_row_list){z->data, z->stride, b->room.groups.row + g->first};
}

/* y = W[expert] (input w of the call) times rows_of, for columns [from, to). */
static void times(const job *b, int w, const fl_exp_group *g, bool hidden, int64_t from, int64_t to,
                  const fl_row_list *y)
{
    const fl_tensor *t = &b->call->in[w].tensors[g->expert];
    const fl_row_list x = rows_of(b, g, hidden);
    const common *c = &b->common;
    void *scratch = b->room.weights;
    if (b->form == EXACT)
        fl_weights_mul(t, from, to, &x, y, g->n, scratch);
    else if (b->form == FAST)
        fl_q8_mul(t, from, to, hidden ? &c->hidden8 : &c->z8, x.index, g->first, y, g->n, scratch);
#if defined(FL_AMX)
    else
        fl_amx_mul(t, from, to, hidden ? &c->hidden16 : &c->z16, g->first, y, g->n, scratch);
#endif
}

static void hidden_of(const job *b, const fl_exp_group *g, int64_t from, int64_t to)
{
    const room *m = &b->room;
    int64_t width = to - from, inner = b->size.inner;
    const fl_row_list gate = {m->buffer, width, NULL}, up = {m->buffer + g->n * width, width, NULL};
    fetch(b, FL_EXP_W3, g, from);
    times(b, FL_EXP_W1, g, false, from, to, &gate);
    if (g + 1 < b->room.groups.group + b->room.groups.n)
        fetch(b, FL_EXP_W1, g + 1, from);
    times(b, FL_EXP_W3, g, false, from, to, &up);
    for (int32_t i = 0; i < g->n; i++) {
        float *out = b->common.hidden + (g->first + i) * inner + from;
        for (int64_t c = 0; c < width; c += FL_TILE) {
            const float *in[] = {fl_list_row(&gate, i) + c, fl_list_row(&up, i) + c};
            int64_t n = width - c < FL_TILE ? width - c : FL_TILE;
            fl_tile_run(b->call->prep, in, n, m->regs, out + c);
        }
    }
}

/* Whether workers take parts of each other's shares: where reading weights bounds them. */
static bool takes_parts(const job *b)
{
    return b->worker->taken && b->size.rows <= STREAMED;
}

/* Columns of a part, at most so many, when each is n weight rows of input w of the call. */
static int64_t part_columns(const job *b, int w, int64_t n, int64_t most)
{
    const fl_type *t = &b->call->in[w].type;
    int64_t bytes = t->dim[1] * fl_dtype_bits(t->dtype) / 8 * n + 1;
    int64_t part = (PART / bytes + BLOCK) / BLOCK * BLOCK;
    return part < most ? part : most;
}

/* The parts of a share are those of its first group, then those of the second, and so on. */
static void hidden_in_parts(const job *b)
{
    int64_t most = columns(&b->room, 2 * b->size.rows * b->size.k);
    int64_t begin, end, i, part = part_columns(b, FL_EXP_W1, 2, most);
    for (int j = 0; j < b->worker->n_threads; j++) {
        int owner = fl_owner(b->worker, j);
        fl_split(b->size.inner, BLOCK, owner, b->worker->n_threads, &begin, &end);
        int64_t parts = (end - begin + part - 1) / part;
        while ((i = fl_take(&b->worker->taken[owner])) < parts * b->room.groups.n) {
            int64_t from = begin + i % parts * part;
            hidden_of(b, &b->room.groups.group[i / parts], from,
                      from + part < end ? from + part : end);
        }
    }
}

static void phase_hidden(const job *b)
{
    int64_t begin, end;
    if (takes_parts(b)) {
        hidden_in_parts(b);
        return;
    }
    fl_split(b->size.inner, BLOCK, b->worker->thread, b->worker->n_threads, &begin, &end);
    for (int32_t g = 0; g < b->room.groups.n; g++) {
        const fl_exp_group *group = &b->room.groups.group[g];
        int64_t step = columns(&b->room, 2 * group->n);
        for (int64_t c = begin; c < end; c += step)
            hidden_of(b, group, c, c + step < end ? c + step : end);
    }
}

/* Columns [from, to) of the output. */
static void out_of(const job *b, int64_t from, int64_t to)
{
    for (int32_t g = 0; g < b->room.groups.n; g++) {
        const fl_exp_group *group = &b->room.groups.group[g];
        const fl_row_list y = {b->room.buffer, to - from, b->room.groups.pair + group->first};
        if (g + 1 < b->room.groups.n)
            fetch(b, FL_EXP_W2, group + 1, from);
        times(b, FL_EXP_W2, group, true, from, to, &y);
    }
    fl_exp_mix(b->call, &b->size, b->room.buffer, from, to - from);
}

static void out_in_parts(const job *b, int64_t most)
{
    int64_t begin, end, from, part = part_columns(b, FL_EXP_W2, b->room.groups.n, most);
    for (int j = 0; j < b->worker->n_threads; j++) {
        int owner = fl_owner(b->worker, j);
        fl_split(b->size.z, BLOCK, owner, b->worker->n_threads, &begin, &end);
        while ((from = begin + part * fl_take(&b->worker->taken[owner])) < end)
            out_of(b, from, from + part < end ? from + part : end);
    }
}

static void phase_out(const job *b)
{
    int64_t begin, end, step = columns(&b->room, b->size.rows * b->size.k);
    if (takes_parts(b)) {
        out_in_parts(b, step);
        return;
    }
    fl_split(b->size.z, BLOCK, b->worker->thread, b->worker->n_threads, &begin, &end);
    for (int64_t c = begin; c < end; c += step)
        out_of(b, c, c + step < end ? c + step : end);
}

/* This worker's share of n rows, row i being at x + i * stride. */
static void quantise(const job *b, const float *x, int64_t stride, int64_t n, const fl_q8 *to)
{
    int64_t begin, end;
    fl_split(n, 1, b->worker->thread, b->worker->n_threads, &begin, &end);
    for (int64_t i = begin; i < end; i++)
        fl_q8_quantise(x + i * stride, to, i);
}

#if defined(FL_AMX)
/* This worker's share of the rows of all groups, sixteen by sixteen. */
static void round_rows(const job *b, bool hidden)
{
    const fl_exp_groups *g = &b->room.groups;
    int64_t begin, end, at = 0, n = 0;
    for (int32_t i = 0; i < g->n; i++)
        n += fl_rounded_groups(g->group[i].n, FL_AMX_SIDE);
    fl_split(n, 1, b->worker->thread, b->worker->n_threads, &begin, &end);
    for (int32_t i = 0; i < g->n; i++) {
        const fl_row_list x = rows_of(b, &g->group[i], hidden);
        for (int64_t j = 0; j < fl_rounded_groups(g->group[i].n, FL_AMX_SIDE); j++, at++) {
            if (at >= begin && at < end)
                fl_amx_round(&x, g->group[i].n, j, hidden ? &b->common.hidden16 : &b->common.z16,
                             g->group[i].first);
        }
    }
}
#endif

static job job_of(const fl_call *call, const fl_step *step, const fl_worker *worker, enum form form)
{
    job b = {.call = call, .worker = worker, .form = form};
    size_t bytes;
    b.size = fl_exp_sizes_of(&call->in[FL_EXP_IDS].type, &call->in[FL_EXP_W1].type,
                             fl_rows_now(step, call->in[FL_EXP_Z].type.rows));
    b.room = room_at(worker->scratch, &b.size, form, &bytes);
    b.common = common_at(worker->shared, &b.size, form, &bytes);
    return b;
}

static int64_t grouped_pairs(const job *b)
{
    const fl_exp_groups *g = &b->room.groups;
    return g->n ? g->group[g->n - 1].first + g->group[g->n - 1].n : 0;
}

static void run_exact(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    job b = job_of(call, step, worker, EXACT);
    fl_exp_find_groups(call, &b.size, &b.room.groups);
    if (b.size.rows == 0)
        return;
    if (phase == 0)
        phase_hidden(&b);
    else
        phase_out(&b);
}

static void run_fast(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    job b = job_of(call, step, worker, FAST);
    const fl_arg *z = &call->in[FL_EXP_Z];
    if (b.size.rows == 0)
        return;
    fl_exp_find_groups(call, &b.size, &b.room.groups);
    if (phase == 0)
        quantise(&b, z->data, z->stride, b.size.rows, &b.common.z8);
    else if (phase == 1)
        phase_hidden(&b);
    else if (phase == 2)
        quantise(&b, b.common.hidden, b.size.inner, grouped_pairs(&b), &b.common.hidden8);
    else
        phase_out(&b);
}

#if defined(FL_AMX)
static void run_tiles(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    job b = job_of(call, step, worker, TILES);
    if (b.size.rows == 0)
        return;
    fl_exp_find_groups(call, &b.size, &b.room.groups);
    if (phase == 0 || phase == 2)
        round_rows(&b, phase == 2);
    else if (phase == 1)
        phase_hidden(&b);
    else
        phase_out(&b);
}

static bool fits_tiles(const fl_node_view *node)
{
    return fl_rounded_type(node->in[FL_EXP_W1]->dtype);
}
#endif

static bool fits_exact(const fl_node_view *node)
{
    return fl_weights_type(node->in[FL_EXP_W1]->dtype);
}

static bool fits_fast(const fl_node_view *node)
{
    return node->in[FL_EXP_W1]->dtype == FL_MXFP4;
}

static void scratch(const fl_node_view *node, const fl_limits *limits, enum form form,
                    size_t *per_worker, size_t *shared)
{
    int64_t rows = limits->max_rows > limits->max_logits ? limits->max_rows : limits->max_logits;
    fl_exp_sizes s = fl_exp_sizes_of(node->in[FL_EXP_IDS], node->in[FL_EXP_W1], rows);
    (void)room_at(NULL, &s, form, per_worker);
    (void)common_at(NULL, &s, form, shared);
}

static void scratch_exact(const fl_node_view *node, const fl_limits *limits, size_t *per_worker,
                          size_t *shared)
{
    scratch(node, limits, EXACT, per_worker, shared);
}

static void scratch_fast(const fl_node_view *node, const fl_limits *limits, size_t *per_worker,
                         size_t *shared)
{
    scratch(node, limits, FAST, per_worker, shared);
}

#if defined(FL_AMX)
static void scratch_tiles(const fl_node_view *node, const fl_limits *limits, size_t *per_worker,
                          size_t *shared)
{
    scratch(node, limits, TILES, per_worker, shared);
}
#endif

static const fl_kernel kernels[] = {
    {.op = "experts",
     .name = FL_CPU_TEXT("simd"),
     .isa = FL_CPU_ISA,
     .preference = FL_CPU_PREFERENCE,
     .n_phases = 2,
     .run = run_exact,
     .fits = fits_exact,
     .scratch = scratch_exact},
    {.op = "experts",
     .name = FL_CPU_TEXT("q8"),
     .isa = FL_CPU_ISA,
     .fast = true,
     .preference = FL_CPU_PREFERENCE + 10,
     .n_phases = 4,
     .run = run_fast,
     .fits = fits_fast,
     .scratch = scratch_fast},
#if defined(FL_AMX)
    {.op = "experts",
     .name = FL_AMX_TEXT("tiles"),
     .isa = FL_AMX_ISA,
     .fast = true,
     .preference = FL_AMX_AFTER_8_BITS,
     .n_phases = 4,
     .run = run_tiles,
     .fits = fits_tiles,
     .scratch = scratch_tiles},
#endif
};
const fl_kernel_list FL_CPU_NAME(fl_cpu_kernels_experts) = FL_KERNEL_LIST(kernels);
