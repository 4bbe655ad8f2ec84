#include "support/state_support.h"

#include "support/cmocka_all.h"

const fl_state_spec STATE_SPECS[N_STATE_SPECS] = {{"kv", true, FL_F32, 5},
                                                  {"delta", false, FL_F32, 7},
                                                  {"keys", true, FL_F32, 1},
                                                  {"tail", false, FL_F32, 2}};

fl_state *state_make(int32_t n_seqs, int32_t n_snaps, int64_t tokens, int64_t context)
{
    fl_state_limits l = {n_seqs, n_snaps, tokens, context, NULL, NULL};
    fl_state *st;
    fl_error e;
    if (fl_state_create(STATE_SPECS, N_STATE_SPECS, &l, &st, &e) != FL_OK)
        fail_msg("%s", e.message);
    return st;
}

static float record_after(float record, float value)
{
    return (float)(((int)record * 31 + (int)value + 1) % 65521);
}

void state_write(fl_state *st, fl_seq seq, const float *values, int64_t n)
{
    fl_seq_rows q;
    fl_state_rows(st, seq, &q);
    const fl_state_pool *pools = fl_state_pools(st);
    for (int i = 0; i < N_STATE_SPECS; i++) {
        for (int64_t t = 0; t < n; t++) {
            float *row = STATE_SPECS[i].paged ? fl_state_row(&pools[i], &q, q.pos0 + t)
                                              : fl_state_slot(&pools[i], &q);
            for (int64_t e = 0; e < STATE_SPECS[i].elements; e++)
                row[e] =
                    STATE_SPECS[i].paged ? values[t] + (float)e : record_after(row[e], values[t]);
        }
    }
    fl_state_advance(st, seq, n);
}

void state_check(const fl_state *st, fl_seq seq, const float *values, int64_t n)
{
    fl_seq_rows q;
    fl_state_rows(st, seq, &q);
    assert_int_equal(q.pos0, n);
    float record = 0;
    for (int64_t i = 0; i < n; i++)
        record = record_after(record, values[i]);
    const fl_state_pool *pools = fl_state_pools(st);
    for (int i = 0; i < N_STATE_SPECS; i++) {
        for (int64_t e = 0; e < STATE_SPECS[i].elements; e++) {
            for (int64_t t = 0; STATE_SPECS[i].paged && t < n; t++) {
                float *row = fl_state_row(&pools[i], &q, t);
                if (row[e] != values[t] + (float)e)
                    fail_msg("sequence %d position %lld: %g, expected %g", seq, (long long)t,
                             row[e], values[t] + (float)e);
            }
            float *slot = fl_state_slot(&pools[i], &q);
            if (!STATE_SPECS[i].paged && slot[e] != record)
                fail_msg("sequence %d record: %g, expected %g", seq, slot[e], record);
        }
    }
}
