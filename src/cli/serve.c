/* firstlight serve: the server and its end.  What systemd wants to know is told to the socket that
 * --notify-socket names; nothing is read from the environment. */
#define _GNU_SOURCE
#include "cli/cli.h"
#include "server/server.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static struct {
    cli_common common;
    fl_server_options server;
    const char *model, *notify, *prefix_dir;
    int sessions, prefixes;
    double ram, prefix_disk; /* GB; 0: no limit */
    bool log;
} args;

enum {
    OPT_HOST = 0x200,
    OPT_PORT,
    OPT_ALIAS,
    OPT_KEYS,
    OPT_SESSIONS,
    OPT_QUEUE,
    OPT_BODY,
    OPT_EFFORT,
    OPT_CORS,
    OPT_EFFORTS,
    OPT_CERT,
    OPT_KEY,
    OPT_LOG,
    OPT_WAIT,
    OPT_TIMEOUT,
    OPT_RAM,
    OPT_PREFIXES,
    OPT_METRICS,
    OPT_PREFIX_DIR,
    OPT_PREFIX_DISK,
    OPT_NOTIFY
};

static const struct argp_option options[] = {
    {"host", OPT_HOST, "ADDRESS", 0, "Listen there (default 127.0.0.1)", 0},
    {"port", OPT_PORT, "N", 0, "Listen on this port (default 8080; 0: any)", 0},
    {"alias", OPT_ALIAS, "NAME,...", 0, "The model's names for clients (default: its folder)", 0},
    {"api-key-file", OPT_KEYS, "FILE", 0,
     "Ask for one of these API keys: a line each, with limits after it", 0},
    {"metrics", OPT_METRICS, 0, 0, "Answer /metrics without an API key", 0},
    {"max-sessions", OPT_SESSIONS, "N", 0, "Requests answered at once (default 8)", 0},
    {"queue", OPT_QUEUE, "N", 0, "Requests that may wait (default 64); more get status 429", 0},
    {"queue-timeout", OPT_WAIT, "S", 0, "Seconds that a request may wait (default 0: any)", 0},
    {"timeout", OPT_TIMEOUT, "S", 0, "Seconds that a request may take (default 0: any)", 0},
    {"ram", OPT_RAM, "GB", 0, "Memory to hold at most, weights included", 0},
    {"prefixes", OPT_PREFIXES, "N", 0,
     "Beginnings of prompts to keep, so that others resume there (default 32; 0: none)", 0},
    {"prefix-dir", OPT_PREFIX_DIR, "DIR", 0, "Save them there, to find them after a restart", 0},
    {"prefix-disk", OPT_PREFIX_DISK, "GB", 0, "Size of that folder at most (default: no limit)", 0},
    {"max-body", OPT_BODY, "MIB", 0, "Size of a request at most (default 16)", 0},
    {"effort", OPT_EFFORT, "NAME", 0, "Thinking effort of requests that name none (default: max)",
     0},
    {"map-effort", OPT_EFFORTS, "NAME=NAME,...", 0,
     "Take these thinking efforts for others: medium=high", 0},
    {"cors", OPT_CORS, "ORIGIN", 0, "Let browsers call from pages of this origin (*: any)", 0},
    {"tls-cert", OPT_CERT, "FILE", 0, "Serve HTTPS with this certificate (PEM)", 0},
    {"tls-key", OPT_KEY, "FILE", 0, "and this key (PEM)", 0},
    {"log", OPT_LOG, 0, 0, "Write a line for each request to standard error, without content", 0},
    {"notify-socket", OPT_NOTIFY, "PATH", 0, "Tell systemd there: ready, stopping", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    fl_server_options *o = &args.server;
    switch (key) {
    case OPT_HOST:
        o->host = arg;
        return 0;
    case OPT_PORT:
        o->port = (int)cli_int(state, "--port", arg, 0, 65535);
        return 0;
    case OPT_ALIAS:
        o->alias = arg;
        return 0;
    case OPT_KEYS:
        o->key_file = arg;
        return 0;
    case OPT_METRICS:
        o->open_metrics = true;
        return 0;
    case OPT_SESSIONS:
        args.sessions = (int)cli_int(state, "--max-sessions", arg, 1, 4096);
        return 0;
    case OPT_QUEUE:
        o->max_queue = (int)cli_int(state, "--queue", arg, 1, 1000000);
        return 0;
    case OPT_WAIT:
        o->queue_seconds = (int)cli_int(state, "--queue-timeout", arg, 0, 1000000);
        return 0;
    case OPT_TIMEOUT:
        o->request_seconds = (int)cli_int(state, "--timeout", arg, 0, 1000000);
        return 0;
    case OPT_PREFIXES:
        args.prefixes = (int)cli_int(state, "--prefixes", arg, 0, 1000000);
        return 0;
    case OPT_PREFIX_DIR:
        args.prefix_dir = arg;
        return 0;
    case OPT_PREFIX_DISK:
        args.prefix_disk = cli_real(state, "--prefix-disk", arg, 0.001, 1e6);
        return 0;
    case OPT_RAM:
        args.ram = cli_real(state, "--ram", arg, 0.001, 1e6);
        return 0;
    case OPT_BODY:
        o->max_body = (size_t)cli_int(state, "--max-body", arg, 1, 512) << 20;
        return 0;
    case OPT_EFFORT:
        o->effort = arg;
        return 0;
    case OPT_EFFORTS:
        o->efforts = arg;
        return 0;
    case OPT_CORS:
        o->cors = arg;
        return 0;
    case OPT_CERT:
        o->tls_cert = arg;
        return 0;
    case OPT_KEY:
        o->tls_key = arg;
        return 0;
    case OPT_LOG:
        args.log = true;
        return 0;
    case OPT_NOTIFY:
        args.notify = arg;
        return 0;
    default:
        return cli_model_key(key, arg, state, "a model folder", &args.model);
    }
}

static const struct argp argp = {
    options,      parse, "MODEL", "Serves a model over HTTP, in the forms of OpenAI and Anthropic.",
    cli_children, 0,     0};

/* The last part of the folder's path, without trailing slashes. */
static const char *folder_name(const char *path, char *out, size_t size)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    size_t at = n;
    while (at && path[at - 1] != '/')
        at--;
    snprintf(out, size, "%.*s", (int)(n - at), path + at);
    return out;
}

