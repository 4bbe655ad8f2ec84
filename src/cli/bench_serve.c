/* firstlight bench serve URL: what users of a running server get.  Requests of given lengths arrive
 * at a given rate, at random times, or keep a number of places busy; each is streamed, and the
 * times of its first and last token are taken where a user would take them. */
#define _GNU_SOURCE
#include "cli/cli.h"
#include "cli/http.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_MIX = 16, MAX_PLACES = 4096 };

typedef struct length {
    int64_t prompt, answer;
    double weight;
} length;

static struct {
    const char *url, *model, *key;
    int64_t requests, concurrency;
    double rate; /* per second; 0: as many as concurrency allows */
    uint64_t seed;
    length mix[MAX_MIX];
    int n_mix;
    bool json;
} args = {.requests = 64, .concurrency = 16, .seed = 1};

enum { OPT_RATE = 0x200, OPT_REQUESTS, OPT_MIX, OPT_MODEL, OPT_KEY, OPT_SEED, OPT_JSON };

static const struct argp_option options[] = {
    {"requests", OPT_REQUESTS, "N", 0, "Requests in all (default 64)", 0},
    {"rate", OPT_RATE, "R", 0,
     "Requests that arrive per second, at random times (default 0: whenever a place is free)", 0},
    {"concurrency", 'c', "N", 0, "Requests under way at most (default 16)", 0},
    {"mix", OPT_MIX, "P:A[:W],...", 0,
     "Tokens of prompt and answer, and how often relative to the others (default 128:64)", 0},
    {"model", OPT_MODEL, "NAME", 0, "The model's name (default: the server's first)", 0},
    {"api-key", OPT_KEY, "KEY", 0, "The key to send", 0},
    {"seed", OPT_SEED, "N", 0, "Of arrivals, lengths and prompts (default 1)", 0},
    {"json", OPT_JSON, 0, 0, "Print JSON", 0},
    {0},
};

static void read_mix(struct argp_state *state, const char *text)
{
    for (args.n_mix = 0; *text; text += *text == ',') {
        length *l = &args.mix[args.n_mix];
        int used = 0;
        long long prompt = 0, answer = 0;
        l->weight = 1;
        if (args.n_mix == MAX_MIX || sscanf(text, "%lld:%lld%n", &prompt, &answer, &used) < 2 ||
            prompt < 1 || prompt > 10000000 || answer < 1 || answer > 1000000)
            argp_error(state, "--mix: \"%s\" is not PROMPT:ANSWER[:WEIGHT],...", text);
        l->prompt = prompt;
        l->answer = answer;
        text += used;
        if (*text == ':') {
            char *end;
            l->weight = strtod(text + 1, &end);
            text = end;
        }
        if (!(l->weight > 0 && l->weight < 1e9) || (*text && *text != ','))
            argp_error(state, "--mix: a weight is not a positive number");
        args.n_mix++;
    }
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    switch (key) {
    case OPT_REQUESTS:
        args.requests = cli_int(state, "--requests", arg, 1, 1000000);
        return 0;
    case OPT_RATE:
        args.rate = cli_real(state, "--rate", arg, 0, 100000);
        return 0;
    case 'c':
        args.concurrency = cli_int(state, "--concurrency", arg, 1, MAX_PLACES);
        return 0;
    case OPT_MIX:
        read_mix(state, arg);
        return 0;
    case OPT_MODEL:
        args.model = arg;
        return 0;
    case OPT_KEY:
        args.key = arg;
        return 0;
    case OPT_SEED:
        args.seed = (uint64_t)cli_int(state, "--seed", arg, 0, INT64_MAX);
        return 0;
    case OPT_JSON:
        args.json = true;
        return 0;
    default:
        return cli_model_key(key, arg, state, "the address of a server", &args.url);
    }
}

static const struct argp argp = {
    options, parse, "URL", "Measures a running server: http://HOST:PORT", 0, 0, 0};

/* ---- one request ---- */

typedef struct sample {
    length size;
    double due; /* seconds after the start */
    double sent, first, last;
    int64_t tokens, prompt_tokens; /* as the server counts them */
    int status;
    bool ok;
    fl_error error;
} sample;

typedef struct bench {
    cli_url url;
    char model[256];
    int32_t *ids; /* tokens of ordinary text, to make prompts of */
    size_t n_ids;
    sample *samples;
    double start;
    pthread_mutex_t lock; /* guards next */
    int64_t next;
} bench;

