/* API keys.  A line of the key file is a key and its limits:
 *
 *     SECRET name=alice concurrent=4 tokens-per-minute=60000 context=8192 shared
 *
 * All but the secret may be absent; empty lines and those that begin with # are skipped.  Tokens
 * are taken from a bucket that holds a minute's worth and fills steadily; a request is let in while
 * there is something in it and takes what it turned out to need, even below zero. */
#define _GNU_SOURCE
#include "server/server_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <xxhash.h>

static bool read_number(const char *text, int64_t *out)
{
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    *out = v;
    return !errno && end != text && !*end && v > 0;
}

/* One word after the secret. */
static bool read_limit(fl_key *key, const char *word)
{
    static const char *const names[] = {"concurrent=", "tokens-per-minute=", "context="};
    int64_t *const values[] = {&key->concurrent, &key->per_minute, &key->context};
    for (int i = 0; i < 3; i++) {
        if (strncmp(word, names[i], strlen(names[i])) == 0)
            return read_number(word + strlen(names[i]), values[i]);
    }
    if (strcmp(word, "shared") == 0)
        return key->shared = true;
    return false;
}

static fl_status add_key(fl_server *s, char *line, const char *what, size_t number, fl_error *err)
{
    fl_key key = {0};
    char *rest = line, *word;
    while ((word = strsep(&rest, " \t\r"))) {
        if (*word == '#' && !key.secret)
            return FL_OK;
        bool named = strncmp(word, "name=", 5) == 0 && word[5];
        if (*word && !key.secret) {
            key.secret = fl_strdup(word);
            if (!key.secret)
                return fl_fail(err, FL_NOMEM, "%s: no memory", what);
        } else if (named && !key.name) {
            key.name = fl_strdup(word + 5);
            if (!key.name) {
                fl_free(key.secret);
                return fl_fail(err, FL_NOMEM, "%s: no memory", what);
            }
        } else if (*word && !read_limit(&key, word)) {
            fl_free(key.secret);
            fl_free(key.name);
            return fl_fail(err, FL_CONFIG,
                           "%s, line %zu: '%s' is none of name=, concurrent=, tokens-per-minute=, "
                           "context=, shared",
                           what, number, word);
        }
    }
    if (!key.secret)
        return FL_OK;
    key.salt = key.shared ? 0 : XXH3_64bits(key.secret, strlen(key.secret)) | 1;
    key.left = (double)key.per_minute;
    key.filled = fl_server_seconds();
    if (fl_vec_push(&s->keys, key))
        return FL_OK;
    fl_free(key.secret);
    fl_free(key.name);
    return fl_fail(err, FL_NOMEM, "%s: no memory", what);
}

fl_status fl_keys_parse(fl_server *s, const char *text, size_t len, const char *what, fl_error *err)
{
    char *copy = fl_strndup(text, len), *rest = copy, *line;
    if (!copy)
        return fl_fail(err, FL_NOMEM, "%s: no memory", what);
    fl_status status = FL_OK;
    for (size_t n = 1; status == FL_OK && (line = strsep(&rest, "\n")); n++)
        status = add_key(s, line, what, n, err);
    fl_free(copy);
    if (status == FL_OK && s->keys.n == 0)
        return fl_fail(err, FL_CONFIG, "%s: there is no key in it", what);
    return status;
}

void fl_keys_free(fl_server *s)
{
    for (size_t i = 0; i < s->keys.n; i++) {
        fl_free(s->keys.data[i].secret);
        fl_free(s->keys.data[i].name);
    }
    fl_vec_free(&s->keys);
}

/* Compares in a time that depends on the lengths only. */
static bool equal(const char *given, size_t n, const char *key)
{
    size_t len = strlen(key);
    unsigned diff = n != len;
    for (size_t i = 0; i < len; i++)
        diff |= (unsigned char)key[i] ^ (unsigned char)(i < n ? given[i] : 0);
    return diff == 0;
}

fl_key *fl_keys_find(fl_server *s, const char *secret)
{
    fl_key *found = NULL;
    for (size_t i = 0; i < s->keys.n; i++) {
        if (equal(secret, strlen(secret), s->keys.data[i].secret))
            found = &s->keys.data[i];
    }
    return found;
}

static void fill(fl_key *key, double now)
{
    double full = (double)key->per_minute, more = (now - key->filled) * full / 60;
    key->left = key->left + more < full ? key->left + more : full;
    key->filled = now;
}

bool fl_key_enter_locked(fl_key *key, double now, fl_refusal *r)
{
    if (!key)
        return true;
    if (key->concurrent && key->running >= key->concurrent)
        return fl_refuse(r, 429, "rate_limit_exceeded", "",
                         "this key may have %lld requests at once", (long long)key->concurrent);
    if (key->per_minute)
        fill(key, now);
    if (key->per_minute && key->left <= 0) {
        fl_refuse(r, 429, "rate_limit_exceeded", "", "this key may use %lld tokens per minute",
                  (long long)key->per_minute);
        r->retry = 1 + (int)(-key->left * 60 / (double)key->per_minute);
        return false;
    }
    key->running++;
    return true;
}

void fl_key_leave_locked(fl_key *key)
{
    if (key)
        key->running--;
}

void fl_key_charge_locked(fl_key *key, int64_t tokens)
{
    if (key && key->per_minute)
        key->left -= (double)tokens;
}
