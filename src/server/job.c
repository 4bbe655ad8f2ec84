/* A job: one request between its connection and the scheduler.  Either side may be the last to
 * leave it. */
#define _GNU_SOURCE
#include "server/server_internal.h"

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

bool fl_refuse_error(fl_refusal *r, const fl_error *err)
{
    bool theirs = err->status == FL_ARGUMENT;
    return fl_refuse(r, theirs ? 400 : 500, theirs ? "invalid_value" : "internal_error", "", "%s",
                     err->message);
}

fl_job *fl_job_create(fl_server *s, fl_json *body, bool chat, fl_refusal *r)
{
    fl_job *j = fl_calloc(1, sizeof *j);
    if (!j) {
        fl_json_free(body);
        fl_refuse(r, 500, "internal_error", "", "no memory for the request");
        return NULL;
    }
    j->server = s;
    j->body = body;
    j->holders = 1;
    j->created = (int64_t)time(NULL);
    atomic_init(&j->dead, false);
    if (!fl_params_read(body, chat, &s->options, &j->params, r)) {
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
    fl_vec_free(&j->params.bias);
    fl_json_free(j->body);
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

void fl_job_begin(fl_job *j)
{
    pthread_mutex_lock(&j->server->lock);
    j->begun = true;
    fl_job_wake_locked(j);
    pthread_mutex_unlock(&j->server->lock);
}

void fl_job_send(fl_job *j, const char *text, size_t len)
{
    pthread_mutex_lock(&j->server->lock);
    if (!atomic_load(&j->dead) && !fl_vec_append(&j->out, text, len))
        j->ended = j->broken = true;
    fl_job_wake_locked(j);
    pthread_mutex_unlock(&j->server->lock);
}

void fl_job_end(fl_job *j, int http)
{
    pthread_mutex_lock(&j->server->lock);
    j->http = http;
    j->ended = true;
    fl_job_wake_locked(j);
    pthread_mutex_unlock(&j->server->lock);
}

/* Before a stream has begun an error is an answer with its status, afterwards an event. */
void fl_job_fail(fl_job *j, const fl_refusal *r)
{
    fl_buf text = {0};
    bool event = j->begun; /* written by this thread only */
    bool ok = (!event || fl_put(&text, "data: ")) && fl_write_error(&text, r) &&
              (!event || fl_put(&text, "\n\n"));
    if (ok)
        fl_job_send(j, text.data, text.n);
    fl_job_end(j, r->http);
    fl_vec_free(&text);
}
