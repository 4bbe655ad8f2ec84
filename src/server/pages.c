/* What is read with GET: the web page, models, health, readiness, metrics, version. */
#define _GNU_SOURCE
#include "server/put_internal.h"
#include "server/server_internal.h"

#include <inttypes.h>

static bool models(fl_server *s, fl_buf *b)
{
    bool ok = fl_put(b, "{\"object\": \"list\", \"data\": [");
    const char *at = s->options.alias;
    for (bool more = true; ok && more;) {
        size_t n = strcspn(at, ",");
        ok = fl_put(b, at > s->options.alias ? ", {\"id\": " : "{\"id\": ") &&
             fl_json_quote(at, n, b) &&
             fl_put(b,
                    ", \"object\": \"model\", \"created\": %" PRId64
                    ", \"owned_by\": \"firstlight\", \"max_model_len\": %" PRId64 "}",
                    s->started, s->options.context);
        more = at[n] == ',';
        at += n + more;
    }
    return ok && fl_put(b, "]}");
}

bool fl_page(fl_server *s, const char *path, fl_buf *out, const char **type, int *http)
{
    pthread_mutex_lock(&s->lock);
    bool stuck = s->busy && fl_server_seconds() - s->progress > s->options.stuck_seconds;
    bool ready = !stuck && !s->draining && !s->stopping;
    pthread_mutex_unlock(&s->lock);
    *type = "application/json";
    *http = 200;
    if (strcmp(path, "/") == 0) {
        *type = "text/html; charset=utf-8";
        return fl_vec_append(out, (const char *)fl_page_html, fl_page_html_size);
    }
    if (strcmp(path, "/v1/models") == 0)
        return models(s, out);
    if (strcmp(path, "/version") == 0)
        return fl_put(out, "{\"version\": \"%s\"}", fl_version());
    if (strcmp(path, "/health") == 0) {
        *http = stuck ? 503 : 200;
        return stuck ? fl_put(out, "{\"status\": \"no step has ended for %d seconds\"}",
                              s->options.stuck_seconds)
                     : fl_put(out, "{\"status\": \"ok\"}");
    }
    if (strcmp(path, "/ready") == 0) {
        *http = ready ? 200 : 503;
        return fl_put(out, "{\"ready\": %s}", ready ? "true" : "false");
    }
    if (strcmp(path, "/metrics") == 0) {
        *type = "text/plain; version=0.0.4";
        return fl_metrics_write(s, !stuck, out);
    }
    fl_refusal r;
    fl_refuse(&r, 404, "not_found", "", "there is nothing at %.200s", path);
    *http = 404;
    return fl_put_error(&r, false, out);
}