typedef struct stream {
    sample *s;
    fl_buf rest;
    bool nomem;
} stream;

static uint64_t mix64(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static double uniform(uint64_t *state)
{
    return (double)(mix64(*state += 0x9e3779b97f4a7c15u) >> 11) * 0x1p-53;
}

static void take_event(stream *st, const char *text, size_t len)
{
    fl_json *event;
    if (fl_json_parse(text, len, "event", &event, NULL) != FL_OK)
        return;
    const fl_json *choices = fl_json_get(event, "choices"), *usage = fl_json_get(event, "usage");
    if (fl_json_is(choices, FL_JSON_ARRAY) && fl_json_size(choices) > 0) {
        st->s->last = cli_seconds();
        if (st->s->first == 0)
            st->s->first = st->s->last;
    }
    if (fl_json_is(usage, FL_JSON_OBJECT)) {
        st->s->tokens = fl_json_int(fl_json_get(usage, "completion_tokens"));
        st->s->prompt_tokens = fl_json_int(fl_json_get(usage, "prompt_tokens"));
    }
    fl_json_free(event);
}

static bool take(void *ctx, const char *data, size_t len)
{
    stream *st = ctx;
    if (!fl_vec_append(&st->rest, data, len)) {
        st->nomem = true;
        return false;
    }
    size_t at = 0;
    for (char *end; (end = memmem(st->rest.data + at, st->rest.n - at, "\n\n", 2)) != NULL;) {
        const char *event = st->rest.data + at;
        size_t n = (size_t)(end - event);
        if (n > 6 && memcmp(event, "data: ", 6) == 0 && event[6] == '{')
            take_event(st, event + 6, n - 6);
        at += n + 2;
    }
    memmove(st->rest.data, st->rest.data + at, st->rest.n - at);
    st->rest.n -= at;
    return true;
}

static bool put(fl_buf *b, const char *text)
{
    return fl_vec_append(b, text, strlen(text));
}

static bool put_int(fl_buf *b, long long x)
{
    char text[32];
    snprintf(text, sizeof text, "%lld", x);
    return put(b, text);
}

/* A prompt of exactly so many tokens, different for every request. */
static bool write_body(const bench *b, int64_t index, const sample *s, fl_buf *out)
{
    uint64_t dice = mix64(args.seed + 77) + (uint64_t)index;
    bool ok = put(out, "{\"model\": ") && fl_json_quote(b->model, strlen(b->model), out) &&
              put(out, ", \"stream\": true, \"stream_options\": {\"include_usage\": true}, "
                       "\"ignore_eos\": true, \"temperature\": 0, \"max_tokens\": ") &&
              put_int(out, s->size.answer) && put(out, ", \"prompt\": [");
    for (int64_t i = 0; ok && i < s->size.prompt; i++)
        ok = (i == 0 || put(out, ",")) &&
             put_int(out, b->ids[(size_t)(uniform(&dice) * (double)b->n_ids)]);
    return ok && put(out, "]}");
}

static void ask(bench *b, int64_t index)
{
    sample *s = &b->samples[index];
    stream st = {.s = s};
    fl_buf body = {0};
    if (!write_body(b, index, s, &body)) {
        fl_fail(&s->error, FL_NOMEM, "no memory for a prompt");
    } else {
        s->sent = cli_seconds();
        s->ok = cli_http(&b->url, "/v1/completions", args.key, &body, take, &st, &s->status,
                         &s->error) == FL_OK &&
                s->status == 200 && !st.nomem && s->tokens > 0;
        if (!s->ok && s->error.status == FL_OK)
            fl_fail(&s->error, FL_IO, "status %d: %.*s", s->status,
                    (int)(st.rest.n < 200 ? st.rest.n : 200), st.rest.n ? st.rest.data : "");
    }
    fl_vec_free(&body);
    fl_vec_free(&st.rest);
}

/* A place: takes the next request, waits until it is due, and asks. */
static void *place(void *ctx)
{
    bench *b = ctx;
    for (;;) {
        pthread_mutex_lock(&b->lock);
        int64_t i = b->next++;
        pthread_mutex_unlock(&b->lock);
        if (i >= args.requests)
            return NULL;
        double wait = b->start + b->samples[i].due - cli_seconds();
        if (wait > 0) {
            struct timespec t = {(time_t)wait, (long)((wait - floor(wait)) * 1e9)};
            nanosleep(&t, NULL);
        }
        ask(b, i);
    }
}

/* ---- before and after ---- */

static bool gather(void *ctx, const char *data, size_t len)
{
    return fl_vec_append((fl_buf *)ctx, data, len);
}

/* GET or POST of a small JSON document. */
static fl_status fetch(const bench *b, const char *path, const fl_buf *body, fl_json **out,
                       fl_error *err)
{
    fl_buf text = {0};
    int status;
    fl_status s = cli_http(&b->url, path, args.key, body, gather, &text, &status, err);
    if (s == FL_OK && status != 200)
        s = fl_fail(err, FL_IO, "%s answers %d: %.*s", path, status,
                    (int)(text.n < 200 ? text.n : 200), text.n ? text.data : "");
    if (s == FL_OK)
        s = fl_json_parse(text.data, text.n, path, out, err);
    fl_vec_free(&text);
    return s;
}

static fl_status find_model(bench *b, fl_error *err)
{
    fl_json *models;
    if (args.model) {
        snprintf(b->model, sizeof b->model, "%s", args.model);
        return FL_OK;
    }
    FL_TRY(fetch(b, "/v1/models", NULL, &models, err));
    const fl_json *list = fl_json_get(models, "data");
    const fl_json *first = fl_json_is(list, FL_JSON_ARRAY) && fl_json_size(list) > 0
                               ? fl_json_get(fl_json_at(list, 0), "id")
                               : NULL;
    if (fl_json_is(first, FL_JSON_STRING))
        snprintf(b->model, sizeof b->model, "%s", fl_json_string(first).data);
    fl_json_free(models);
    return b->model[0] ? FL_OK : fl_fail(err, FL_FORMAT, "/v1/models names no model");
}

/* The ids of some text, which every vocabulary has. */
static fl_status find_ids(bench *b, fl_error *err)
{
    static const char text[] =
        "The server reads each request, finds what it knows of its beginning, and computes the "
        "rest "
        "in steps that many requests share. A table of pages says where the past of every request "
        "lies; a scheduler decides whose turn it is. Speed is measured in tokens per second, and "
        "patience in seconds until the first of them.";
    fl_buf body = {0};
    fl_json *answer = NULL;
    bool ok = put(&body, "{\"prompt\": ") && fl_json_quote(text, sizeof text - 1, &body) &&
              put(&body, "}");
    fl_status s = ok ? fetch(b, "/tokenize", &body, &answer, err)
                     : fl_fail(err, FL_NOMEM, "no memory for a prompt");
    fl_vec_free(&body);
    FL_TRY(s);
    const fl_json *list = fl_json_get(answer, "tokens");
    size_t n = fl_json_is(list, FL_JSON_ARRAY) ? fl_json_size(list) : 0;
    b->ids = n ? fl_calloc(n, sizeof *b->ids) : NULL;
    for (size_t i = 0; b->ids && i < n; i++)
        b->ids[i] = (int32_t)fl_json_int(fl_json_at(list, i));
    b->n_ids = n;
    fl_json_free(answer);
    return b->ids ? FL_OK : fl_fail(err, FL_FORMAT, "/tokenize gives no tokens");
}

static fl_status plan(bench *b, fl_error *err)
{
    uint64_t dice = args.seed;
    double at = 0, sum = 0;
    b->samples = fl_calloc((size_t)args.requests, sizeof *b->samples);
    if (!b->samples)
        return fl_fail(err, FL_NOMEM, "no memory for %lld requests", (long long)args.requests);
    for (int k = 0; k < args.n_mix; k++)
        sum += args.mix[k].weight;
    for (int64_t i = 0; i < args.requests; i++) {
        double x = uniform(&dice) * sum;
        int k = 0;
        while (k + 1 < args.n_mix && (x -= args.mix[k].weight) >= 0)
            k++;
        b->samples[i].size = args.mix[k];
        b->samples[i].due = at;
        if (args.rate > 0)
            at -= log(1 - uniform(&dice)) / args.rate;
    }
    return FL_OK;
}

static fl_status drive(bench *b, fl_error *err)
{
    pthread_t threads[MAX_PLACES];
    int n = 0;
    b->start = cli_seconds();
    while (n < args.concurrency && pthread_create(&threads[n], NULL, place, b) == 0)
        n++;
    for (int i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
    return n ? FL_OK : fl_fail(err, FL_IO, "cannot start a thread");
}

/* ---- the report ---- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* One row: mean and percentiles of n values, sorted here. */
static void row(const char *label, const char *key, double *v, int64_t n, double unit)
{
    static const double at[] = {0.5, 0.9, 0.99};
    double sum = 0, p[3] = {0};
    qsort(v, (size_t)n, sizeof *v, by_value);
    for (int64_t i = 0; i < n; i++)
        sum += v[i];
    for (int i = 0; i < 3 && n > 0; i++)
        p[i] = v[(int64_t)ceil(at[i] * (double)n) - 1] * unit;
    double mean = n ? sum / (double)n * unit : 0, max = n ? v[n - 1] * unit : 0;
    if (args.json)
        printf(", \"%s\": {\"mean\": %.3f, \"p50\": %.3f, \"p90\": %.3f, \"p99\": %.3f, \"max\": "
               "%.3f}",
               key, mean, p[0], p[1], p[2], max);
    else
        printf("%-28s %10.1f %10.1f %10.1f %10.1f %10.1f\n", label, mean, p[0], p[1], p[2], max);
}

static int report(const bench *b, double *v, fl_error *err)
{
    int64_t ok = 0, prompt = 0, answer = 0, n = 0;
    double end = b->start;
    const sample *failed = NULL;
    for (int64_t i = 0; i < args.requests; i++) {
        const sample *s = &b->samples[i];
        if (!s->ok) {
            failed = failed ? failed : s;
            continue;
        }
        ok++;
        prompt += s->prompt_tokens;
        answer += s->tokens;
        end = s->last > end ? s->last : end;
    }
    double seconds = end - b->start, per = seconds > 0 ? 1 / seconds : 0;
    const char *format =
        args.json ? "{\"requests\": %lld, \"failed\": %lld, \"seconds\": %.3f, "
                    "\"requests_per_second\": %.3f, \"prompt_tokens_per_second\": %.2f, "
                    "\"tokens_per_second\": %.2f"
                  : "%lld requests, %lld failed, in %.1f s: %.2f requests/s, %.1f tokens/s read, "
                    "%.1f tokens/s written\n";
    printf(format, (long long)args.requests, (long long)(args.requests - ok), seconds,
           (double)ok * per, (double)prompt * per, (double)answer * per);
    if (!args.json)
        printf("%-28s %10s %10s %10s %10s %10s\n", "milliseconds", "mean", "p50", "p90", "p99",
               "max");
    for (int64_t i = n = 0; i < args.requests; i++) {
        if (b->samples[i].ok)
            v[n++] = b->samples[i].first - b->samples[i].sent;
    }
    row("to the first token", "ttft_ms", v, n, 1000);
    for (int64_t i = n = 0; i < args.requests; i++) {
        const sample *s = &b->samples[i];
        if (s->ok && s->tokens > 1)
            v[n++] = (s->last - s->first) / (double)(s->tokens - 1);
    }
    row("for each further token", "tpot_ms", v, n, 1000);
    for (int64_t i = n = 0; i < args.requests; i++) {
        if (b->samples[i].ok)
            v[n++] = b->samples[i].last - b->samples[i].sent;
    }
    row("for the whole request", "e2e_ms", v, n, 1000);
    for (int64_t i = n = 0; i < args.requests; i++) {
        if (b->samples[i].ok && args.rate > 0)
            v[n++] = fmax(0, b->samples[i].sent - b->start - b->samples[i].due);
    }
    if (args.rate > 0)
        row("late, for want of a place", "late_ms", v, n, 1000);
    if (args.json)
        printf("}\n");
    if (!failed)
        return 0;
    *err = failed->error;
    return cli_report(err);
}

int cmd_bench_serve(int argc, char **argv)
{
    fl_error err = {0};
    bench b = {.lock = PTHREAD_MUTEX_INITIALIZER};
    args.mix[0] = (length){128, 64, 1};
    args.n_mix = 1;
    cli_parse(&argp, argc, argv, NULL);
    int code = 1;
    fl_status s = cli_url_open(args.url, &b.url, &err);
    double *v = fl_calloc((size_t)args.requests, sizeof *v);
    if (s == FL_OK && !v)
        s = fl_fail(&err, FL_NOMEM, "no memory for %lld requests", (long long)args.requests);
    if (s == FL_OK)
        s = find_model(&b, &err);
    if (s == FL_OK)
        s = find_ids(&b, &err);
    if (s == FL_OK)
        s = plan(&b, &err);
    if (s == FL_OK)
        s = drive(&b, &err);
    code = s == FL_OK ? report(&b, v, &err) : cli_report(&err);
    cli_url_free(&b.url);
    fl_free(b.ids);
    fl_free(b.samples);
    fl_free(v);
    return code;
}
