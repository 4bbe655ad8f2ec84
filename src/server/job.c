/* A job: one request between its connection and the scheduler.  Either side may be the last to
 * leave it. */
#define _GNU_SOURCE
#include "server/job_internal.h"

#include <microhttpd.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>

double fl_server_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

bool fl_refuse(fl_refusal *r, int http, const char *code, const char *param, const char *fmt, ...)
{
    va_list ap;
    *r = (fl_refusal){.http = http, .code = code};
    snprintf(r->param, sizeof r->param, "%s", param);
    va_start(ap, fmt);
    vsnprintf(r->message, sizeof r->message, fmt, ap);
    va_end(ap);
    return false;
}

bool fl_refuse_nomem(fl_refusal *r)
{
    return fl_refuse(r, 500, "internal_error", "", "no memory for the request");
}

bool fl_refuse_error(fl_refusal *r, const fl_error *err)
{
    bool theirs = err->status == FL_ARGUMENT;
    return fl_refuse(r, theirs ? 400 : 500, theirs ? "invalid_value" : "internal_error", "", "%s",
                     err->message);
}

/* The body in chat form, for a dialect that is another. */
static bool translate(fl_job *j, fl_refusal *r)
{
    fl_buf text = {0};
    fl_error err = {0};
    if (!j->dialect->translate)
        return true;
    if (!fl_json_is(j->body, FL_JSON_OBJECT))
        return fl_refuse(r, 400, "invalid_json", "", "the body must be a JSON object");
    bool ok = j->dialect->translate(j->body, &text, r);
    if (ok && fl_json_parse(text.data, text.n, "body", &j->translated, &err) != FL_OK)
        ok = fl_refuse(r, 400, "invalid_json", "", "%s", err.message);
    fl_vec_free(&text);
    return ok;
}

fl_job *fl_job_create(fl_server *s, const fl_dialect *d, fl_key *key, fl_json *body, fl_refusal *r)
{
    fl_job *j = fl_calloc(1, sizeof *j);
    if (!j) {
        fl_json_free(body);
        fl_refuse_nomem(r);
        return NULL;
    }
    *j = (fl_job){.server = s,
                  .dialect = d,
                  .key = key,
                  .body = body,
                  .holders = 1,
                  .created = (int64_t)time(NULL),
                  .came = fl_server_seconds()};
    atomic_init(&j->dead, false);
    if (!translate(j, r) ||
        !fl_params_read(j->translated ? j->translated : body, d, s, &j->params, r)) {
        fl_job_drop(j);
        return NULL;
    }
    return j;
}

void fl_job_drop(fl_job *j)
{
    pthread_mutex_lock(&j->server->lock);
    bool last = --j->holders == 0;
    pthread_mutex_unlock(&j->server->lock);
    if (!last)
        return;
    fl_params_free(&j->params);
    fl_json_free(j->body);
    fl_json_free(j->translated);
    fl_vec_free(&j->out);
    fl_free(j);
}

void fl_job_wake_locked(fl_job *j)
{
    if (j->suspended && j->connection) {
        j->suspended = false;
        MHD_resume_connection(j->connection);
    }
}

void fl_job_start(fl_job *j)
{
    if (j->started) /* written by this thread only */
        return;
    j->begun_at = fl_server_seconds();
    pthread_mutex_lock(&j->server->lock);
    j->started = true;
    j->server->n_waiting--;
    pthread_mutex_unlock(&j->server->lock);
}

void fl_job_begin(fl_job *j)
{
    if (j->begun) /* written by this thread only */
        return;
    pthread_mutex_lock(&j->server->lock);
    j->begun = true;
    fl_job_wake_locked(j);
    pthread_mutex_unlock(&j->server->lock);
}

void fl_job_send(fl_job *j, const char *text, size_t len)
{
    j->sent = fl_server_seconds();
    pthread_mutex_lock(&j->server->lock);
    if (!atomic_load(&j->dead) && !fl_vec_append(&j->out, text, len))
        j->ended = j->broken = true;
    fl_job_wake_locked(j);
    pthread_mutex_unlock(&j->server->lock);
}

void fl_job_leave_locked(fl_job *j)
{
    if (j->entered)
        fl_key_leave_locked(j->key);
    j->entered = false;
}

/* A stream that ends before it sent anything has its head yet to send.  Whoever has read the end
 * may ask again at once: the key's place is free before. */
void fl_job_end(fl_job *j, int http)
{
    pthread_mutex_lock(&j->server->lock);
    fl_job_leave_locked(j);
    j->http = http;
    j->begun |= j->params.stream && http == 200;
    j->ended = true;
    fl_job_wake_locked(j);
    pthread_mutex_unlock(&j->server->lock);
}

/* Before a stream has begun an error is an answer with its status, afterwards an event. */
void fl_job_fail(fl_job *j, const fl_refusal *r)
{
    fl_buf text = {0};
    j->code = r->code;
    j->retry = r->retry;
    if (j->dialect->error(r, j->begun, &text))
        fl_job_send(j, text.data, text.n);
    fl_job_end(j, r->http);
    fl_vec_free(&text);
}
