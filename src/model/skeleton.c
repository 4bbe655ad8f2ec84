/* The beginning of a model file for a family that nobody has described yet.
 *
 * It is a whole definition: it takes every tensor by its name and shape, so that `inspect` counts
 * them all, and builds what every decoder has.  A layer takes its tensors and hands on what it was
 * given; whoever completes the file writes what happens between, and compares layer by layer.
 * Names and shapes become text here, so whatever is not plain is quoted or left out. */
#include "model/survey.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

typedef struct text {
    fl_buf *out;
    bool ok;
} text;

static void put(text *t, const char *fmt, ...) FL_PRINTF(2, 3);
static void put(text *t, const char *fmt, ...)
{
    char line[1200];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    t->ok = t->ok && n >= 0 && n < (int)sizeof line && fl_vec_append(t->out, line, (size_t)n);
}

/* A Lua string in double quotes. */
static void put_quoted(text *t, const char *s, size_t len)
{
    put(t, "\"");
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c < 32 || c == 127 || c == '"' || c == '\\')
            put(t, "\\%03d", c);
        else
            put(t, "%c", c);
    }
    put(t, "\"");
}

/* ---- configuration ---- */

/* Keys whose values sizes are likely to be, the likelier first. */
static const char *const size_keys[] = {
    "vocab_size",         "hidden_size",  "moe_intermediate_size",
    "intermediate_size",  "kv_lora_rank", "q_lora_rank",
    "n_routed_experts",   "num_experts",  "num_local_experts",
    "v_head_dim",         "head_dim",     "num_attention_heads",
    "num_key_value_heads"};
enum { N_SIZES = sizeof size_keys / sizeof *size_keys };

static int64_t int_of(const fl_survey *s, const char *key)
{
    const fl_json *v = fl_json_get(s->config.object, key);
    return fl_json_is(v, FL_JSON_INT) ? fl_json_int(v) : -1;
}

/* A size, by the name of the key that has this value if there is one. */
static void put_size(text *t, const fl_survey *s, int64_t n)
{
    for (int i = 0; i < N_SIZES; i++) {
        if (n > 1 && int_of(s, size_keys[i]) == n) {
            put(t, "c.%s", size_keys[i]);
            return;
        }
    }
    put(t, "%" PRId64, n);
}

static bool is_part(const fl_survey_group *g, const char *part)
{
    return strcmp(g->part, part) == 0;
}

/* The shape of a group's first tensor, or what its part lets expect. */
static void put_shape(text *t, const fl_survey *s, const fl_survey_group *g)
{
    const fl_tensor *tensor = &g->first->tensor;
    put(t, "{ ");
    if (g->first->shape_known) {
        for (int i = 0; i < tensor->ndim; i++) {
            put_size(t, s, tensor->shape[i]);
            put(t, i + 1 < tensor->ndim ? ", " : "");
        }
    } else if (is_part(g, "embedding") || is_part(g, "output")) {
        put(t, "c.vocab_size, c.hidden_size");
    } else {
        put(t, is_part(g, "norms") ? "c.hidden_size" : "1, 32");
    }
    put(t, " }");
}

/* ---- tensors ---- */

static int stars(const char *pattern)
{
    int n = 0;
    for (; *pattern; pattern++)
        n += *pattern == '*';
    return n;
}

/* Where the part of a pattern begins that follows the number of its layer; NULL: no layer's. */
static const char *in_layer(const char *pattern)
{
    const char *star = strchr(pattern, '*');
    return star && star[1] == '.' && strstr(pattern, "layers.*.") ? star + 2 : NULL;
}

/* What precedes the layer's number, from the first group that has one. */
static fl_bytes layer_prefix(const fl_survey *s)
{
    for (size_t i = 0; i < s->groups.n; i++) {
        const char *pattern = s->groups.data[i].pattern;
        if (in_layer(pattern))
            return (fl_bytes){pattern, strcspn(pattern, "*")};
    }
    return (fl_bytes){"model.layers.", 13};
}

static bool is_matrix(const fl_survey_group *g)
{
    size_t len = strlen(g->pattern);
    if (g->first->shape_known)
        return g->first->tensor.ndim > 1;
    return !is_part(g, "norms") && len > 7 && strcmp(g->pattern + len - 7, ".weight") == 0;
}

