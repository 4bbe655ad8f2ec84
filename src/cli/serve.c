/* firstlight serve MODEL: the server, until a signal. */
#define _GNU_SOURCE
#include "cli/cli.h"
#include "server/server.h"

#include <signal.h>
#include <time.h>

static struct serve_args {
    cli_common common;
    const char *model, *host, *alias, *keys;
    int port, sessions, queue;
} args = {.host = "127.0.0.1", .port = 8080, .sessions = 8, .queue = 64};

enum { OPT_HOST = 0x200, OPT_PORT, OPT_ALIAS, OPT_KEYS, OPT_SESSIONS, OPT_QUEUE };

static const struct argp_option options[] = {
    {"host", OPT_HOST, "ADDRESS", 0, "Listen there (default 127.0.0.1)", 0},
    {"port", OPT_PORT, "N", 0, "Listen on this port (default 8080; 0: any)", 0},
    {"alias", OPT_ALIAS, "NAME", 0, "The model's name for clients (default: its folder)", 0},
    {"api-key-file", OPT_KEYS, "FILE", 0, "Ask for one of these API keys, one per line", 0},
    {"max-sessions", OPT_SESSIONS, "N", 0, "Requests answered at once (default 8)", 0},
    {"queue", OPT_QUEUE, "N", 0, "Requests that may wait (default 64); more get status 429", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &args.common;
        return 0;
    case OPT_HOST:
        args.host = arg;
        return 0;
    case OPT_PORT:
        args.port = (int)cli_int(state, "--port", arg, 0, 65535);
        return 0;
    case OPT_ALIAS:
        args.alias = arg;
        return 0;
    case OPT_KEYS:
        args.keys = arg;
        return 0;
    case OPT_SESSIONS:
        args.sessions = (int)cli_int(state, "--max-sessions", arg, 1, 4096);
        return 0;
    case OPT_QUEUE:
        args.queue = (int)cli_int(state, "--queue", arg, 1, 1000000);
        return 0;
    case ARGP_KEY_ARG:
        if (state->arg_num > 0)
            argp_error(state, "one model folder only");
        args.model = arg;
        return 0;
    case ARGP_KEY_END:
        if (!args.model)
            argp_error(state, "a model folder is needed");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child children[] = {{&cli_common_argp, 0, "", 0}, {0}};
static const struct argp argp = {
    options, parse, "MODEL", "Serves a model in OpenAI's form over HTTP.", children, 0, 0};

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

/* The first signal lets running answers end, a second one ends them. */
static void wait_for_end(fl_server *s, const sigset_t *signals)
{
    const struct timespec tick = {.tv_nsec = 50000000};
    int sig;
    sigwait(signals, &sig);
    fl_server_drain(s);
    cli_note("draining: %d requests go on; a second signal ends them", fl_server_active(s));
    while (fl_server_active(s) > 0 && sigtimedwait(signals, NULL, &tick) < 0)
        ;
}

int cmd_serve(int argc, char **argv)
{
    cli_parse(&argp, argc, argv, NULL);
    char name[256];
    cli_model m;
    fl_server *server = NULL;
    fl_error err = {0};
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    pthread_sigmask(SIG_BLOCK, &signals, NULL); /* in every thread that follows */
    fl_engine_options eo = fl_engine_options_default();
    eo.max_seqs = args.sessions;
    fl_status s = FL_OK;
    cli_model probe = {0};
    int64_t context = args.common.context;
    if (context == 0) { /* what the engine would take */
        s = cli_open(args.model, &args.common, FL_OPEN_SURVEY, NULL, &probe, &err);
        if (s == FL_OK)
            context = fl_model_max_context(probe.model);
        context = context <= 0 || context > 65536 ? 65536 : context;
        cli_close(&probe);
        args.common.context = context;
    }
    eo.cache_tokens = context * args.sessions; /* touched only as it is used */
    if (s == FL_OK)
        s = cli_open(args.model, &args.common, FL_OPEN_DATA, &eo, &m, &err);
    if (s != FL_OK)
        return cli_report(&err);
    fl_server_options so = {.host = args.host,
                            .port = args.port,
                            .alias = args.alias ? args.alias
                                                : folder_name(args.model, name, sizeof name),
                            .key_file = args.keys,
                            .effort = "max",
                            .context = context,
                            .max_queue = args.queue,
                            .max_body = (size_t)16 << 20};
    s = fl_server_start(m.model, m.engine, &so, &server, &err);
    if (s == FL_OK) {
        cli_note("%s on http://%s:%d/v1, %d at once", so.alias, args.host, fl_server_port(server),
                 args.sessions);
        wait_for_end(server, &signals);
    }
    fl_server_stop(server);
    cli_close(&m);
    return s == FL_OK ? 0 : cli_report(&err);
}
