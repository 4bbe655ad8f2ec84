/* Short spellings for tests that build graphs. */
#ifndef FL_TEST_GRAPH_BUILD_H
#define FL_TEST_GRAPH_BUILD_H

#include "support/cmocka_all.h"

#include "graph/graph.h"

#define OK(expr) assert_int_equal((expr), FL_OK)

#define INT(key, x) ((fl_node_attr){.name = (key), .kind = FL_ATTR_INT, .value = {.i = (x)}})
#define NUM(key, x) ((fl_node_attr){.name = (key), .kind = FL_ATTR_FLOAT, .value = {.f = (x)}})
#define TEXT(key, x) ((fl_node_attr){.name = (key), .kind = FL_ATTR_TEXT, .value = {.text = (x)}})
#define DIMS(count, ...)                                                                           \
    ((fl_node_attr){                                                                               \
        .name = "dims", .kind = FL_ATTR_INTS, .value = {.n = (count), .v = {__VA_ARGS__}}})

/* LIST(a, b) and ATTRS(INT("k", 1)) are the two arguments (array, count). */
#define LIST(...) ((const fl_val[]){__VA_ARGS__}), (int)(sizeof((fl_val[]){__VA_ARGS__}) / 4)
#define ATTRS(...)                                                                                 \
    ((const fl_node_attr[]){__VA_ARGS__}),                                                         \
        (int)(sizeof((fl_node_attr[]){__VA_ARGS__}) / sizeof(fl_node_attr))
#define NONE NULL, 0

/* Adds a node that must succeed; its first output. */
static inline fl_val build_node(fl_graph *g, const char *op, const fl_val *in, int n_in,
                                const fl_node_attr *attrs, int n_attrs)
{
    fl_val outs[FL_MAX_OUT];
    fl_error err;
    int n;
    if (fl_graph_node(g, op, "label", in, n_in, attrs, n_attrs, outs, &n, &err) != FL_OK)
        fail_msg("%s", err.message);
    return n ? outs[0] : FL_NONE;
}

#endif
