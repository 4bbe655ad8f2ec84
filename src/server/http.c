/* HTTP: connections, bodies, routes.  libmicrohttpd reads and writes; a connection whose answer is
 * not there yet is suspended and resumed by whoever has news for it (fl_job_wake_locked). */
#define _GNU_SOURCE
#include "server/http_internal.h"

#include <netdb.h>
#include <stdio.h>
#include <sys/socket.h>

enum { HTTP_THREADS = 2, IDLE_SECONDS = 60, MAX_CONNECTIONS = 4096, HEAD_BYTES = 32768 };

/* One request on a connection. */
typedef struct exchange {
    fl_buf body;
    bool too_large;
    fl_job *job;
    int fd;
} exchange;

static enum MHD_Result respond(struct MHD_Connection *c, int http, const char *type,
                               const char *text, size_t len, bool close)
{
    struct MHD_Response *r =
        MHD_create_response_from_buffer(len, (void *)text, MHD_RESPMEM_MUST_COPY);
    if (!r)
        return MHD_NO;
    enum MHD_Result ok = MHD_add_response_header(r, "Content-Type", type);
    if (http == 429 || http == 503)
        ok = ok && MHD_add_response_header(r, "Retry-After", "1");
    if (http == 401)
        ok = ok && MHD_add_response_header(r, "WWW-Authenticate", "Bearer");
    if (close)
        ok = ok && MHD_add_response_header(r, "Connection", "close");
    ok = ok && MHD_queue_response(c, (unsigned)http, r);
    MHD_destroy_response(r);
    return ok;
}

static enum MHD_Result respond_refusal(struct MHD_Connection *c, const fl_refusal *r, bool close)
{
    fl_buf b = {0};
    enum MHD_Result ok = MHD_NO;
    if (fl_write_error(&b, r))
        ok = respond(c, r->http, "application/json", b.data, b.n, close);
    fl_vec_free(&b);
    return ok;
}

/* ---- the answer of a job ---- */

static ssize_t read_stream(void *cls, uint64_t pos, char *buf, size_t max)
{
    fl_job *j = cls;
    fl_server *s = j->server;
    ssize_t result = 0;
    (void)pos;
    pthread_mutex_lock(&s->lock);
    size_t n = j->out.n - j->out_at;
    if (atomic_load(&j->dead) || j->broken) {
        result = MHD_CONTENT_READER_END_WITH_ERROR;
    } else if (n) {
        n = n < max ? n : max;
        memcpy(buf, j->out.data + j->out_at, n);
        j->out_at += n;
        if (j->out_at == j->out.n)
            j->out.n = j->out_at = 0;
        result = (ssize_t)n;
    } else if (j->ended) {
        result = MHD_CONTENT_READER_END_OF_STREAM;
    } else {
        j->suspended = true;
        MHD_suspend_connection(j->connection);
    }
    pthread_mutex_unlock(&s->lock);
    return result;
}

static enum MHD_Result respond_stream(struct MHD_Connection *c, fl_job *j)
{
    struct MHD_Response *r =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16384, read_stream, j, NULL);
    if (!r)
        return MHD_NO;
    enum MHD_Result ok = MHD_add_response_header(r, "Content-Type", "text/event-stream") &&
                         MHD_add_response_header(r, "Cache-Control", "no-cache") &&
                         MHD_add_response_header(r, "X-Accel-Buffering", "no") &&
                         MHD_queue_response(c, 200, r);
    MHD_destroy_response(r);
    return ok;
}

/* Answers when there is an answer, suspends when there is none yet. */
static enum MHD_Result answer_job(struct MHD_Connection *c, fl_job *j)
{
    fl_server *s = j->server;
    pthread_mutex_lock(&s->lock);
    bool dead = atomic_load(&j->dead) || j->broken;
    bool stream = j->begun, whole = j->ended;
    if (!dead && !stream && !whole) {
        j->suspended = true;
        MHD_suspend_connection(c);
    }
    pthread_mutex_unlock(&s->lock);
    if (dead)
        return MHD_NO;
    if (stream)
        return respond_stream(c, j);
    return whole ? respond(c, j->http, "application/json", j->out.data, j->out.n, false) : MHD_YES;
}

static enum MHD_Result generate(fl_server *s, struct MHD_Connection *c, exchange *x, bool chat)
{
    fl_refusal r;
    fl_error err = {0};
    fl_json *body;
    if (fl_json_parse(x->body.data ? x->body.data : "", x->body.n, "body", &body, &err) != FL_OK) {
        fl_refuse(&r, 400, "invalid_json", "", "%s", err.message);
        return respond_refusal(c, &r, false);
    }
    fl_vec_free(&x->body);
    fl_job *j = fl_job_create(s, body, chat, &r);
    if (!j)
        return respond_refusal(c, &r, false);
    j->connection = c;
    if (!fl_scheduler_enqueue(j, &r)) {
        fl_job_drop(j);
        return respond_refusal(c, &r, false);
    }
    x->job = j;
    x->fd = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
    fl_watch_add(s, x->fd, j->id);
    return answer_job(c, j);
}

