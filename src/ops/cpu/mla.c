/* mla, the absorbed form: queries are taken into latent space, score
 * the cached rows as they lie, and what they bring back is taken out of it.  All heads share the
 * rows, so a block of them is loaded once for many queries.
 *
 * What a row sees is cut in one way, whatever the step and the number of workers: its keys in
 * ascending order (all positions, or the entries of its selection) make blocks of 64; blocks make
 * spans; within a span the softmax runs from block to block, and the spans are merged in ascending
 * order.  A span is 16 blocks, or more where the row would have over 32 spans.
 *
 * Two ways to share the work, with the same arithmetic:
 *   few rows: phase 0 absorbs the queries, phase 1 deals out (row, span, group of heads), phase 2
 *             merges and projects, each head by one worker;
 *   many:     phase 0 deals out (block of rows, group of heads) from beginning to end. */
#include "ops/cpu/mla.h"
#include "ops/cpu/matmul.h"
#include "ops/cpu/simd.h"
#include "ops/cpu/weights.h"

#include "base/pool.h"
#include "ops/def/def_internal.h"

enum { KEYS = FL_ATTEND_KEYS, SPAN = 16, SPANS = 32 };
enum { QUERIES = 256 };         /* of one unit of many rows: rows times heads */
enum { FEW = 32, SLOTS = 256 }; /* few rows, and the spans of all of them together */

typedef fl_block (*bring_fn)(const fl_mla *m, const fl_mla_block *b, const fl_seq_rows *seq,
                             const int32_t *pos, int64_t first, int n);

typedef struct room {
    fl_mla_block block;
    float *weights; /* [32][64] */
    float *panel;   /* [16][ldc] */
    void *mul;      /* of fl_mla_project */
    float *q;       /* [QUERIES][ldq] */
    float *lanes;   /* [ldq][16], [ldq][16]: queries of one row, in lanes */
    fl_runs run;    /* [QUERIES] of the span at hand */
    fl_runs total;  /* [QUERIES] of the spans before it */
} room;

typedef struct common {
    float *q;     /* [FEW][heads][ldq] */
    fl_runs slot; /* [SLOTS][heads]: the spans of row 0, of row 1, ... */
} common;

static fl_runs cut_runs(const fl_mla *m, fl_room *r, int64_t n)
{
    fl_runs runs = {.ld = m->ldc};
    runs.max = fl_room_floats(r, n);
    runs.sum = fl_room_floats(r, n);
    runs.value = fl_room_floats(r, n * m->ldc);
    return runs;
}

static size_t cut_room(const fl_mla *m, room *w, void *scratch)
{
    fl_room r = {scratch, 0};
    fl_mla_cut_block(m, &r, &w->block);
    w->weights = fl_room_floats(&r, FL_ATTEND_QUERIES * KEYS);
    w->panel = fl_room_floats(&r, FL_MLA_PANEL * m->ldc);
    w->mul = fl_room_take(&r, FL_WEIGHTS_SCRATCH, 1);
    w->q = fl_room_floats(&r, QUERIES * m->ldq);
    w->lanes = fl_room_floats(&r, FL_ATTEND_QUERIES * m->ldq);
    w->run = cut_runs(m, &r, QUERIES);
    w->total = cut_runs(m, &r, QUERIES);
    return r.used;
}

static size_t cut_common(const fl_mla *m, common *c, int64_t rows, int64_t slots, void *shared)
{
    fl_room r = {shared, 0};
    c->q = fl_room_floats(&r, rows * m->heads * m->ldq);
    c->slot = cut_runs(m, &r, slots * m->heads);
    return r.used;
}

/* ---- what a row sees ---- */

static const int32_t *selection(const fl_mla *m, int32_t row)
{
    return m->select ? (const int32_t *)m->select->data + row * m->select->stride : NULL;
}

/* Keys of a row: visible positions, or entries of its selection up to the last in use. */
static int64_t keys_of(const fl_mla *m, int32_t row)
{
    int64_t visible = fl_step_pos(m->step, row) + 1;
    const int32_t *s = selection(m, row);
    if (!s)
        return visible;
    int64_t n = m->select->type.dim[0];
    while (n > 0 && (s[n - 1] < 0 || s[n - 1] >= visible))
        n--;
    return n;
}

static int64_t blocks_of(int64_t keys)
{
    return (keys + KEYS - 1) / KEYS;
}