/* One datagram, as sd_notify(3) describes it.  "@" begins an abstract name. */
static void notify(const char *state)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    size_t n = args.notify ? strlen(args.notify) : 0;
    if (n == 0 || n >= sizeof a.sun_path)
        return;
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    memcpy(a.sun_path, args.notify, n);
    if (a.sun_path[0] == '@')
        a.sun_path[0] = 0;
    if (fd < 0 || sendto(fd, state, strlen(state), MSG_NOSIGNAL, (struct sockaddr *)&a,
                         (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n)) < 0)
        perror("firstlight: --notify-socket");
    if (fd >= 0)
        close(fd);
}

static void write_log(void *ctx, const char *line)
{
    struct timespec t;
    struct tm tm;
    char when[32];
    (void)ctx;
    clock_gettime(CLOCK_REALTIME, &t);
    gmtime_r(&t.tv_sec, &tm);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S", &tm);
    fprintf(stderr, "time=%s.%03ldZ %s\n", when, t.tv_nsec / 1000000, line);
}

static void write_note(void *ctx, const char *message)
{
    (void)ctx;
    cli_note("%s", message);
}

/* As many connections as the system lets us have. */
static void raise_limits(void)
{
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) == 0) {
        r.rlim_cur = r.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &r);
    }
}

/* The first signal lets running answers end, a second one ends them. */
static void wait_for_end(fl_server *s, const sigset_t *signals)
{
    const struct timespec tick = {.tv_nsec = 20000000};
    int sig;
    sigwait(signals, &sig);
    fl_server_drain(s);
    notify("STOPPING=1");
    cli_note("draining: %d requests go on; a second signal ends them", fl_server_active(s));
    while (fl_server_active(s) > 0 && sigtimedwait(signals, NULL, &tick) < 0)
        ;
}

