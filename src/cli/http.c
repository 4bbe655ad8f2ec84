/* One exchange over a connection of its own.  The parser stops at any byte and resumes: heads,
 * chunk sizes and data come in whatever pieces the network makes. */
#define _GNU_SOURCE
#include "cli/http.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

fl_status cli_url_open(const char *text, cli_url *out, fl_error *err)
{
    *out = (cli_url){.port = "80"};
    if (strncmp(text, "http://", 7) != 0)
        return fl_fail(err, FL_ARGUMENT, "%s: the address must be http://HOST:PORT", text);
    text += 7;
    size_t n = *text == '[' ? strcspn(text, "]") : strcspn(text, ":/");
    const char *host = *text == '[' ? text + 1 : text, *rest = text + n + (*text == '[');
    n -= *text == '[';
    if (n == 0 || n >= sizeof out->host)
        return fl_fail(err, FL_ARGUMENT, "the address http://%s has no host", text);
    memcpy(out->host, host, n);
    if (*rest == ':')
        snprintf(out->port, sizeof out->port, "%.*s", (int)strcspn(rest + 1, "/"), rest + 1);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    int code = getaddrinfo(out->host, out->port, &hints, &out->address);
    if (code != 0)
        return fl_fail(err, FL_IO, "%s: %s", out->host, gai_strerror(code));
    return FL_OK;
}

void cli_url_free(cli_url *u)
{
    if (u->address)
        freeaddrinfo(u->address);
    u->address = NULL;
}

static int connect_to(const cli_url *u)
{
    for (const struct addrinfo *a = u->address; a; a = a->ai_next) {
        int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
        if (fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen) == 0)
            return fd;
        if (fd >= 0)
            close(fd);
    }
    return -1;
}

static bool send_all(int fd, const char *data, size_t n)
{
    while (n > 0) {
        ssize_t k = send(fd, data, n, MSG_NOSIGNAL);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return false;
        data += k;
        n -= (size_t)k;
    }
    return true;
}

typedef enum where { HEAD, DATA, SIZE, CHUNK, CHUNK_END, DONE } where;

typedef struct reader {
    where where;
    char line[4096]; /* the line of the head, or a chunk's size, so far */
    size_t n_line;
    int status;
    bool chunked;
    unsigned long long left; /* of the chunk or the body */
    cli_body_fn take;
    void *ctx;
} reader;

/* A whole line of the head. */
static void take_head(reader *r)
{
    if (r->status == 0) {
        const char *space = strchr(r->line, ' ');
        r->status = space ? (int)strtol(space + 1, NULL, 10) : -1;
    } else if (strncasecmp(r->line, "transfer-encoding:", 18) == 0) {
        r->chunked = strcasestr(r->line, "chunked") != NULL;
    } else if (strncasecmp(r->line, "content-length:", 15) == 0) {
        r->left = strtoull(r->line + 15, NULL, 10);
    } else if (r->n_line == 0) {
        r->where = r->chunked ? SIZE : r->left ? DATA : DONE;
    }
}

static void take_line(reader *r)
{
    r->line[r->n_line] = '\0';
    if (r->where == HEAD) {
        take_head(r);
    } else if (r->where == CHUNK_END) {
        r->where = SIZE;
    } else {
        r->left = strtoull(r->line, NULL, 16);
        r->where = r->left ? CHUNK : DONE;
    }
    r->n_line = 0;
}

/* False: the taker has enough. */
static bool feed(reader *r, const char *data, size_t n)
{
    while (n > 0 && r->where != DONE) {
        if (r->where == DATA || r->where == CHUNK) {
            size_t k = n < r->left ? n : (size_t)r->left;
            if (!r->take(r->ctx, data, k))
                return false;
            data += k;
            n -= k;
            r->left -= k;
            if (r->left == 0)
                r->where = r->where == DATA ? DONE : CHUNK_END;
            continue;
        }
        char c = *data++;
        n--;
        if (c == '\n')
            take_line(r);
        else if (c != '\r' && r->n_line + 1 < sizeof r->line)
            r->line[r->n_line++] = c;
    }
    return true;
}

static fl_status exchange(int fd, const cli_url *u, const char *path, const char *key,
                          const fl_buf *body, reader *r, fl_error *err)
{
    char head[1024], data[16384];
    int n =
        snprintf(head, sizeof head,
                 "%s %s HTTP/1.1\r\nHost: %s:%s\r\nConnection: close\r\n%s%s%sContent-Type: "
                 "application/json\r\nContent-Length: %zu\r\n\r\n",
                 body ? "POST" : "GET", path, u->host, u->port, key ? "Authorization: Bearer " : "",
                 key ? key : "", key ? "\r\n" : "", body ? body->n : 0);
    if (n < 0 || (size_t)n >= sizeof head)
        return fl_fail(err, FL_ARGUMENT, "the API key is too long");
    if (!send_all(fd, head, (size_t)n) || (body && !send_all(fd, body->data, body->n)))
        return fl_fail(err, FL_IO, "the server closed the connection");
    while (r->where != DONE) {
        ssize_t k = recv(fd, data, sizeof data, 0);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return fl_fail(err, FL_IO, "the answer ended early");
        if (!feed(r, data, (size_t)k))
            return FL_OK;
    }
    return FL_OK;
}

fl_status cli_http(const cli_url *u, const char *path, const char *key, const fl_buf *body,
                   cli_body_fn take, void *ctx, int *status, fl_error *err)
{
    reader r = {.take = take, .ctx = ctx};
    *status = 0;
    int fd = connect_to(u);
    if (fd < 0)
        return fl_fail(err, FL_IO, "cannot connect to %s:%s: %s", u->host, u->port,
                       strerror(errno));
    fl_status s = exchange(fd, u, path, key, body, &r, err);
    close(fd);
    *status = r.status;
    return s;
}
