/* index_select: the scores of a row's visible keys stream by in blocks of 64 (a page), and the topk
 * best are kept as they come (ops/topk.h), so no row of scores is ever stored.
 *
 * Two ways to share the work, with the same result:
 *   many rows: groups of up to GROUP neighbouring rows are dealt out, and a block of keys is
 *              brought into lanes once for all of them;
 *   few rows:  the blocks of all rows, one row after the other, are cut into equal shares.  Each
 *              worker keeps the topk best of its part of a row, and the second phase the topk best
 *              of the parts, which are the same ones. */
#include "ops/cpu/index_score.h"

#include "base/pool.h"
#include "ops/cpu/simd.h"
#include "ops/def/def_internal.h"
#include "ops/topk.h"

enum { GROUP = 16, KEYS = FL_INDEX_BLOCK };
enum { FEW = 4 }; /* scored rows per worker */

typedef struct room {
    fl_index_keys keys;
    fl_index_query query[GROUP];
    uint64_t *best; /* [GROUP][fl_topk_room] */
    uint64_t *spare;
} room;

/* What the workers leave for the second phase: the best of the row in which the share of worker t
 * begins at list 2 t, of the row in which it ends at list 2 t + 1, unless they have it whole. */
typedef struct common {
    uint64_t *lists, *spare; /* [2 n_threads][topk] */
    int32_t *counts;         /* [2 n_threads] */
} common;

static size_t cut_room(room *m, const fl_type *q, fl_dtype type, int64_t topk, void *scratch)
{
    fl_room r = {scratch, 0};
    fl_index_cut_keys(&r, q, type, &m->keys);
    for (int i = 0; i < GROUP; i++)
        fl_index_cut_query(&r, q, type, &m->query[i]);
    m->best = fl_room_take(&r, GROUP * fl_topk_room(topk), sizeof *m->best);
    m->spare = fl_room_take(&r, fl_topk_room(topk), sizeof *m->spare);
    return r.used;
}

static size_t cut_common(common *m, int64_t topk, int n_threads, void *shared)
{
    fl_room r = {shared, 0};
    m->lists = fl_room_take(&r, 2 * n_threads * topk, sizeof *m->lists);
    m->spare = fl_room_take(&r, 2 * n_threads * topk, sizeof *m->spare);
    m->counts = fl_room_take(&r, 2 * (int64_t)n_threads, sizeof *m->counts);
    return r.used;
}

static int32_t *out_row(const fl_index *x, int64_t row)
{
    return (int32_t *)x->out->data + row * x->out->stride;
}

/* Candidates (ops/topk.h) of 16 scores of positions pos, pos + 1, ...: the score in an order of
 * whole numbers above, the complement of the position below.  The sum makes -0 and +0 equal. */
static int candidates(vf scores, int32_t pos, uint32_t chosen, uint64_t *out)
{
    static const int32_t complement[FL_LANES] = {0,  -1, -2,  -3,  -4,  -5,  -6,  -7,
                                                 -8, -9, -10, -11, -12, -13, -14, -15};
    vi bits = vf_bits(vf_add(scores, vf_zero()));
    bits = vi_xor(bits, vi_or(vi_sar(bits, 31), vi_set1(INT32_MIN)));
    return vi_pairs(bits, vi_add(vi_set1(~pos), vi_load(complement)), chosen, out);
}

/* Takes in what beats the floor of n scores of positions pos, pos + 1, ... */
static void offer(const float *scores, int64_t pos, int n, fl_topk *best)
{
    for (int i = 0; i < n; i += FL_LANES) {
        vf s = vf_load(scores + i);
        uint32_t lost = vm_bits(vf_le(s, vf_set1(best->floor)));
        uint32_t left = ~lost & (n - i < FL_LANES ? (1u << (n - i)) - 1 : 0xffff);
        if (!left)
            continue;
        if (best->n + FL_LANES > best->cap)
            fl_topk_cut(best);
        best->n += candidates(s, (int32_t)(pos + i), left, best->best + best->n);
    }
}

