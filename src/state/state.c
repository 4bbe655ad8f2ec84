/* The manager at work: sequences, pages, branching and going back.
 *
 * A sequence is a row of page numbers, a position and a recurrent record whose index is the
 * sequence's own.  Pages come from one stack of free page numbers and carry a count of the
 * sequences that hold them; a page is written only while that count is 1, which fl_state_extend
 * sees to.  Nothing here can run out but pages, sequences and snapshots, and each of these is
 * counted before anything changes. */
#include "state/state_internal.h"

/* ---- recurrent records ---- */

void fl_record_copy(fl_state *st, int64_t to, int64_t from)
{
    for (int i = 0; i < st->n_pools; i++) {
        fl_state_pool *p = &st->pools[i];
        if (!st->info[i].paged)
            fl_pool_copy(st->info[i].device, p->base + to * p->item_bytes,
                         p->base + from * p->item_bytes, p->item_bytes);
    }
}

static void record_zero(fl_state *st, int64_t record)
{
    for (int i = 0; i < st->n_pools; i++) {
        fl_state_pool *p = &st->pools[i];
        if (!st->info[i].paged)
            fl_pool_zero(st->info[i].device, p->base + record * p->item_bytes, p->item_bytes);
    }
}

/* ---- pages ---- */

static int32_t page_take(fl_state *st)
{
    int32_t page = st->free_pages[--st->n_free];
    st->refs[page] = 1;
    return page;
}

void fl_page_drop(fl_state *st, int32_t page)
{
    if (--st->refs[page] == 0)
        st->free_pages[st->n_free++] = page;
}

/* Drops the pages after the first `keep`. */
static void pages_cut(fl_state *st, fl_seq_state *q, int64_t keep)
{
    while (q->n_pages > keep)
        fl_page_drop(st, q->pages[--q->n_pages]);
}

static void page_copy(fl_state *st, int32_t to, int32_t from, int64_t rows)
{
    for (int i = 0; i < st->n_pools; i++) {
        fl_state_pool *p = &st->pools[i];
        int64_t page_bytes = p->item_bytes * FL_PAGE_TOKENS;
        if (st->info[i].paged)
            fl_pool_copy(st->info[i].device, p->base + to * page_bytes, p->base + from * page_bytes,
                         p->item_bytes * rows);
    }
}

/* ---- sequences ---- */

fl_seq_state *fl_state_find(const fl_state *st, fl_seq seq)
{
    return seq >= 0 && seq < st->limits.n_seqs && st->seqs[seq].live ? &st->seqs[seq] : NULL;
}

fl_status fl_state_dead(fl_seq seq, fl_error *err)
{
    return fl_fail(err, FL_ARGUMENT, "sequence %d is not alive", seq);
}

static fl_status new_seq(fl_state *st, fl_seq *out, fl_error *err)
{
    *out = FL_NONE;
    for (fl_seq s = 0; s < st->limits.n_seqs; s++) {
        fl_seq_state *q = &st->seqs[s];
        if (q->live)
            continue;
        q->live = true;
        q->pos = 0;
        q->n_pages = 0;
        *out = s;
        return FL_OK;
    }
    return fl_fail(err, FL_BUSY, "all %d sequences are in use", st->limits.n_seqs);
}

fl_status fl_state_admit(fl_state *st, fl_seq *out, fl_error *err)
{
    FL_TRY(new_seq(st, out, err));
    record_zero(st, *out);
    return FL_OK;
}

void fl_state_release(fl_state *st, fl_seq seq)
{
    fl_seq_state *q = fl_state_find(st, seq);
    if (!q)
        return;
    for (fl_snap k = 0; k < st->limits.n_snaps; k++) {
        if (st->snaps[k].owner == seq)
            st->snaps[k].owner = FL_NONE;
    }
    pages_cut(st, q, 0);
    q->live = false;
}

fl_status fl_state_extend(fl_state *st, fl_seq seq, int64_t n, fl_error *err)
{
    fl_seq_state *q = fl_state_find(st, seq);
    if (!q)
        return fl_state_dead(seq, err);
    if (n < 0 || n > st->limits.max_context - q->pos)
        return fl_fail(err, FL_ARGUMENT,
                       "%lld tokens after position %lld exceed the context of %lld tokens",
                       (long long)n, (long long)q->pos, (long long)st->limits.max_context);
    if (n == 0)
        return FL_OK;
    int64_t first = q->pos / FL_PAGE_TOKENS, end = fl_pages_for(q->pos + n), need = 0;
    for (int64_t i = first; i < end; i++)
        need += i >= q->n_pages || st->refs[q->pages[i]] > 1;
    if (need > st->n_free)
        return fl_fail(err, FL_BUSY, "%lld pages of %d tokens are needed, %d are free",
                       (long long)need, FL_PAGE_TOKENS, st->n_free);
    for (int64_t i = first; i < end; i++) {
        if (i >= q->n_pages) {
            q->pages[i] = page_take(st);
            q->n_pages++;
        } else if (st->refs[q->pages[i]] > 1) {
            int32_t shared = q->pages[i];
            q->pages[i] = page_take(st);
            page_copy(st, q->pages[i], shared, i == first ? q->pos % FL_PAGE_TOKENS : 0);
            fl_page_drop(st, shared);
        }
    }
    return FL_OK;
}

