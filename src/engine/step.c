/* Running a step and handing out what it gave.
 *
 * All sequences move on before the first callback, because a callback may end requests and take
 * their sequences.  Whatever is wrong with one request's numbers ends that request only. */
#include "engine/engine_internal.h"

/* Shows each observing request the rows of a tapped value that are its own. */
static void share_tap(void *ctx, const char *kind, int index, const fl_arg *value, int32_t rows)
{
    const fl_engine *e = ctx;
    (void)rows;
    bool of_tokens = value->type.rows == FL_ROWS_TOKENS;
    for (int32_t i = 0; i < e->step.n_seqs; i++) {
        const fl_share *share = &e->shares[i];
        const fl_request *r = share->request;
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

/* Samples the next token of a request from its logits and reports it. */
static void give_token(fl_engine *e, fl_request *r, const float *logits)
{
    fl_sample sample;
    fl_token_event event = {.request = r, .id = FL_NO_TOKEN, .finish = FL_FINISH_NONE};
    if (fl_sampler_draw(&r->sampler, logits, &e->scratch, &sample, &event.error) != FL_OK) {
        fl_request_fail(e, r, &event.error);
        return;
    }
    event.id = r->last = sample.id;
    event.logprob = sample.logprob;
    event.top = sample.top;
    event.n_top = sample.n_top;
    fl_sampler_note(&r->sampler, sample.id, true);
    r->n_tokens++;
    if (is_stop(r, sample.id))
        event.finish = FL_FINISH_STOP;
    else if (r->n_tokens == r->p.max_tokens)
        event.finish = FL_FINISH_LENGTH;
    if (event.finish != FL_FINISH_NONE)
        fl_request_end(e, r, &event);
    else if (r->p.on_token)
        r->p.on_token(r->p.ctx, &event);
}

/* Shows the logits of prompt rows; false when they ended the request. */
static bool show_rows(fl_engine *e, const fl_share *share, int64_t pos, const float *logits)
{
    fl_request *r = share->request;
    if (!fl_all_finite(logits, share->n_logits * e->vocab)) {
        fl_error why;
        fl_fail(&why, FL_NUMERIC, "the logits of positions %lld to %lld hold NaN or infinity",
                (long long)pos, (long long)(pos + share->n_logits - 1));
        fl_request_fail(e, r, &why);
        return false;
    }
    r->p.on_rows(r->p.rows_ctx, pos, share->n_logits, logits);
    return r->finish == FL_FINISH_NONE;
}

static void deliver(fl_engine *e, const fl_share *share, int64_t pos)
{
    fl_request *r = share->request;
    if (r->finish != FL_FINISH_NONE) /* by the callback of another */
        return;
    const float *logits = fl_plan_logits(e->plan) + share->logit0 * e->vocab;
    if (share->prompt) {
        if (r->p.on_rows && !show_rows(e, share, pos, logits))
            return;
        if (r->done < r->p.n_prompt)
            return;
        if (r->p.max_tokens == 0) {
            fl_token_event end = {.id = FL_NO_TOKEN, .finish = FL_FINISH_LENGTH};
            fl_request_end(e, r, &end);
            return;
        }
    }
    give_token(e, r, logits + (share->n_logits - 1) * e->vocab);
}

static fl_status run_step(fl_engine *e, fl_error *err)
{
    if (!fl_engine_compose(e))
        return FL_OK;
    bool tapped = false;
    for (int32_t i = 0; i < e->step.n_seqs; i++)
        tapped |= e->shares[i].request->p.tap != NULL;
    fl_error why = {0};
    fl_status s = fl_plan_run(e->plan, e->pool, &e->step, tapped ? share_tap : NULL, e, &why);
    if (s != FL_OK) {
        for (int32_t i = 0; i < e->step.n_seqs; i++) /* torn: not even a cancel may keep them */
            e->shares[i].request->p.keep = false;
        for (int32_t i = 0; i < e->step.n_seqs; i++) {
            if (e->shares[i].request->finish == FL_FINISH_NONE)
                fl_request_fail(e, e->shares[i].request, &why);
        }
        return fl_fail(err, s, "%s", why.message);
    }
    for (int32_t i = 0; i < e->step.n_seqs; i++) {
        const fl_share *share = &e->shares[i];
        fl_state_advance(e->state, share->request->seq, share->n_rows);
        share->request->done += share->prompt ? share->n_rows : 0;
    }
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
    *busy = e->n_live > 0;
    return s;
}
