/* experts for steps with many pairs: rows are gathered into
 * a panel by expert, gate and up and the activation make a panel of hidden values, W2 makes results
 * per pair, and these are combined as everywhere. */
#include "ops/gpu/experts.h"
#include "ops/gpu/panel.h"

enum {
    WORTH = 16,        /* pairs for each expert, on average, from which this pays */
    PASS_ROWS = 16384, /* at most at once, a quarter with three parts: panels need room */
    ROUND = 256
};

/* Where things lie in scratch, for passes of up to `rows` rows. */
typedef struct places {
    int64_t rows, vectors, runs; /* of a pass, of its panels, and of each width at most */
    int64_t x, hidden, down, bytes;
} places;

static int64_t rounded(int64_t n)
{
    return (n + ROUND - 1) / ROUND * ROUND;
}

static int64_t pass_rows(int parts)
{
    return parts == 1 ? PASS_ROWS : PASS_ROWS / 4;
}

static places places_of(int parts, int64_t rows, int64_t k, int64_t experts, int64_t inner,
                        int64_t width)
{
    places p = {};
    p.rows = gpu_min(rows, pass_rows(parts));
    p.vectors = (p.rows * k + 7 * experts + 7) / 8 * 8;
    p.runs = p.rows * k / PANEL_MOST(FL_BF16, parts) + experts;
    int64_t lists =
        4 * (PANEL_CLASSES + 1 + p.vectors) + (int64_t)sizeof(gpu_run) * PANEL_CLASSES * p.runs;
    int64_t x = rounded(panel_bytes(p.vectors, width, parts)), down = p.rows * k * width * 4;
    p.hidden = rounded(lists);
    p.x = p.down =
        p.hidden + rounded(panel_bytes(p.vectors, inner, parts)); /* not at the same time */
    p.bytes = p.x + (x > down ? x : down);
    return p;
}

/* With three parts the other kernels are further behind. */
static bool worth(int parts, int64_t rows, int64_t k, int64_t experts)
{
    return rows * k >= (parts == 1 ? WORTH : WORTH / 2) * experts;
}

size_t experts_panel_scratch(const fl_node_view *n, const fl_limits *limits, int parts)
{
    int64_t k = n->in[IDS]->dim[0], experts = n->in[W1]->n_tensors;
    if (!worth(parts, limits->max_rows, k, experts))
        return 0;
    return (size_t)places_of(parts, limits->max_rows, k, experts, n->in[W1]->dim[0],
                             n->in[W1]->dim[1])
        .bytes;
}

/* The lists of a pass. */
typedef struct run_lists {
    int32_t *n;       /* [PANEL_CLASSES] */
    int32_t *vectors; /* of the panel, with those that are none */
    gpu_run *runs;    /* [PANEL_CLASSES][most] */
    int64_t most;
} run_lists;

/* One block.  Each expert's pairs begin at a multiple of 8, with -1 for none in between. */
static __global__ void runs_kernel(experts_args a, run_lists to, int longest)
{
    __shared__ int32_t n[MAX_EXPERTS], next[MAX_EXPERTS], n_runs[PANEL_CLASSES];
    __shared__ int4 room[GPU_LANES];
    if (threadIdx.x < PANEL_CLASSES)
        n_runs[threadIdx.x] = 0;
    count_pairs(a, n);
    int first = threadIdx.x * GROUP_EACH;
    int4 own = {0, 0, 0, 0}, all;
    for (int e = first; e < first + GROUP_EACH; e++)
        own.x += (n[e] + 7) / 8 * 8;
    int at = block_before(own, room, &all).x;
    for (int e = first; e < first + GROUP_EACH && e < a.n_experts; e++) {
        int runs = (n[e] + longest - 1) / longest;
        int each = runs ? ((n[e] + runs - 1) / runs + 7) / 8 * 8 : 0;
        next[e] = at;
        for (int i = 0; i < runs; i++) {
            int left = n[e] - i * each, here = left < each ? left : each, c = panel_class(here);
            to.runs[c * to.most + atomicAdd(&n_runs[c], 1)] = {e, at + i * each, here};
        }
        for (int i = n[e]; i % 8; i++)
            a.g.pairs[at + i] = -1;
        at += (n[e] + 7) / 8 * 8;
    }
    place_pairs(a, next);
    if (threadIdx.x < PANEL_CLASSES)
        to.n[threadIdx.x] = n_runs[threadIdx.x];
    if (threadIdx.x == 0)
        *to.vectors = all.x;
}

/* The products of one pass with one or two stacks of matrices; no run is longer than all pairs. */
static void products(panel_args a, const run_lists &l, panel_kind kind, int64_t pairs,
                     const fl_expr *act, gpu_queue *q)
{
    int last = panel_class((int)gpu_min(pairs, PANEL_MOST(kind.weights, kind.parts)));
    for (int c = 0; c <= last; c++) {
        a.runs = l.runs + c * l.most;
        a.n_runs = l.n + c;
        panel_multiply(kind, c, a, act, q);
    }
}

static void one_pass(experts_args a, const places &p, panel_kind kind, const fl_expr *act,
                     unsigned char *room, gpu_queue *q)
{
    run_lists l = {(int32_t *)room};
    l.vectors = l.n + PANEL_CLASSES;
    a.g.pairs = l.vectors + 1;
    l.runs = (gpu_run *)(a.g.pairs + p.vectors);
    l.most = p.runs;
    a.down = (float *)(room + p.down);
    panel x = {room + p.x, p.vectors}, hidden = {room + p.hidden, p.vectors};
    runs_kernel<<<1, GROUP_THREADS, 0, q->stream>>>(a, l, PANEL_MOST(kind.weights, kind.parts));
    gpu_rows z = {a.z.p + a.row0 * a.z.stride, a.z.stride};
    panel_gathering g = {z, a.g.pairs, l.vectors, a.k, 0, p.vectors, a.w1.k};
    panel_gather(kind, g, x, q);
    panel_args up = {{a.w1, a.w3}, x, NULL, NULL, a.count};
    up.group = 1;
    up.hidden = hidden;
    products(up, l, kind, a.rows * a.k, act, q);
    panel_args down = {{a.w2, a.w2}, hidden, NULL, NULL, a.count};
    down.group = 1;
    down.place = a.g.pairs;
    down.out = a.down;
    down.stride = a.w2.n;
    products(down, l, kind, a.rows * a.k, NULL, q);
    combine_kernel<<<dim3((unsigned)a.rows, gpu_blocks(a.w2.n, 256)), 256, 0, q->stream>>>(a);
    gpu_launched(q);
}

bool experts_panels(const fl_call *call, int parts, experts_args a, int64_t rows,
                    unsigned char *room, gpu_queue *q)
{
    if (!q->wgmma || !worth(parts, rows, a.k, a.n_experts))
        return false;
    int64_t passes = (rows + pass_rows(parts) - 1) / pass_rows(parts),
            most = (rows + passes - 1) / passes;
    places p = places_of(parts, most, a.k, a.n_experts, a.w1.n, a.w2.n);
    for (int64_t r = 0; r < rows; r += most) {
        a.row0 = r;
        a.rows = gpu_min(rows - r, most);
        one_pass(a, p, {call->in[W1].type.dtype, parts}, (const fl_expr *)call->prep, room, q);
    }
    return true;
}
