#include "support/fake_step.h"

void fake_step_make(fake_step *s, int n_seqs, const int32_t *rows, int n_logits)
{
    static const int32_t pages[1];
    *s = (fake_step){0};
    int32_t n = 0;
    for (int q = 0; q < n_seqs; q++) {
        s->seqs[q] = (fl_seq_rows){.row0 = n, .n_rows = rows[q], .pages = pages, .slot = q};
        for (int32_t end = n + rows[q]; n < end; n++) {
            s->ids[n] = 11 + n;
            s->row_seq[n] = q;
        }
    }
    for (int i = 0; i < n_logits; i++)
        s->logit_rows[i] = n - n_logits + i;
    s->step = (fl_step){.n_rows = n,
                        .n_seqs = n_seqs,
                        .n_logits = n_logits,
                        .ids = s->ids,
                        .row_seq = s->row_seq,
                        .seqs = s->seqs,
                        .logit_rows = s->logit_rows,
                        .states = s->pools};
}
