/* What call.c and call_run.c share. */
#ifndef FL_TEST_CALL_INTERNAL_H
#define FL_TEST_CALL_INTERNAL_H

#include "support/call.h"

typedef struct tc_block {
    struct tc_block *next;
    unsigned char *memory, *data; /* data lies at the end of memory */
    size_t bytes;
    bool input; /* must not change during a run */
    uint64_t sum;
} tc_block;

void tc_poison(void *p, size_t bytes);

#endif