static void put_remark(text *t, const fl_survey *s, const fl_survey_group *g)
{
    if (!g->first->shape_known)
        put(t, " -- shape not known: no shard is here");
    else if (g->varies)
        put(t, " -- of the first; others differ");
    else if (in_layer(g->pattern) && (int64_t)g->n != int_of(s, "num_hidden_layers") &&
             stars(g->pattern) == 1)
        put(t, " -- in %zu layers, %" PRId64 " to %" PRId64, g->n, g->low, g->high);
    put(t, "\n");
}

/* The name of a layer's tensor, or the form of a stack's names.  Packed matrices go by the name
 * that the plain one would have. */
static void put_rest(text *t, const char *rest)
{
    const char *star = strchr(rest, '*');
    char name[600];
    size_t len = strlen(rest);
    if (len > 7 && strcmp(rest + len - 7, "_packed") == 0)
        len -= 7;
    if (star)
        snprintf(name, sizeof name, "%.*s%%d%.*s", (int)(star - rest), rest,
                 (int)(rest + len - star - 1), star + 1);
    else
        snprintf(name, sizeof name, "%.*s", (int)len, rest);
    put_quoted(t, name, strlen(name));
}

/* The lines of a layer's tensors. */
static void put_layer_tensors(text *t, const fl_survey *s)
{
    const char *part = "";
    for (size_t i = 0; i < s->groups.n; i++) {
        const fl_survey_group *g = &s->groups.data[i];
        const char *rest = in_layer(g->pattern);
        if (!rest || is_part(g, "scales of a matrix") || stars(rest) > 1)
            continue;
        if (strcmp(part, g->part) != 0)
            put(t, "  g:at(p .. \"%s\", \"%s\")\n", g->part, g->part);
        part = g->part;
        put(t, strchr(rest, '*') ? "  take_stack(p .. "
               : is_matrix(g)    ? "  take(p .. "
                                 : "  take_vector(p .. ");
        put_rest(t, rest);
        put(t, ", ");
        put_shape(t, s, g);
        put(t, ")");
        put_remark(t, s, g);
    }
}

/* The tensor of a part outside of the layers: the first one, or one that is just called norm. */
static const fl_survey_group *find_part(const fl_survey *s, const char *part)
{
    const fl_survey_group *found = NULL;
    for (size_t i = 0; i < s->groups.n; i++) {
        const fl_survey_group *g = &s->groups.data[i];
        if (is_part(g, part) && !strchr(g->pattern, '*') &&
            (!found || strstr(g->pattern, ".norm.weight")))
            found = g;
    }
    return found;
}

static void put_unused(text *t, const fl_survey *s)
{
    static const char *const parts[] = {"another tower", "drafting", "positions (computed)"};
    put(t, "  unused = {");
    for (size_t i = 0; i < s->groups.n; i++) {
        const fl_survey_group *g = &s->groups.data[i];
        size_t k = 0;
        while (k < 3 && !is_part(g, parts[k]))
            k++;
        if (k == 3 || in_layer(g->pattern))
            continue;
        put(t, " ");
        put_quoted(t, g->pattern, strcspn(g->pattern, "*"));
        put(t, ",");
    }
    put(t, " },\n");
}

/* ---- the file ---- */

static void put_head(text *t, const fl_survey *s, fl_bytes type)
{
    put(t,
        "-- A model file that `firstlight inspect --new-model` began from a configuration and the\n"
        "-- names of tensors.  It takes every tensor; the layers are still to be written, as\n"
        "-- docs/porting.md tells.");
    if (s->family)
        put(t, "  The nearest known family is %s.", s->family);
    put(t, "\n\nlocal model = {\n  name = ");
    put_quoted(t, type.data, type.len);
    put(t, ",\n  tokenizer = { kind = \"hf\", file = \"tokenizer.json\" },\n"
           "  stop = {}, -- names of tokens that end an answer\n");
    put_unused(t, s);
    put(t, "}\n\nfunction model.match(config)\n  return config:string(\"model_type\", \"\") == ");
    put_quoted(t, type.data, type.len);
    put(t, "\nend\n\n");
}

