/* Composing a step.
 *
 * Every decoding request gives its one token; then prompts fill `chunk` rows, the one that has
 * waited longest first.  Prompts that were served go to the end of the line, so one long prompt
 * cannot hold up the others for more than its turn, and decoding requests are in every step.
 *
 * A prompt is cut only at multiples of FL_PAGE_TOKENS of the absolute position, or at its end:
 * that is the grid of step.h, on which results do not depend on the cutting. */
#include "engine/engine_internal.h"

#include <string.h>

static bool in_prompt(const fl_choice *c)
{
    return c->run < c->request->p.n_prompt;
}

/* Rows of a prompt that fit into `room`: all that are left, or as far as the grid goes. */
static int32_t piece(int64_t pos, int64_t left, int32_t room)
{
    if (left <= room)
        return (int32_t)left;
    int64_t end = pos + room;
    end -= end % FL_PAGE_TOKENS;
    return end > pos ? (int32_t)(end - pos) : 0;
}

/* Appends n rows of a choice; the last n_logits of them have their logits computed. */
static void add(fl_engine *e, fl_choice *c, const int32_t *ids, int32_t n, int32_t n_logits)
{
    fl_step *s = &e->step;
    fl_seq_rows *q = &e->seqs[s->n_seqs];
    fl_state_rows(e->state, c->seq, q);
    q->row0 = s->n_rows;
    q->n_rows = n;
    e->shares[s->n_seqs] = (fl_share){c, s->n_rows, n, s->n_logits, n_logits, in_prompt(c)};
    memcpy(&e->ids[s->n_rows], ids, (size_t)n * sizeof *ids);
    for (int32_t i = 0; i < n; i++)
        e->row_seq[s->n_rows + i] = s->n_seqs;
    for (int32_t i = n - n_logits; i < n; i++)
        e->logit_rows[s->n_logits++] = s->n_rows + i;
    s->n_rows += n;
    s->n_seqs++;
}

/* Adds the next piece of a prompt; false when the room left has no grid point. */
static bool add_prompt(fl_engine *e, fl_choice *c, int32_t *room, int32_t *shown)
{
    const fl_request_params *p = &c->request->p;
    int64_t left = p->n_prompt - c->run;
    bool show = p->on_rows != NULL;
    int32_t n =
        piece(fl_state_pos(e->state, c->seq), left, show && *shown < *room ? *shown : *room);
    if (n == 0)
        return false;
    bool sample = n == left && p->max_tokens > 0;
    add(e, c, p->prompt + c->run, n, show ? n : sample ? 1 : 0);
    *room -= n;
    *shown -= show ? n : 0;
    return true;
}

bool fl_engine_compose(fl_engine *e)
{
    e->step.n_rows = e->step.n_seqs = e->step.n_logits = 0;
    for (int i = 0; i < e->n_live; i++) {
        fl_choice *c = e->live[i];
        if (!in_prompt(c))
            add(e, c, &c->said[c->n_said - 1], 1, 1);
    }
    int32_t room = e->sizes.chunk, shown = e->sizes.shown_logits;
    int first_prompt = e->step.n_seqs, n = 0;
    for (int i = 0; i < e->n_live; i++) {
        fl_choice *c = e->live[i];
        if (!in_prompt(c) || !add_prompt(e, c, &room, &shown))
            e->live[n++] = c;
    }
    for (int i = first_prompt; i < e->step.n_seqs; i++) /* served: to the end of the line */
        e->live[n++] = e->shares[i].choice;
    return e->step.n_rows > 0;
}
