/* Items of an answer: what is gathered for the whole of it and, in a stream, written as events. */
#define _GNU_SOURCE
#include "server/job_internal.h"

static fl_item *last(fl_choice *c)
{
    return c->items.n ? &c->items.data[c->items.n - 1] : NULL;
}

/* Writes one event of the last item by `write`, which may be NULL. */
static bool event(fl_choice *c, bool (*write)(fl_choice *, const fl_piece *, fl_buf *),
                  fl_piece piece)
{
    if (!c->job->params.stream || !write)
        return true;
    piece.item = last(c);
    piece.index = c->items.n - 1;
    return write(c, &piece, &c->job->chunk);
}

bool fl_item_close(fl_choice *c)
{
    if (!c->open)
        return true;
    c->open = false;
    return event(c, c->job->dialect->close, (fl_piece){0});
}

bool fl_item_open(fl_choice *c, fl_item_kind kind, fl_bytes name)
{
    fl_item item = {.kind = kind, .call = c->n_calls};
    if (!fl_item_close(c) || !fl_vec_append(&item.name, name.data, name.len) ||
        !fl_vec_push(&c->items, item)) {
        fl_vec_free(&item.name);
        return false;
    }
    c->n_calls += kind == FL_ITEM_CALL;
    c->open = true;
    return event(c, c->job->dialect->open, (fl_piece){0});
}

bool fl_item_more(fl_choice *c, fl_item_kind kind, const char *text, size_t len)
{
    if (len == 0)
        return true;
    if ((!c->open || last(c)->kind != kind) && !fl_item_open(c, kind, (fl_bytes){0}))
        return false;
    if (!fl_vec_append(&last(c)->text, text, len))
        return false;
    fl_piece p = {.text = {text, len}, .mark0 = c->marks_shown};
    if (kind == FL_ITEM_TEXT) {
        c->shown += len;
        while (c->marks_shown < c->marks_sure && c->marks.data[c->marks_shown].at < c->shown)
            c->marks_shown++;
        p.n_marks = c->marks_shown - p.mark0;
    }
    return event(c, c->job->dialect->delta, p);
}

void fl_items_free(fl_choice *c)
{
    for (size_t i = 0; i < c->items.n; i++) {
        fl_vec_free(&c->items.data[i].name);
        fl_vec_free(&c->items.data[i].text);
    }
    fl_vec_free(&c->items);
    fl_vec_free(&c->marks);
    fl_vec_free(&c->tops);
}

bool fl_item_put(const fl_choice *c, fl_item_kind kind, fl_buf *out)
{
    for (size_t i = 0; i < c->items.n; i++) {
        const fl_item *item = &c->items.data[i];
        if (item->kind == kind && !fl_vec_append(out, item->text.data, item->text.n))
            return false;
    }
    return true;
}
