/* Removing what nothing needs: walking backwards from the marked values and from the nodes that
 * write state, everything that is not met goes. */
#include "graph/graph_internal.h"

fl_status fl_graph_prune(fl_graph *g, fl_error *err)
{
    bool *needed = fl_calloc(g->values.n, sizeof *needed);
    bool *stays = fl_calloc(g->nodes.n, sizeof *stays);
    if (!needed || !stays) {
        fl_free(needed);
        fl_free(stays);
        return fl_graph_nomem(err);
    }
    if (g->logits != FL_NONE)
        needed[g->logits] = true;
    for (size_t i = 0; i < g->taps.n; i++)
        needed[g->taps.data[i].value] = true;
    for (size_t i = g->nodes.n; i-- > 0;) {
        const fl_node *node = &g->nodes.data[i];
        stays[i] = node->op->effect;
        for (int k = 0; k < node->n_out; k++)
            stays[i] |= needed[node->out[k]];
        for (int k = 0; stays[i] && k < node->n_in; k++) {
            if (node->in[k] != FL_NONE)
                needed[node->in[k]] = true;
        }
    }
    size_t n = 0;
    for (size_t i = 0; i < g->nodes.n; i++) {
        if (stays[i])
            g->nodes.data[n++] = g->nodes.data[i];
    }
    g->nodes.n = n;
    fl_free(needed);
    fl_free(stays);
    return FL_OK;
}
