/* The little of an HTTP/1.1 client that measuring a server takes: one POST per connection, plain
 * TCP, the body of the answer given out as it comes. */
#ifndef FL_CLI_HTTP_H
#define FL_CLI_HTTP_H

#include "base/status.h"
#include "base/vec.h"

#include <netdb.h>

typedef struct cli_url {
    char host[256], port[8];
    struct addrinfo *address;
} cli_url;

/* http://HOST[:PORT]; resolved once.  cli_url_free also after failure. */
FL_MUST_CHECK fl_status cli_url_open(const char *text, cli_url *out, fl_error *err);
void cli_url_free(cli_url *u);

/* Called with each piece of the body; false ends the exchange. */
typedef bool (*cli_body_fn)(void *ctx, const char *data, size_t len);

/* POSTs a JSON body (NULL: GET).  key: an API key or NULL.  *status gets the HTTP status. */
FL_MUST_CHECK fl_status cli_http(const cli_url *u, const char *path, const char *key,
                                 const fl_buf *body, cli_body_fn take, void *ctx, int *status,
                                 fl_error *err);

#endif
