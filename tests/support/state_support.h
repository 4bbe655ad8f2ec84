/* A state manager without a model: what the kernels would write is a plain function of the tokens.
 */
#ifndef FL_TEST_STATE_SUPPORT_H
#define FL_TEST_STATE_SUPPORT_H

#include "state/state.h"

/* Two paged pools of different widths and two recurrent ones. */
enum { N_STATE_SPECS = 4 };
extern const fl_state_spec STATE_SPECS[N_STATE_SPECS];

fl_state *state_make(int32_t n_seqs, int32_t n_snaps, int64_t tokens, int64_t context);
/* Writes rows of all paged pools for the next n values, advances all records and the position. */
void state_write(fl_state *st, fl_seq seq, const float *values, int64_t n);
/* Fails the test unless the sequence is what writing values[n] from the start gives. */
void state_check(const fl_state *st, fl_seq seq, const float *values, int64_t n);

#endif
