/* linear for many rows, with panels (panel.h). */
#include "ops/gpu/linear.h"
#include "ops/gpu/panel.h"
#include "ops/gpu/wgmma.h"

enum {
    WORTH = 32,       /* rows from which this pays */
    SIDE_BY_SIDE = 8, /* runs that share weights */
    LEAST = 16        /* vectors of a run */
};

static int64_t eights(int64_t rows)
{
    return (rows + 7) / 8 * 8;
}

size_t linear_panel_bytes(int64_t rows, int64_t k, int parts)
{
    return (size_t)panel_bytes(eights(rows), k, parts);
}

bool linear_panels(const linear_args &a, fl_dtype type, int parts, bool fresh, gpu_queue *q)
{
    if (!q->wgmma || a.rows < WORTH)
        return false;
    panel x = {a.arranged, eights(a.rows)};
    panel_kind kind = {type, parts};
    panel_gathering g = {a.x, NULL, a.count, 1, a.row0, a.rows, a.w.k};
    if (fresh)
        panel_gather(kind, g, x, q);
    int64_t most = PANEL_MOST(type, parts), runs = (a.rows + most - 1) / most;
    int64_t tiles = gpu_blocks(a.w.n, 2 * WGMMA_ROWS), least = (a.rows + LEAST - 1) / LEAST;
    if (runs < q->processors / tiles) /* few outputs: every processor should have a tile */
        runs = gpu_min(q->processors / tiles, least);
    panel_args p = {{a.w, a.w}, x, NULL, NULL, a.count, a.row0, a.rows};
    p.width = (int)eights((a.rows + runs - 1) / runs);
    p.group = SIDE_BY_SIDE;
    p.out = a.y.p + a.row0 * a.y.stride;
    p.stride = a.y.stride;
    panel_multiply(kind, panel_class(p.width), p, NULL, q);
    return true;
}