static void put_config(text *t, const fl_survey *s)
{
    const char *keys[] = {"num_hidden_layers", "max_position_embeddings"};
    put(t, "local function read_config(config)\n  local c = {}\n  for _, key in ipairs {");
    for (int i = 0; i < N_SIZES; i++) {
        if (int_of(s, size_keys[i]) >= 0)
            put(t, " \"%s\",", size_keys[i]);
    }
    for (int i = 0; i < 2; i++) {
        if (int_of(s, keys[i]) >= 0)
            put(t, " \"%s\",", keys[i]);
    }
    put(t, " } do\n    c[key] = config:int(key)\n  end\n");
    put(t, "  c.eps = config:float(\"rms_norm_eps\", 1e-6)\n  return c\nend\n\n");
}

static void put_layer(text *t, const fl_survey *s)
{
    fl_bytes prefix = layer_prefix(s);
    put(t,
        "-- Layer i.  Nothing is computed yet: what goes in comes out.\n"
        "local function layer(g, c, x, i)\n  local p = (\"%.*s%%d.\"):format(i)\n"
        "  local function take(name, shape) return g:has(name) and g:weight(name, shape) end\n"
        "  local function take_vector(name, shape) return g:has(name) and g:vector(name, shape) "
        "end\n"
        "  local function take_stack(name, shape)\n"
        "    local n = 0\n"
        "    while g:has(name:format(n)) do n = n + 1 end\n"
        "    return n > 0 and g:stack(name, n, shape)\n  end\n\n",
        (int)prefix.len, prefix.data);
    put_layer_tensors(t, s);
    put(t, "\n  g:tap(\"layer\", i, x)\n  g:layer(i, \"not written\")\n  return x\nend\n\n");
}

static void put_named(text *t, const fl_survey *s, const char *form, const fl_survey_group *g,
                      const char *otherwise)
{
    put(t, "%s", form);
    put_quoted(t, g ? g->pattern : otherwise, strlen(g ? g->pattern : otherwise));
    put(t, ", ");
    if (g)
        put_shape(t, s, g);
    else
        put(t, "{ c.vocab_size, c.hidden_size }");
}

static void put_build(text *t, const fl_survey *s)
{
    const fl_survey_group *head = find_part(s, "output"), *norm = find_part(s, "norms");
    put(t, "function model.build(g, config)\n  local c = read_config(config)\n");
    if (int_of(s, "max_position_embeddings") >= 0)
        put(t, "  g:context(c.max_position_embeddings)\n");
    put(t, "  g:at(\"embedding\", \"embedding\")\n");
    put_named(t, s, "  local embedding = g:weight(", find_part(s, "embedding"),
              "model.embed_tokens.weight");
    put(t,
        ")\n  local x = g.embed{ embedding }\n"
        "  for i = 0, c.num_hidden_layers - 1 do\n"
        "    if i < g.layers then x = layer(g, c, x, i) else g:unused((\"%.*s%%d.\"):format(i)) "
        "end\n  end\n  g:at(\"output\", \"output\")\n  x = g.gather_logits{ x }\n",
        (int)layer_prefix(s).len, layer_prefix(s).data);
    if (norm) {
        put_named(t, s, "  x = g.rmsnorm{ x, g:vector(", norm, "");
        put(t, "), eps = c.eps }\n");
    }
    if (head) {
        put_named(t, s, "  g:output(g.linear{ x, g:weight(", head, "");
        put(t, ") })\n");
    } else {
        put(t, "  g:output(g.linear{ x, embedding }) -- no head of its own\n");
    }
    put(t, "end\n\nreturn model\n");
}

fl_status fl_survey_skeleton(const fl_survey *s, fl_buf *out, fl_error *err)
{
    text t = {.out = out, .ok = true};
    const fl_json *type = fl_json_get(fl_checkpoint_config(s->ck), "model_type");
    fl_bytes name = fl_json_is(type, FL_JSON_STRING) ? fl_json_string(type) : (fl_bytes){"new", 3};
    if (int_of(s, "num_hidden_layers") < 0)
        return fl_fail(
            err, FL_CONFIG,
            "num_hidden_layers is missing in config.json; without it there is no telling "
            "what a layer is");
    put_head(&t, s, name);
    put_config(&t, s);
    put_layer(&t, s);
    put_build(&t, s);
    return t.ok ? FL_OK : fl_fail(err, FL_NOMEM, "no memory for the model file");
}
