/* What is read with GET: models, health, readiness, metrics, version. */
#define _GNU_SOURCE
#include "server/server_internal.h"

#include <inttypes.h>

static bool models(fl_server *s, fl_buf *b)
{
    return fl_put(b, "{\"object\": \"list\", \"data\": [{\"id\": ") &&
           fl_json_quote(s->options.alias, strlen(s->options.alias), b) &&
           fl_put(b,
                  ", \"object\": \"model\", \"created\": %" PRId64
                  ", \"owned_by\": \"firstlight\", \"max_model_len\": %" PRId64 "}]}",
                  s->started, s->options.context);
}

/* One metric without labels of its own. */
static bool metric(fl_server *s, fl_buf *b, const char *type, const char *name, const char *labels,
                   double value)
{
    return fl_put(b, "# TYPE %s %s\n%s{model_name=", name, type, name) &&
           fl_json_quote(s->options.alias, strlen(s->options.alias), b) &&
           fl_put(b, "%s} %.17g\n", labels, value);
}

static bool metrics(fl_server *s, bool healthy, fl_buf *b)
{
    pthread_mutex_lock(&s->lock);
    fl_counters c = s->counters;
    double waiting = s->n_waiting, live = s->n_live;
    pthread_mutex_unlock(&s->lock);
    static const char *const reasons[] = {[FL_FINISH_STOP] = ",finished_reason=\"stop\"",
                                          [FL_FINISH_LENGTH] = ",finished_reason=\"length\"",
                                          [FL_FINISH_CANCEL] = ",finished_reason=\"abort\"",
                                          [FL_FINISH_ERROR] = ",finished_reason=\"error\""};
    bool ok =
        metric(s, b, "gauge", "vllm:num_requests_running", "", (double)c.running) &&
        metric(s, b, "gauge", "vllm:num_requests_waiting", "", waiting) &&
        metric(s, b, "gauge", "vllm:kv_cache_usage_perc", "",
               1 - (double)c.free_tokens / (double)c.all_tokens) &&
        metric(s, b, "gauge", "vllm:engine_healthy", "", healthy) &&
        metric(s, b, "gauge", "firstlight:connections_generating", "", live) &&
        metric(s, b, "gauge", "firstlight:cache_tokens_used", "",
               (double)(c.all_tokens - c.free_tokens)) &&
        metric(s, b, "counter", "vllm:prompt_tokens_total", "", (double)c.prompt_tokens) &&
        metric(s, b, "counter", "vllm:generation_tokens_total", "", (double)c.generation_tokens) &&
        fl_put(b, "# TYPE vllm:request_success_total counter\n");
    for (int i = FL_FINISH_STOP; ok && i <= FL_FINISH_ERROR; i++) {
        ok = fl_put(b, "vllm:request_success_total{model_name=") &&
             fl_json_quote(s->options.alias, strlen(s->options.alias), b) &&
             fl_put(b, "%s} %" PRId64 "\n", reasons[i], c.ended[i]);
    }
    return ok;
}

bool fl_page(fl_server *s, const char *path, fl_buf *out, const char **type, int *http)
{
    pthread_mutex_lock(&s->lock);
    bool stuck = s->busy && fl_server_seconds() - s->progress > FL_STUCK_SECONDS;
    bool ready = !stuck && !s->draining && !s->stopping;
    pthread_mutex_unlock(&s->lock);
    *type = "application/json";
    *http = 200;
    if (strcmp(path, "/v1/models") == 0)
        return models(s, out);
    if (strcmp(path, "/version") == 0)
        return fl_put(out, "{\"version\": \"%s\"}", fl_version());
    if (strcmp(path, "/health") == 0) {
        *http = stuck ? 503 : 200;
        return fl_put(out, "{\"status\": \"%s\"}", stuck ? "no step has ended for a minute" : "ok");
    }
    if (strcmp(path, "/ready") == 0) {
        *http = ready ? 200 : 503;
        return fl_put(out, "{\"ready\": %s}", ready ? "true" : "false");
    }
    if (strcmp(path, "/metrics") == 0) {
        *type = "text/plain; version=0.0.4";
        return metrics(s, !stuck, out);
    }
    fl_refusal r;
    fl_refuse(&r, 404, "not_found", "", "there is nothing at %.200s", path);
    *http = 404;
    return fl_write_error(out, &r);
}
