/* delta_rule for prompts: whole blocks of the chunk grid go through as chunks of 64 tokens, in
 * slabs of as many chunks as stay near; other rows token by token (delta.h).
 *
 * Preparing the chunks and making outputs of them (delta_chunk.h, delta_chain.h) has work for the
 * whole device, the chain between only for a part of it, and it takes about as long.  So a launch
 * does all three, for three slabs that follow each other: it takes the chain through one, makes the
 * outputs of the one before and prepares the one after. */
#include "ops/gpu/delta_chain.h"

enum { SLAB = 768 /* chunks of heads in a slab, at least */ };
enum { RING = 3, MOST_SLABS = 64 };

/* Blocks of a launch: chains first, which take longest. */
typedef struct delta_wave {
    delta_slab chain, output, prepare;
    int chains, outputs, prepares, tiles; /* tiles: chains per head */
} delta_wave;

template <int DK>
static __global__ void __launch_bounds__(DELTA_BLOCK, 2) wave_kernel(delta_args a, delta_wave w)
{
    extern __shared__ __align__(16) unsigned char room[];
    int i = (int)blockIdx.x;
    if (i < w.chains) {
        int seq = i / (w.tiles * a.heads), in_seq = i % (w.tiles * a.heads);
        chain<DK>(a, w.chain, seq, in_seq / w.tiles, in_seq % w.tiles, room);
        return;
    }
    i -= w.chains;
    if (i < w.prepares) {
        prepare<DK>(a, w.prepare, i / a.heads, i % a.heads, room);
        return;
    }
    i -= w.prepares;
    output<DK>(a, w.output, i / a.heads, i % a.heads);
}

/* ---- launching ---- */

static int slab_slots(int64_t rows, int64_t heads)
{
    int64_t slots = rows / CHUNK + 1, least = (SLAB + heads - 1) / heads;
    int64_t each = (slots + MOST_SLABS - 1) / MOST_SLABS;
    return (int)gpu_min(slots, each > least ? each : least);
}

template <int DK>
static void blocks(const delta_args &a, const fl_step *step, int slots_each, void *scratch,
                   gpu_queue *q)
{
    size_t room = sizeof(prepare_room<DK>) > sizeof(chain_room<DK>) ? sizeof(prepare_room<DK>)
                                                                    : sizeof(chain_room<DK>);
    int64_t each = (int64_t)slots_each * a.heads, floats = each * delta_layout_of(DK, a.dv).all;
    int slots = step->n_rows / CHUNK + 1, slabs = (slots + slots_each - 1) / slots_each;
    gpu_allow_shared(q, wave_kernel<DK>, room);
    for (int i = -1; i <= slabs; i++) {
        delta_wave w = {};
        delta_slab *slab[3] = {&w.output, &w.chain, &w.prepare};
        for (int k = 0; k < 3; k++) {
            int n = i - 1 + k;
            *slab[k] = {(float *)scratch + (n + RING) % RING * floats, n * slots_each, slots_each};
        }
        w.tiles = a.dv / COLUMNS;
        w.chains = i >= 0 && i < slabs ? w.tiles * a.heads * step->n_seqs : 0;
        w.prepares = i + 1 < slabs ? (int)each : 0;
        w.outputs = i > 0 ? (int)each : 0;
        wave_kernel<DK>
            <<<(unsigned)(w.chains + w.prepares + w.outputs), DELTA_BLOCK, room, q->stream>>>(a, w);
    }
    gpu_launched(q);
}

static void run(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    (void)phase;
    gpu_queue *q = (gpu_queue *)worker->queue;
    delta_args a = delta_args_of(call, step, q);
    bool before = false, after = false, whole = false;
    for (int32_t i = 0; i < step->n_seqs && step->n_rows != step->n_seqs; i++) {
        int begin, end;
        gpu_whole_blocks(step->seqs[i].pos0, step->seqs[i].n_rows, &begin, &end);
        before |= begin > 0;
        whole |= begin < end;
        after |= end < step->seqs[i].n_rows;
    }
    if (!whole) {
        delta_plain(a, step, q);
        return;
    }
    int slots = slab_slots(step->n_rows, a.heads);
    a.range = DELTA_BEFORE;
    if (before)
        delta_recurrence(a, step->n_seqs, q);
    if (a.dk == 64)
        blocks<64>(a, step, slots, worker->shared, q);
    else
        blocks<128>(a, step, slots, worker->shared, q);
    a.range = DELTA_AFTER;
    if (after)
        delta_recurrence(a, step->n_seqs, q);
}

static void scratch(const fl_node_view *n, const fl_limits *limits, size_t *per_worker,
                    size_t *shared)
{
    int64_t heads = n->in[FL_DELTA_Q]->dim[0];
    delta_layout at =
        delta_layout_of((int)n->in[FL_DELTA_Q]->dim[1], (int)n->in[FL_DELTA_V]->dim[1]);
    *per_worker = 0;
    *shared = (size_t)RING * (size_t)slab_slots(limits->max_rows, heads) * (size_t)heads *
              (size_t)at.all * sizeof(float);
}

static bool fits(const fl_node_view *n)
{
    int64_t dk = n->in[FL_DELTA_Q]->dim[1], dv = n->in[FL_DELTA_V]->dim[1];
    return (dk == 64 || dk == 128) && dv % COLUMNS == 0;
}

static const fl_kernel kernels[] = {{.op = "delta_rule",
                                     .name = "chunked-gpu",
                                     .preference = 2,
                                     .n_phases = 1,
                                     .run = run,
                                     .fits = fits,
                                     .scratch = scratch}};
extern const fl_kernel_list gpu_kernels_delta_mma = FL_KERNEL_LIST(kernels);