/* Blocks of a span of a row with so many keys. */
static int64_t span_of(int64_t keys)
{
    int64_t spans = (int64_t)SPAN * SPANS;
    return SPAN * ((blocks_of(keys) + spans - 1) / spans);
}

static int64_t spans_of(int64_t keys)
{
    return keys ? (blocks_of(keys) + span_of(keys) - 1) / span_of(keys) : 0;
}

/* Fetches the cached rows of n entries of a selection, which lie anywhere. */
static void fetch(const fl_mla *m, int32_t row, const int32_t *entries, int64_t n)
{
    const fl_seq_rows *seq = &m->step->seqs[m->step->row_seq[row]];
    for (int64_t i = 0; i < n; i++) {
        if (entries[i] < 0 || entries[i] > fl_step_pos(m->step, row))
            continue;
        const char *cached = fl_state_row(m->pool, seq, entries[i]);
        for (int64_t at = 0; at < m->pool->item_bytes; at += FL_CACHE_LINE)
            __builtin_prefetch(cached + at, 0, 2);
    }
}

/* Block b of what `row` sees; n is 0 when no entry of the selection is in use there.  bring:
 * fl_mla_place or fl_mla_load. */
static fl_block load(const fl_mla *m, const room *w, bring_fn bring, int32_t row, int64_t keys,
                     int64_t b)
{
    const fl_seq_rows *seq = &m->step->seqs[m->step->row_seq[row]];
    int64_t first = b * KEYS;
    int n = keys - first < KEYS ? (int)(keys - first) : KEYS;
    const int32_t *s = selection(m, row);
    if (!s)
        return bring(m, &w->block, seq, NULL, first, n);
    int32_t pos[KEYS];
    int used = 0;
    for (int i = 0; i < n; i++) {
        int32_t p = s[first + i];
        if (p >= 0 && p <= fl_step_pos(m->step, row))
            pos[used++] = p;
    }
    fetch(m, row, s + first + n, keys - first - n < KEYS ? keys - first - n : KEYS);
    return bring(m, &w->block, seq, pos, 0, used);
}

/* Whether so many heads of one row take a block in lanes: fewer leave lanes empty, more repay
 * bringing the keys there, of which there are half as many words when they are pairs. */
static bool in_lanes(const fl_mla *m, int n_heads)
{
    return n_heads > FL_LANES / 2 && n_heads <= (m->fast ? FL_LANES : FL_ATTEND_QUERIES);
}

/* The queries of one row, ready for fl_attend_lanes. */
static void into_lanes(const fl_mla *m, const room *w, const float *q, int n_heads)
{
    for (int h = 0; h < n_heads; h += FL_LANES)
        fl_transpose(n_heads - h < FL_LANES ? n_heads - h : FL_LANES, m->d, q + h * m->ldq, m->ldq,
                     w->lanes + h * m->ldq, FL_LANES);
}

/* All heads of block b's row look at it, from w->lanes. */
static void look_by_lanes(const fl_mla *m, const room *w, fl_block *block, int n_heads, fl_runs run)
{
    for (int h = 0; h < n_heads; h += FL_LANES) {
        fl_attend_lanes(block, n_heads - h < FL_LANES ? n_heads - h : FL_LANES,
                        w->lanes + h * m->ldq, m->nv, fl_runs_at(run, h), w->weights);
        block->next = NULL; /* it is on its way */
    }
}

/* ---- many rows ---- */

/* The last finished span of n_heads runs goes to the totals. */
static void flush(const fl_mla *m, const room *w, int64_t at, int n_heads)
{
    fl_attend_merge(fl_runs_at(w->total, at), fl_runs_at(w->run, at), n_heads, m->nv);
    fl_attend_begin(fl_runs_at(w->run, at), n_heads, m->nv);
}

/* Rows [row, row + n) of the step, which see the same keys as far as these are visible to each: all
 * of one sequence, or a single one.  Their queries and runs begin at `at`. */
