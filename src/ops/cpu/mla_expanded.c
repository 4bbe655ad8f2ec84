/* mla, the expanded form: for rows in whole blocks of the chunk grid that see
 * every position up to their own.  Per head, a block of cached rows is expanded to keys and values
 * once for up to RUN queries, which pay 320 multiply-adds a pair where the absorbed form pays 1088
 * (sizes of K3); the softmax runs from block to block.  All other rows take the absorbed form.
 *
 * Which form a row takes depends on its place in its sequence alone, as long as prompts are cut
 * along the grid; and with a selection it depends on the selection only in that this has to be
 * complete, so that choosing everything gives the bits of choosing nothing. */
#include "ops/cpu/mla.h"

#include "ops/cpu/pairs.h"
#include "ops/def/def_internal.h"

#include <string.h>

enum { RUN = 512, KEYS = FL_ATTEND_KEYS, QUERIES = FL_ATTEND_QUERIES };
enum { STAIRS = 8 }; /* queries that are worked on together where each sees one key more */

typedef struct room {
    fl_mla_block block;
    fl_mla_head head;
    float *weights; /* [32][64] */
    float *q;       /* [RUN][nope + pe, padded] scaled; fast: words at the beginning of these */
    fl_runs run;    /* [RUN] */
} room;

static int64_t ld_query(const fl_mla *m)
{
    return fl_padded(m->nope + m->pe);
}

static size_t cut_room(const fl_mla *m, room *w, void *scratch)
{
    fl_room r = {scratch, 0};
    fl_mla_cut_block(m, &r, &w->block);
    fl_mla_cut_head(m, &r, &w->head);
    w->weights = fl_room_floats(&r, FL_ATTEND_QUERIES * KEYS);
    w->q = fl_room_floats(&r, RUN * ld_query(m));
    w->run.max = fl_room_floats(&r, RUN);
    w->run.sum = fl_room_floats(&r, RUN);
    w->run.value = fl_room_floats(&r, RUN * fl_padded(m->dv));
    w->run.ld = fl_padded(m->dv);
    return r.used;
}

/* Whether a row is in a block of the grid that lies wholly inside the step, and sees everything. */
static bool is_expanded(const fl_mla *m, int32_t row)
{
    const fl_seq_rows *seq = &m->step->seqs[m->step->row_seq[row]];
    int64_t pos = fl_step_pos(m->step, row), block = pos / KEYS * KEYS;
    if (block < seq->pos0 || block + KEYS > seq->pos0 + seq->n_rows)
        return false;
    if (!m->select)
        return true;
    if (pos >= m->select->type.dim[0])
        return false;
    const int32_t *s = (const int32_t *)m->select->data + row * m->select->stride;
    int64_t p = 0;
    while (p <= pos && s[p] == p)
        p++;
    return p > pos;
}

/* n queries, the first of which sees `keys` positions, over block b of them. */
static void look(const fl_mla *m, const room *w, fl_block *block, int64_t b, int64_t keys, int n)
{
    int nv = (int)(fl_padded(m->dv) / 16), together;
    for (int i = 0; i < n; i += together) {
        int64_t left = keys + i - b * KEYS;
        together = 1;
        if (left <= 0)
            continue;
        /* On the diagonal each query sees one key more; behind it all see all. */
        int64_t most = left < KEYS ? KEYS - left + 1 : n - i, few = left < KEYS ? STAIRS : QUERIES;
        most = most < n - i ? most : n - i;
        together = (int)(most < few ? most : few);
        block->n = left < KEYS ? (int)left : KEYS;
        block->more = left < KEYS;
        fl_attend(block, together, w->q + i * ld_query(m), ld_query(m), nv, fl_runs_at(w->run, i),
                  w->weights);
    }
}

static void ready_queries(const fl_mla *m, const room *w, int32_t row, int n, int64_t h)
{
    int64_t d = m->nope + m->pe;
    for (int i = 0; i < n; i++) {
        const float *q = fl_row_f32(m->q, row + i) + h * d;
        float *to = w->q + i * ld_query(m);
        for (int64_t j = 0; j < d; j++)
            to[j] = m->scale * q[j];
#if defined(__AVX512BF16__)
        if (m->fast)
            fl_pairs_round(to, d, to);
#endif
    }
}