/* Rows [row, row + n_rows) of one sequence over the key blocks [begin, end). */
static void scan(const fl_index *x, room *m, int32_t row, int n_rows, int64_t begin, int64_t end,
                 fl_topk *best)
{
    const fl_seq_rows *seq = &x->step->seqs[x->step->row_seq[row]];
    int64_t visible = fl_step_pos(x->step, row) + 1; /* of the first row */
    int64_t cap = fl_topk_room(x->topk);
    for (int i = 0; i < n_rows; i++) {
        fl_topk_begin(&best[i], x->topk, m->best + i * cap, m->spare);
        fl_index_ready(x, row + i, &m->query[i]);
    }
    for (int64_t b = begin; b < end; b++) {
        float scores[KEYS];
        int64_t pos = b * KEYS, left = visible + n_rows - 1 - pos;
        fl_index_load(x, seq, pos, left < KEYS ? (int)left : KEYS, &m->keys);
        for (int i = 0; i < n_rows; i++) {
            int64_t n = visible + i - pos;
            if (n <= 0)
                continue;
            n = n < KEYS ? n : KEYS;
            fl_index_score(x, &m->query[i], &m->keys, (int)n, scores);
            offer(scores, pos, (int)n, &best[i]);
        }
    }
}

static int64_t blocks_of(int64_t visible)
{
    return (visible + KEYS - 1) / KEYS;
}

/* A row that sees at most topk positions takes them all. */
static void take_all(const fl_index *x, int32_t row)
{
    int64_t visible = fl_step_pos(x->step, row) + 1;
    int32_t *out = out_row(x, row);
    for (int32_t i = 0; i < x->topk; i++)
        out[i] = i < visible ? i : -1;
}

/* Rows of a sequence that see more than topk positions: the last ones. */
static int32_t scored_rows(const fl_index *x, const fl_seq_rows *seq)
{
    int64_t n = seq->pos0 + seq->n_rows - x->topk;
    return n < 0 ? 0 : n < seq->n_rows ? (int32_t)n : seq->n_rows;
}

/* ---- many rows ---- */

static void many(const fl_index *x, const fl_worker *worker, int32_t n_scored)
{
    room m;
    fl_topk best[GROUP];
    cut_room(&m, &x->q->type, x->type, x->topk, worker->scratch);
    int32_t group = n_scored / (2 * worker->n_threads), turn = 0;
    group = group < 1 ? 1 : group > GROUP ? GROUP : group;
    for (int32_t s = 0; s < x->step->n_seqs; s++) {
        const fl_seq_rows *seq = &x->step->seqs[s];
        int32_t end = seq->row0 + seq->n_rows;
        for (int32_t r = end - scored_rows(x, seq); r < end; r += group) {
            if (turn++ % worker->n_threads != worker->thread)
                continue;
            int n = end - r < group ? end - r : group;
            scan(x, &m, r, n, 0, blocks_of(fl_step_pos(x->step, r) + n), best);
            for (int i = 0; i < n; i++)
                fl_topk_write(&best[i], out_row(x, r + i));
        }
    }
}

/* ---- few rows ---- */

/* The blocks that a row has to be scored against. */
static int64_t blocks_of_row(const fl_index *x, int32_t row)
{
    int64_t pos = fl_step_pos(x->step, row);
    return pos < x->topk ? 0 : blocks_of(pos + 1);
}

/* A part of a row: its blocks [begin, end) of n. */
typedef struct part {
    int64_t begin, end, n;
} part;

/* What worker t of n_threads has of a row with n blocks, the first of which is number `first` of
 * the `total` blocks of the step. */
static part part_of(int64_t first, int64_t n, int64_t total, int t, int n_threads)
{
    int64_t begin, end;
    fl_split(total, 1, t, n_threads, &begin, &end);
    return (part){begin > first ? begin - first : 0, end < first + n ? end - first : n, n};
}

static bool is_whole(part p)
{
    return p.begin == 0 && p.end == p.n;
}

