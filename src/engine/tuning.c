#define _GNU_SOURCE
#include "engine/engine_internal.h"
#include "engine/tuning_internal.h"

#include "base/cpu.h"
#include "base/file.h"
#include "checkpoint/json.h"

#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { FORMAT = 1, MAX_FILE = 16 << 20, KEY = 400 };

/* ---- keys ---- */

static uint64_t shape_of(const fl_graph *g)
{
    uint64_t hash = 0;
    for (int i = 0; i < fl_graph_nodes(g); i++) {
        char text[FL_SIGNATURE];
        fl_node_signature(g, i, text);
        hash = XXH3_64bits_withSeed(text, strlen(text), hash);
    }
    return hash;
}

fl_status fl_tuning_begin(const fl_graph *g, const fl_engine_sizes *z, fl_tuning **out,
                          fl_error *err)
{
    char key[KEY], cpu[FL_CPU_NAME];
    snprintf(key, sizeof key, "%s, %s, %d threads, %s, version %s, model %016llx", fl_cpu_name(cpu),
             fl_isa_name(z->plan.isa), (int)z->plan.limits.n_threads,
             z->plan.fast ? "fast" : "exact", fl_version(), (unsigned long long)shape_of(g));
    fl_tuning *t = fl_calloc(1, sizeof *t);
    *out = NULL;
    if (!t || !(t->key = fl_arena_strdup(&t->texts, key))) {
        fl_tuning_destroy(t);
        return fl_fail(err, FL_NOMEM, "no memory for a tuning");
    }
    fl_status s = fl_choices_create(&t->choices, err);
    if (s != FL_OK)
        fl_tuning_destroy(t);
    else
        *out = t;
    return s;
}

void fl_tuning_destroy(fl_tuning *t)
{
    if (!t)
        return;
    fl_choices_destroy(t->choices);
    fl_vec_free(&t->nodes);
    fl_arena_free(&t->texts);
    fl_free(t);
}

fl_status fl_tuning_settle(fl_tuning *t, fl_error *err)
{
    for (size_t i = 0; i < t->nodes.n; i++) {
        const fl_tuned_node *n = &t->nodes.data[i];
        FL_TRY(fl_choices_set(t->choices, n->signature, n->kernels[n->chosen].name, err));
    }
    return FL_OK;
}

const fl_choices *fl_tuning_choices(const fl_tuning *t)
{
    return t->choices;
}

const char *fl_tuning_key(const fl_tuning *t)
{
    return t->key;
}

int fl_tuning_nodes(const fl_tuning *t)
{
    return (int)t->nodes.n;
}

const fl_tuned_node *fl_tuning_node(const fl_tuning *t, int i)
{
    return &t->nodes.data[i];
}

/* ---- the file ---- */

static void file_name(const fl_tuning *t, const char *dir, char path[512])
{
    snprintf(path, 512, "%s/%016llx.json", dir,
             (unsigned long long)XXH3_64bits(t->key, strlen(t->key)));
}

static bool put(fl_buf *b, const char *text)
{
    return fl_vec_append(b, text, strlen(text));
}

static bool put_text(fl_buf *b, const char *name, const char *text)
{
    return put(b, name) && fl_json_quote(text, strlen(text), b);
}

static bool put_number(fl_buf *b, const char *name, double x)
{
    return put(b, name) && fl_json_real(x, b);
}

static bool put_node(fl_buf *b, const fl_tuned_node *n)
{
    char nodes[64];
    snprintf(nodes, sizeof nodes, ", \"nodes\": %d", n->nodes);
    bool ok = put_text(b, "{\"node\": ", n->signature) && put(b, nodes) &&
              put_text(b, ", \"usual\": ", n->kernels[n->usual].name) &&
              put_text(b, ", \"chosen\": ", n->kernels[n->chosen].name) &&
              put(b, ", \"measured\": [");
    for (int i = 0; i < n->n_kernels && ok; i++) {
        const fl_tuned_kernel *k = &n->kernels[i];
        ok = put(b, i ? ",\n  " : "\n  ") && put_text(b, "{\"kernel\": ", k->name) &&
             put_number(b, ", \"prompt_us\": ", k->prompt_us) &&
             put_number(b, ", \"step_us\": ", k->step_us) && put(b, "}");
    }
    return ok && put(b, "]}");
}

static bool put_all(fl_buf *b, const fl_tuning *t)
{
    bool ok = put(b, "{\"format\": 1") && put_text(b, ",\n\"key\": ", t->key) &&
              put(b, ",\n\"nodes\": [");
    for (size_t i = 0; i < t->nodes.n && ok; i++)
        ok = put(b, i ? ",\n " : "\n ") && put_node(b, &t->nodes.data[i]);
    return ok && put(b, "]}\n");
}

