/* Building a grammar: rules, nodes and edges. */
#include "engine/grammar_internal.h"

#include <stdarg.h>
#include <stdio.h>

enum { MAX_INDENT = 40 };

fl_grammar *fl_grammar_create(const fl_token_trie *t)
{
    fl_grammar *g = fl_calloc(1, sizeof *g);
    if (!g)
        return NULL;
    g->trie = t;
    g->holders = 1;
    fl_grammar_rule(g, 0, 0); /* rule 0 and its nodes take whatever a failed build gives them */
    return g;
}

fl_grammar *fl_grammar_hold(fl_grammar *g)
{
    g->holders++;
    return g;
}

void fl_grammar_release(fl_grammar *g)
{
    if (!g || --g->holders > 0)
        return;
    for (size_t i = 0; i < g->rules.n; i++)
        fl_free(g->rules.data[i].live);
    fl_vec_free(&g->nodes);
    fl_vec_free(&g->edges);
    fl_vec_free(&g->rules);
    fl_mask_cache_free(g->cache);
    fl_free(g);
}

size_t fl_grammar_bytes_held(const fl_grammar *g)
{
    size_t n = g->nodes.cap * sizeof *g->nodes.data + g->edges.cap * sizeof *g->edges.data +
               g->rules.cap * sizeof *g->rules.data;
    for (size_t i = 0; i < g->rules.n; i++) {
        const fl_rule *r = &g->rules.data[i];
        if (r->live) /* at most: nodes of later rules are counted too */
            n += (g->nodes.n - (size_t)r->first) * ((size_t)fl_rule_top(r) + 1) / 8;
    }
    return n;
}

void fl_grammar_fail(fl_grammar *g, fl_status status, const char *fmt, ...)
{
    if (g->status != FL_OK)
        return;
    char text[sizeof g->error.message];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    g->status = fl_fail(&g->error, status, "%s", text);
}

static void no_memory(fl_grammar *g)
{
    fl_grammar_fail(g, FL_NOMEM, "no memory for a grammar");
}

int32_t fl_grammar_node(fl_grammar *g, int32_t rule)
{
    if (g->status != FL_OK)
        return 0;
    if (g->nodes.n >= FL_MAX_NODES) {
        fl_grammar_fail(g, FL_ARGUMENT, "the schema is too large");
        return 0;
    }
    if (!fl_vec_push(&g->nodes, (fl_node){.rule = rule})) {
        no_memory(g);
        return 0;
    }
    return (int32_t)g->nodes.n - 1;
}

int32_t fl_grammar_rule(fl_grammar *g, int32_t min, int32_t max)
{
    int32_t rule = (int32_t)g->rules.n;
    if (g->status != FL_OK)
        return 0;
    if (!fl_vec_push(&g->rules, ((fl_rule){.min = min, .max = max}))) {
        no_memory(g);
        return 0;
    }
    int32_t start = fl_grammar_node(g, rule), end = fl_grammar_node(g, rule);
    fl_rule *r = &g->rules.data[rule];
    r->start = r->first = start;
    r->end = end;
    return rule;
}

static void edge(fl_grammar *g, fl_edge e)
{
    if (g->status != FL_OK)
        return;
    if (g->edges.n >= FL_MAX_EDGES)
        fl_grammar_fail(g, FL_ARGUMENT, "the schema is too large");
    else if (!fl_vec_push(&g->edges, e))
        no_memory(g);
}

void fl_grammar_bytes(fl_grammar *g, int32_t from, int low, int high, int flags, int32_t to)
{
    edge(g, (fl_edge){.kind = FL_EDGE_BYTES,
                      .flags = (uint8_t)flags,
                      .low = (uint8_t)low,
                      .high = (uint8_t)high,
                      .from = from,
                      .to = to});
}

void fl_grammar_mark(fl_grammar *g, int32_t from, int32_t token, int32_t to)
{
    edge(g, (fl_edge){.kind = FL_EDGE_MARK, .arg = token, .from = from, .to = to});
}

void fl_grammar_call(fl_grammar *g, int32_t from, int32_t rule, int flags, int32_t to)
{
    edge(g,
         (fl_edge){
             .kind = FL_EDGE_CALL, .flags = (uint8_t)flags, .arg = rule, .from = from, .to = to});
    if (g->status == FL_OK)
        g->rules.data[g->nodes.data[from].rule].calls = true;
}

void fl_grammar_jump(fl_grammar *g, int32_t from, int flags, int32_t to)
{
    edge(g, (fl_edge){.kind = FL_EDGE_JUMP, .flags = (uint8_t)flags, .from = from, .to = to});
}

static int32_t beside(fl_grammar *g, int32_t node)
{
    return g->status == FL_OK ? fl_grammar_node(g, g->nodes.data[node].rule) : 0;
}

int32_t fl_grammar_byte(fl_grammar *g, int32_t from, int byte, int flags)
{
    int32_t to = beside(g, from);
    fl_grammar_bytes(g, from, byte, byte, flags, to);
    return to;
}

int32_t fl_grammar_text(fl_grammar *g, int32_t from, const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++)
        from = fl_grammar_byte(g, from, (unsigned char)text[i], 0);
    return from;
}

int32_t fl_grammar_then(fl_grammar *g, int32_t from, int32_t rule)
{
    int32_t to = beside(g, from);
    fl_grammar_call(g, from, rule, 0, to);
    return to;
}

int32_t fl_grammar_space(fl_grammar *g, int32_t from)
{
    if (g->space == 0) {
        g->space = fl_grammar_rule(g, 0, 0);
        if (g->status != FL_OK)
            return 0;
        int32_t start = g->rules.data[g->space].start, end = g->rules.data[g->space].end;
        fl_grammar_jump(g, start, 0, end);
        fl_grammar_bytes(g, start, ' ', ' ', 0, end);
        int32_t at = fl_grammar_byte(g, start, '\n', 0);
        for (int i = 0; i < MAX_INDENT; i++) {
            fl_grammar_jump(g, at, 0, end);
            at = fl_grammar_byte(g, at, ' ', 0);
        }
        fl_grammar_jump(g, at, 0, end);
    }
    return fl_grammar_then(g, from, g->space);
}
