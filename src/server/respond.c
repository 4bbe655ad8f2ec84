/* Responses: headers, whole texts, streams. */
#define _GNU_SOURCE
#include "server/http_internal.h"

#include <inttypes.h>
#include <stdio.h>

static enum MHD_Result add_cors(fl_server *s, struct MHD_Response *r)
{
    return !s->options.cors ||
                   (MHD_add_response_header(r, "Access-Control-Allow-Origin", s->options.cors) &&
                    MHD_add_response_header(r, "Access-Control-Expose-Headers",
                                            "X-Request-Id, Retry-After") &&
                    MHD_add_response_header(r, "Vary", "Origin"))
               ? MHD_YES
               : MHD_NO;
}

/* The client's id of the request, or ours. */
static enum MHD_Result add_id(const fl_exchange *x, struct MHD_Response *r)
{
    char id[64];
    if (x->request_id[0])
        return MHD_add_response_header(r, "X-Request-Id", x->request_id);
    if (!x->job)
        return MHD_YES;
    snprintf(id, sizeof id, "%s-%016" PRIx64, x->job->dialect->prefix, x->job->id);
    return MHD_add_response_header(r, "X-Request-Id", id);
}

static enum MHD_Result respond(fl_server *s, struct MHD_Connection *c, const fl_exchange *x,
                               int http, const char *type, const char *text, size_t len, int retry,
                               bool close)
{
    struct MHD_Response *r =
        MHD_create_response_from_buffer(len, (void *)text, MHD_RESPMEM_MUST_COPY);
    char seconds[16];
    if (!r)
        return MHD_NO;
    enum MHD_Result ok =
        MHD_add_response_header(r, "Content-Type", type) && add_cors(s, r) && add_id(x, r);
    snprintf(seconds, sizeof seconds, "%d", retry > 0 ? retry : 1);
    if (http == 429 || http == 503)
        ok = ok && MHD_add_response_header(r, "Retry-After", seconds);
    if (http == 401)
        ok = ok && MHD_add_response_header(r, "WWW-Authenticate", "Bearer");
    if (close)
        ok = ok && MHD_add_response_header(r, "Connection", "close");
    ok = ok && MHD_queue_response(c, (unsigned)http, r);
    MHD_destroy_response(r);
    return ok;
}

enum MHD_Result fl_respond(fl_server *s, struct MHD_Connection *c, const fl_exchange *x, int http,
                           const char *type, const char *text, size_t len)
{
    return respond(s, c, x, http, type, text, len, 0, false);
}

enum MHD_Result fl_respond_refusal(fl_server *s, struct MHD_Connection *c, const fl_exchange *x,
                                   const char *path, const fl_refusal *r, bool close)
{
    const fl_dialect *d = x->dialect ? x->dialect : &fl_dialect_chat;
    fl_buf b = {0};
    enum MHD_Result ok = MHD_NO;
    fl_log_refusal(s, path, x->key, r);
    if (d->error(r, false, &b))
        ok = respond(s, c, x, r->http, "application/json", b.data, b.n, r->retry, close);
    fl_vec_free(&b);
    return ok;
}

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

static enum MHD_Result respond_stream(struct MHD_Connection *c, const fl_exchange *x)
{
    fl_job *j = x->job;
    struct MHD_Response *r =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16384, read_stream, j, NULL);
    if (!r)
        return MHD_NO;
    enum MHD_Result ok = MHD_add_response_header(r, "Content-Type", "text/event-stream") &&
                         MHD_add_response_header(r, "Cache-Control", "no-cache") &&
                         MHD_add_response_header(r, "X-Accel-Buffering", "no") &&
                         add_cors(j->server, r) && add_id(x, r) && MHD_queue_response(c, 200, r);
    MHD_destroy_response(r);
    return ok;
}

enum MHD_Result fl_respond_job(struct MHD_Connection *c, const fl_exchange *x)
{
    fl_job *j = x->job;
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
        return respond_stream(c, x);
    return whole ? respond(s, c, x, j->http, "application/json", j->out.data, j->out.n, j->retry,
                           false)
                 : MHD_YES;
}

enum MHD_Result fl_respond_preflight(fl_server *s, struct MHD_Connection *c)
{
    struct MHD_Response *r = MHD_create_response_from_buffer(0, "", MHD_RESPMEM_PERSISTENT);
    const char *asked =
        MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Access-Control-Request-Headers");
    if (!r)
        return MHD_NO;
    enum MHD_Result ok =
        add_cors(s, r) &&
        MHD_add_response_header(r, "Access-Control-Allow-Methods", "GET, POST, OPTIONS") &&
        MHD_add_response_header(r, "Access-Control-Max-Age", "86400") &&
        (!asked || MHD_add_response_header(r, "Access-Control-Allow-Headers", asked)) &&
        MHD_queue_response(c, 204, r);
    MHD_destroy_response(r);
    return ok;
}
