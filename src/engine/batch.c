/* Composing a step.
 *
 * Every decoding choice gives its one token; then prompts fill `chunk` rows: the lowest priority
 * number first, then the client that was served least, then whoever has waited longest since its
 * last piece.  So neither one long prompt nor one busy client can hold up the others for more than
 * a turn, and decoding choices are in every step.
 *
 * A prompt is cut only at multiples of FL_PAGE_TOKENS of the absolute position, or at its end:
 * that is the grid of step.h, on which results do not depend on the cutting.  What was said before
 * and runs again after its state was given up is the opposite case: it was run one row at a time,
 * so a piece of it must never hold a whole block of the grid. */
#include "engine/engine_internal.h"

#include <string.h>

enum { REPLAY_ROWS = FL_PAGE_TOKENS / 2 };

/* Whether a's next piece comes before b's. */
static bool is_ahead(const fl_choice *a, const fl_choice *b)
{
    const fl_request *p = a->request, *q = b->request;
    if (p->p.priority != q->p.priority)
        return p->p.priority < q->p.priority;
    if (p->client->served != q->client->served)
        return p->client->served < q->client->served;
    if (a->last_piece != b->last_piece)
        return a->last_piece < b->last_piece;
    return p->number < q->number;
}

/* From step to step the order changes little, and few are alive: insertion. */
static void sort(fl_choice **c, int n)
{
    for (int i = 1; i < n; i++) {
        fl_choice *x = c[i];
        int at = i;
        for (; at > 0 && is_ahead(x, c[at - 1]); at--)
            c[at] = c[at - 1];
        c[at] = x;
    }
}

static bool is_decoding(const fl_choice *c)
{
    return !fl_choice_in_prompt(c) && fl_choice_known(c) - c->run == 1;
}

/* Rows out of `left` from pos on that fit into `room` and end at a multiple of grid or at the end.
 */
static int32_t piece(int64_t pos, int64_t left, int32_t room, int32_t grid)
{
    if (left <= room)
        return (int32_t)left;
    int64_t end = pos + room;
    end -= end % grid;
    return end > pos ? (int32_t)(end - pos) : 0;
}

/* Appends the next n rows of a choice; the last n_logits of them have their logits computed. */
static void add(fl_engine *e, fl_choice *c, int32_t n, int32_t n_logits)
{
    fl_step *s = &e->step;
    fl_seq_rows *q = &e->seqs[s->n_seqs];
    bool prompt = fl_choice_in_prompt(c);
    const fl_request_params *p = &c->request->p;
    const int32_t *ids = prompt ? p->prompt + c->run : c->said + (c->run - p->n_prompt);
    fl_state_rows(e->state, c->seq, q);
    q->row0 = s->n_rows;
    q->n_rows = n;
    e->shares[s->n_seqs] = (fl_share){c, s->n_rows, n, s->n_logits, n_logits, prompt};
    memcpy(&e->ids[s->n_rows], ids, (size_t)n * sizeof *ids);
    for (int32_t i = 0; i < n; i++)
        e->row_seq[s->n_rows + i] = s->n_seqs;
    for (int32_t i = n - n_logits; i < n; i++)
        e->logit_rows[s->n_logits++] = s->n_rows + i;
    s->n_rows += n;
    s->n_seqs++;
}

/* Adds the next piece of a prompt, if the room left has a grid point. */
static void add_prompt(fl_engine *e, fl_choice *c, int32_t *room, int32_t *shown)
{
    const fl_request_params *p = &c->request->p;
    bool show = p->on_rows != NULL;
    int32_t most = show && *shown < *room ? *shown : *room;
    int32_t n =
        piece(fl_state_pos(e->state, c->seq), fl_reuse_stop(c) - c->run, most, FL_PAGE_TOKENS);
    if (n == 0)
        return;
    bool sample = c->run + n == fl_choice_known(c) && p->max_tokens > 0;
    add(e, c, n, show ? n : sample ? 1 : 0);
    *room -= n;
    *shown -= show ? n : 0;
}

/* Adds the next piece of what was said, up to the end of half a block. */
static void add_replay(fl_engine *e, fl_choice *c, int32_t *room)
{
    int64_t left = fl_choice_known(c) - c->run, pos = fl_state_pos(e->state, c->seq);
    int32_t half = REPLAY_ROWS - (int32_t)(pos % REPLAY_ROWS), most = half < *room ? half : *room;
    int32_t n = piece(pos, left, most, 1);
    if (n == 0)
        return;
    add(e, c, n, n == left);
    *room -= n;
}

bool fl_engine_compose(fl_engine *e)
{
    e->step.n_rows = e->step.n_seqs = e->step.n_logits = 0;
    sort(e->live, e->n_live);
    for (int i = 0; i < e->n_live; i++) {
        if (is_decoding(e->live[i]))
            add(e, e->live[i], 1, 1);
    }
    int32_t room = e->sizes.chunk, shown = e->sizes.shown_logits;
    for (int i = 0; i < e->n_live; i++) {
        fl_choice *c = e->live[i];
        if (fl_choice_in_prompt(c))
            add_prompt(e, c, &room, &shown);
        else if (!is_decoding(c))
            add_replay(e, c, &room);
    }
    return e->step.n_rows > 0;
}
