/* HTTP: connections, bodies, routes.  libmicrohttpd reads and writes; a connection whose answer is
 * not there yet is suspended and resumed by whoever has news for it (fl_job_wake_locked). */
#define _GNU_SOURCE
#include "server/http_internal.h"

#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/socket.h>

enum { HTTP_THREADS = 2, IDLE_SECONDS = 60, MAX_CONNECTIONS = 4096, HEAD_BYTES = 32768 };

/* Whom the engine is fair to: a key's owner, or without keys an address. */
static uint64_t client_of(const fl_server *s, struct MHD_Connection *c, const fl_exchange *x)
{
    if (x->key)
        return (uint64_t)(x->key - s->keys.data) + 1;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    const struct sockaddr *a = info ? info->client_addr : NULL;
    if (a && a->sa_family == AF_INET)
        return ((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr;
    uint64_t halves[2] = {0};
    if (a && a->sa_family == AF_INET6)
        memcpy(halves, &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr, sizeof halves);
    return halves[0] ^ halves[1];
}

static enum MHD_Result take_job(fl_server *s, struct MHD_Connection *c, fl_exchange *x)
{
    fl_refusal r;
    fl_error err = {0};
    fl_json *body;
    const char *path = x->dialect->path;
    if (fl_json_parse(x->body.data ? x->body.data : "", x->body.n, "body", &body, &err) != FL_OK) {
        fl_refuse(&r, 400, "invalid_json", "", "%s", err.message);
        return fl_respond_refusal(s, c, x, path, &r, false);
    }
    fl_vec_free(&x->body);
    fl_job *j = fl_job_create(s, x->dialect, x->key, body, &r);
    if (!j)
        return fl_respond_refusal(s, c, x, path, &r, false);
    j->connection = c;
    j->client = client_of(s, c, x);
    j->salt = x->key ? x->key->salt : 0;
    memcpy(j->request_id, x->request_id, sizeof j->request_id);
    if (!fl_scheduler_enqueue(j, &r)) {
        fl_job_drop(j);
        return fl_respond_refusal(s, c, x, path, &r, false);
    }
    x->job = j;
    x->fd = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
    fl_watch_add(s, x->fd, j->id);
    return fl_respond_job(c, x);
}

static enum MHD_Result page(fl_server *s, struct MHD_Connection *c, const fl_exchange *x,
                            const char *path)
{
    fl_buf b = {0};
    const char *type;
    int http;
    enum MHD_Result ok = MHD_NO;
    if (fl_page(s, path, &b, &type, &http))
        ok = fl_respond(s, c, x, http, type, b.data, b.n);
    fl_vec_free(&b);
    return ok;
}

static enum MHD_Result route(fl_server *s, struct MHD_Connection *c, fl_exchange *x,
                             const char *path, const char *method)
{
    fl_refusal r;
    bool get = strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;
    if (x->too_large) {
        fl_gate_too_large(s, &r);
        return fl_respond_refusal(s, c, x, path, &r, true);
    }
    if (x->dialect && strcmp(method, "POST") == 0)
        return take_job(s, c, x);
    if (!x->dialect && get)
        return page(s, c, x, path);
    fl_refuse(&r, 405, "method_not_allowed", "", "%.16s is not possible at %.200s", method, path);
    return fl_respond_refusal(s, c, x, path, &r, false);
}

/* The head of a request is there. */
static enum MHD_Result begin(fl_server *s, struct MHD_Connection *c, const char *path,
                             const char *method, void **con)
{
    fl_refusal r;
    fl_exchange *x = fl_calloc(1, sizeof *x);
    if (!x)
        return MHD_NO;
    *con = x;
    x->dialect = fl_dialect_find(path);
    if (s->options.cors && strcmp(method, "OPTIONS") == 0)
        return fl_respond_preflight(s, c);
    if (!fl_gate_check(s, c, path, x, &r))
        return fl_respond_refusal(s, c, x, path, &r, true);
    return MHD_YES;
}

static enum MHD_Result handle(void *cls, struct MHD_Connection *c, const char *path,
                              const char *method, const char *version, const char *data,
                              size_t *size, void **con)
{
    fl_server *s = cls;
    fl_exchange *x = *con;
    (void)version;
    if (!x)
        return begin(s, c, path, method, con);
    if (*size) { /* what is over the limit is read and dropped */
        x->too_large |= *size > s->options.max_body - x->body.n;
        if (!x->too_large && !fl_vec_append(&x->body, data, *size))
            return MHD_NO;
        *size = 0;
        return MHD_YES;
    }
    return x->job ? fl_respond_job(c, x) : route(s, c, x, path, method);
}

static void end_job(fl_server *s, fl_exchange *x)
{
    fl_watch_remove(s, x->fd);
    pthread_mutex_lock(&s->lock);
    atomic_store(&x->job->dead, true);
    x->job->connection = NULL;
    fl_job **p = &s->live;
    while (*p != x->job)
        p = &(*p)->live;
    *p = x->job->live;
    s->n_live--;
    fl_job_leave_locked(x->job);
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
    fl_job_drop(x->job);
}

/* The request is over, whatever the reason; its socket is still open. */
static void completed(void *cls, struct MHD_Connection *c, void **con,
                      enum MHD_RequestTerminationCode code)
{
    fl_exchange *x = *con;
    (void)c, (void)code;
    if (!x)
        return;
    if (x->job)
        end_job(cls, x);
    fl_vec_free(&x->body);
    fl_free(x);
    *con = NULL;
}

static struct MHD_Daemon *listen_on(fl_server *s, const struct addrinfo *a)
{
    bool tls = s->tls_cert.n != 0;
    struct MHD_OptionItem items[] = {{MHD_OPTION_HTTPS_MEM_CERT, 0, s->tls_cert.data},
                                     {MHD_OPTION_HTTPS_MEM_KEY, 0, s->tls_key.data},
                                     {MHD_OPTION_END, 0, NULL}};
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME |
                     (a->ai_family == AF_INET6 ? MHD_USE_IPv6 : 0) | (tls ? MHD_USE_TLS : 0);
    return MHD_start_daemon(
        flags, (uint16_t)s->options.port, NULL, NULL, handle, s, MHD_OPTION_SOCK_ADDR, a->ai_addr,
        MHD_OPTION_THREAD_POOL_SIZE, (unsigned)HTTP_THREADS, MHD_OPTION_CONNECTION_TIMEOUT,
        (unsigned)IDLE_SECONDS, MHD_OPTION_CONNECTION_LIMIT, (unsigned)MAX_CONNECTIONS,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)HEAD_BYTES, MHD_OPTION_NOTIFY_COMPLETED,
        completed, s, MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_LISTENING_ADDRESS_REUSE, 1u,
        MHD_OPTION_ARRAY, tls ? items : items + 2, MHD_OPTION_END);
}

fl_status fl_http_start(fl_server *s, fl_error *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list;
    char port[16];
    snprintf(port, sizeof port, "%d", s->options.port);
    if (s->tls_cert.n && MHD_is_feature_supported(MHD_FEATURE_TLS) != MHD_YES)
        return fl_fail(err, FL_UNSUPPORTED, "this libmicrohttpd was built without TLS");
    int code = getaddrinfo(s->options.host, port, &hints, &list);
    if (code != 0)
        return fl_fail(err, FL_ARGUMENT, "%s: %s", s->options.host, gai_strerror(code));
    s->daemon = listen_on(s, list);
    freeaddrinfo(list);
    if (!s->daemon)
        return fl_fail(err, FL_IO, "cannot listen on %s port %d: is the port in use%s?",
                       s->options.host, s->options.port,
                       s->tls_cert.n ? ", are the certificate and its key in order" : "");
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
