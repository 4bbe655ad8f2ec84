/* delta_rule: the recurrence, token by token: decay, predict, correct, read.  Each worker
 * takes some heads through all rows of all sequences. */
#include "ops/ref/ref_internal.h"

#include "base/pool.h"
#include "ops/def/def_internal.h"

#include <math.h>

typedef struct token { /* one head of one row */
    const float *q, *k, *v, *g;
    float beta, *o;
} token;

static void one_token(const token *t, int64_t dk, int64_t dv, float *s)
{
    for (int64_t i = 0; i < dk; i++) {
        for (int64_t j = 0; j < dv; j++)
            s[i * dv + j] = (float)(exp(t->g[i]) * s[i * dv + j]);
    }
    for (int64_t j = 0; j < dv; j++) {
        double seen = 0, read = 0;
        for (int64_t i = 0; i < dk; i++)
            seen += (double)t->k[i] * s[i * dv + j];
        for (int64_t i = 0; i < dk; i++) {
            float *x = &s[i * dv + j];
            *x = (float)(*x + t->beta * t->k[i] * (t->v[j] - seen));
            read += (double)t->q[i] * *x;
        }
        t->o[j] = (float)read;
    }
}

static void run(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    (void)phase;
    const fl_arg *in = call->in;
    int64_t heads = in[FL_DELTA_Q].type.dim[0], dk = in[FL_DELTA_Q].type.dim[1];
    int64_t dv = in[FL_DELTA_V].type.dim[1], begin, end;
    fl_split(heads, 1, worker->thread, worker->n_threads, &begin, &end);
    for (int32_t s = 0; s < step->n_seqs; s++) {
        const fl_seq_rows *seq = &step->seqs[s];
        float *state = fl_state_slot(&step->states[in[FL_DELTA_STATE].type.state], seq);
        for (int64_t h = begin; h < end; h++) {
            for (int64_t r = seq->row0; r < seq->row0 + seq->n_rows; r++) {
                token t = {.q = fl_row_f32(&in[FL_DELTA_Q], r) + h * dk,
                           .k = fl_row_f32(&in[FL_DELTA_K], r) + h * dk,
                           .v = fl_row_f32(&in[FL_DELTA_V], r) + h * dv,
                           .g = fl_row_f32(&in[FL_DELTA_G], r) + h * dk,
                           .beta = fl_row_f32(&in[FL_DELTA_BETA], r)[h],
                           .o = fl_row_f32(&call->out[0], r) + h * dv};
                one_token(&t, dk, dv, state + h * dk * dv);
            }
        }
    }
}

static const fl_kernel kernels[] = {{.op = "delta_rule", .name = "ref", .n_phases = 1, .run = run}};
const fl_kernel_list fl_ref_kernels_delta_rule = FL_KERNEL_LIST(kernels);
