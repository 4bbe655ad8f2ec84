/* The step contract: what one pass through the network works on.
 *
 * A step runs n_rows rows (token positions) that belong to n_seqs sequences: prompt chunks and
 * single decode tokens mixed.  Rows of one sequence are contiguous and in order of position.  Only
 * attention, the delta rule and the short convolution look across rows; they reach what a sequence
 * left behind through its page table (one row per token) and its slot (one record per sequence).
 * The engine fills a step from the state manager; kernels read it and write only rows that belong
 * to the step. */
#ifndef FL_GRAPH_STEP_H
#define FL_GRAPH_STEP_H

#include <stdint.h>

/* Tokens per page of the paged caches, and the chunk grid: a kernel that has a faster form for
 * whole blocks may use it only for blocks of FL_PAGE_TOKENS rows that start at a multiple of
 * FL_PAGE_TOKENS and lie wholly inside the step, so that results do not depend on how a prompt
 * was cut along the grid. */
enum { FL_PAGE_TOKENS = 64 };

typedef struct fl_seq_rows {
    int32_t row0, n_rows; /* rows [row0, row0 + n_rows) of the step */
    int64_t pos0;         /* position of the first of them in its sequence */
    const int32_t *pages; /* pages[p / FL_PAGE_TOKENS] holds position p; covers pos0 + n_rows */
    int32_t slot;         /* recurrent slot; all zero bytes when pos0 is 0 */
} fl_seq_rows;

/* One state pool of the model, in the order in which the graph declared them.
 * Paged: item = page * FL_PAGE_TOKENS + p % FL_PAGE_TOKENS.  Recurrent: item = slot. */
typedef struct fl_state_pool {
    unsigned char *base;
    int64_t item_bytes;
} fl_state_pool;

typedef struct fl_step {
    int32_t n_rows, n_seqs, n_logits;
    const int32_t *ids;        /* [n_rows] token ids */
    const int32_t *row_seq;    /* [n_rows] index into seqs */
    const fl_seq_rows *seqs;   /* [n_seqs], row0 ascending */
    const int32_t *logit_rows; /* [n_logits] rows whose logits are wanted, ascending */
    const fl_state_pool *states;
} fl_step;

static inline int64_t fl_step_pos(const fl_step *s, int32_t row)
{
    const fl_seq_rows *q = &s->seqs[s->row_seq[row]];
    return q->pos0 + (row - q->row0);
}

/* The cached row of position pos. */
static inline void *fl_state_row(const fl_state_pool *pool, const fl_seq_rows *q, int64_t pos)
{
    int64_t item = (int64_t)q->pages[pos / FL_PAGE_TOKENS] * FL_PAGE_TOKENS + pos % FL_PAGE_TOKENS;
    return pool->base + item * pool->item_bytes;
}

/* The recurrent record of a sequence. */
static inline void *fl_state_slot(const fl_state_pool *pool, const fl_seq_rows *q)
{
    return pool->base + (int64_t)q->slot * pool->item_bytes;
}

#endif
