/* delta_rule, the chunked form (docs/internals/attention.md): whole blocks of the chunk grid in
 * sub-blocks of 16 tokens, as small matrix products; every other row, and a sub-block whose decays
 * span too wide a range, by the recurrence.
 *
 * With G_i the sum of the log decays of a sub-block up to token i, E = exp(G), and S the state
 * before it, all products elementwise over the key channels:
 *
 *   A_ij = (k_i E_i) . (k_j / E_j)  j < i      B_ij = (q_i E_i) . (k_j / E_j)  j <= i
 *   N_i  = beta_i (v_i - (k_i E_i) S - sum_j A_ij N_j)          forward substitution
 *   o_i  = (q_i E_i) S + sum_j B_ij N_j
 *   S    = E_15 S + sum_j (E_15 k_j / E_j) N_j
 *
 * The terms that are used hold exp(G_i - G_j) <= 1; what the products compute above the diagonal is
 * never looked at.  The anchor of G is the beginning of the sub-block, so E and its reciprocal stay
 * normal numbers while |G| <= 84: always, with the gate bounded at -5. */
#include "ops/cpu/delta.h"
#include "ops/cpu/matmul.h"
#include "ops/cpu/room.h"

#include "base/pool.h"
#include "ops/cpu/vmath.h"
#include "ops/def/def_internal.h"

enum { BLOCK = 16 };
static const float range = 84.0f;

/* Scratch of one worker; dk and dv stand here for their values rounded up to whole vectors.  Rows
 * of dv are one vector further apart, or the columns of a tile would share a few sets of the cache.
 */
typedef struct room {
    int64_t ldk, ldv;
    int nv;        /* vectors of dv */
    float *state;  /* [dk][dv] */
    float *sum;    /* [dk] of log decays */
    float *e;      /* [16][dk] E */
    float *kq;     /* [32][dk] k E, q E */
    float *over;   /* [16][dk] k / E */
    float *over_t; /* [dk][16] the same */
    float *inner;  /* [32][16] A, B */
    float *outer;  /* [32][dv] (k E) S, (q E) S */
    float *n;      /* [16][dv] N */
    float *tokens; /* of the recurrence */
} room;

static size_t cut(room *m, const fl_type *q, const fl_type *v, void *scratch)
{
    fl_room r = {scratch, 0};
    m->ldk = fl_padded(q->dim[1]);
    m->nv = (int)(fl_padded(v->dim[1]) / FL_LANES);
    m->ldv = fl_padded(v->dim[1]) + FL_LANES;
    m->state = fl_room_floats(&r, m->ldk * m->ldv);
    m->sum = fl_room_floats(&r, m->ldk);
    m->e = fl_room_floats(&r, BLOCK * m->ldk);
    m->kq = fl_room_floats(&r, 2 * BLOCK * m->ldk);
    m->over = fl_room_floats(&r, BLOCK * m->ldk);
    m->over_t = fl_room_floats(&r, BLOCK * m->ldk);
    m->inner = fl_room_floats(&r, 2 * BLOCK * BLOCK);
    m->outer = fl_room_floats(&r, 2 * BLOCK * m->ldv);
    m->n = fl_room_floats(&r, BLOCK * m->ldv);
    m->tokens = fl_room_floats(&r, fl_delta_floats(q));
    return r.used;
}

/* Rows of a prompt are far apart, so what the next sub-block reads of them is fetched early: to the
 * second level, for rows that are a power of two apart share few places of the first. */
static void fetch(const fl_delta *d, int64_t h, int64_t row)
{
    for (int64_t i = 0; i < d->dk; i += FL_LANES) {
        __builtin_prefetch(fl_row_f32(d->g, row) + h * d->dk + i, 0, 2);
        __builtin_prefetch(fl_row_f32(d->k, row) + h * d->dk + i, 0, 2);
        __builtin_prefetch(fl_row_f32(d->q, row) + h * d->dk + i, 0, 2);
    }
    for (int64_t i = 0; i < d->dv; i += FL_LANES)
        __builtin_prefetch(fl_row_f32(d->v, row) + h * d->dv + i, 0, 2);
}

