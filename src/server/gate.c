/* The gate: what is checked of a request before its body is read: framing, keys, size. */
#define _GNU_SOURCE
#include "server/http_internal.h"

#include <strings.h>

typedef struct framing {
    int lengths, encodings;
    bool bad;
} framing;

static enum MHD_Result check_header(void *cls, enum MHD_ValueKind kind, const char *key,
                                    const char *value)
{
    framing *f = cls;
    (void)kind;
    for (const char *k = key; *k; k++)
        f->bad |= *k <= ' ' || *k >= 127 || strchr("\"(),/:;<=>?@[\\]{}", *k) != NULL;
    if (strcasecmp(key, "content-length") == 0)
        f->lengths++;
    if (strcasecmp(key, "transfer-encoding") == 0) {
        f->encodings++;
        f->bad |= !value || strcasecmp(value, "chunked") != 0;
    }
    return MHD_YES;
}

/* A request that a proxy in front could read in another way than we do. */
static bool check_framing(struct MHD_Connection *c, fl_refusal *r)
{
    framing f = {0};
    MHD_get_connection_values(c, MHD_HEADER_KIND, check_header, &f);
    if (f.bad || f.lengths + f.encodings > 1)
        return fl_refuse(r, 400, "bad_request", "", "the headers are malformed or contradictory");
    return true;
}

/* The key as OpenAI's clients send it, or as Anthropic's do. */
static bool check_key(fl_server *s, struct MHD_Connection *c, const char *path, fl_exchange *x,
                      fl_refusal *r)
{
    bool closed = x->dialect || strncmp(path, "/v1/", 4) == 0 ||
                  (!s->options.open_metrics && strcmp(path, "/metrics") == 0);
    if (s->keys.n == 0 || !closed)
        return true;
    const char *value = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Authorization");
    const char *given = value && strncasecmp(value, "Bearer ", 7) == 0 ? value + 7 : NULL;
    if (!given)
        given = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "x-api-key");
    x->key = given ? fl_keys_find(s, given) : NULL;
    return x->key || fl_refuse(r, 401, "invalid_api_key", "", "a valid API key is needed");
}

bool fl_gate_too_large(fl_server *s, fl_refusal *r)
{
    return fl_refuse(r, 413, "body_too_large", "", "the body may have %zu bytes at most",
                     s->options.max_body);
}

static bool check_size(fl_server *s, struct MHD_Connection *c, fl_refusal *r)
{
    const char *v = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Content-Length");
    size_t n = 0;
    for (; v && *v >= '0' && *v <= '9' && n <= s->options.max_body; v++)
        n = n * 10 + (size_t)(*v - '0');
    return n <= s->options.max_body || fl_gate_too_large(s, r);
}

/* The client's name for the request, if it is short and printable. */
static void read_id(struct MHD_Connection *c, fl_exchange *x)
{
    const char *id = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "X-Request-Id");
    size_t n = id ? strlen(id) : 0;
    for (size_t i = 0; i < n; i++) {
        if (id[i] <= ' ' || id[i] >= 127)
            return;
    }
    if (n < sizeof x->request_id)
        memcpy(x->request_id, id ? id : "", n);
}

bool fl_gate_check(fl_server *s, struct MHD_Connection *c, const char *path, fl_exchange *x,
                   fl_refusal *r)
{
    read_id(c, x);
    return check_framing(c, r) && check_key(s, c, path, x, r) && check_size(s, c, r);
}