/* Head h of rows [row, row + n), n <= RUN, of one sequence. */
static void one_unit(const fl_mla *m, const room *w, int32_t row, int n, int64_t h)
{
    const fl_seq_rows *seq = &m->step->seqs[m->step->row_seq[row]];
    int64_t keys = fl_step_pos(m->step, row) + 1, most = keys + n - 1;
    int nv = (int)(fl_padded(m->dv) / 16);
    ready_queries(m, w, row, n, h);
    fl_mla_ready_head(m, &w->head, h);
    fl_attend_begin(w->run, n, nv);
    for (int64_t b = 0; b * KEYS < most; b++) {
        int64_t left = most - b * KEYS;
        fl_block cached =
            fl_mla_load(m, &w->block, seq, NULL, b * KEYS, left < KEYS ? (int)left : KEYS);
        fl_block block = fl_mla_expand(m, &w->head, h, &cached);
        look(m, w, &block, b, keys, n);
    }
    fl_attend_end(w->run, n, nv);
    for (int i = 0; i < n; i++)
        memcpy(fl_row_f32(m->out, row + i) + h * m->dv, w->run.value + i * w->run.ld,
               (size_t)m->dv * sizeof(float));
}

static void run(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    fl_mla m = fl_mla_of(call, step), absorbed = fl_mla_absorbed(&m);
    if (fl_mla_few_rows(&absorbed, phase, worker) || phase != 0)
        return;
    room w;
    int32_t turn = 0;
    cut_room(&m, &w, worker->scratch);
    for (int32_t r = 0, next; r < step->n_rows; r = next) {
        bool expanded = is_expanded(&m, r);
        next = r + 1;
        while (next < step->n_rows && is_expanded(&m, next) == expanded &&
               (!expanded || (step->row_seq[next] == step->row_seq[r] && next - r < RUN)))
            next++;
        if (!expanded) {
            fl_mla_rows(&absorbed, r, next - r, worker, &turn);
            continue;
        }
        for (int64_t h = 0; h < m.heads; h++) {
            if (turn++ % worker->n_threads == worker->thread)
                one_unit(&m, &w, r, next - r, h);
        }
    }
}

static void scratch(const fl_node_view *node, bool fast, const fl_limits *limits,
                    size_t *per_worker, size_t *shared)
{
    fl_mla m = fl_mla_shape(node, fast);
    room w;
    fl_mla_scratch(node, fast, limits, per_worker, shared);
    size_t own = cut_room(&m, &w, NULL);
    *per_worker = own > *per_worker ? own : *per_worker;
}

static void scratch_exact(const fl_node_view *node, const fl_limits *limits, size_t *per_worker,
                          size_t *shared)
{
    scratch(node, false, limits, per_worker, shared);
}

#if defined(__AVX512BF16__)
static void scratch_fast(const fl_node_view *node, const fl_limits *limits, size_t *per_worker,
                         size_t *shared)
{
    scratch(node, true, limits, per_worker, shared);
}

/* Pairs do not reach from one part of a row into the next. */
static bool fits_fast(const fl_node_view *node)
{
    fl_mla m = fl_mla_shape(node, true);
    return m.nope % 2 == 0 && m.latent % 2 == 0;
}
#endif

/* fast: where the processor has BF16 dot products; elsewhere there is nothing to gain from
 * rounding, and exact serves. */
static const fl_kernel kernels[] = {
    {.op = "mla",
     .name = FL_CPU_TEXT("expanded"),
     .isa = FL_CPU_ISA,
     .preference = FL_CPU_PREFERENCE,
     .n_phases = 3,
     .run = run,
     .scratch = scratch_exact},
#if defined(__AVX512BF16__)
    {.op = "mla",
     .name = FL_CPU_TEXT("bf16"),
     .isa = FL_CPU_ISA,
     .fast = true,
     .bf16_dots = true,
     .preference = FL_CPU_PREFERENCE + 10,
     .n_phases = 3,
     .run = run,
     .fits = fits_fast,
     .scratch = scratch_fast},
#endif
};
const fl_kernel_list FL_CPU_NAME(fl_cpu_kernels_mla_expanded) = FL_KERNEL_LIST(kernels);
