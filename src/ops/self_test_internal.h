/* The trials of the self-test: what self_test.c runs and self_test_trials.c makes. */
#ifndef FL_OPS_SELF_TEST_INTERNAL_H
#define FL_OPS_SELF_TEST_INTERNAL_H

#include "graph/op.h"

enum {
    FL_TRIAL_ROWS = 67, /* of one sequence: a whole block of the grid and a few rows */
    FL_TRIAL_PAGES = 3,
    FL_TRIAL_IN = 8,
    FL_TRIAL_ATTRS = 12,
    FL_TRIAL_ELEMENTS = 48 << 10 /* of any operand, at most */
};

typedef struct fl_trial {
    const fl_op *op;
    int n_in, n_out;
    fl_type in_type[FL_TRIAL_IN], out_type[FL_MAX_OUT];
    const fl_type *types[FL_TRIAL_IN];
    fl_attr attr[FL_TRIAL_ATTRS];
    fl_tensor tensors[FL_TRIAL_IN][2];
    float *here[FL_TRIAL_IN]; /* contents of every input, FL_TRIAL_ELEMENTS floats of room */
    int state;                /* index of the input that is a state; FL_TRIAL_IN: none */
    uint32_t dice;
} fl_trial;

/* Operator and inputs of a trial; attributes have their defaults before it is made. */
typedef struct fl_trial_kind {
    const char *op;
    void (*make)(fl_trial *t);
    bool few; /* its rows are too wide for many of them */
} fl_trial_kind;

extern const fl_trial_kind fl_trial_kinds[];
extern const int fl_trial_count;

#endif
