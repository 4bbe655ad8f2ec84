/* What the kernels of "experts" share: the (row, rank) pairs of a step grouped by expert, and the
 * weighted sum at the end.
 *
 * Pair p is row * k + rank.  Every worker groups for itself in every phase: that costs less than a
 * barrier.  The weight rows of all touched experts are shared out by their index, the same range of
 * every expert to each worker: an expert is read once for all its rows, and the shares are equal
 * whatever the router chose. */
#ifndef FL_OPS_CPU_EXPERTS_H
#define FL_OPS_CPU_EXPERTS_H

#include "ops/cpu/cpu_internal.h"
#include "ops/cpu/room.h"

enum { FL_EXP_Z, FL_EXP_IDS, FL_EXP_WEIGHTS, FL_EXP_W1, FL_EXP_W3, FL_EXP_W2 };

typedef struct fl_exp_sizes {
    int64_t z, inner, k, rows; /* widths; ranks of a row; rows now, or at most */
    int32_t n_experts;
} fl_exp_sizes;

/* in: the types of the inputs of a node, or of a call. */
static inline fl_exp_sizes fl_exp_sizes_of(const fl_type *ids, const fl_type *w1, int64_t rows)
{
    return (fl_exp_sizes){w1->dim[1], w1->dim[0], ids->dim[0], rows, w1->n_tensors};
}

/* One touched expert: its pairs are pair[first .. first + n), ascending. */
typedef struct fl_exp_group {
    int32_t expert, first, n;
} fl_exp_group;

typedef struct fl_exp_groups {
    fl_exp_group *group; /* [n], experts ascending */
    int32_t n;
    int32_t *pair, *row; /* [rows * k]: the pairs, and the row that each belongs to */
    int32_t *count;      /* [n_experts]: for the sorting */
} fl_exp_groups;

static inline fl_exp_groups fl_exp_groups_room(fl_room *room, const fl_exp_sizes *s)
{
    int64_t pairs = s->rows * s->k, most = pairs < s->n_experts ? pairs : s->n_experts;
    return (fl_exp_groups){.group = fl_room_take(room, most, sizeof(fl_exp_group)),
                           .pair = fl_room_take(room, pairs, sizeof(int32_t)),
                           .row = fl_room_take(room, pairs, sizeof(int32_t)),
                           .count = fl_room_take(room, s->n_experts, sizeof(int32_t))};
}

#define fl_exp_find_groups FL_CPU_NAME(fl_exp_find_groups)
#define fl_exp_mix FL_CPU_NAME(fl_exp_mix)

/* Sorts the pairs by expert.  Ids that name no expert are left out. */
void fl_exp_find_groups(const fl_call *call, const fl_exp_sizes *s, fl_exp_groups *g);

/* Columns [from, from + n) of the output: y = sum over ranks, ascending, of weight * part, where
 * the parts of pair p are at parts + p * n.  n is a multiple of 16, or ends at the last column. */
void fl_exp_mix(const fl_call *call, const fl_exp_sizes *s, const float *parts, int64_t from,
                int64_t n);

#endif