static void attend(const fl_mla *m, const room *w, int32_t row, int n, int64_t at, int n_heads)
{
    int64_t most = keys_of(m, row + n - 1);
    bool lanes = n == 1 && in_lanes(m, n_heads);
    if (lanes)
        into_lanes(m, w, w->q + at * m->ldq, n_heads);
    for (int64_t b = 0; b < blocks_of(most); b++) {
        fl_block block = load(m, w, lanes ? fl_mla_place : fl_mla_load, row + n - 1, most, b);
        int loaded = block.n;
        for (int i = 0; i < n; i++) {
            int64_t keys = most - (n - 1 - i), left = keys - b * KEYS;
            int64_t first = at + (int64_t)i * n_heads;
            if (left <= 0)
                continue;
            if (b > 0 && b % span_of(keys) == 0)
                flush(m, w, first, n_heads);
            if (loaded == 0)
                continue;
            block.n = left < loaded ? (int)left : loaded;
            if (lanes)
                look_by_lanes(m, w, &block, n_heads, fl_runs_at(w->run, first));
            else
                fl_attend(&block, n_heads, w->q + first * m->ldq, m->ldq, m->nv,
                          fl_runs_at(w->run, first), w->weights);
        }
    }
}

/* Rows [row, row + n) of the step and heads [h0, h1) from queries to outputs. */
static void one_unit(const fl_mla *m, const room *w, int32_t row, int n, int64_t h0, int64_t h1)
{
    int n_heads = (int)(h1 - h0);
    int64_t queries = (int64_t)n * n_heads;
    fl_mla_absorb(m, row, n, h0, h1, w->q, n_heads * m->ldq, w->panel);
    fl_attend_begin(w->run, queries, m->nv);
    fl_attend_begin(w->total, queries, m->nv);
    for (int i = 0, next; i < n; i = next) {
        next = i + 1;
        while (!m->select && next < n && m->step->row_seq[row + next] == m->step->row_seq[row + i])
            next++;
        attend(m, w, row + i, next - i, (int64_t)i * n_heads, n_heads);
    }
    for (int i = 0; i < n; i++)
        flush(m, w, (int64_t)i * n_heads, n_heads);
    fl_attend_end(w->total, queries, m->nv);
    for (int64_t h = h0; h < h1; h++)
        fl_mla_project(m, row, n, h, w->total.value + (h - h0) * m->ldc, n_heads * m->ldc, w->mul);
}

void fl_mla_rows(const fl_mla *m, int32_t row, int32_t n, const fl_worker *worker, int32_t *turn)
{
    room w;
    cut_room(m, &w, worker->scratch);
    int64_t group = m->group;
    int32_t rows = (int32_t)(QUERIES / group), want = 4 * worker->n_threads;
    while (rows > 1 && (n + rows - 1) / rows * ((m->heads + group - 1) / group) < want)
        rows /= 2;
    while (group > 1 && n * ((m->heads + group - 1) / group) < worker->n_threads)
        group = (group + 1) / 2;
    for (int64_t h = 0; h < m->heads; h += group) {
        for (int32_t r = 0; r < n; r += rows) {
            if ((*turn)++ % worker->n_threads != worker->thread)
                continue;
            one_unit(m, &w, row + r, n - r < rows ? n - r : rows, h,
                     m->heads - h < group ? m->heads : h + group);
        }
    }
}

/* ---- few rows ---- */

static void span_run(const fl_mla *m, const room *w, const common *c, int32_t row, int64_t slot,
                     int64_t span, int64_t h0, int64_t h1)
{
    int n_heads = (int)(h1 - h0);
    int64_t keys = keys_of(m, row), b = span * span_of(keys), end = b + span_of(keys);
    fl_runs run = fl_runs_at(c->slot, slot * m->heads + h0);
    const float *q = c->q + (row * m->heads + h0) * m->ldq;
    bool lanes = in_lanes(m, n_heads);
    fl_attend_begin(run, n_heads, m->nv);
    if (lanes)
        into_lanes(m, w, q, n_heads);
    for (; b < end && b < blocks_of(keys); b++) {
        fl_block block = load(m, w, lanes ? fl_mla_place : fl_mla_load, row, keys, b);
        if (!m->select && b + 1 < blocks_of(keys)) {
            const fl_seq_rows *seq = &m->step->seqs[m->step->row_seq[row]];
            block.next = fl_state_row(m->pool, seq, (b + 1) * KEYS);
            block.next_bytes = m->pool->item_bytes;
        }
        if (block.n && lanes)
            look_by_lanes(m, w, &block, n_heads, run);
        else if (block.n)
            fl_attend(&block, n_heads, q, m->ldq, m->nv, run, w->weights);
    }
}