void fl_state_trim(fl_state *st, fl_seq seq)
{
    fl_seq_state *q = fl_state_find(st, seq);
    if (q)
        pages_cut(st, q, fl_pages_for(q->pos));
}

void fl_state_advance(fl_state *st, fl_seq seq, int64_t n)
{
    fl_seq_state *q = fl_state_find(st, seq);
    if (q)
        q->pos += n;
}

int64_t fl_state_pos(const fl_state *st, fl_seq seq)
{
    const fl_seq_state *q = fl_state_find(st, seq);
    return q ? q->pos : -1;
}

int64_t fl_state_reserved(const fl_state *st, fl_seq seq)
{
    const fl_seq_state *q = fl_state_find(st, seq);
    return q ? (int64_t)q->n_pages * FL_PAGE_TOKENS : -1;
}

void fl_state_rows(const fl_state *st, fl_seq seq, fl_seq_rows *out)
{
    const fl_seq_state *q = &st->seqs[seq];
    out->pos0 = q->pos;
    out->pages = q->pages;
    out->slot = seq;
}

/* ---- branching and going back ---- */

fl_status fl_state_fork(fl_state *st, fl_seq seq, fl_seq *out, fl_error *err)
{
    *out = FL_NONE;
    const fl_seq_state *q = fl_state_find(st, seq);
    if (!q)
        return fl_state_dead(seq, err);
    FL_TRY(new_seq(st, out, err));
    fl_seq_state *copy = &st->seqs[*out];
    copy->pos = q->pos;
    copy->n_pages = (int32_t)fl_pages_for(q->pos);
    for (int32_t i = 0; i < copy->n_pages; i++) {
        copy->pages[i] = q->pages[i];
        st->refs[q->pages[i]]++;
    }
    fl_record_copy(st, *out, seq);
    return FL_OK;
}

fl_status fl_state_snapshot(fl_state *st, fl_seq seq, fl_snap *out, fl_error *err)
{
    *out = FL_NONE;
    const fl_seq_state *q = fl_state_find(st, seq);
    if (!q)
        return fl_state_dead(seq, err);
    for (fl_snap k = 0; k < st->limits.n_snaps; k++) {
        if (st->snaps[k].owner != FL_NONE)
            continue;
        st->snaps[k] = (fl_snap_state){.owner = seq, .pos = q->pos};
        fl_record_copy(st, (int64_t)st->limits.n_seqs + k, seq);
        *out = k;
        return FL_OK;
    }
    return fl_fail(err, FL_BUSY, "all %d snapshots are in use", st->limits.n_snaps);
}

void fl_state_snapshot_free(fl_state *st, fl_snap snap)
{
    if (snap >= 0 && snap < st->limits.n_snaps)
        st->snaps[snap].owner = FL_NONE;
}

fl_status fl_state_rollback(fl_state *st, fl_seq seq, int64_t n, int64_t *pos, fl_error *err)
{
    fl_seq_state *q = fl_state_find(st, seq);
    if (!q)
        return fl_state_dead(seq, err);
    if (n < 0 || n > q->pos)
        return fl_fail(err, FL_ARGUMENT, "cannot go back %lld tokens from position %lld",
                       (long long)n, (long long)q->pos);
    int64_t target = q->pos - n;
    fl_snap best = FL_NONE;
    for (fl_snap k = 0; k < st->limits.n_snaps; k++) {
        fl_snap_state *s = &st->snaps[k];
        if (s->owner != seq)
            continue;
        if (s->pos > target)
            s->owner = FL_NONE;
        else if (best == FL_NONE || s->pos > st->snaps[best].pos)
            best = k;
    }
    if (!st->recurrent) {
        q->pos = target;
    } else if (best != FL_NONE) {
        q->pos = st->snaps[best].pos;
        fl_record_copy(st, seq, (int64_t)st->limits.n_seqs + best);
    } else {
        q->pos = 0;
        record_zero(st, seq);
    }
    *pos = q->pos;
    return FL_OK;
}

int64_t fl_state_free_tokens(const fl_state *st)
{
    return (int64_t)st->n_free * FL_PAGE_TOKENS;
}

int32_t fl_state_free_seqs(const fl_state *st)
{
    int32_t n = 0;
    for (int32_t s = 0; s < st->limits.n_seqs; s++)
        n += !st->seqs[s].live;
    return n;
}