/* E, k E, q E and k / E of the sub-block; false when a sum of log decays leaves the range. */
static bool decay(const fl_delta *d, const room *m, int64_t h, int64_t row, bool more)
{
    vf beyond = vf_zero();
    for (int t = 0; t < BLOCK; t++) {
        const float *gs = fl_row_f32(d->g, row + t) + h * d->dk;
        const float *ks = fl_row_f32(d->k, row + t) + h * d->dk;
        const float *qs = fl_row_f32(d->q, row + t) + h * d->dk;
        int64_t at = t * m->ldk;
        if (more)
            fetch(d, h, row + BLOCK + t);
        for (int64_t i = 0; i < d->dk; i += FL_LANES, at += FL_LANES) {
            int lanes = d->dk - i < FL_LANES ? (int)(d->dk - i) : FL_LANES;
            vf sum = vf_add(t ? vf_load(m->sum + i) : vf_zero(), vf_loadn(gs + i, lanes));
            vm inside = vf_le(vf_abs(sum), vf_set1(range)); /* not when it is NaN */
            beyond = vf_select(inside, beyond, vf_set1(1.0f));
            vf e = vf_exp(sum), k = vf_loadn(ks + i, lanes), q = vf_loadn(qs + i, lanes);
            vf_store(m->sum + i, sum);
            vf_store(m->e + at, e);
            vf_store(m->kq + at, vf_mul(k, e));
            vf_store(m->kq + BLOCK * m->ldk + at, vf_mul(q, e));
            vf_store(m->over + at, vf_div(k, e));
        }
    }
    return vf_hmax(beyond) == 0.0f;
}

/* sum[t] += a[t][s] x for the t that come after s, or for s itself, too. */
FL_INLINE void spread(const float *a, int s, bool own, vf x, vf *sum)
{
    FL_UNROLL
    for (int t = 0; t < BLOCK; t++) {
        if (t > s || (own && t == s))
            sum[t] = vf_fma(vf_set1(a[t * BLOCK + s]), x, sum[t]);
    }
}

/* N by forward substitution, and the outputs.  A token's N goes to all later ones at once: chains
 * that do not wait for each other. */
static void substitute(const fl_delta *d, const room *m, int64_t h, int64_t row)
{
    const float *a = m->inner, *b = m->inner + BLOCK * BLOCK;
    for (int64_t j = 0; j < d->dv; j += FL_LANES) {
        int lanes = d->dv - j < FL_LANES ? (int)(d->dv - j) : FL_LANES;
        int64_t at = h * d->dv + j;
        vf sum[BLOCK];
        FL_UNROLL
        for (int t = 0; t < BLOCK; t++)
            sum[t] = vf_load(m->outer + t * m->ldv + j);
        FL_UNROLL
        for (int s = 0; s < BLOCK; s++) {
            vf v = vf_loadn(fl_row_f32(d->v, row + s) + at, lanes);
            vf beta = vf_set1(fl_row_f32(d->beta, row + s)[h]);
            vf n = vf_mul(beta, vf_sub(v, sum[s]));
            vf_store(m->n + s * m->ldv + j, n);
            spread(a, s, false, n, sum);
        }
        FL_UNROLL
        for (int t = 0; t < BLOCK; t++)
            sum[t] = vf_load(m->outer + (BLOCK + t) * m->ldv + j);
        FL_UNROLL
        for (int s = 0; s < BLOCK; s++) {
            spread(b, s, true, vf_load(m->n + s * m->ldv + j), sum);
            vf_storen(fl_row_f32(d->out, row + s) + at, sum[s], lanes);
        }
    }
}

/* S = E_15 S + sum_j (E_15 k_j / E_j) N_j */
static void advance(const fl_delta *d, const room *m)
{
    const float *last = m->e + (BLOCK - 1) * m->ldk;
    for (int t = 0; t < BLOCK; t++) {
        float *k = m->over + t * m->ldk;
        for (int64_t i = 0; i < d->dk; i += FL_LANES)
            vf_store(k + i, vf_mul(vf_load(last + i), vf_load(k + i)));
    }
    fl_matmul_scaled(d->dk, m->nv, BLOCK, m->over, 1, m->ldk, m->n, m->ldv, last, m->state, m->ldv);
}

/* The recurrence over all columns. */
static void tokens(const fl_delta *d, const room *m, int64_t h, int64_t row, int64_t n,
                   float *state, int64_t ld)
{
    for (int64_t s = 0; s < fl_delta_strips(d->dv); s++)
        fl_delta_tokens(d, h, s, row, n, state, ld, m->tokens);
}

