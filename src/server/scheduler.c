/* The scheduler: the one thread that uses the model and the engine.
 *
 * Each round it does the chores, ends jobs whose client has gone, takes new jobs to the engine, and
 * runs one step.  The engine decides who waits and who runs, and composes steps so that no answer
 * depends on its company. */
#define _GNU_SOURCE
#include "server/job_internal.h"

/* The queue's end, under the lock. */
static void append(fl_server *s, fl_job *j)
{
    j->next = NULL;
    if (j->dialect->act) {
        j->next = s->chores;
        s->chores = j;
        return;
    }
    *s->waiting_end = j;
    s->waiting_end = &j->next;
}

static bool enqueue_locked(fl_server *s, fl_job *j, fl_refusal *r)
{
    if (s->draining || s->stopping)
        return fl_refuse(r, 503, "shutting_down", "", "the server is shutting down");
    if (s->n_waiting >= s->options.max_queue)
        return fl_refuse(r, 429, "queue_full", "", "%d requests wait already; try again later",
                         s->n_waiting);
    if (!fl_key_enter_locked(j->key, j->came, r))
        return false;
    j->entered = true;
    if (!s->busy)
        s->progress = fl_server_seconds();
    s->busy = true;
    j->id = s->next_id++;
    j->holders++;
    append(s, j);
    s->n_waiting++;
    j->live = s->live;
    s->live = j;
    s->n_live++;
    pthread_cond_signal(&s->wake);
    return true;
}

bool fl_scheduler_enqueue(fl_job *j, fl_refusal *r)
{
    pthread_mutex_lock(&j->server->lock);
    bool ok = enqueue_locked(j->server, j, r);
    pthread_mutex_unlock(&j->server->lock);
    return ok;
}

static void leave(fl_job *j)
{
    fl_job_start(j);
    fl_log_job(j);
    fl_answer_free(j);
    fl_job_drop(j);
}

static void leave_all(fl_job *list)
{
    for (fl_job *j = list, *next; j; j = next) {
        next = j->next;
        leave(j);
    }
}

/* Takes the jobs whose client has gone out of the queue; returns them as a list. */
static fl_job *take_dead(fl_server *s)
{
    fl_job *dead = NULL;
    pthread_mutex_lock(&s->lock);
    s->waiting_end = &s->waiting;
    while (*s->waiting_end) {
        fl_job *j = *s->waiting_end;
        if (atomic_load(&j->dead)) {
            *s->waiting_end = j->next;
            j->next = dead;
            dead = j;
        } else {
            s->waiting_end = &j->next;
        }
    }
    pthread_mutex_unlock(&s->lock);
    return dead;
}

static void do_chores(fl_server *s)
{
    pthread_mutex_lock(&s->lock);
    fl_job *list = s->chores;
    s->chores = NULL;
    pthread_mutex_unlock(&s->lock);
    for (fl_job *j = list; j; j = j->next) {
        fl_refusal r;
        fl_buf out = {0};
        if (j->dialect->act(j, &out, &r)) {
            fl_job_send(j, out.data, out.n);
            fl_job_end(j, 200);
        } else {
            fl_job_fail(j, &r);
        }
        fl_vec_free(&out);
    }
    leave_all(list);
}

/* Gives the engine one prompt.  The time to answer in is that of the whole job, and only its first
 * prompt may wait in vain. */
static fl_status submit(fl_job *j, fl_job_prompt *prompt, fl_error *err)
{
    fl_server *s = j->server;
    fl_request_params p = fl_request_params_default();
    double gone = j->started ? fl_server_seconds() - j->begun_at : 0;
    int64_t left = (int64_t)s->options.request_seconds * 1000000 - (int64_t)(gone * 1e6);
    p.prompt = j->prompt.data + prompt->at;
    p.n_prompt = (int64_t)prompt->n;
    p.max_tokens = j->params.max_tokens;
    p.n = (int)j->params.n;
    p.stop_ids = j->stop_ids.data;
    p.n_stop = j->stop_ids.n;
    p.sampling = j->params.sampling;
    p.mask = j->matcher || j->params.min_tokens > 0 ? fl_answer_mask : NULL;
    p.mask_ctx = prompt;
    p.on_token = fl_answer_token;
    p.ctx = prompt;
    p.client = j->client;
    p.salt = j->salt;
    p.priority = (int)j->params.priority;
    p.max_wait_us = prompt->choice ? 0 : (int64_t)s->options.queue_seconds * 1000000;
    p.max_us = s->options.request_seconds ? (left > 0 ? left : 1) : 0;
    FL_TRY(fl_engine_submit(s->engine, &p, &prompt->request, err));
    j->n_asked++;
    j->n_alive++;
    return FL_OK;
}

