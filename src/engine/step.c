/* Running a step and handing out what it gave.
 *
 * A device takes the tokens of plain requests itself, so its logits come to the host only for those
 * who look at more than that.  All sequences move on before the first callback, because a
 * callback may end requests and take their sequences.  Whatever is wrong with one request's numbers
 * ends that request only. */
#include "engine/engine_internal.h"

#include <string.h>

/* Shows each observing request the rows of a tapped value that are its own. */
static void share_tap(void *ctx, const char *kind, int index, const fl_arg *value, int32_t rows)
{
    const fl_engine *e = ctx;
    (void)rows;
    bool of_tokens = value->type.rows == FL_ROWS_TOKENS;
    for (int32_t i = 0; i < e->step.n_seqs; i++) {
        const fl_share *share = &e->shares[i];
        const fl_request *r = share->choice->request;
        int32_t first = of_tokens ? share->row0 : share->logit0;
        int32_t n = of_tokens ? share->n_rows : share->n_logits;
        if (!r->p.tap || n == 0)
            continue;
        fl_arg own = *value;
        int64_t skip = first * value->stride * (fl_dtype_bits(value->type.dtype) / 8);
        own.data = (unsigned char *)value->data + skip;
        r->p.tap(r->p.tap_ctx, kind, index, &own, n);
    }
}

static bool is_stop(const fl_request *r, int32_t id)
{
    for (size_t i = 0; i < r->p.n_stop; i++) {
        if (r->p.stop_ids[i] == id)
            return true;
    }
    return false;
}

/* Whether a device takes the next token of a choice.  Choices that begin together share a row, in
 * which it draws for none of them. */
static bool is_picked(const fl_engine *e, const fl_choice *c)
{
    bool shares = c->n_said == 0 && c->request->p.n > 1 && c->sampler.s.temperature != 0;
    return fl_plan_picks(e->plan) && fl_sampler_is_plain(&c->sampler) && !c->request->p.mask &&
           !shares;
}

/* Says how it is to take them. */
static void ask_picks(fl_engine *e)
{
    fl_draw *to = fl_plan_draws(e->plan);
    if (!to)
        return;
    memset(to, 0, (size_t)e->step.n_logits * sizeof *to);
    for (int32_t i = 0; i < e->step.n_seqs; i++) {
        const fl_share *s = &e->shares[i];
        if (s->n_logits && is_picked(e, s->choice))
            to[s->logit0 + s->n_logits - 1] = fl_sampler_asks(&s->choice->sampler);
    }
}

/* Whether it did so for this row. */
static bool is_found(const fl_engine *e, const fl_choice *c, int32_t row)
{
    return is_picked(e, c) && fl_plan_picks(e->plan)[row].state != FL_PICK_ASK;
}

/* Brings the logits that somebody will look at. */
static fl_status fetch_logits(fl_engine *e, fl_error *err)
{
    int32_t first = e->step.n_logits, end = 0;
    for (int32_t i = 0; i < e->step.n_seqs; i++) {
        const fl_share *s = &e->shares[i];
        bool shown = s->prompt && s->choice->request->p.on_rows;
        int32_t last = s->logit0 + s->n_logits - 1;
        if (s->n_logits == 0 || (!shown && is_found(e, s->choice, last)))
            continue;
        first = s->logit0 < first ? s->logit0 : first;
        end = s->logit0 + s->n_logits;
    }
    return end > first ? fl_plan_fetch(e->plan, first, end - first, err) : FL_OK;
}

/* The token that follows row `row` of the logits. */
static fl_status draw(fl_engine *e, fl_choice *c, int32_t row, fl_sample *out, fl_error *err)
{
    const fl_request_params *p = &c->request->p;
    if (is_found(e, c, row)) {
        const fl_pick *pick = &fl_plan_picks(e->plan)[row];
        *out = (fl_sample){.id = pick->id};
        fl_sampler_drew(&c->sampler);
        return pick->state == FL_PICK_FOUND ? FL_OK : fl_sampler_not_finite(err);
    }
    const float *logits = fl_plan_logits(e->plan) + row * e->vocab;
    uint32_t *allowed = p->mask ? e->scratch.allowed : NULL;
    if (p->mask) {
        memset(allowed, 0xff, (size_t)fl_mask_words(e->vocab) * sizeof *allowed);
        FL_TRY(p->mask(p->mask_ctx, c->index, c->said, c->n_said, allowed, err));
    }
    return fl_sampler_draw(&c->sampler, logits, allowed, &e->scratch, out, err);
}

/* Samples the next token of a choice from its row of the logits and reports it. */
static void give_token(fl_engine *e, fl_choice *c, int32_t row)
{
    fl_request *r = c->request;
    fl_sample sample;
    fl_token_event event = {.request = r, .choice = c->index, .id = FL_NO_TOKEN};
    if (draw(e, c, row, &sample, &event.error) != FL_OK) {
        fl_choice_fail(e, c, &event.error);
        return;
    }
    event.id = c->said[c->n_said++] = sample.id;
    e->stats.generated_tokens++;
    event.logprob = sample.logprob;
    event.top = sample.top;
    event.n_top = sample.n_top;
    fl_sampler_note(&c->sampler, sample.id, true);
    if (is_stop(r, sample.id))
        event.finish = FL_FINISH_STOP;
    else if (c->n_said == r->p.max_tokens)
        event.finish = FL_FINISH_LENGTH;
    if (event.finish != FL_FINISH_NONE)
        fl_choice_end(e, c, &event);
    else if (r->p.on_token)
        r->p.on_token(r->p.ctx, &event);
}

