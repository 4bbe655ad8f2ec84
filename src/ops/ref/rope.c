/* rope: the angle of a pair is computed once a row and turns that pair in every vector of the row.
 */
#include "ops/ref/ref_internal.h"

#include "base/pool.h"
#include "ops/def/def_internal.h"

#include <math.h>
#include <string.h>

static void run(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    (void)phase;
    const fl_rope *rope = call->prep;
    const fl_arg *in = &call->in[0];
    int64_t d = in->type.dim[in->type.ndim - 1], width = fl_type_width(&in->type), begin, end;
    fl_split(step->n_rows, 1, worker->thread, worker->n_threads, &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        const float *x = fl_row_f32(in, r);
        float *y = fl_row_f32(&call->out[0], r);
        double pos = (double)fl_step_pos(step, (int32_t)r);
        memcpy(y, x, (size_t)width * sizeof *y);
        for (int64_t j = 0; j < rope->pairs; j++) {
            double c = cos(pos * rope->freq[j]), s = sin(pos * rope->freq[j]);
            for (int64_t i = rope->first + j * rope->step; i < width; i += d) {
                double a = x[i], b = x[i + rope->gap];
                y[i] = (float)(a * c - b * s);
                y[i + rope->gap] = (float)(b * c + a * s);
            }
        }
    }
}

static const fl_kernel kernels[] = {{.op = "rope", .name = "ref", .n_phases = 1, .run = run}};
const fl_kernel_list fl_ref_kernels_rope = FL_KERNEL_LIST(kernels);
