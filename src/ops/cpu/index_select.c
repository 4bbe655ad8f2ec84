/* index_select: the scores of a row's visible keys stream by in blocks of 64 (a page), and the topk
 * best are kept as they come (ops/topk.h), so no row of scores is ever stored.
 *
 * A block of keys is brought into lanes once for up to GROUP rows of its sequence.  The dot product
 * of a head runs over d in ascending order, the score over the heads in ascending order; neither
 * depends on the other rows.  With fewer rows than workers, the keys of a row are dealt out: each
 * worker finds the topk best of its range, and the second phase the topk best of those, which are
 * the same ones. */
#include "ops/cpu/matmul.h"
#include "ops/cpu/room.h"

#include "base/pool.h"
#include "ops/cpu/simd.h"
#include "ops/def/def_internal.h"
#include "ops/topk.h"

enum { GROUP = 16, KEYS = FL_PAGE_TOKENS };

typedef struct job {
    const fl_step *step;
    const fl_arg *q, *w, *out;
    const fl_state_pool *pool;
    int64_t heads, d;
    int32_t topk;
    float scale;
} job;

typedef struct room {
    float *keys;    /* [d][64] a block of keys */
    float *dots;    /* [heads][64] */
    float *weights; /* [GROUP][heads] scale * w */
    uint64_t *best; /* [GROUP][fl_topk_room] */
    uint64_t *spare;
} room;

/* What the workers leave for the second phase: the best of range i at lists[i * topk]. */
typedef struct common {
    uint64_t *lists, *spare; /* [n_threads][topk] */
    int32_t *counts;         /* [n_threads] */
} common;

static size_t cut_room(room *m, const fl_type *q, int64_t topk, void *scratch)
{
    fl_room r = {scratch, 0};
    m->keys = fl_room_floats(&r, q->dim[1] * KEYS);
    m->dots = fl_room_floats(&r, q->dim[0] * KEYS);
    m->weights = fl_room_floats(&r, GROUP * q->dim[0]);
    m->best = fl_room_take(&r, GROUP * fl_topk_room(topk), sizeof *m->best);
    m->spare = fl_room_take(&r, fl_topk_room(topk), sizeof *m->spare);
    return r.used;
}

static size_t cut_common(common *m, int64_t topk, int n_threads, void *shared)
{
    fl_room r = {shared, 0};
    m->lists = fl_room_take(&r, n_threads * topk, sizeof *m->lists);
    m->spare = fl_room_take(&r, n_threads * topk, sizeof *m->spare);
    m->counts = fl_room_take(&r, n_threads, sizeof *m->counts);
    return r.used;
}

static int32_t *out_row(const job *j, int64_t row)
{
    return (int32_t *)j->out->data + row * j->out->stride;
}

/* The scores of one row for n keys of the block, offered in order. */
static void score_block(const job *j, const room *m, int32_t row, const float *weights, int64_t pos,
                        int n, fl_topk *best)
{
    float scores[KEYS];
    int nv = (n + FL_LANES - 1) / FL_LANES;
    vf most = vf_set1(-INFINITY);
    fl_matmul(j->heads, nv, j->d, fl_row_f32(j->q, row), j->d, m->keys, KEYS, m->dots, KEYS, false);
    for (int v = 0; v < nv; v++) {
        vf sum = vf_zero();
        for (int64_t h = 0; h < j->heads; h++) {
            vf dot = vf_load(m->dots + h * KEYS + v * FL_LANES);
            sum = vf_fma(vf_set1(weights[h]), vf_max(vf_zero(), dot), sum);
        }
        sum = vf_select(vf_eq(sum, sum), sum, vf_set1(-INFINITY));
        most = vf_max(most, sum);
        vf_store(scores + v * FL_LANES, sum);
    }
    if (vf_hmax(most) <= best->floor)
        return;
    for (int i = 0; i < n; i++)
        fl_topk_offer(best, scores[i], (int32_t)(pos + i));
}

/* Rows [row, row + n_rows) of one sequence over the key blocks [begin, end). */
static void scan(const job *j, const room *m, int32_t row, int n_rows, int64_t begin, int64_t end,
                 fl_topk *best)
{
    const fl_seq_rows *seq = &j->step->seqs[j->step->row_seq[row]];
    int64_t visible = fl_step_pos(j->step, row) + 1; /* of the first row */
    int64_t cap = fl_topk_room(j->topk), ld = j->pool->item_bytes / (int64_t)sizeof(float);
    for (int i = 0; i < n_rows; i++) {
        fl_topk_begin(&best[i], j->topk, m->best + i * cap, m->spare);
        for (int64_t h = 0; h < j->heads; h++)
            m->weights[i * j->heads + h] = j->scale * fl_row_f32(j->w, row + i)[h];
    }
    for (int64_t b = begin; b < end; b++) {
        int64_t pos = b * KEYS, left = visible + n_rows - 1 - pos;
        fl_transpose(left < KEYS ? (int)left : KEYS, j->d, fl_state_row(j->pool, seq, pos), ld,
                     m->keys, KEYS);
        for (int i = 0; i < n_rows; i++) {
            int64_t n = visible + i - pos;
            if (n > 0)
                score_block(j, m, row + i, m->weights + i * j->heads, pos, n < KEYS ? (int)n : KEYS,
                            &best[i]);
        }
    }
}

static int64_t blocks_of(int64_t visible)
{
    return (visible + KEYS - 1) / KEYS;
}

