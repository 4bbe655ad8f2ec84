/* Starting and stopping: keys, threads, and the order in which they end. */
#define _GNU_SOURCE
#include "server/server_internal.h"

#include <errno.h>
#include <stdio.h>
#include <sys/random.h>
#include <time.h>

static fl_status read_keys(fl_server *s, fl_error *err)
{
    const char *path = s->options.key_file;
    FILE *f = fopen(path, "rb");
    if (!f)
        return fl_fail(err, FL_IO, "%s: %s", path, strerror(errno));
    size_t n = 1;
    bool ok = true;
    while (n && (ok = fl_vec_reserve(&s->keys, 4096))) {
        n = fread(s->keys.data + s->keys.n, 1, s->keys.cap - s->keys.n, f);
        s->keys.n += n;
    }
    bool failed = ferror(f);
    fclose(f);
    if (!ok)
        return fl_fail(err, FL_NOMEM, "%s: no memory", path);
    return failed ? fl_fail(err, FL_IO, "%s: cannot be read", path) : FL_OK;
}

static fl_status start(fl_server *s, fl_error *err)
{
    uint32_t base;
    if (getrandom(&base, sizeof base, 0) != sizeof base)
        return fl_fail(err, FL_IO, "no random numbers");
    s->next_id = ((uint64_t)base << 32) | 1; /* never 0; ids differ from run to run */
    s->started = (int64_t)time(NULL);
    s->progress = fl_server_seconds();
    s->counters.all_tokens = s->counters.free_tokens =
        fl_state_free_tokens(fl_engine_state(s->engine));
    if (s->options.key_file)
        FL_TRY(read_keys(s, err));
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
    fl_vec_free(&s->keys);
    pthread_cond_destroy(&s->wake);
    pthread_mutex_destroy(&s->lock);
    fl_free(s);
}