static enum MHD_Result page(fl_server *s, struct MHD_Connection *c, const char *path)
{
    fl_buf b = {0};
    const char *type;
    int http;
    enum MHD_Result ok = MHD_NO;
    if (fl_page(s, path, &b, &type, &http))
        ok = respond(c, http, type, b.data, b.n, false);
    fl_vec_free(&b);
    return ok;
}

static enum MHD_Result route(fl_server *s, struct MHD_Connection *c, exchange *x, const char *path,
                             const char *method)
{
    fl_refusal r;
    bool chat = strcmp(path, "/v1/chat/completions") == 0;
    bool post = strcmp(method, "POST") == 0, get = strcmp(method, "GET") == 0;
    bool generates = chat || strcmp(path, "/v1/completions") == 0;
    if (x->too_large) {
        fl_gate_too_large(s, &r);
        return respond_refusal(c, &r, true);
    }
    if (generates && post)
        return generate(s, c, x, chat);
    if (!generates && get)
        return page(s, c, path);
    fl_refuse(&r, 405, "method_not_allowed", "", "%.16s is not possible at %.200s", method, path);
    return respond_refusal(c, &r, false);
}

static enum MHD_Result handle(void *cls, struct MHD_Connection *c, const char *path,
                              const char *method, const char *version, const char *data,
                              size_t *size, void **con)
{
    fl_server *s = cls;
    exchange *x = *con;
    fl_refusal r;
    (void)version;
    if (!x) {
        if (!fl_gate_check(s, c, path, &r))
            return respond_refusal(c, &r, true);
        *con = fl_calloc(1, sizeof *x);
        return *con ? MHD_YES : MHD_NO;
    }
    if (*size) { /* what is over the limit is read and dropped */
        x->too_large |= *size > s->options.max_body - x->body.n;
        if (!x->too_large && !fl_vec_append(&x->body, data, *size))
            return MHD_NO;
        *size = 0;
        return MHD_YES;
    }
    return x->job ? answer_job(c, x->job) : route(s, c, x, path, method);
}

/* The request is over, whatever the reason; its socket is still open. */
static void completed(void *cls, struct MHD_Connection *c, void **con,
                      enum MHD_RequestTerminationCode code)
{
    fl_server *s = cls;
    exchange *x = *con;
    (void)c, (void)code;
    if (!x)
        return;
    if (x->job) {
        fl_watch_remove(s, x->fd);
        pthread_mutex_lock(&s->lock);
        atomic_store(&x->job->dead, true);
        x->job->connection = NULL;
        fl_job **p = &s->live;
        while (*p != x->job)
            p = &(*p)->live;
        *p = x->job->live;
        s->n_live--;
        pthread_cond_signal(&s->wake);
        pthread_mutex_unlock(&s->lock);
        fl_job_drop(x->job);
    }
    fl_vec_free(&x->body);
    fl_free(x);
    *con = NULL;
}

fl_status fl_http_start(fl_server *s, fl_error *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list;
    char port[16];
    snprintf(port, sizeof port, "%d", s->options.port);
    int code = getaddrinfo(s->options.host, port, &hints, &list);
    if (code != 0)
        return fl_fail(err, FL_ARGUMENT, "%s: %s", s->options.host, gai_strerror(code));
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME |
                     (list->ai_family == AF_INET6 ? MHD_USE_IPv6 : 0);
    s->daemon = MHD_start_daemon(
        flags, (uint16_t)s->options.port, NULL, NULL, handle, s, MHD_OPTION_SOCK_ADDR,
        list->ai_addr, MHD_OPTION_THREAD_POOL_SIZE, (unsigned)HTTP_THREADS,
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_SECONDS, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)MAX_CONNECTIONS, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)HEAD_BYTES,
        MHD_OPTION_NOTIFY_COMPLETED, completed, s, MHD_OPTION_STRICT_FOR_CLIENT, 1,
        MHD_OPTION_LISTENING_ADDRESS_REUSE, 1u, MHD_OPTION_END);
    freeaddrinfo(list);
    if (!s->daemon)
        return fl_fail(err, FL_IO, "cannot listen on %s port %d: is the port in use?",
                       s->options.host, s->options.port);
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(s->daemon, MHD_DAEMON_INFO_BIND_PORT);
    s->port = info ? info->port : s->options.port;
    return FL_OK;
}

/* Every suspended connection must be resumed before. */
void fl_http_stop(fl_server *s)
{
    if (s->daemon)
        MHD_stop_daemon(s->daemon);
}
