/* The scheduler: the one thread that uses the model and the engine.
 *
 * Each round it ends jobs whose client has gone, lets waiting jobs into the engine in the order of
 * their arrival while there is room, and runs one step.  The engine composes steps so that no
 * answer depends on its company. */
#define _GNU_SOURCE
#include "server/server_internal.h"

bool fl_scheduler_enqueue(fl_job *j, fl_refusal *r)
{
    fl_server *s = j->server;
    bool ok = true;
    pthread_mutex_lock(&s->lock);
    if (s->draining || s->stopping) {
        ok = fl_refuse(r, 503, "shutting_down", "", "the server is shutting down");
    } else if (s->n_waiting >= s->options.max_queue) {
        ok = fl_refuse(r, 429, "queue_full", "", "%d requests wait already; try again later",
                       s->n_waiting);
    } else {
        if (!s->busy)
            s->progress = fl_server_seconds();
        s->busy = true;
        j->id = s->next_id++;
        j->holders++;
        j->next = NULL;
        *s->waiting_end = j;
        s->waiting_end = &j->next;
        s->n_waiting++;
        j->live = s->live;
        s->live = j;
        s->n_live++;
        pthread_cond_signal(&s->wake);
    }
    pthread_mutex_unlock(&s->lock);
    return ok;
}

static void leave(fl_job *j)
{
    fl_answer_free(j);
    fl_job_drop(j);
}

/* Takes the jobs whose client has gone out of the queue; returns them as a list. */
static fl_job *take_dead(fl_server *s)
{
    fl_job *dead = NULL;
    for (fl_job **p = &s->waiting; *p;) {
        fl_job *j = *p;
        if (atomic_load(&j->dead)) {
            *p = j->next;
            s->n_waiting--;
            j->next = dead;
            dead = j;
        } else {
            p = &j->next;
        }
    }
    s->waiting_end = &s->waiting;
    while (*s->waiting_end)
        s->waiting_end = &(*s->waiting_end)->next;
    return dead;
}

static fl_status submit(fl_job *j, fl_error *err)
{
    fl_server *s = j->server;
    fl_request_params p = fl_request_params_default();
    size_t n_stop;
    const int32_t *stop = fl_model_stop_ids(s->model, &n_stop);
    p.prompt = j->prompt.data;
    p.n_prompt = (int64_t)j->prompt.n;
    p.max_tokens = j->params.max_tokens;
    p.stop_ids = stop;
    p.n_stop = j->params.ignore_eos ? 0 : n_stop;
    p.sampling = j->params.sampling;
    p.on_token = fl_answer_token;
    p.ctx = j;
    return fl_engine_submit(s->engine, &p, &j->request, err);
}

/* Lets one waiting job in.  True: it runs; false: it stays at the head of the queue (there is no
 * room), or it was answered with an error and has left. */
static bool admit(fl_job *j, bool alone, bool *stays)
{
    fl_refusal r;
    fl_error err = {0};
    *stays = false;
    if (!j->prepared && !fl_answer_prepare(j, &r)) {
        fl_job_fail(j, &r);
        return false;
    }
    j->prepared = true;
    fl_status status = submit(j, &err);
    if (status == FL_BUSY && !alone) {
        *stays = true;
        return false;
    }
    if (status != FL_OK) {
        fl_refuse_error(&r, &err);
        fl_job_fail(j, &r);
        return false;
    }
    if (j->params.stream) {
        fl_job_begin(j);
        (void)!fl_write_text(j, FL_PART_ROLE, "", 0);
    }
    return true;
}

static void admit_waiting(fl_server *s, fl_job **running, int64_t *n)
{
    for (;;) {
        pthread_mutex_lock(&s->lock);
        fl_job *j = s->waiting;
        pthread_mutex_unlock(&s->lock);
        bool stays = false;
        bool runs = j && admit(j, *n == 0, &stays);
        if (!j || stays)
            return;
        pthread_mutex_lock(&s->lock);
        s->waiting = j->next; /* only this thread takes away */
        if (!s->waiting)
            s->waiting_end = &s->waiting;
        s->n_waiting--;
        s->counters.prompt_tokens += runs ? (int64_t)j->prompt.n : 0;
        s->counters.running += runs;
        pthread_mutex_unlock(&s->lock);
        if (runs) {
            j->next = *running;
            *running = j;
            ++*n;
        } else {
            leave(j);
        }
    }
}

static void sweep(fl_job **running, int64_t *n)
{
    for (fl_job **p = running; *p;) {
        fl_job *j = *p;
        if (j->finished) {
            *p = j->next;
            --*n;
            leave(j);
        } else {
            p = &j->next;
        }
    }
}

/* Waits for work, with nothing running.  False: the server stops. */
static bool wait_for_work(fl_server *s)
{
    pthread_mutex_lock(&s->lock);
    s->busy = false;
    while (!s->waiting && !s->stopping)
        pthread_cond_wait(&s->wake, &s->lock);
    bool go = s->waiting != NULL;
    s->busy = go;
    s->progress = fl_server_seconds();
    pthread_mutex_unlock(&s->lock);
    return go;
}

void *fl_scheduler_run(void *server)
{
    fl_server *s = server;
    fl_job *running = NULL;
    int64_t n = 0;
    while (n > 0 || wait_for_work(s)) {
        pthread_mutex_lock(&s->lock);
        fl_job *dead = take_dead(s);
        pthread_mutex_unlock(&s->lock);
        for (fl_job *j = dead, *next; j; j = next) {
            next = j->next;
            leave(j);
        }
        for (fl_job *j = running; j; j = j->next) {
            if (j->request && atomic_load(&j->dead))
                fl_engine_cancel(s->engine, j->request);
        }
        sweep(&running, &n);
        admit_waiting(s, &running, &n);
        bool busy;
        fl_error err;
        (void)!fl_engine_step(s->engine, &busy, &err); /* its requests were told */
        sweep(&running, &n);
        pthread_mutex_lock(&s->lock);
        s->progress = fl_server_seconds();
        s->counters.running = n;
        s->counters.free_tokens = fl_state_free_tokens(fl_engine_state(s->engine));
        pthread_mutex_unlock(&s->lock);
    }
    return NULL;
}
