/* Who has a place.
 *
 * Choices wait in order of arrival.  Whoever comes next has the lowest priority number, then the
 * client that was served least, then came first; if there is no room for it, nobody passes it, so
 * large requests do not starve.  Clients are compared by the rows that were run for them: a client
 * that comes (back) begins level with the least served of those present, so nobody saves up credit
 * by staying away.
 *
 * A choice is let in with the rows of its text and one page more; decoding takes further pages as
 * it goes.  When there are none, the youngest choice of the lowest rank gives up its state and
 * waits; it will run its prompt again, and then what it had said, in the form in which that was
 * decoded, so nothing that was sent changes.  The oldest of the highest rank is never displaced:
 * something always gets done. */
#include "engine/engine_internal.h"

#include "base/mem.h"

#include <string.h>

/* ---- clients ---- */

fl_status fl_queue_join(fl_engine *e, fl_request *r, uint64_t id, fl_error *err)
{
    int64_t least = INT64_MAX;
    fl_client *c = NULL;
    for (fl_client *k = e->clients; k; k = k->next) {
        c = k->id == id ? k : c;
        least = k->served < least ? k->served : least;
    }
    if (!c) {
        c = fl_calloc(1, sizeof *c);
        if (!c)
            return fl_fail(err, FL_NOMEM, "no memory for a client");
        *c = (fl_client){.id = id, .served = e->clients ? least : 0, .next = e->clients};
        e->clients = c;
    }
    c->n_requests++;
    r->client = c;
    return FL_OK;
}

void fl_queue_part(fl_engine *e, fl_request *r)
{
    fl_client *c = r->client;
    r->client = NULL;
    if (!c || --c->n_requests > 0)
        return;
    fl_client **at = &e->clients;
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    fl_free(c);
}

/* ---- the lists ---- */

static int64_t before(const fl_choice *a, const fl_choice *b) /* < 0: a arrived first */
{
    int64_t d = a->request->number - b->request->number;
    return d ? d : a->index - b->index;
}

void fl_queue_wait(fl_engine *e, fl_choice *c)
{
    fl_choice **at = &e->waiting;
    while (*at && before(*at, c) < 0)
        at = &(*at)->next;
    c->next = *at;
    *at = c;
    c->phase = FL_WAITING;
    e->n_waiting++;
    e->n_settling += c->request->settles;
}

void fl_queue_leave(fl_engine *e, fl_choice *c)
{
    if (c->phase == FL_WAITING) {
        fl_choice **at = &e->waiting;
        while (*at != c)
            at = &(*at)->next;
        *at = c->next;
        e->n_waiting--;
        e->n_settling -= c->request->settles;
    } else if (c->phase == FL_RUNNING) {
        int at = 0;
        while (e->live[at] != c)
            at++;
        memmove(&e->live[at], &e->live[at + 1], (size_t)(--e->n_live - at) * sizeof *e->live);
    }
    c->phase = FL_OVER;
}

static void run(fl_engine *e, fl_choice *c)
{
    c->phase = FL_RUNNING;
    c->request->started = true;
    e->live[e->n_live++] = c; /* as many places as sequences */
}

void fl_queue_replace(fl_engine *e, fl_choice *from, fl_choice *to)
{
    to->run = from->run;
    to->high = from->high;
    to->last_block = from->last_block;
    to->n_marks = from->n_marks;
    memcpy(to->marks, from->marks, sizeof to->marks);
    to->seq = from->seq;
    from->seq = FL_NONE;
    if (from->phase == FL_RUNNING) {
        int at = 0;
        while (e->live[at] != from)
            at++;
        e->live[at] = to;
        to->phase = FL_RUNNING;
        from->phase = FL_OVER;
        for (int32_t i = 0; i < e->step.n_seqs; i++) { /* its rows may be under way */
            if (e->shares[i].choice == from)
                e->shares[i].choice = to;
        }
    } else {
        fl_queue_leave(e, from);
        fl_queue_wait(e, to);
    }
}

