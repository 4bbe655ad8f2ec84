/* delta_rule, the recurrent form: one token after the other, the columns of the state in lanes.
 *
 * A column of the state (one value channel) never looks at another, so a head is cut into strips of
 * columns and a strip goes through all tokens of its sequence while it lies in the first-level
 * cache.  Every token passes over the strip twice:
 *
 *   S = exp(g) S and u = k S         then         S = S + k (beta (v - u)) and o = q S
 *
 * Sums run over the key channels in ascending order, so the result is the same for any cutting of
 * a prompt and any number of threads. */
#include "ops/cpu/delta.h"
#include "ops/cpu/room.h"

#include "base/pool.h"
#include "ops/cpu/vmath.h"
#include "ops/def/def_internal.h"

/* Vectors of a strip: two accumulators each, next to one row of the state. */
#if defined(__AVX512F__)
enum { STRIP = 4 };
#else
enum { STRIP = 2 };
#endif

fl_delta fl_delta_of(const fl_call *call, const fl_step *step)
{
    const fl_arg *in = call->in;
    return (fl_delta){.heads = in[FL_DELTA_Q].type.dim[0],
                      .dk = in[FL_DELTA_Q].type.dim[1],
                      .dv = in[FL_DELTA_V].type.dim[1],
                      .q = &in[FL_DELTA_Q],
                      .k = &in[FL_DELTA_K],
                      .v = &in[FL_DELTA_V],
                      .g = &in[FL_DELTA_G],
                      .beta = &in[FL_DELTA_BETA],
                      .out = &call->out[0],
                      .pool = &step->states[in[FL_DELTA_STATE].type.state]};
}

/* One token of one strip.  The state is read at `from`, lies in `tile` between the two passes and
 * is left at `to`. */
typedef struct token {
    int64_t dk, ld_from, ld_tile, ld_to;
    const float *q, *k, *decay, *v;
    float beta, *o;
    const float *from;
    float *tile, *to;
} token;

FL_INLINE vf load(const float *p, int j, int nv, int last)
{
    p += j * FL_LANES;
    return j == nv - 1 && last < FL_LANES ? vf_loadn(p, last) : vf_load(p);
}

FL_INLINE void store(float *p, vf a, int j, int nv, int last)
{
    p += j * FL_LANES;
    if (j == nv - 1 && last < FL_LANES)
        vf_storen(p, a, last);
    else
        vf_store(p, a);
}

/* nv vectors, of which the last has `last` lanes. */
FL_INLINE void one_token(const token *t, int nv, int last)
{
    vf change[STRIP], sum[STRIP];
    FL_UNROLL
    for (int j = 0; j < nv; j++)
        sum[j] = vf_zero();
    for (int64_t i = 0; i < t->dk; i++) {
        vf decay = vf_set1(t->decay[i]), k = vf_set1(t->k[i]);
        FL_UNROLL
        for (int j = 0; j < nv; j++) {
            vf s = vf_mul(decay, load(t->from + i * t->ld_from, j, nv, last));
            sum[j] = vf_fma(k, s, sum[j]);
            vf_store(t->tile + i * t->ld_tile + j * FL_LANES, s);
        }
    }
    FL_UNROLL
    for (int j = 0; j < nv; j++) {
        change[j] = vf_mul(vf_set1(t->beta), vf_sub(load(t->v, j, nv, last), sum[j]));
        sum[j] = vf_zero();
    }
    for (int64_t i = 0; i < t->dk; i++) {
        vf k = vf_set1(t->k[i]), q = vf_set1(t->q[i]);
        FL_UNROLL
        for (int j = 0; j < nv; j++) {
            vf s = vf_fma(k, change[j], vf_load(t->tile + i * t->ld_tile + j * FL_LANES));
            sum[j] = vf_fma(q, s, sum[j]);
            store(t->to + i * t->ld_to, s, j, nv, last);
        }
    }
    FL_UNROLL
    for (int j = 0; j < nv; j++)
        store(t->o, sum[j], j, nv, last);
}