/* A row that sees at most topk positions takes them all. */
static void take_all(const job *j, int32_t row)
{
    int64_t visible = fl_step_pos(j->step, row) + 1;
    int32_t *out = out_row(j, row);
    for (int32_t i = 0; i < j->topk; i++)
        out[i] = i < visible ? i : -1;
}

/* Rows of a sequence that see more than topk positions: the last ones. */
static int32_t scored_rows(const job *j, const fl_seq_rows *seq)
{
    int64_t n = seq->pos0 + seq->n_rows - j->topk;
    return n < 0 ? 0 : n < seq->n_rows ? (int32_t)n : seq->n_rows;
}

/* ---- many rows: groups of rows are dealt out ---- */

static void many(const job *j, const fl_worker *worker, int32_t n_scored)
{
    room m;
    fl_topk best[GROUP];
    cut_room(&m, &j->q->type, j->topk, worker->scratch);
    int32_t group = n_scored / (4 * worker->n_threads), turn = 0;
    group = group < 1 ? 1 : group > GROUP ? GROUP : group;
    for (int32_t s = 0; s < j->step->n_seqs; s++) {
        const fl_seq_rows *seq = &j->step->seqs[s];
        int32_t end = seq->row0 + seq->n_rows;
        for (int32_t r = end - scored_rows(j, seq); r < end; r += group) {
            if (turn++ % worker->n_threads != worker->thread)
                continue;
            int n = end - r < group ? end - r : group;
            scan(j, &m, r, n, 0, blocks_of(fl_step_pos(j->step, r) + n), best);
            for (int i = 0; i < n; i++)
                fl_topk_write(&best[i], out_row(j, r + i));
        }
    }
}

/* ---- few rows: parts of the keys of each are dealt out ---- */

/* The i-th scored row of the step. */
static int32_t find_row(const job *j, int32_t i)
{
    const fl_seq_rows *seq = j->step->seqs;
    for (; i >= scored_rows(j, seq); seq++)
        i -= scored_rows(j, seq);
    return seq->row0 + seq->n_rows - scored_rows(j, seq) + i;
}

static void scan_part(const job *j, const common *c, const fl_worker *worker, int parts,
                      int32_t n_scored)
{
    if (worker->thread >= n_scored * parts)
        return;
    room m;
    fl_topk best;
    int64_t begin, end;
    int32_t row = find_row(j, worker->thread / parts);
    cut_room(&m, &j->q->type, j->topk, worker->scratch);
    fl_split(blocks_of(fl_step_pos(j->step, row) + 1), 1, worker->thread % parts, parts, &begin,
             &end);
    scan(j, &m, row, 1, begin, end, &best);
    best.n = fl_topk_keep(best.best, best.n, best.k, best.spare);
    memcpy(c->lists + (int64_t)worker->thread * j->topk, best.best,
           (size_t)best.n * sizeof(uint64_t));
    c->counts[worker->thread] = best.n;
}

static void merge_parts(const job *j, const common *c, int32_t i, int parts)
{
    uint64_t *list = c->lists + (int64_t)i * parts * j->topk;
    fl_topk best = {.best = list, .spare = c->spare + (list - c->lists), .k = j->topk};
    for (int p = 0; p < parts; p++) {
        int32_t n = c->counts[i * parts + p];
        memmove(list + best.n, list + (int64_t)p * j->topk, (size_t)n * sizeof *list);
        best.n += n;
    }
    fl_topk_write(&best, out_row(j, find_row(j, i)));
}

static void run(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    const fl_arg *in = call->in;
    const job j = {.step = step,
                   .q = &in[FL_INDEX_Q],
                   .w = &in[FL_INDEX_W],
                   .out = &call->out[0],
                   .pool = &step->states[in[FL_INDEX_KEYS].type.state],
                   .heads = in[FL_INDEX_Q].type.dim[0],
                   .d = in[FL_INDEX_Q].type.dim[1],
                   .topk = (int32_t)call->attr[FL_INDEX_SELECT_TOPK].i,
                   .scale = (float)call->attr[FL_INDEX_SELECT_SCALE].f};
    common c;
    int32_t n_scored = 0;
    for (int32_t s = 0; s < step->n_seqs; s++)
        n_scored += scored_rows(&j, &step->seqs[s]);
    int parts = n_scored ? worker->n_threads / n_scored : 0;
    cut_common(&c, j.topk, worker->n_threads, worker->shared);
    if (phase == 1) {
        if (parts > 1 && worker->thread < n_scored)
            merge_parts(&j, &c, worker->thread, parts);
        return;
    }
    for (int32_t r = worker->thread; r < step->n_rows; r += worker->n_threads) {
        if (fl_step_pos(step, r) < j.topk)
            take_all(&j, r);
    }
    if (parts > 1)
        scan_part(&j, &c, worker, parts, n_scored);
    else if (n_scored)
        many(&j, worker, n_scored);
}

static void scratch(const fl_node_view *node, const fl_limits *limits, size_t *per_worker,
                    size_t *shared)
{
    room m;
    common c;
    int64_t topk = node->attr[FL_INDEX_SELECT_TOPK].i;
    *per_worker = cut_room(&m, node->in[FL_INDEX_Q], topk, NULL);
    *shared = cut_common(&c, topk, limits->n_threads, NULL);
}

static const fl_kernel kernels[] = {{.op = "index_select",
                                     .name = FL_CPU_TEXT("stream"),
                                     .isa = FL_CPU_ISA,
                                     .preference = FL_CPU_PREFERENCE,
                                     .n_phases = 2,
                                     .run = run,
                                     .scratch = scratch}};
const fl_kernel_list FL_CPU_NAME(fl_cpu_kernels_index_select) = FL_KERNEL_LIST(kernels);