static void scan_share(const fl_index *x, const common *c, const fl_worker *worker, int64_t total)
{
    room m;
    int64_t n, first = 0;
    cut_room(&m, &x->q->type, x->type, x->topk, worker->scratch);
    for (int32_t r = 0; r < x->step->n_rows; r++, first += n) {
        n = blocks_of_row(x, r);
        part p = part_of(first, n, total, worker->thread, worker->n_threads);
        if (p.begin >= p.end)
            continue;
        fl_topk best;
        scan(x, &m, r, 1, p.begin, p.end, &best);
        if (is_whole(p)) {
            fl_topk_write(&best, out_row(x, r));
            continue;
        }
        int64_t list = 2 * worker->thread + (p.begin == 0);
        best.n = fl_topk_keep(best.best, best.n, best.k, best.spare);
        memcpy(c->lists + list * x->topk, best.best, (size_t)best.n * sizeof *best.best);
        c->counts[list] = best.n;
    }
}

/* Puts the lists of a row together, at the place of the first: those between belong to it too. */
static void merge_row(const fl_index *x, const common *c, int32_t row, int64_t first, int64_t total,
                      int n_threads)
{
    fl_topk best = {.k = x->topk};
    for (int t = 0; t < n_threads; t++) {
        part p = part_of(first, blocks_of_row(x, row), total, t, n_threads);
        if (p.begin >= p.end || is_whole(p))
            continue;
        int64_t list = 2 * t + (p.begin == 0);
        if (!best.best) {
            best.best = c->lists + list * x->topk;
            best.spare = c->spare + list * x->topk;
        }
        memmove(best.best + best.n, c->lists + list * x->topk,
                (size_t)c->counts[list] * sizeof *best.best);
        best.n += c->counts[list];
    }
    if (best.best)
        fl_topk_write(&best, out_row(x, row));
}

static void merge_share(const fl_index *x, const common *c, const fl_worker *worker, int64_t total)
{
    int64_t first = 0;
    for (int32_t r = 0; r < x->step->n_rows; r++) {
        if (r % worker->n_threads == worker->thread)
            merge_row(x, c, r, first, total, worker->n_threads);
        first += blocks_of_row(x, r);
    }
}

/* ---- the kernel ---- */

static void run(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    const fl_arg *in = call->in;
    const fl_index x = {.step = step,
                        .q = &in[FL_INDEX_Q],
                        .w = &in[FL_INDEX_W],
                        .out = &call->out[0],
                        .pool = &step->states[in[FL_INDEX_KEYS].type.state],
                        .heads = in[FL_INDEX_Q].type.dim[0],
                        .d = in[FL_INDEX_Q].type.dim[1],
                        .topk = (int32_t)call->attr[FL_INDEX_SELECT_TOPK].i,
                        .scale = (float)call->attr[FL_INDEX_SELECT_SCALE].f,
                        .type = in[FL_INDEX_KEYS].type.dtype};
    common c;
    int32_t n_scored = 0;
    int64_t total = 0;
    for (int32_t s = 0; s < step->n_seqs; s++)
        n_scored += scored_rows(&x, &step->seqs[s]);
    bool few = n_scored < FEW * worker->n_threads;
    for (int32_t r = 0; few && r < step->n_rows; r++)
        total += blocks_of_row(&x, r);
    cut_common(&c, x.topk, worker->n_threads, worker->shared);
    if (phase == 1) {
        if (few && n_scored)
            merge_share(&x, &c, worker, total);
        return;
    }
    for (int32_t r = worker->thread; r < step->n_rows; r += worker->n_threads) {
        if (fl_step_pos(step, r) < x.topk)
            take_all(&x, r);
    }
    if (!few)
        many(&x, worker, n_scored);
    else if (n_scored)
        scan_share(&x, &c, worker, total);
}

static void scratch(const fl_node_view *node, const fl_limits *limits, size_t *per_worker,
                    size_t *shared)
{
    room m;
    common c;
    int64_t topk = node->attr[FL_INDEX_SELECT_TOPK].i;
    *per_worker = cut_room(&m, node->in[FL_INDEX_Q], node->in[FL_INDEX_KEYS]->dtype, topk, NULL);
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
