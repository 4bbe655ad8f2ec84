/* /metrics: Prometheus' text, with the names that dashboards for vLLM read, and a few of our own.
 */
#define _GNU_SOURCE
#include "server/job_internal.h"
#include "server/put_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

static const char *const NAMES[] = {
#define FL_HISTOGRAM_NAME(name, metric, seconds) [FL_H_##name] = metric,
    FL_HISTOGRAM_MAP(FL_HISTOGRAM_NAME)
#undef FL_HISTOGRAM_NAME
};
static const bool SECONDS[] = {
#define FL_HISTOGRAM_SECONDS(name, metric, seconds) [FL_H_##name] = seconds,
    FL_HISTOGRAM_MAP(FL_HISTOGRAM_SECONDS)
#undef FL_HISTOGRAM_SECONDS
};

/* Upper bound of a bucket: 1 ms to 524 s, or 1 to 524288 tokens, doubling. */
static double bound(bool seconds, int bucket)
{
    return (double)(INT64_C(1) << bucket) * (seconds ? 0.001 : 1);
}

static void observe_locked(fl_server *s, fl_histogram_id which, double value)
{
    fl_histogram *h = &s->counters.h[which];
    int b = 0;
    while (b < FL_H_BUCKETS && value > bound(SECONDS[which], b))
        b++;
    if (b < FL_H_BUCKETS)
        h->buckets[b]++;
    h->count++;
    h->sum += value;
}

void fl_observe(fl_server *s, fl_histogram_id which, double value)
{
    pthread_mutex_lock(&s->lock);
    observe_locked(s, which, value);
    pthread_mutex_unlock(&s->lock);
}

void fl_count_token(fl_job *j)
{
    fl_server *s = j->server;
    double now = fl_server_seconds();
    fl_job_start(j);
    pthread_mutex_lock(&s->lock);
    s->counters.generation_tokens++;
    if (j->first == 0) {
        observe_locked(s, FL_H_FIRST_TOKEN, now - j->came);
        observe_locked(s, FL_H_QUEUE, j->begun_at - j->came);
        observe_locked(s, FL_H_PREFILL, now - j->begun_at);
        j->first = now;
    } else if (j->n_choices == 1) {
        observe_locked(s, FL_H_BETWEEN, now - j->last);
    }
    pthread_mutex_unlock(&s->lock);
    j->last = now;
}

void fl_count_end(fl_job *j, fl_finish how)
{
    fl_server *s = j->server;
    double now = fl_server_seconds();
    int64_t tokens = fl_job_tokens(j);
    pthread_mutex_lock(&s->lock);
    s->counters.ended[how]++;
    fl_key_charge_locked(j->key, (int64_t)j->prompt.n - j->n_cached + tokens);
    observe_locked(s, FL_H_WHOLE, now - j->came);
    if (j->begun_at > 0)
        observe_locked(s, FL_H_INFERENCE, now - j->begun_at);
    observe_locked(s, FL_H_PROMPT, (double)j->prompt.n);
    observe_locked(s, FL_H_ANSWER, (double)tokens);
    observe_locked(s, FL_H_MAX, (double)j->params.max_tokens);
    observe_locked(s, FL_H_CHOICES, (double)j->params.n);
    if (j->first > 0)
        observe_locked(s, FL_H_DECODE, now - j->first);
    if (j->first > 0 && tokens > j->n_choices)
        observe_locked(s, FL_H_PER_TOKEN,
                       (now - j->first) * j->n_choices / (double)(tokens - j->n_choices));
    pthread_mutex_unlock(&s->lock);
}

/* NAME{model_name="...",engine="0"LABELS} VALUE */
static bool sample(fl_server *s, fl_buf *b, const char *name, const char *suffix,
                   const char *labels, double value)
{
    return fl_put(b, "%s%s{model_name=", name, suffix) && fl_put_bytes(b, fl_server_alias(s)) &&
           fl_put(b, ",engine=\"0\"%s} %.17g\n", labels, value);
}

static bool metric(fl_server *s, fl_buf *b, const char *type, const char *name, double value)
{
    return fl_put(b, "# TYPE %s %s\n", name, type) && sample(s, b, name, "", "", value);
}

