/* Starting and stopping: keys, threads, and the order in which they end. */
#define _GNU_SOURCE
#include "base/file.h"
#include "server/job_internal.h"

#include <errno.h>
#include <stdio.h>
#include <sys/random.h>
#include <time.h>

enum { MAX_FILE = 1 << 20 }; /* bytes of keys or certificates */

static fl_status read_keys(fl_server *s, fl_error *err)
{
    fl_buf text = {0};
    fl_status status = fl_file_read(s->options.key_file, MAX_FILE, &text, err);
    if (status == FL_OK)
        status = fl_keys_parse(s, text.data, text.n, s->options.key_file, err);
    fl_vec_free(&text);
    return status;
}

/* The HTTP library wants strings. */
static fl_status read_tls(fl_server *s, fl_error *err)
{
    const fl_server_options *o = &s->options;
    if (!o->tls_cert != !o->tls_key)
        return fl_fail(err, FL_ARGUMENT, "TLS needs both a certificate and its key");
    if (!o->tls_cert)
        return FL_OK;
    FL_TRY(fl_file_read(o->tls_cert, MAX_FILE, &s->tls_cert, err));
    FL_TRY(fl_file_read(o->tls_key, MAX_FILE, &s->tls_key, err));
    if (!fl_vec_push(&s->tls_cert, '\0') || !fl_vec_push(&s->tls_key, '\0'))
        return fl_fail(err, FL_NOMEM, "no memory for a certificate");
    return FL_OK;
}

fl_server_options fl_server_options_default(void)
{
    return (fl_server_options){.host = "127.0.0.1",
                               .port = 8080,
                               .max_queue = 64,
                               .max_body = (size_t)16 << 20,
                               .stuck_seconds = 60,
                               .ping_seconds = 15};
}

bool fl_server_is_alias(const fl_server *s, const char *name)
{
    size_t len = strlen(name);
    for (const char *at = s->options.alias;;) {
        size_t n = strcspn(at, ",");
        if (n == len && memcmp(at, name, n) == 0)
            return true;
        if (!at[n])
            return false;
        at += n + 1;
    }
}

fl_bytes fl_server_alias(const fl_server *s)
{
    return (fl_bytes){s->options.alias, strcspn(s->options.alias, ",")};
}

static fl_status start(fl_server *s, fl_error *err)
{
    uint32_t base;
    if (getrandom(&base, sizeof base, 0) != sizeof base)
        return fl_fail(err, FL_IO, "no random numbers");
    s->next_id = ((uint64_t)base << 32) | 1; /* never 0; ids differ from run to run */
    s->started = (int64_t)time(NULL);
    s->progress = fl_server_seconds();
    fl_engine_get_stats(s->engine, &s->counters.engine);
    if (s->options.key_file)
        FL_TRY(read_keys(s, err));
    FL_TRY(read_tls(s, err));
    FL_TRY(fl_model_tokenizer(s->model, &s->tokenizer, err));
    FL_TRY(fl_watch_start(s, err));
    int code = pthread_create(&s->scheduler, NULL, fl_scheduler_run, s);
    if (code != 0)
        return fl_fail(err, FL_IO, "cannot start a thread: %s", strerror(code));
    s->has_scheduler = true;
    return fl_http_start(s, err);
}

fl_status fl_server_start(fl_model *m, fl_engine *e, const fl_server_options *o, fl_server **out,
                          fl_error *err)
{
    *out = NULL;
    fl_server *s = fl_calloc(1, sizeof *s);
    if (!s)
        return fl_fail(err, FL_NOMEM, "no memory for a server");
    *s = (fl_server){.options = *o, .model = m, .engine = e, .epoll = -1, .event = -1};
    s->waiting_end = &s->waiting;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->wake, NULL);
    fl_status status = start(s, err);
    if (status != FL_OK)
        fl_server_stop(s);
    else
        *out = s;
    return status;
}

int fl_server_port(const fl_server *s)
{
    return s->port;
}

void fl_server_drain(fl_server *s)
{
    pthread_mutex_lock(&s->lock);
    s->draining = true;
    pthread_mutex_unlock(&s->lock);
}

int fl_server_active(fl_server *s)
{
    pthread_mutex_lock(&s->lock);
    int n = s->n_live;
    pthread_mutex_unlock(&s->lock);
    return n;
}

void fl_server_stop(fl_server *s)
{
    if (!s)
        return;
    pthread_mutex_lock(&s->lock);
    s->stopping = true;
    for (fl_job *j = s->live; j; j = j->live) {
        atomic_store(&j->dead, true);
        fl_job_wake_locked(j);
    }
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
    fl_http_stop(s);
    if (s->has_scheduler)
        pthread_join(s->scheduler, NULL);
    fl_watch_stop(s);
    fl_forms_free(s);
    fl_keys_free(s);
    fl_vec_free(&s->tls_cert);
    fl_vec_free(&s->tls_key);
    pthread_cond_destroy(&s->wake);
    pthread_mutex_destroy(&s->lock);
    fl_free(s);
}