/* Spans of all rows, dealt out for groups of heads, smaller ones where workers would be idle. */
static void all_spans(const fl_mla *m, const common *c, const fl_worker *worker, int64_t slots)
{
    room w;
    cut_room(m, &w, worker->scratch);
    int64_t group = m->group, turn = 0, slot = 0;
    while (group > 1 && slots * ((m->heads + group - 1) / group) < worker->n_threads)
        group = (group + 1) / 2;
    for (int32_t r = 0; r < m->step->n_rows; r++) {
        for (int64_t s = 0; s < spans_of(keys_of(m, r)); s++, slot++) {
            for (int64_t h = 0; h < m->heads; h += group) {
                if (turn++ % worker->n_threads == worker->thread)
                    span_run(m, &w, c, r, slot, s, h, m->heads - h < group ? m->heads : h + group);
            }
        }
    }
}

/* Merges the spans of all rows for the heads of this worker, and projects. */
static void project(const fl_mla *m, const common *c, const fl_worker *worker, int64_t h0,
                    int64_t h1)
{
    room w;
    cut_room(m, &w, worker->scratch);
    int n = m->step->n_rows;
    for (int64_t h = h0; h < h1; h++) {
        int64_t slot = 0;
        fl_attend_begin(w.total, n, m->nv);
        for (int32_t r = 0; r < n; r++) {
            for (int64_t s = 0; s < spans_of(keys_of(m, r)); s++, slot++)
                fl_attend_merge(fl_runs_at(w.total, r), fl_runs_at(c->slot, slot * m->heads + h), 1,
                                m->nv);
        }
        fl_attend_end(w.total, n, m->nv);
        fl_mla_project(m, 0, n, h, w.total.value, m->ldc, w.mul);
    }
}

bool fl_mla_few_rows(const fl_mla *m, int phase, const fl_worker *worker)
{
    int32_t n = m->step->n_rows;
    int64_t slots = 0, h0, h1;
    if (n > FEW)
        return false;
    for (int32_t r = 0; r < n; r++)
        slots += spans_of(keys_of(m, r));
    if (slots > SLOTS)
        return false;
    common c;
    room w;
    cut_common(m, &c, n, slots, worker->shared);
    cut_room(m, &w, worker->scratch);
    fl_split(m->heads, 1, worker->thread, worker->n_threads, &h0, &h1);
    if (phase == 0)
        fl_mla_absorb(m, 0, n, h0, h1, c.q + h0 * m->ldq, m->heads * m->ldq, w.panel);
    else if (phase == 1)
        all_spans(m, &c, worker, slots);
    else
        project(m, &c, worker, h0, h1);
    return true;
}

/* ---- the kernel ---- */

void fl_mla_scratch(const fl_node_view *node, bool fast, const fl_limits *limits,
                    size_t *per_worker, size_t *shared)
{
    const fl_mla shape = fl_mla_shape(node, fast), absorbed = fl_mla_absorbed(&shape);
    const fl_mla *m = &absorbed;
    bool select = node->n_in > FL_MLA_SELECT && node->in[FL_MLA_SELECT];
    int64_t keys = select ? node->in[FL_MLA_SELECT]->dim[0] : limits->max_context;
    room w;
    common c;
    int64_t rows = limits->max_rows < FEW ? limits->max_rows : FEW;
    int64_t spans = (blocks_of(keys) + SPAN - 1) / SPAN;
    spans = spans < SPANS ? spans : SPANS;
    *per_worker = cut_room(m, &w, NULL);
    *shared = cut_common(m, &c, rows, rows * spans < SLOTS ? rows * spans : SLOTS, NULL);
}

static void scratch(const fl_node_view *node, const fl_limits *limits, size_t *per_worker,
                    size_t *shared)
{
    fl_mla_scratch(node, false, limits, per_worker, shared);
}

static void run(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    fl_mla m = fl_mla_of(call, step);
    int32_t turn = 0;
    if (!fl_mla_few_rows(&m, phase, worker) && phase == 0)
        fl_mla_rows(&m, 0, step->n_rows, worker, &turn);
}

/* Below the expanded form: only the bits of this one do not depend on the cutting at all. */
static const fl_kernel kernels[] = {{.op = "mla",
                                     .name = FL_CPU_TEXT("absorbed"),
                                     .isa = FL_CPU_ISA,
                                     .preference = 1 + FL_CPU_ISA,
                                     .n_phases = 3,
                                     .run = run,
                                     .scratch = scratch}};
const fl_kernel_list FL_CPU_NAME(fl_cpu_kernels_mla) = FL_KERNEL_LIST(kernels);