/* ---- room ---- */

/* All that a choice can ever need: the last token of an answer is given and not run. */
static int64_t all_rows(const fl_choice *c)
{
    const fl_request_params *p = &c->request->p;
    return p->n_prompt + (p->max_tokens ? p->max_tokens - 1 : 0);
}

/* Rows to have before a choice runs.  What is pinned gets all. */
static int64_t rows_to_start(const fl_choice *c)
{
    int64_t all = all_rows(c);
    int64_t soon = fl_choice_known(c) + FL_PAGE_TOKENS;
    return c->request->pinned || soon > all ? all : soon;
}

/* Pages that running choices may ask for in the next steps: one each, of those that can grow. */
static int64_t headroom(const fl_engine *e)
{
    int64_t pages = 0;
    for (int i = 0; i < e->n_live; i++)
        pages += !e->live[i]->request->pinned &&
                 fl_state_reserved(e->state, e->live[i]->seq) < all_rows(e->live[i]);
    return pages;
}

static void displace(fl_engine *e, fl_choice *c)
{
    fl_queue_leave(e, c);
    fl_state_release(e->state, c->seq);
    c->seq = FL_NONE;
    c->run = 0;
    fl_queue_wait(e, c);
}

/* What runs only because there was nothing else to do makes way, and keeps what it has. */
static void park(fl_engine *e)
{
    for (int i = e->n_live - 1; i >= 0; i--) {
        fl_choice *c = e->live[i];
        if (c->request->settles) {
            fl_reuse_park(e, c);
            displace(e, c);
        }
    }
}

/* Gives an empty sequence its beginning and its rows. */
static fl_status fill(fl_engine *e, fl_choice *c, fl_error *err)
{
    fl_reuse_begin(e, c);
    int64_t pages = (rows_to_start(c) + FL_PAGE_TOKENS - 1) / FL_PAGE_TOKENS;
    int64_t room = (pages + headroom(e)) * FL_PAGE_TOKENS - c->run;
    if (!fl_reuse_make_room(e, room) && e->n_live > 0)
        return fl_fail(err, FL_BUSY, "%lld tokens are needed, %lld are free at this moment",
                       (long long)room, (long long)fl_state_free_tokens(e->state));
    return fl_state_extend(e->state, c->seq, rows_to_start(c) - c->run, err);
}

fl_status fl_queue_start(fl_engine *e, fl_choice *c, fl_error *err)
{
    fl_request *r = c->request;
    if (!r->settles)
        park(e);
    if (c->seq != FL_NONE) { /* continues a kept one */
        (void)fl_reuse_make_room(e, rows_to_start(c) + FL_PAGE_TOKENS);
        FL_TRY(fl_state_extend(e->state, c->seq, rows_to_start(c), err));
        run(e, c);
        return FL_OK;
    }
    fl_reuse_load(e, c);
    FL_TRY(fl_state_admit(e->state, &c->seq, err));
    fl_status s = fill(e, c, err);
    if (s != FL_OK) {
        fl_state_release(e->state, c->seq);
        c->seq = FL_NONE;
        c->run = 0;
        return s;
    }
    if (!r->started && !r->settles) {
        r->cached = c->run;
        e->stats.prefix_hits += c->run;
        e->stats.prefix_queries += r->shared && e->prefix ? r->p.n_prompt : 0;
    }
    c->high = c->run > c->high ? c->run : c->high;
    run(e, c);
    return FL_OK;
}

void fl_queue_fork(fl_engine *e, fl_choice *c)
{
    fl_request *r = c->request;
    for (int i = 0; i < r->p.n; i++) {
        fl_choice *other = &r->choices[i];
        if (other->phase != FL_BEHIND)
            continue;
        if (fl_state_fork(e->state, c->seq, &other->seq, NULL) == FL_OK) {
            other->run = other->high = c->run;
            run(e, other);
        } else { /* no place: it will find one, and run the prompt, by itself */
            fl_queue_wait(e, other);
        }
    }
}

