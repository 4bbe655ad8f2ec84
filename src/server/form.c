/* The form of an answer: tools and response formats become a grammar that its tokens are held to.
 *
 * Clients send the same tools and schemas with every request, so compiled grammars are kept, with
 * the masks that they have gathered, under the text that they were made from.  All this belongs to
 * the scheduler's thread. */
#define _GNU_SOURCE
#include "server/job_internal.h"
#include "server/read_internal.h"

#include <stdio.h>

enum { MAX_KEPT_BYTES = 4 << 20 };

static bool dump(const fl_json *v, fl_buf *out)
{
    bool ok = !v || fl_json_dump(v, false, false, out) == FL_OK;
    return ok && fl_vec_push(out, '\n');
}

/* What the form depends on. */
static bool write_key(const fl_chat_options *o, fl_buf *key)
{
    return fl_vec_push(key, o->messages ? 'M' : 'm') && fl_vec_push(key, o->thinking ? 'T' : 't') &&
           fl_vec_push(key, o->one_call ? 'O' : 'o') && dump(o->tools, key) &&
           dump(o->tool_choice, key) && dump(o->response_format, key);
}

static fl_kept_form *find(fl_server *s, const fl_buf *key)
{
    for (int i = 0; i < FL_KEPT_FORMS; i++) {
        fl_kept_form *k = &s->forms[i];
        if (k->grammar && k->key.n == key->n && memcmp(k->key.data, key->data, key->n) == 0)
            return k;
    }
    return NULL;
}

/* Takes key over, and the place of the grammar that was used longest ago. */
static fl_kept_form *keep(fl_server *s, fl_buf *key, fl_grammar *g)
{
    fl_kept_form *oldest = &s->forms[0];
    for (int i = 1; i < FL_KEPT_FORMS; i++)
        oldest = s->forms[i].used < oldest->used ? &s->forms[i] : oldest;
    fl_grammar_release(oldest->grammar);
    fl_vec_free(&oldest->key);
    oldest->grammar = g;
    memcpy(&oldest->key, key, sizeof *key);
    *key = (fl_buf){0};
    return oldest;
}

/* NULL: any object. */
static const fl_json *bare_schema(const fl_json *format)
{
    return fl_read(fl_read(format, "json_schema"), "schema");
}

/* *out is NULL when the answer is free; else the caller holds it.  What is very large is not kept.
 */
static fl_status find_grammar(fl_server *s, const fl_chat_options *o, fl_buf *key, fl_grammar **out,
                              fl_error *err)
{
    fl_form *form = NULL;
    fl_grammar *g = NULL;
    *out = NULL;
    if (o->messages)
        FL_TRY(fl_chat_form(s->model, o, &form, err));
    if (o->messages ? !form : !o->response_format)
        return FL_OK;
    fl_status status = FL_OK;
    if (fl_tokenizer_size(s->tokenizer) > fl_graph_vocab(fl_model_graph(s->model)))
        status = fl_fail(err, FL_UNSUPPORTED,
                         "the tokenizer knows more tokens than the model: its answers cannot be "
                         "bound to a form");
    else if (!s->trie)
        status = fl_token_trie_create(s->tokenizer, &s->trie, err);
    if (status == FL_OK && !write_key(o, key))
        status = fl_fail(err, FL_NOMEM, "no memory for the request");
    fl_kept_form *kept = status == FL_OK ? find(s, key) : NULL;
    if (status == FL_OK && !kept)
        status = form ? fl_grammar_of_form(s->trie, form, &g, err)
                      : fl_grammar_of_schema(s->trie, bare_schema(o->response_format), &g, err);
    if (status == FL_OK && !kept && fl_grammar_bytes_held(g) <= MAX_KEPT_BYTES)
        kept = keep(s, key, g);
    fl_form_free(form);
    if (status != FL_OK)
        return status;
    if (kept)
        kept->used = ++s->forms_used;
    *out = kept ? fl_grammar_hold(kept->grammar) : g;
    return FL_OK;
}

/* A refused schema: whose it is. */
static bool refuse(fl_job *j, const fl_error *err, fl_refusal *r)
{
    bool tools = strncmp(err->message, "tool", 4) == 0 || !j->params.format;
    fl_refuse_error(r, err);
    if (r->http == 400)
        snprintf(r->param, sizeof r->param, "%s", tools ? "tools" : "response_format");
    if (r->http == 400 && strncmp(err->message, "tool_choice", 11) == 0)
        snprintf(r->param, sizeof r->param, "tool_choice");
    return false;
}

/* Which ids end an answer.  Behind a complete document nothing else may come. */
static bool choose_stop_ids(fl_job *j, bool bound, fl_refusal *r)
{
    const fl_params *p = &j->params;
    size_t n = 0;
    const int32_t *ids = fl_model_stop_ids(j->server->model, &n);
    return (fl_vec_append(&j->stop_ids, ids, p->ignore_eos && !bound ? 0 : n) &&
            fl_vec_append(&j->stop_ids, p->stop_ids.data, p->stop_ids.n)) ||
           fl_refuse_nomem(r);
}

bool fl_form_prepare(fl_job *j, const fl_chat_options *o, fl_refusal *r)
{
    fl_server *s = j->server;
    fl_buf key = {0};
    fl_grammar *g;
    fl_error err = {0};
    fl_status status = find_grammar(s, o, &key, &g, &err);
    fl_vec_free(&key);
    if (status != FL_OK)
        return refuse(j, &err, r);
    if (!choose_stop_ids(j, g != NULL, r)) {
        fl_grammar_release(g);
        return false;
    }
    if (!g)
        return true;
    status = fl_matcher_create(g, j->n_choices, j->stop_ids.data, j->stop_ids.n, &j->matcher, &err);
    fl_grammar_release(g); /* the matcher holds it */
    return status == FL_OK || fl_refuse_error(r, &err);
}

void fl_forms_free(fl_server *s)
{
    for (int i = 0; i < FL_KEPT_FORMS; i++) {
        fl_grammar_release(s->forms[i].grammar);
        fl_vec_free(&s->forms[i].key);
    }
    fl_token_trie_destroy(s->trie);
}