static void decays(const float *g, int64_t n, float *out)
{
    for (int64_t i = 0; i < n; i += FL_LANES) {
        int lanes = n - i < FL_LANES ? (int)(n - i) : FL_LANES;
        vf_store(out + i, vf_exp(vf_loadn(g + i, lanes)));
    }
}

/* Whole strips first, then what is left in strips of one vector. */
int64_t fl_delta_strips(int64_t dv)
{
    int64_t whole = dv / (STRIP * FL_LANES), left = dv % (STRIP * FL_LANES);
    return whole + (left + FL_LANES - 1) / FL_LANES;
}

int64_t fl_delta_floats(const fl_type *q)
{
    return fl_padded(q->dim[1]) + q->dim[1] * STRIP * FL_LANES;
}

void fl_delta_tokens(const fl_delta *d, int64_t h, int64_t strip, int64_t row, int64_t n,
                     float *state, int64_t ld, float *scratch)
{
    enum { WIDTH = STRIP * FL_LANES };
    int64_t whole = d->dv / WIDTH;
    bool is_whole = strip < whole;
    int64_t col = is_whole ? strip * WIDTH : whole * WIDTH + (strip - whole) * FL_LANES;
    int last = d->dv - col < FL_LANES ? (int)(d->dv - col) : FL_LANES;
    float *decay = scratch, *tile = scratch + fl_padded(d->dk);
    for (int64_t r = row; r < row + n; r++) {
        bool first = r == row, final = r == row + n - 1;
        decays(fl_row_f32(d->g, r) + h * d->dk, d->dk, decay);
        token t = {.dk = d->dk,
                   .q = fl_row_f32(d->q, r) + h * d->dk,
                   .k = fl_row_f32(d->k, r) + h * d->dk,
                   .v = fl_row_f32(d->v, r) + h * d->dv + col,
                   .decay = decay,
                   .beta = fl_row_f32(d->beta, r)[h],
                   .o = fl_row_f32(d->out, r) + h * d->dv + col,
                   .from = first ? state + col : tile,
                   .ld_from = first ? ld : WIDTH,
                   .tile = tile,
                   .ld_tile = WIDTH,
                   .to = final ? state + col : tile,
                   .ld_to = final ? ld : WIDTH};
        if (is_whole)
            one_token(&t, STRIP, FL_LANES);
        else
            one_token(&t, 1, last);
    }
}

/* The work of a step is (strips of all heads) x rows; a worker does the strips that begin in its
 * share of it, sequence after sequence. */
static void run(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    (void)phase;
    fl_delta d = fl_delta_of(call, step);
    int64_t strips = fl_delta_strips(d.dv), units = d.heads * strips, begin, end;
    fl_split(units * step->n_rows, 1, worker->thread, worker->n_threads, &begin, &end);
    for (int32_t s = 0; s < step->n_seqs; s++) {
        const fl_seq_rows *seq = &step->seqs[s];
        for (int64_t u = 0; u < units; u++) {
            int64_t at = units * seq->row0 + u * seq->n_rows, h = u / strips;
            if (at < begin || at >= end)
                continue;
            float *state = (float *)fl_state_slot(d.pool, seq) + h * d.dk * d.dv;
            fl_delta_tokens(&d, h, u % strips, seq->row0, seq->n_rows, state, d.dv,
                            worker->scratch);
        }
    }
}

static void scratch(const fl_node_view *node, const fl_limits *limits, size_t *per_worker,
                    size_t *shared)
{
    (void)limits;
    *per_worker = (size_t)fl_delta_floats(node->in[FL_DELTA_Q]) * sizeof(float);
    *shared = 0;
}

/* Below the chunked form: only the bits of this one do not depend on the cutting at all. */
static const fl_kernel kernels[] = {{.op = "delta_rule",
                                     .name = FL_CPU_TEXT("recurrent"),
                                     .isa = FL_CPU_ISA,
                                     .preference = 1 + FL_CPU_ISA,
                                     .n_phases = 1,
                                     .run = run,
                                     .scratch = scratch}};
const fl_kernel_list FL_CPU_NAME(fl_cpu_kernels_delta_rule) = FL_KERNEL_LIST(kernels);