/* Whether a gives way to b. */
static bool ranks_below(const fl_choice *a, const fl_choice *b)
{
    int pa = a->request->p.priority, pb = b->request->p.priority;
    return pa != pb ? pa > pb : before(a, b) > 0;
}

/* The running choice that gives way first, or NULL. */
static fl_choice *lowest(const fl_engine *e)
{
    fl_choice *low = NULL;
    for (int i = 0; i < e->n_live; i++) {
        fl_choice *c = e->live[i];
        if (!c->request->pinned && (!low || ranks_below(c, low)))
            low = c;
    }
    return low;
}

static bool has_rows(fl_engine *e, const fl_choice *c)
{
    int64_t left = fl_choice_known(c) - c->run;
    return fl_state_extend(e->state, c->seq, left, NULL) == FL_OK ||
           (fl_reuse_make_room(e, left + FL_PAGE_TOKENS) &&
            fl_state_extend(e->state, c->seq, left, NULL) == FL_OK);
}

/* Finds every decoding choice the row it is about to write.  A displaced one is among the lowest,
 * so what was found for others stays theirs. */
static void find_rows(fl_engine *e)
{
    for (int i = 0; i < e->n_live; i++) {
        fl_choice *c = e->live[i];
        while (c->phase == FL_RUNNING && !has_rows(e, c)) {
            displace(e, lowest(e)); /* c itself at worst: the pinned have all their rows */
            e->stats.preemptions++;
        }
        if (i >= e->n_live || e->live[i] != c) /* the array moved: begin again */
            i = -1;
    }
}

/* ---- turns ---- */

static bool is_late(const fl_choice *c, int64_t now)
{
    const fl_request *r = c->request;
    int64_t waited = now - r->submitted;
    return (r->p.max_us && waited >= r->p.max_us) ||
           (r->p.max_wait_us && !r->started && waited >= r->p.max_wait_us);
}

static fl_request *find_late(const fl_engine *e, int64_t now)
{
    for (int i = 0; i < e->n_live; i++) {
        if (is_late(e->live[i], now))
            return e->live[i]->request;
    }
    for (fl_choice *c = e->waiting; c; c = c->next) {
        if (is_late(c, now))
            return c->request;
    }
    return NULL;
}

/* Who comes next of those that wait; what settles only comes in when nobody else is there. */
static fl_choice *next_in(const fl_engine *e)
{
    fl_choice *best = NULL;
    bool others = e->n_live > 0 || e->n_waiting > e->n_settling;
    for (fl_choice *c = e->waiting; c; c = c->next) {
        const fl_request *r = c->request, *b = best ? best->request : NULL;
        if (c->deferred || (r->settles && others))
            continue;
        if (!best || (r->p.priority != b->p.priority ? r->p.priority < b->p.priority
                                                     : r->client->served < b->client->served))
            best = c;
    }
    return best;
}

static void let_in(fl_engine *e)
{
    for (fl_choice *c = e->waiting; c; c = c->next)
        c->deferred = false;
    for (fl_choice *c; (c = next_in(e));) {
        if (c->request->settles && fl_reuse_is_settled(e, c)) {
            fl_request_end(e, c->request, FL_FINISH_LENGTH);
            continue;
        }
        c->deferred = fl_state_free_seqs(e->state) > 0 && fl_reuse_defers(e, c);
        if (c->deferred)
            continue;
        fl_queue_leave(e, c);
        if (fl_queue_start(e, c, NULL) != FL_OK) {
            if (c->request->settles) { /* no room even alone: it is not worth a wait */
                fl_request_end(e, c->request, FL_FINISH_CANCEL);
                continue;
            }
            fl_queue_wait(e, c);
            break;
        }
    }
}

void fl_queue_turn(fl_engine *e)
{
    int64_t now = fl_engine_now(e);
    for (fl_request *r; (r = find_late(e, now));)
        fl_request_end(e, r, FL_FINISH_TIMEOUT);
    find_rows(e);
    let_in(e);
}
