/* Prefixes that have been run before, and the engine.
 *
 * A prompt begins at the deepest snapshot that the index (state/prefix.h) has of it, and enters its
 * own blocks as they run.  It stops at its marks, to have its record kept there: the last grid
 * point of the prompt, where the next turn of a conversation will resume; and the point up to which
 * the index knew its text but had no record, for there texts branch.  Only what was run as a prompt
 * is entered, in whole blocks: that is the form which any longer prompt has in the same place, so a
 * hit cannot be told from a miss but by the time it takes.
 *
 * A prompt whose beginning is being run by another at this moment waits for that one to reach the
 * point where they part.
 *
 * What was decoded is not in that form.  When the machine has nothing else to do, an answer is run
 * once more, as the prompt that it will be part of in the next turn: it settles. */
#include "engine/engine_internal.h"

#include "base/mem.h"

#include <limits.h>
#include <string.h>

static int64_t on_grid(int64_t n)
{
    return n - n % FL_PAGE_TOKENS;
}

static bool is_shared(const fl_engine *e, const fl_choice *c)
{
    return e->prefix && c->request->shared;
}

static void mark(fl_choice *c, int64_t at)
{
    if (at > c->run && c->n_marks < FL_MARKS)
        c->marks[c->n_marks++] = at;
}

static bool is_marked(const fl_choice *c, int64_t at)
{
    for (int i = 0; i < c->n_marks; i++) {
        if (c->marks[i] == at)
            return true;
    }
    return false;
}

void fl_reuse_begin(fl_engine *e, fl_choice *c)
{
    c->run = 0;
    c->n_marks = 0;
    c->last_block = FL_NONE;
    if (!is_shared(e, c))
        return;
    const fl_request_params *p = &c->request->p;
    fl_prefix_hit hit = fl_prefix_find(e->prefix, p->salt, p->prompt, p->n_prompt);
    fl_prefix_resume(e->prefix, c->seq, &hit);
    c->last_block = hit.block;
    c->run = hit.resume;
    mark(c, hit.known);
    mark(c, on_grid(p->n_prompt));
}

int64_t fl_reuse_stop(const fl_choice *c)
{
    int64_t stop = c->request->p.n_prompt;
    for (int i = 0; i < c->n_marks; i++) {
        if (c->marks[i] > c->run && c->marks[i] < stop)
            stop = c->marks[i];
    }
    return stop;
}

void fl_reuse_ran(fl_engine *e, fl_choice *c)
{
    const fl_request_params *p = &c->request->p;
    if (!is_shared(e, c))
        return;
    fl_prefix_add(e->prefix, p->salt, c->seq, p->prompt, on_grid(c->run), &c->last_block);
    if (is_marked(c, c->run))
        fl_prefix_snapshot(e->prefix, c->seq, c->last_block);
}

bool fl_reuse_make_room(fl_engine *e, int64_t tokens)
{
    return fl_state_free_tokens(e->state) >= tokens ||
           (e->prefix && fl_prefix_make_room(e->prefix, tokens));
}

/* Where two prompts part, on the grid, with a token of b to run after it. */
static int64_t in_common(const fl_request_params *a, const fl_request_params *b)
{
    int64_t most = on_grid(a->n_prompt < b->n_prompt ? a->n_prompt : b->n_prompt - 1), n = 0;
    while (n < most &&
           memcmp(a->prompt + n, b->prompt + n, FL_PAGE_TOKENS * sizeof *a->prompt) == 0)
        n += FL_PAGE_TOKENS;
    return n;
}

bool fl_reuse_defers(fl_engine *e, const fl_choice *c)
{
    const fl_request_params *p = &c->request->p;
    if (!is_shared(e, c))
        return false;
    int64_t have = fl_prefix_find(e->prefix, p->salt, p->prompt, p->n_prompt).resume;
    for (int i = 0; i < e->n_live; i++) {
        fl_choice *other = e->live[i];
        const fl_request_params *q = &other->request->p;
        if (!is_shared(e, other) || !fl_choice_in_prompt(other) || q->salt != p->salt ||
            q->priority > p->priority || other->request->settles)
            continue;
        int64_t common = in_common(q, p);
        if (common <= have || other->run >= common)
            continue;
        if (!is_marked(other, common))
            mark(other, common);
        if (is_marked(other, common))
            return true;
    }
    return false;
}

/* ---- settling ---- */

enum { MAX_SETTLING = 64 };

static void drop_oldest(fl_engine *e)
{
    for (fl_choice *c = e->waiting; c; c = c->next) {
        if (c->request->settles) {
            fl_request_end(e, c->request, FL_FINISH_CANCEL);
            return;
        }
    }
}

void fl_reuse_settle(fl_engine *e, const fl_choice *c)
{
    const fl_request_params *p = &c->request->p;
    int64_t n = on_grid(p->n_prompt + c->n_said);
    if (!is_shared(e, c) || !e->sizes.settle || p->n > 1 || n <= p->n_prompt)
        return;
    int32_t *text = fl_realloc_array(NULL, (size_t)n, sizeof *text);
    if (!text) /* then the next turn takes longer */
        return;
    memcpy(text, p->prompt, (size_t)p->n_prompt * sizeof *text);
    memcpy(text + p->n_prompt, c->said, (size_t)(n - p->n_prompt) * sizeof *text);
    fl_request_params q = fl_request_params_default();
    q.prompt = text;
    q.n_prompt = n;
    q.salt = p->salt;
    q.client = p->client;
    q.priority = INT_MAX;
    if (e->n_settling >= MAX_SETTLING)
        drop_oldest(e);
    fl_request_settle(e, &q);
    fl_free(text);
}

bool fl_reuse_is_settled(const fl_engine *e, const fl_choice *c)
{
    const fl_request_params *p = &c->request->p;
    /* One more than there are: find leaves the last one to run, and does not look at it. */
    return fl_prefix_find(e->prefix, p->salt, p->prompt, p->n_prompt + 1).resume == p->n_prompt;
}

void fl_reuse_park(fl_engine *e, const fl_choice *c)
{
    if (c->run > 0)
        fl_prefix_snapshot(e->prefix, c->seq, c->last_block);
}

/* ---- on disk ---- */

void fl_reuse_load(fl_engine *e, const fl_choice *c)
{
    const fl_request_params *p = &c->request->p;
    if (!e->store || !is_shared(e, c))
        return;
    int64_t have = fl_prefix_find(e->prefix, p->salt, p->prompt, p->n_prompt).resume;
    if (fl_prefix_store_find(e->store, p->salt, p->prompt, p->n_prompt) > have)
        e->stats.prefixes_loaded += fl_prefix_store_load(e->store, p->salt, p->prompt, p->n_prompt);
}

bool fl_reuse_save_one(fl_engine *e)
{
    bool saved;
    fl_error why;
    if (!e->store || e->store_failed)
        return false;
    if (fl_prefix_store_save(e->store, &saved, &why) != FL_OK) {
        e->store_failed = true;
        if (e->sizes.store.note)
            e->sizes.store.note(e->sizes.store.note_ctx, why.message);
        return false;
    }
    e->stats.prefixes_saved += saved;
    return saved;
}

fl_status fl_engine_save_prefixes(fl_engine *e, int64_t *n, fl_error *err)
{
    *n = 0;
    for (bool saved = e->store != NULL; saved; *n += saved) {
        FL_TRY(fl_prefix_store_save(e->store, &saved, err));
        e->stats.prefixes_saved += saved;
    }
    e->store_failed = false;
    return FL_OK;
}
