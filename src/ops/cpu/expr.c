/* expr: the rows are cut into tiles, the tiles are dealt out.  An operand that lies as the output
 * does is read in place; one that is broadcast (or the ragged end of a row) is laid out first. */
#include "ops/cpu/room.h"
#include "ops/cpu/simd.h"
#include "ops/cpu/tile.h"

#include "base/pool.h"

#include <string.h>

/* Tiles that are worth a worker: an elementwise tile takes a few hundred nanoseconds. */
enum { WORTH = 4 };

typedef struct room {
    float *regs; /* [FL_EXPR_MAX_REGS][FL_TILE] */
    float *laid; /* [FL_EXPR_MAX_INPUTS][FL_TILE] */
} room;

static room take_room(fl_room *r)
{
    return (room){fl_room_floats(r, FL_EXPR_MAX_REGS * FL_TILE),
                  fl_room_floats(r, FL_EXPR_MAX_INPUTS * FL_TILE)};
}

/* Where element i of the output's row meets the operand's row; *run: how many elements from there
 * on lie side by side in both (or meet the one element, when *same becomes true). */
static int64_t meets(const fl_type *out, const fl_type *in, int64_t i, int64_t *run, bool *same)
{
    int64_t last = out->ndim ? out->dim[out->ndim - 1] : 1, at = 0, step = 1;
    *run = last - i % last;
    *same = in->ndim == 0 || in->dim[in->ndim - 1] == 1;
    for (int d = 1; d <= in->ndim; d++) { /* from the last dim on */
        int64_t size = in->dim[in->ndim - d], whole = out->dim[out->ndim - d];
        at += size == 1 ? 0 : i % whole * step;
        step *= size;
        i /= whole;
    }
    return at;
}

/* Elements [first, first + n) of an operand as the output sees them. */
static void lay_out(const fl_type *out, const fl_type *in, const float *row, int64_t first,
                    int64_t n, float *tile)
{
    for (int64_t i = 0; i < n;) {
        int64_t run;
        bool same;
        const float *from = row + meets(out, in, first + i, &run, &same);
        run = run < n - i ? run : n - i;
        if (same) {
            for (int64_t j = 0; j < run; j++)
                tile[i + j] = *from;
        } else {
            memcpy(tile + i, from, (size_t)run * sizeof *tile);
        }
        i += run;
    }
    memset(tile + n, 0, (size_t)(fl_padded(n) - n) * sizeof *tile);
}

static void one_tile(const fl_call *call, const room *m, int64_t row, int64_t first, int64_t n)
{
    const fl_arg *y = &call->out[0];
    const float *inputs[FL_EXPR_MAX_INPUTS];
    int64_t width = fl_type_width(&y->type);
    for (int k = 0; k < call->n_in; k++) {
        const fl_arg *x = &call->in[k];
        const float *from = fl_row_f32(x, x->type.rows == FL_ROWS_CONST ? 0 : row);
        if (fl_type_width(&x->type) == width && n % FL_LANES == 0) {
            inputs[k] = from + first;
        } else {
            lay_out(&y->type, &x->type, from, first, n, m->laid + k * FL_TILE);
            inputs[k] = m->laid + k * FL_TILE;
        }
    }
    fl_tile_run(call->prep, inputs, n, m->regs, fl_row_f32(y, row) + first);
}

static void run(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    (void)phase;
    fl_room r = {worker->scratch, 0};
    room m = take_room(&r);
    const fl_arg *y = &call->out[0];
    int64_t width = fl_type_width(&y->type), tiles = (width + FL_TILE - 1) / FL_TILE, begin, end;
    fl_split(fl_rows_now(step, y->type.rows) * tiles, WORTH, worker->thread, worker->n_threads,
             &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        int64_t first = i % tiles * FL_TILE, left = width - first;
        one_tile(call, &m, i / tiles, first, left < FL_TILE ? left : FL_TILE);
    }
}

static void scratch(const fl_node_view *node, const fl_limits *limits, size_t *per_worker,
                    size_t *shared)
{
    (void)node;
    (void)limits;
    fl_room r = {0};
    (void)take_room(&r);
    *per_worker = r.used;
    *shared = 0;
}

static const fl_kernel kernels[] = {{.op = "expr",
                                     .name = FL_CPU_TEXT("tile"),
                                     .isa = FL_CPU_ISA,
                                     .preference = FL_CPU_PREFERENCE,
                                     .n_phases = 1,
                                     .run = run,
                                     .scratch = scratch}};
const fl_kernel_list FL_CPU_NAME(fl_cpu_kernels_expr) = FL_KERNEL_LIST(kernels);
