/* Log-probabilities in OpenAI's two forms.  A token's text is its bytes with broken characters
 * replaced; its bytes are given beside it. */
#define _GNU_SOURCE
#include "server/marks_internal.h"
#include "server/put_internal.h"

#include <math.h>

/* JSON has no infinity. */
static bool put_logprob(float x, fl_buf *b)
{
    return fl_json_real(isfinite(x) && x > -9999 ? (double)x : -9999.0, b);
}

static fl_bytes bytes_of(const fl_choice *c, int32_t id)
{
    return fl_tokenizer_bytes(c->job->server->tokenizer, id);
}

/* "token": ..., "logprob": ..., "bytes": [...] */
static bool put_token(const fl_choice *c, int32_t id, float logprob, fl_buf *b)
{
    fl_bytes t = bytes_of(c, id);
    bool ok = fl_put(b, "\"token\": ") && fl_put_bytes(b, t) && fl_put(b, ", \"logprob\": ") &&
              put_logprob(logprob, b) && fl_put(b, ", \"bytes\": [");
    for (size_t i = 0; ok && i < t.len; i++)
        ok = fl_put(b, "%s%u", i ? ", " : "", (unsigned)(unsigned char)t.data[i]);
    return ok && fl_put(b, "]");
}

bool fl_marks_list(const fl_choice *c, size_t from, size_t n, fl_buf *b)
{
    bool ok = fl_put(b, "[");
    for (size_t i = from; ok && i < from + n; i++) {
        const fl_mark *m = &c->marks.data[i];
        ok = fl_put(b, i > from ? ", {" : "{") && put_token(c, m->id, m->logprob, b) &&
             fl_put(b, ", \"top_logprobs\": [");
        for (int k = 0; ok && k < m->n_top; k++) {
            const fl_logprob *t = &c->tops.data[m->top + (size_t)k];
            ok = fl_put(b, k ? ", {" : "{") && put_token(c, t->id, t->logprob, b) && fl_put(b, "}");
        }
        ok = ok && fl_put(b, "]}");
    }
    return ok && fl_put(b, "]");
}

bool fl_marks_chat(const fl_choice *c, size_t from, size_t n, fl_buf *b)
{
    if (c->job->params.sampling.n_top < 0)
        return fl_put(b, "null");
    return fl_put(b, "{\"content\": ") && fl_marks_list(c, from, n, b) &&
           fl_put(b, ", \"refusal\": null}");
}

static bool put_top(const fl_choice *c, const fl_mark *m, fl_buf *b)
{
    bool ok = fl_put(b, "{");
    for (int k = 0; ok && k < m->n_top; k++) {
        const fl_logprob *t = &c->tops.data[m->top + (size_t)k];
        ok = (!k || fl_put(b, ", ")) && fl_put_bytes(b, bytes_of(c, t->id)) && fl_put(b, ": ") &&
             put_logprob(t->logprob, b);
    }
    return ok && fl_put(b, "}");
}

bool fl_marks_completion(const fl_choice *c, size_t from, size_t n, fl_buf *b)
{
    static const char *const names[] = {"tokens", "token_logprobs", "top_logprobs", "text_offset"};
    if (c->job->params.sampling.n_top < 0)
        return fl_put(b, "null");
    bool ok = true;
    for (int list = 0; ok && list < 4; list++) {
        ok = fl_put(b, "%s\"%s\": [", list ? "], " : "{", names[list]);
        for (size_t i = from; ok && i < from + n; i++) {
            const fl_mark *m = &c->marks.data[i];
            ok = (i == from || fl_put(b, ", ")) && (list == 0 ? fl_put_bytes(b, bytes_of(c, m->id))
                                                    : list == 1 ? put_logprob(m->logprob, b)
                                                    : list == 2 ? put_top(c, m, b)
                                                                : fl_put(b, "%zu", m->at));
        }
    }
    return ok && fl_put(b, "]}");
}