/* What the program itself holds, measured once the tokenizer is there, and room for requests. */
static int64_t own_bytes(void)
{
    const int64_t requests = 16 << 20;
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f && fscanf(f, "%*d %ld", &pages) != 1)
        pages = 0;
    if (f)
        fclose(f);
    return pages * sysconf(_SC_PAGESIZE) + requests;
}

/* The context, if none was given, and the size of the cache: every answer's whole context at once,
 * or what --ram leaves room for.  The cache is touched only as it is used. */
static fl_status choose_sizes(cli_model *m, fl_engine_options *eo, fl_error *err)
{
    int64_t most = fl_model_max_context(m->model);
    const fl_tokenizer *tokenizer;
    FL_TRY(fl_model_tokenizer(m->model, &tokenizer, err));
    cli_tuned_options(&args.common, m, eo);
    if (eo->max_context == 0)
        eo->max_context = most <= 0 || most > 65536 ? 65536 : most;
    int64_t whole = eo->max_context * args.sessions;
    fl_status s = FL_OK;
    if (args.ram > 0) {
        int64_t own = own_bytes();
        s = fl_engine_fit(m->model, (int64_t)(args.ram * 1e9) - own, eo, err);
        if (s != FL_OK)
            fl_error_prefix(err, "--ram %g less %.3f GB for the program itself", args.ram,
                            (double)own * 1e-9);
    }
    if (args.ram <= 0 || eo->cache_tokens > whole)
        eo->cache_tokens = whole;
    return s;
}

static fl_status serve(const cli_model *m, int64_t context, const sigset_t *signals, fl_error *err)
{
    char name[256];
    fl_server *server;
    fl_server_options *o = &args.server;
    o->context = context;
    o->log = args.log ? write_log : NULL;
    if (!o->alias)
        o->alias = folder_name(args.model, name, sizeof name);
    FL_TRY(fl_server_start(m->model, m->engine, o, &server, err));
    cli_note("%s on http%s://%s:%d/v1, %d at once", o->alias, o->tls_cert ? "s" : "", o->host,
             fl_server_port(server), args.sessions);
    notify("READY=1");
    wait_for_end(server, signals);
    fl_server_stop(server);
    int64_t saved = 0;
    if (args.prefix_dir)
        FL_TRY(fl_engine_save_prefixes(m->engine, &saved, err));
    return FL_OK;
}

int cmd_serve(int argc, char **argv)
{
    args.server = fl_server_options_default();
    args.server.effort = "max";
    args.sessions = 8;
    args.prefixes = 32;
    cli_parse(&argp, argc, argv, &args.common);
    cli_model m = {0};
    fl_error err = {0};
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    pthread_sigmask(SIG_BLOCK, &signals, NULL); /* in every thread that follows */
    raise_limits();
    fl_engine_options eo = fl_engine_options_default();
    eo.max_seqs = args.sessions;
    eo.max_waiting = args.server.max_queue;
    eo.max_prefixes = args.prefixes;
    eo.settle = args.prefixes > 0;
    eo.prefix_dir = args.prefix_dir;
    eo.prefix_disk = (int64_t)(args.prefix_disk * 1e9);
    eo.note = write_note;
    fl_status s = cli_open(args.model, &args.common, FL_OPEN_DATA, NULL, &m, &err);
    if (s == FL_OK)
        s = choose_sizes(&m, &eo, &err);
    if (s == FL_OK)
        s = cli_start(&args.common, &eo, &m, &err);
    if (s == FL_OK)
        s = serve(&m, eo.max_context, &signals, &err);
    cli_close(&m);
    return s == FL_OK ? 0 : cli_report(&err);
}