static bool histogram(fl_server *s, fl_buf *b, int which, const fl_histogram *h)
{
    const char *name = NAMES[which];
    int64_t sum = 0;
    bool ok = fl_put(b, "# TYPE %s histogram\n", name);
    for (int i = 0; ok && i <= FL_H_BUCKETS; i++) {
        char label[48];
        bool last = i == FL_H_BUCKETS;
        fl_buf text = {0};
        sum = last ? h->count : sum + h->buckets[i];
        ok = (last ? fl_put(&text, ",le=\"+Inf\"")
                   : fl_put(&text, ",le=\"%.12g\"", bound(SECONDS[which], i))) &&
             text.n < sizeof label;
        if (ok) {
            memcpy(label, text.data, text.n);
            label[text.n] = 0;
            ok = sample(s, b, name, "_bucket", label, (double)sum);
        }
        fl_vec_free(&text);
    }
    return ok && sample(s, b, name, "_sum", "", h->sum) &&
           sample(s, b, name, "_count", "", (double)h->count);
}

/* Bytes of memory that the process holds; 0 where that cannot be read. */
static double resident_bytes(void)
{
    long long pages = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (f && fscanf(f, "%*s %lld", &pages) != 1)
        pages = 0;
    if (f)
        fclose(f);
    return (double)pages * (double)sysconf(_SC_PAGESIZE);
}

bool fl_metrics_write(fl_server *s, bool healthy, fl_buf *b)
{
    pthread_mutex_lock(&s->lock);
    fl_counters c = s->counters;
    double waiting = s->n_waiting, live = s->n_live;
    pthread_mutex_unlock(&s->lock);
    static const char *const reasons[] = {[FL_FINISH_STOP] = ",finished_reason=\"stop\"",
                                          [FL_FINISH_LENGTH] = ",finished_reason=\"length\"",
                                          [FL_FINISH_CANCEL] = ",finished_reason=\"abort\"",
                                          [FL_FINISH_ERROR] = ",finished_reason=\"error\"",
                                          [FL_FINISH_TIMEOUT] = ",finished_reason=\"timeout\""};
    const fl_engine_stats *e = &c.engine;
    /* What the index keeps for later, and gives up at need, counts as free. */
    const double used = (double)(e->tokens - e->free_tokens - e->prefix.idle);
    bool ok =
        metric(s, b, "gauge", "vllm:num_requests_running", e->running) &&
        metric(s, b, "gauge", "vllm:num_requests_waiting", waiting) &&
        metric(s, b, "gauge", "vllm:kv_cache_usage_perc",
               e->tokens ? used / (double)e->tokens : 0) &&
        metric(s, b, "gauge", "vllm:engine_healthy", healthy) &&
        metric(s, b, "gauge", "firstlight:connections_generating", live) &&
        metric(s, b, "gauge", "firstlight:cache_tokens_used", used) &&
        metric(s, b, "gauge", "process_resident_memory_bytes", resident_bytes()) &&
        metric(s, b, "counter", "vllm:prompt_tokens_total", (double)c.prompt_tokens) &&
        metric(s, b, "counter", "vllm:generation_tokens_total", (double)c.generation_tokens) &&
        metric(s, b, "counter", "vllm:prefix_cache_queries_total", (double)e->prefix_queries) &&
        metric(s, b, "counter", "vllm:prefix_cache_hits_total", (double)e->prefix_hits) &&
        metric(s, b, "gauge", "firstlight:prefix_tokens", (double)e->prefix.tokens) &&
        metric(s, b, "gauge", "firstlight:prefix_snapshots", e->prefix.snapshots) &&
        metric(s, b, "counter", "firstlight:prefix_evicted_tokens_total",
               (double)e->prefix.evicted_tokens) &&
        metric(s, b, "counter", "firstlight:settled_tokens_total", (double)e->settled_tokens) &&
        metric(s, b, "counter", "firstlight:prefixes_saved_total", (double)e->prefixes_saved) &&
        metric(s, b, "counter", "firstlight:prefixes_loaded_total", (double)e->prefixes_loaded) &&
        metric(s, b, "counter", "vllm:num_preemptions_total", (double)e->preemptions) &&
        metric(s, b, "counter", "firstlight:replayed_tokens_total", (double)e->replayed_tokens) &&
        metric(s, b, "counter", "firstlight:steps_total", (double)e->steps) &&
        metric(s, b, "counter", "firstlight:requests_refused_total", (double)c.refused) &&
        fl_put(b, "# TYPE vllm:request_success_total counter\n");
    for (int i = FL_FINISH_STOP; ok && i < FL_FINISH_COUNT; i++)
        ok = sample(s, b, "vllm:request_success_total", "", reasons[i], (double)c.ended[i]);
    for (int i = 0; ok && i < FL_H_COUNT; i++)
        ok = histogram(s, b, i, &c.h[i]);
    return ok;
}
