/* The log: one line per event, as key=value with JSON strings where text comes from outside.  It
 * tells who asked for how much and how it ended, never what was said. */
#define _GNU_SOURCE
#include "server/job_internal.h"
#include "server/put_internal.h"
#include "server/read_internal.h"

#include <inttypes.h>
#include <stdio.h>

static void write_line(fl_server *s, fl_buf *b, bool ok)
{
    if (ok && fl_vec_push(b, '\0'))
        s->options.log(s->options.log_ctx, b->data);
    fl_vec_free(b);
}

static bool put_key(fl_buf *b, const fl_key *key)
{
    return !key || !key->name || (fl_put(b, " key=") && fl_put_string(b, key->name));
}

/* What clients send along to find a request again; metadata of any size is not repeated. */
static bool put_echo(fl_buf *b, const fl_json *body, const char *name)
{
    enum { MOST = 1024 };
    const fl_json *v = fl_read(body, name);
    fl_buf text = {0};
    bool ok =
        !v || (fl_put_json(&text, v) &&
               (text.n > MOST || (fl_put(b, " %s=", name) && fl_vec_append(b, text.data, text.n))));
    fl_vec_free(&text);
    return ok;
}

/* How the answer ended; one that was whole stays so when its reader hangs up at once. */
static const char *how(const fl_job *j)
{
    if (j->code)
        return j->code;
    if (!j->choices && j->dialect->act)
        return "done";
    static const char *const ends[] = {[FL_END_NONE] = "abort",
                                       [FL_END_STOP] = "stop",
                                       [FL_END_LENGTH] = "length",
                                       [FL_END_CALLS] = "tool_calls"};
    return ends[j->choices && j->ended ? j->choices[0].end : FL_END_NONE];
}

static long long ms(double from, double to)
{
    return from > 0 && to > from ? (long long)((to - from) * 1000) : 0;
}

void fl_log_job(fl_job *j)
{
    fl_server *s = j->server;
    fl_buf b = {0};
    if (!s->options.log)
        return;
    bool ok =
        fl_put(&b, "event=request path=%s id=%s-%016" PRIx64, j->dialect->path, j->dialect->prefix,
               j->id) &&
        (!j->request_id[0] || (fl_put(&b, " request_id=") && fl_put_string(&b, j->request_id))) &&
        put_key(&b, j->key) &&
        fl_put(&b,
               " status=%d end=%s stream=%d n=%d prompt=%zu cached=%lld completion=%lld "
               "queue_ms=%lld first_token_ms=%lld total_ms=%lld",
               j->http ? j->http : 499, how(j), j->params.stream, (int)j->params.n, j->prompt.n,
               (long long)j->n_cached, (long long)fl_job_tokens(j), ms(j->came, j->begun_at),
               ms(j->came, j->first), ms(j->came, fl_server_seconds())) &&
        put_echo(&b, j->body, "user") && put_echo(&b, j->body, "metadata");
    write_line(s, &b, ok);
}

void fl_log_refusal(fl_server *s, const char *path, const fl_key *key, const fl_refusal *r)
{
    fl_buf b = {0};
    pthread_mutex_lock(&s->lock);
    s->counters.refused++;
    pthread_mutex_unlock(&s->lock);
    if (!s->options.log)
        return;
    bool ok = fl_put(&b, "event=refused path=") && fl_put_string(&b, path) && put_key(&b, key) &&
              fl_put(&b, " status=%d code=%s", r->http, r->code) &&
              (!r->param[0] || fl_put(&b, " param=%s", r->param));
    write_line(s, &b, ok);
}