/* Shows the logits of prompt rows; false when they ended the request, which has only its first
 * choice so far. */
static bool show_rows(fl_engine *e, const fl_share *share, int64_t pos, const float *logits)
{
    const fl_request *r = share->choice->request;
    if (!fl_all_finite(logits, share->n_logits * e->vocab)) {
        fl_error why;
        fl_fail(&why, FL_NUMERIC, "the logits of positions %lld to %lld hold NaN or infinity",
                (long long)pos, (long long)(pos + share->n_logits - 1));
        fl_choice_fail(e, share->choice, &why);
        return false;
    }
    r->p.on_rows(r->p.rows_ctx, pos, share->n_logits, logits);
    return share->choice->finish == FL_FINISH_NONE;
}

/* The end of a prompt: every choice that has a place takes its first token from the same logits. */
static void begin_answers(fl_engine *e, fl_choice *c, int32_t row)
{
    fl_request *r = c->request;
    fl_engine_enter(e); /* the request outlives its last choice until here */
    fl_queue_fork(e, c);
    for (int i = 0; i < r->p.n; i++) {
        fl_choice *other = &r->choices[i];
        if (other->phase == FL_RUNNING && other->run == r->p.n_prompt && other->n_said == 0)
            give_token(e, other, row);
    }
    fl_engine_leave(e);
}

static void deliver(fl_engine *e, const fl_share *share, int64_t pos)
{
    fl_choice *c = share->choice;
    fl_request *r = c->request;
    if (c->finish != FL_FINISH_NONE) /* by the callback of another */
        return;
    const float *logits = fl_plan_logits(e->plan) + share->logit0 * e->vocab;
    int32_t last = share->logit0 + share->n_logits - 1;
    if (share->prompt && r->p.on_rows && !show_rows(e, share, pos, logits))
        return;
    if (c->run < fl_choice_known(c))
        return;
    if (!share->prompt) {
        give_token(e, c, last);
    } else if (r->p.max_tokens > 0) {
        begin_answers(e, c, last);
    } else {
        fl_token_event end = {.id = FL_NO_TOKEN, .finish = FL_FINISH_LENGTH};
        fl_choice_end(e, c, &end);
    }
}

/* The rows of a share have run. */
static void account(fl_engine *e, const fl_share *share)
{
    fl_choice *c = share->choice;
    fl_state_advance(e->state, c->seq, share->n_rows);
    c->run += share->n_rows;
    c->last_piece = e->stats.steps;
    int64_t fresh = c->run > c->high ? c->run - c->high : 0;
    c->high += fresh;
    c->request->client->served += fresh;
    *(c->request->settles ? &e->stats.settled_tokens : &e->stats.prompt_tokens) +=
        share->prompt ? fresh : 0;
    e->stats.replayed_tokens += share->n_rows - fresh;
    if (share->prompt)
        fl_reuse_ran(e, c);
}

static void count_step(fl_engine *e, int64_t began)
{
    int64_t now = fl_engine_now(e);
    e->stats.steps++;
    e->stats.last_step_us = now - began;
    e->stats.step_us += now - began;
    e->stats.progress_us = now;
}

static fl_status run_step(fl_engine *e, fl_error *err)
{
    int64_t began = fl_engine_now(e);
    fl_queue_turn(e);
    if (!fl_engine_compose(e))
        return FL_OK;
    bool tapped = false;
    for (int32_t i = 0; i < e->step.n_seqs; i++)
        tapped |= e->shares[i].choice->request->p.tap != NULL;
    fl_error why = {0};
    ask_picks(e);
    fl_status s = fl_plan_run(e->plan, e->pool, &e->step, tapped ? share_tap : NULL, e, &why);
    if (s == FL_OK)
        s = fetch_logits(e, &why);
    if (s != FL_OK) {
        for (int32_t i = 0; i < e->step.n_seqs; i++) /* torn: not even a cancel may keep them */
            e->shares[i].choice->request->p.keep = false;
        for (int32_t i = 0; i < e->step.n_seqs; i++) {
            if (e->shares[i].choice->finish == FL_FINISH_NONE)
                fl_choice_fail(e, e->shares[i].choice, &why);
        }
        return fl_fail(err, s, "%s", why.message);
    }
    count_step(e, began);
    for (int32_t i = 0; i < e->step.n_seqs; i++)
        account(e, &e->shares[i]);
    for (int32_t i = 0; i < e->step.n_seqs; i++)
        deliver(e, &e->shares[i], e->seqs[i].pos0);
    return FL_OK;
}

fl_status fl_engine_step(fl_engine *e, bool *busy, fl_error *err)
{
    if (e->stepping)
        return fl_fail(err, FL_ARGUMENT, "fl_engine_step was called from a callback");
    e->stepping = true;
    fl_engine_enter(e);
    fl_status s = run_step(e, err);
    fl_engine_leave(e);
    e->stepping = false;
    bool saving = s == FL_OK && e->n_live == 0 && !e->waiting && fl_reuse_save_one(e);
    *busy = e->n_live > 0 || e->waiting || saving;
    return s;
}
