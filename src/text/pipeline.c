/* Splits in a row, as a tokenizer.json lists them: each piece of one is the whole text of the next,
 * so neither a pattern nor what it looks ahead at crosses a cut made before.
 *
 * Nothing is stored: a piece goes down the row as soon as it is known.  A piece is held back only
 * while it may still grow by what follows it, and pieces that grow together are neighbours in the
 * text. */
#include "text/text_internal.h"

typedef struct run {
    const fl_pipeline *p;
    fl_split_scratch *scratch;
    fl_piece_put put;
    void *ctx;
    fl_error *err;
} run;

/* Whether a piece grows by the one that follows it. */
static bool joins(fl_split_how how, bool match, bool next_match)
{
    switch (how) {
    case FL_SPLIT_CONTIGUOUS:
        return match == next_match;
    case FL_SPLIT_WITH_PREVIOUS:
        return !match && next_match;
    case FL_SPLIT_WITH_NEXT:
        return match && !next_match;
    case FL_SPLIT_ISOLATED:
    case FL_SPLIT_REMOVED:
        break;
    }
    return false;
}

/* Hands text to stage k; at most FL_MAX_STAGES deep. */
static fl_status run_stage(const run *r, int k, fl_bytes text)
{
    if (k == r->p->n)
        return r->put(r->ctx, text);
    const fl_stage *stage = &r->p->stages[k];
    fl_bytes held = {NULL, 0};
    bool held_match = false;
    for (size_t at = 0; at < text.len;) {
        fl_bytes piece;
        bool match;
        FL_TRY(fl_split_next(stage->splitter, r->scratch, text, &at, &piece, &match, r->err));
        match = match != stage->invert;
        if (match && stage->how == FL_SPLIT_REMOVED)
            continue;
        if (held.len && joins(stage->how, held_match, match)) {
            held.len += piece.len;
        } else {
            if (held.len)
                FL_TRY(run_stage(r, k + 1, held));
            held = piece;
        }
        held_match = match;
    }
    return held.len ? run_stage(r, k + 1, held) : FL_OK;
}

fl_status fl_pipeline_run(const fl_pipeline *p, fl_split_scratch *scratch, fl_bytes text,
                          fl_piece_put put, void *ctx, fl_error *err)
{
    run r = {p, scratch, put, ctx, err};
    return run_stage(&r, 0, text);
}

void fl_pipeline_free(fl_pipeline *p)
{
    for (int i = 0; i < p->n; i++)
        fl_splitter_free(p->stages[i].splitter);
    *p = (fl_pipeline){0};
}