/* more: another one follows. */
static void sub_block(const fl_delta *d, const room *m, int64_t h, int64_t row, bool more)
{
    if (!decay(d, m, h, row, more)) {
        tokens(d, m, h, row, BLOCK, m->state, m->ldv);
        return;
    }
    fl_transpose(BLOCK, d->dk, m->over, m->ldk, m->over_t, BLOCK);
    fl_matmul(2 * BLOCK, 1, d->dk, m->kq, m->ldk, m->over_t, BLOCK, m->inner, BLOCK, false);
    fl_matmul(2 * BLOCK, m->nv, d->dk, m->kq, m->ldk, m->state, m->ldv, m->outer, m->ldv, false);
    substitute(d, m, h, row);
    advance(d, m);
}

/* Moves a head's state between its slot (ld dv) and the padded copy. */
static void copy_state(const fl_delta *d, const float *from, int64_t ld_from, float *to,
                       int64_t ld_to)
{
    for (int64_t i = 0; i < d->dk; i++)
        memcpy(to + i * ld_to, from + i * ld_from, (size_t)d->dv * sizeof *to);
}

static void one_head(const fl_delta *d, const room *m, const fl_seq_rows *seq, int64_t h)
{
    float *state = (float *)fl_state_slot(d->pool, seq) + h * d->dk * d->dv;
    /* Rows before the first whole block of the grid, those of whole blocks, and the rest. */
    int64_t before = (FL_PAGE_TOKENS - seq->pos0 % FL_PAGE_TOKENS) % FL_PAGE_TOKENS;
    if (before > seq->n_rows)
        before = seq->n_rows;
    int64_t blocks = (seq->n_rows - before) / FL_PAGE_TOKENS * FL_PAGE_TOKENS;
    int64_t row = seq->row0, rest = seq->n_rows - before - blocks;
    if (before)
        tokens(d, m, h, row, before, state, d->dv);
    row += before;
    if (blocks) {
        /* Columns that pad the copy are multiplied with, and must be numbers. */
        memset(m->state, 0, (size_t)(d->dk * m->ldv) * sizeof(float));
        copy_state(d, state, d->dv, m->state, m->ldv);
        for (int64_t r = 0; r < blocks; r += BLOCK)
            sub_block(d, m, h, row + r, r + BLOCK < blocks);
        copy_state(d, m->state, m->ldv, state, d->dv);
    }
    row += blocks;
    if (rest)
        tokens(d, m, h, row, rest, state, d->dv);
}

/* As the recurrent form deals out the work, by strips; only a sequence with whole blocks goes by
 * heads, each to the worker of its first strip. */
static void run(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    (void)phase;
    fl_delta d = fl_delta_of(call, step);
    room m;
    int64_t strips = fl_delta_strips(d.dv), units = d.heads * strips, begin, end;
    cut(&m, &d.q->type, &d.v->type, worker->scratch);
    fl_split(units * step->n_rows, 1, worker->thread, worker->n_threads, &begin, &end);
    for (int32_t s = 0; s < step->n_seqs; s++) {
        const fl_seq_rows *seq = &step->seqs[s];
        for (int64_t u = 0; u < units; u++) {
            int64_t at = units * seq->row0 + u * seq->n_rows, h = u / strips;
            if (at < begin || at >= end)
                continue;
            if (seq->n_rows < FL_PAGE_TOKENS)
                fl_delta_tokens(&d, h, u % strips, seq->row0, seq->n_rows,
                                (float *)fl_state_slot(d.pool, seq) + h * d.dk * d.dv, d.dv,
                                m.tokens);
            else if (u % strips == 0)
                one_head(&d, &m, seq, h);
        }
    }
}

static void scratch(const fl_node_view *node, const fl_limits *limits, size_t *per_worker,
                    size_t *shared)
{
    (void)limits;
    room m;
    *per_worker = cut(&m, node->in[FL_DELTA_Q], node->in[FL_DELTA_V], NULL);
    *shared = 0;
}

static const fl_kernel kernels[] = {{.op = "delta_rule",
                                     .name = FL_CPU_TEXT("chunked"),
                                     .isa = FL_CPU_ISA,
                                     .preference = FL_CPU_PREFERENCE,
                                     .n_phases = 1,
                                     .run = run,
                                     .scratch = scratch}};
const fl_kernel_list FL_CPU_NAME(fl_cpu_kernels_delta_chunk) = FL_KERNEL_LIST(kernels);