/* Prompts of a job that have no room in the engine yet. */
static int count_waiting(const fl_job *j)
{
    int n = 0;
    for (size_t i = 0; i < j->n_asked; i++)
        n += j->prompts.data[i].request && !fl_request_started(j->prompts.data[i].request);
    return n;
}

/* Gives the engine more of a job's prompts, a few ahead of those it has room for: its queue is
 * there for others, too. */
static fl_status ask(fl_job *j, fl_error *err)
{
    enum { AHEAD = 8 };
    while (!j->stopped && j->n_asked < j->prompts.n && count_waiting(j) < AHEAD)
        FL_TRY(submit(j, &j->prompts.data[j->n_asked], err));
    return FL_OK;
}

/* The same for jobs of which the engine has been given some. */
static void ask_more(fl_job *running, int64_t n)
{
    for (fl_job *j = running; j; j = j->next) {
        fl_error err;
        fl_status status = ask(j, &err);
        if (status == FL_OK || (status == FL_BUSY && (n > 1 || j->n_alive > 0)))
            continue;
        j->error = err;
        j->failed = true;
        fl_answer_stop(j);
    }
}

/* Takes one job to the engine, where it may wait on.  False: it stays at the head of the queue (the
 * engine takes no more), or it was answered with an error and has left. */
static bool admit(fl_job *j, bool alone, bool *stays)
{
    fl_refusal r;
    fl_error err = {0};
    *stays = false;
    if (!j->prepared && !fl_prompt_prepare(j, &r)) {
        fl_job_fail(j, &r);
        return false;
    }
    j->prepared = true;
    fl_status status = submit(j, &j->prompts.data[0], &err);
    if (status == FL_BUSY && !alone) {
        *stays = true;
        return false;
    }
    if (status != FL_OK) {
        fl_refuse_error(&r, &err);
        fl_job_fail(j, &r);
        return false;
    }
    j->sent = fl_server_seconds();
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
        s->counters.prompt_tokens += runs ? (int64_t)j->prompt.n : 0;
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

/* Ends what nobody waits for; a stream that has been silent for long gets a comment, so that no
 * proxy takes it for dead. */
static void look_after(fl_server *s, fl_job *running)
{
    double now = fl_server_seconds();
    for (fl_job *j = running; j; j = j->next) {
        if (!j->finished && atomic_load(&j->dead)) {
            fl_answer_stop(j);
        } else if (j->params.stream && now - j->sent > s->options.ping_seconds) {
            fl_job_begin(j);
            fl_job_send(j, ": ping\n\n", 8);
        }
    }
}

static bool is_stopping(fl_server *s)
{
    pthread_mutex_lock(&s->lock);
    bool stopping = s->stopping;
    pthread_mutex_unlock(&s->lock);
    return stopping;
}

/* Waits for work, with nothing running.  False: the server stops. */
static bool wait_for_work(fl_server *s)
{
    pthread_mutex_lock(&s->lock);
    s->busy = false;
    while (!s->waiting && !s->chores && !s->stopping)
        pthread_cond_wait(&s->wake, &s->lock);
    bool go = s->waiting || s->chores;
    s->busy = go;
    s->progress = fl_server_seconds();
    pthread_mutex_unlock(&s->lock);
    return go;
}

/* False when the engine has nothing more to do. */
static bool step(fl_server *s, fl_job *running)
{
    bool busy;
    fl_error err;
    double start = fl_server_seconds();
    (void)!fl_engine_step(s->engine, &busy, &err); /* its requests were told */
    fl_observe(s, FL_H_STEP, fl_server_seconds() - start);
    for (fl_job *j = running; j; j = j->next) {
        const fl_request *first = j->prompts.data[0].request;
        if (first && fl_request_started(first))
            fl_job_start(j);
    }
    return busy;
}

/* Progress after every step.  The engine's statistics look at every page of the cache, so they are
 * taken without the lock and not for every step of a busy server. */
static void publish(fl_server *s, bool idle)
{
    const double period = 0.05;
    double now = fl_server_seconds();
    bool due = idle || now - s->published >= period;
    fl_engine_stats stats;
    if (due) {
        fl_engine_get_stats(s->engine, &stats);
        s->published = now;
    }
    pthread_mutex_lock(&s->lock);
    s->progress = now;
    if (due)
        s->counters.engine = stats;
    pthread_mutex_unlock(&s->lock);
}

void *fl_scheduler_run(void *server)
{
    fl_server *s = server;
    fl_job *running = NULL;
    int64_t n = 0;
    bool settling = false; /* the engine prepares for the next turn of conversations */
    while (n > 0 || (settling && !is_stopping(s)) || wait_for_work(s)) {
        do_chores(s);
        leave_all(take_dead(s));
        look_after(s, running);
        sweep(&running, &n);
        admit_waiting(s, &running, &n);
        ask_more(running, n);
        if (n > 0 || settling)
            settling = step(s, running);
        sweep(&running, &n);
        publish(s, n == 0);
    }
    return NULL;
}
