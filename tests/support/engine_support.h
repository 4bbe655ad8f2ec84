/* What the tests of the engine over the fake network share. */
#ifndef FL_TEST_ENGINE_SUPPORT_H
#define FL_TEST_ENGINE_SUPPORT_H

#include "engine/engine_internal.h"
#include "support/collect.h"
#include "support/rng.h"

extern fl_graph *engine_graph; /* the fake network, made by engine_setup */
extern rng engine_dice;        /* a test seeds it first */

uint32_t engine_rnd(uint32_t n);
fl_engine *engine_make(int threads, int seqs, int chunk, int64_t cache);
void engine_some_ids(int32_t *ids, int64_t n);
fl_request_params engine_params(const int32_t *ids, int64_t n, int64_t max_tokens);
fl_status engine_try_submit(fl_engine *e, const fl_request_params *p);
void engine_assert_idle(fl_engine *e, int64_t cache);
void engine_expect_greedy(const collector *c, int32_t *text, int64_t n, int64_t max_tokens);
/* Runs text[n] under a salt, expects 3 right tokens, and returns how many were found. */
int64_t engine_ask(fl_engine *e, uint64_t salt, int32_t *text, int64_t n);
int engine_setup(void **state);
int engine_teardown(void **state);

#endif
