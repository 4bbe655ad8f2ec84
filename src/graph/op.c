#include "graph/op.h"

#include <string.h>

const fl_op *fl_registry_op(const fl_registry *r, const char *name)
{
    for (int i = 0; i < r->n_ops; i++) {
        if (strcmp(r->ops[i]->name, name) == 0)
            return r->ops[i];
    }
    return NULL;
}
