/* The nodes of a graph by kernel, with the time that they took. */
#include "cli/profile.h"
#include "cli/cli.h"

#include <stdlib.h>
#include <string.h>

typedef struct line {
    const char *op, *kernel;
    const fl_type *constant; /* the first one; NULL: none */
    int nodes;
    int64_t us;
    fl_cost cost;
} line;
typedef FL_VEC(line) line_list;

fl_status cli_profile_begin(cli_profile *p, fl_engine *e, const fl_graph *g, fl_error *err)
{
    size_t n = (size_t)fl_graph_nodes(g);
    int64_t *us = fl_calloc(n * (1 + CLI_PROFILE_PARTS), sizeof *us);
    if (!us)
        return fl_fail(err, FL_NOMEM, "no memory for the times of %zu nodes", n);
    *p = (cli_profile){.engine = e, .graph = g, .now = us};
    for (int i = 0; i < CLI_PROFILE_PARTS; i++)
        p->part[i] = us + n * (size_t)(1 + i);
    fl_engine_profile(e, us);
    return FL_OK;
}

void cli_profile_take(cli_profile *p, cli_profile_part part)
{
    for (int i = 0; p->now && i < fl_graph_nodes(p->graph); i++) {
        p->part[part][i] += p->now[i];
        p->now[i] = 0;
    }
}

void cli_profile_end(cli_profile *p)
{
    if (!p->now)
        return;
    fl_engine_profile(p->engine, NULL);
    fl_free(p->now);
    *p = (cli_profile){0};
}

static const fl_type *constant_of(const fl_node_view *n)
{
    for (int i = 0; i < n->n_in; i++) {
        if (n->in[i] && n->in[i]->state == FL_NONE && n->in[i]->rows == FL_ROWS_CONST)
            return n->in[i];
    }
    return NULL;
}

static bool alike(const line *a, const line *b)
{
    return strcmp(a->op, b->op) == 0 && strcmp(a->kernel, b->kernel) == 0 &&
           !a->constant == !b->constant &&
           (!a->constant || a->constant->dtype == b->constant->dtype);
}

static fl_status collect(const cli_profile *p, cli_profile_part part, const fl_sizes *sizes,
                         line_list *lines, fl_error *err)
{
    for (int i = 0; i < fl_graph_nodes(p->graph); i++) {
        const fl_kernel *k = fl_plan_kernel(fl_engine_plan(p->engine), i);
        fl_node_view n = fl_graph_node_view(p->graph, i);
        if (!k)
            continue;
        line l = {.op = n.op->name, .kernel = k->name, .constant = constant_of(&n)};
        size_t at = 0;
        while (at < lines->n && !alike(&lines->data[at], &l))
            at++;
        if (at == lines->n && !fl_vec_push(lines, l))
            return fl_fail(err, FL_NOMEM, "no memory for the report");
        line *to = &lines->data[at];
        if (n.op->cost)
            n.op->cost(&n, sizes, &l.cost);
        to->nodes++;
        to->us += p->part[part][i];
        to->cost.flops += l.cost.flops;
        to->cost.weight_bytes += l.cost.weight_bytes;
        to->cost.state_bytes += l.cost.state_bytes;
    }
    return FL_OK;
}

static int by_time(const void *a, const void *b)
{
    int64_t x = ((const line *)a)->us, y = ((const line *)b)->us;
    return (x < y) - (x > y);
}

fl_status cli_profile_print(const cli_profile *p, cli_profile_part part, double n,
                            const fl_sizes *sizes, fl_error *err)
{
    line_list lines = {0};
    int64_t sum = 0;
    fl_status s = collect(p, part, sizes, &lines, err);
    for (size_t i = 0; i < lines.n; i++)
        sum += lines.data[i].us;
    qsort(lines.data, lines.n, sizeof *lines.data, by_time);
    printf("  %12s  %6s %9s %9s  %5s\n", "microseconds", "share", "GFLOP/s", "GB/s", "nodes");
    for (size_t i = 0; i < lines.n && s == FL_OK; i++) {
        const line *l = &lines.data[i];
        double us = (double)l->us / n, bytes = l->cost.weight_bytes + l->cost.state_bytes;
        printf("  %12.1f %5.1f %% %9.1f %9.2f  %5d  %s %s %s\n", us,
               100 * (double)l->us / (double)(sum ? sum : 1), us > 0 ? l->cost.flops / us / 1e3 : 0,
               us > 0 ? bytes / us / 1e3 : 0, l->nodes, l->op, l->kernel,
               l->constant ? fl_dtype_name(l->constant->dtype) : "");
    }
    printf("  %12.1f  in all\n", (double)sum / n);
    fl_vec_free(&lines);
    return s;
}