static fl_status make_folder(const char *dir, fl_error *err)
{
    char part[512];
    snprintf(part, sizeof part, "%s", dir);
    for (char *at = part + 1;; at++) {
        if (*at && *at != '/')
            continue;
        char was = *at;
        *at = 0;
        if (mkdir(part, 0777) != 0 && errno != EEXIST)
            return fl_fail(err, FL_IO, "%s: cannot make the folder: %s", part, strerror(errno));
        *at = was;
        if (!was)
            return FL_OK;
    }
}

fl_status fl_tuning_save(const fl_tuning *t, const char *dir, char path[512], fl_error *err)
{
    fl_buf b = {0};
    if (strlen(dir) > 480)
        return fl_fail(err, FL_ARGUMENT, "%.60s...: the path of the folder is too long", dir);
    file_name(t, dir, path);
    FL_TRY(make_folder(dir, err));
    fl_status s = put_all(&b, t) ? fl_file_write(path, 0666, b.data, b.n, err)
                                 : fl_fail(err, FL_NOMEM, "%s: no memory to write it", path);
    fl_vec_free(&b);
    return s;
}

static const char *text_of(fl_tuning *t, const fl_json *v)
{
    if (!fl_json_is(v, FL_JSON_STRING))
        return NULL;
    fl_bytes b = fl_json_string(v);
    return fl_arena_strndup(&t->texts, b.data, b.len);
}

static double number_of(const fl_json *v)
{
    return fl_json_is(v, FL_JSON_REAL) || fl_json_is(v, FL_JSON_INT) ? fl_json_number(v) : -1;
}

static int index_of(const fl_tuned_node *n, const char *name)
{
    for (int i = 0; name && i < n->n_kernels; i++) {
        if (strcmp(n->kernels[i].name, name) == 0)
            return i;
    }
    return -1;
}

static bool read_node(fl_tuning *t, const fl_json *v)
{
    const fl_json *measured = fl_json_is(v, FL_JSON_OBJECT) ? fl_json_get(v, "measured") : NULL;
    fl_tuned_node n = {0};
    if (!fl_json_is(measured, FL_JSON_ARRAY) || fl_json_size(measured) > FL_TUNED_KERNELS)
        return false;
    for (size_t i = 0; i < fl_json_size(measured); i++) {
        const fl_json *k = fl_json_at(measured, i);
        if (!fl_json_is(k, FL_JSON_OBJECT))
            return false;
        fl_tuned_kernel *to = &n.kernels[n.n_kernels++];
        *to = (fl_tuned_kernel){text_of(t, fl_json_get(k, "kernel")),
                                number_of(fl_json_get(k, "prompt_us")),
                                number_of(fl_json_get(k, "step_us"))};
        if (!to->name || !(to->prompt_us >= 0) || !(to->step_us >= 0))
            return false;
    }
    n.signature = text_of(t, fl_json_get(v, "node"));
    n.nodes = (int)number_of(fl_json_get(v, "nodes"));
    n.usual = index_of(&n, text_of(t, fl_json_get(v, "usual")));
    n.chosen = index_of(&n, text_of(t, fl_json_get(v, "chosen")));
    return n.signature && n.nodes > 0 && n.usual >= 0 && n.chosen >= 0 && fl_vec_push(&t->nodes, n);
}

static fl_status read_all(fl_tuning *t, const fl_json *root, const char *path, fl_error *err)
{
    const fl_json *nodes = fl_json_is(root, FL_JSON_OBJECT) ? fl_json_get(root, "nodes") : NULL;
    const char *key = nodes ? text_of(t, fl_json_get(root, "key")) : NULL;
    bool ok = fl_json_is(nodes, FL_JSON_ARRAY) && key && strcmp(key, t->key) == 0 &&
              number_of(fl_json_get(root, "format")) == FORMAT;
    for (size_t i = 0; ok && i < fl_json_size(nodes); i++)
        ok = read_node(t, fl_json_at(nodes, i));
    if (!ok)
        return fl_fail(err, FL_FORMAT,
                       "%s: not a tuning of this model and machine: delete it, or run tune again",
                       path);
    return fl_tuning_settle(t, err);
}

fl_status fl_tuning_load(const fl_model *m, const fl_engine_options *o, const char *dir,
                         fl_tuning **out, fl_error *err)
{
    char path[512];
    const fl_graph *g = fl_model_graph(m);
    fl_json *root = NULL;
    fl_engine_sizes z;
    *out = NULL;
    FL_TRY(fl_engine_resolve(g, fl_model_max_context(m), o, &z, err));
    fl_tuning *t;
    FL_TRY(fl_tuning_begin(g, &z, &t, err));
    file_name(t, dir, path);
    fl_status s = fl_json_read(path, MAX_FILE, &root, err);
    if (s == FL_OK)
        s = read_all(t, root, path, err);
    fl_json_free(root);
    if (s != FL_OK)
        fl_tuning_destroy(t);
    else
        *out = t;
    return s;
}
