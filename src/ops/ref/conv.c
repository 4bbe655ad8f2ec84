/* conv1d: each worker takes some channels through all rows of all sequences, so that a tail is read
 * before it is moved on. */
#include "ops/ref/ref_internal.h"

#include "base/pool.h"

/* One channel of one sequence.  tail: its oldest entry, one entry every `channels` floats. */
static void one_channel(const fl_call *call, const fl_seq_rows *q, int64_t c, int64_t taps,
                        float *tail, int64_t channels)
{
    const fl_arg *x = &call->in[0], *y = &call->out[0];
    const float *w = (const float *)call->in[1].data + c * taps;
    for (int64_t r = 0; r < q->n_rows; r++) {
        double sum = 0;
        for (int64_t j = 0; j < taps; j++) {
            int64_t from = r - (taps - 1) + j; /* row of the sequence; negative: in the tail */
            float v =
                from < 0 ? tail[(from + taps - 1) * channels] : fl_row_f32(x, q->row0 + from)[c];
            sum += (double)w[j] * v;
        }
        fl_row_f32(y, q->row0 + r)[c] = (float)sum;
    }
    for (int64_t j = 0; j < taps - 1; j++) {
        int64_t from = q->n_rows - (taps - 1) + j;
        tail[j * channels] =
            from < 0 ? tail[(j + q->n_rows) * channels] : fl_row_f32(x, q->row0 + from)[c];
    }
}

static void run(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    (void)phase;
    int64_t channels = fl_type_width(&call->in[0].type), begin, end;
    int64_t taps = call->in[1].type.dim[call->in[1].type.ndim - 1];
    const fl_state_pool *pool = &step->states[call->in[2].type.state];
    fl_split(channels, 1, worker->thread, worker->n_threads, &begin, &end);
    for (int32_t s = 0; s < step->n_seqs; s++) {
        float *tail = fl_state_slot(pool, &step->seqs[s]);
        for (int64_t c = begin; c < end; c++)
            one_channel(call, &step->seqs[s], c, taps, tail + c, channels);
    }
}

static const fl_kernel kernels[] = {{.op = "conv1d", .name = "ref", .n_phases = 1, .run = run}};
const fl_kernel_list fl_ref_kernels_conv = FL_KERNEL_LIST(kernels);
