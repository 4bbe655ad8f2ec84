/* What `inspect` says of a checkpoint that no model definition is for. */
#include "cli/survey.h"
#include "cli/cli.h"

#include "model/survey.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_WORDS = 20 };

static void print_shape(const fl_survey_group *g)
{
    char text[128];
    if (!g->first->shape_known)
        return;
    printf("  %s %s%s", fl_dtype_name(g->first->tensor.dtype),
           fl_shape_text(g->first->tensor.shape, g->first->tensor.ndim, text, sizeof text),
           g->varies ? " and others" : "");
}

static void print_groups(const fl_survey *s)
{
    size_t unknown = 0;
    printf("\nTensors (%zu, of %zu kinds)\n", fl_checkpoint_count(s->ck), s->groups.n);
    if (!fl_checkpoint_has_tensors(s->ck))
        printf("  no index and no shards here: only the configuration is known\n");
    for (size_t i = 0; i < s->groups.n; i++) {
        const fl_survey_group *g = &s->groups.data[i];
        printf("  %-18s %6zu  %s", g->part, g->n, g->pattern);
        if (g->low < g->high)
            printf("  (%" PRId64 "-%" PRId64 ")", g->low, g->high);
        print_shape(g);
        printf("\n");
        unknown += strcmp(g->part, "?") == 0;
    }
    if (unknown)
        printf("  %zu kinds (?) have names that say nothing\n", unknown);
}

static void print_needs(const fl_survey *s)
{
    printf("\nOperators that names and keys call for\n");
    for (size_t i = 0; i < s->needs.n; i++) {
        const fl_survey_need *n = &s->needs.data[i];
        printf("  %-8s %-14s  %s\n", n->here ? "here" : "MISSING", n->op, n->why);
    }
}

static void print_words(const char *what, const fl_survey_words *w)
{
    if (!w->n)
        return;
    printf("  %s that it does not speak of:", what);
    for (size_t i = 0; i < w->n && i < MAX_WORDS; i++)
        printf("%s %s", i ? "," : "", w->data[i]);
    if (w->n > MAX_WORDS)
        printf(" and %zu more (--json lists them)", w->n - MAX_WORDS);
    printf("\n");
}

static void print_survey(const char *model, const fl_survey *s)
{
    const fl_json *type = fl_json_get(fl_checkpoint_config(s->ck), "model_type");
    fl_bytes name = fl_json_is(type, FL_JSON_STRING) ? fl_json_string(type) : (fl_bytes){"", 0};
    printf("%s: model_type \"%.*s\"; no model definition is for it\n", model, (int)name.len,
           name.data);
    print_groups(s);
    print_needs(s);
    if (s->family) {
        printf("\nNearest known family: %s, whose definition speaks of %d of %d words in names and "
               "keys\n",
               s->family, s->known, s->words);
        print_words("parts of names", &s->new_words);
        print_words("configuration keys", &s->new_keys);
    }
    printf("\n`inspect --new-model FILE.lua` begins a definition; docs/porting.md goes on.\n");
}

static void json_text(const char *text)
{
    fl_buf b = {0};
    if (text && fl_json_quote(text, strlen(text), &b))
        fwrite(b.data, 1, b.n, stdout);
    else
        fputs("null", stdout);
    fl_vec_free(&b);
}

static void json_words(const char *key, const fl_survey_words *w)
{
    printf(", \"%s\": [", key);
    for (size_t i = 0; i < w->n; i++) {
        fputs(i ? ", " : "", stdout);
        json_text(w->data[i]);
    }
    printf("]");
}

static void json_survey(const fl_survey *s)
{
    printf("{\"family\": null, \"nearest\": ");
    json_text(s->family);
    printf(", \"known_words\": %d, \"words\": %d", s->known, s->words);
    json_words("new_words", &s->new_words);
    json_words("new_keys", &s->new_keys);
    printf(", \"tensors\": [");
    for (size_t i = 0; i < s->groups.n; i++) {
        const fl_survey_group *g = &s->groups.data[i];
        printf("%s{\"pattern\": ", i ? ", " : "");
        json_text(g->pattern);
        printf(", \"part\": ");
        json_text(g->part);
        printf(", \"op\": ");
        json_text(g->op);
        printf(", \"count\": %zu}", g->n);
    }
    printf("], \"needs\": [");
    for (size_t i = 0; i < s->needs.n; i++) {
        printf("%s{\"op\": ", i ? ", " : "");
        json_text(s->needs.data[i].op);
        printf(", \"here\": %s, \"why\": ", s->needs.data[i].here ? "true" : "false");
        json_text(s->needs.data[i].why);
        printf("}");
    }
    printf("]}\n");
}

/* Writes the beginning of a definition; a file that is there already stays. */
static fl_status write_new(const fl_survey *s, const char *path, fl_error *err)
{
    fl_buf text = {0};
    fl_status status = fl_survey_skeleton(s, &text, err);
    FILE *f = status == FL_OK ? fopen(path, "wbx") : NULL;
    if (status == FL_OK && !f)
        status =
            fl_fail(err, FL_IO, "%s: cannot be made; a file of that name is not replaced", path);
    if (f) {
        bool whole = fwrite(text.data, 1, text.n, f) == text.n;
        if (fclose(f) != 0 || !whole)
            status = fl_fail(err, FL_IO, "%s: cannot be written", path);
    }
    fl_vec_free(&text);
    if (status == FL_OK)
        cli_note("%s: begun; try `firstlight inspect MODEL --model-def %s`", path, path);
    return status;
}

fl_status cli_is_known(const char *model, bool *known, fl_error *err)
{
    fl_checkpoint *ck;
    FL_TRY(fl_checkpoint_open(model, FL_OPEN_SURVEY, &ck, err));
    fl_status status = fl_survey_is_known(ck, NULL, known, err);
    fl_checkpoint_close(ck);
    return status;
}

fl_status cli_survey(const char *model, const char *new_model, bool json, fl_error *err)
{
    fl_checkpoint *ck;
    fl_survey s = {0};
    FL_TRY(fl_checkpoint_open(model, FL_OPEN_SURVEY, &ck, err));
    fl_status status = fl_survey_open(ck, fl_ops_registry(), NULL, &s, err);
    if (status == FL_OK && new_model)
        status = write_new(&s, new_model, err);
    else if (status == FL_OK && json)
        json_survey(&s);
    else if (status == FL_OK)
        print_survey(model, &s);
    fl_survey_free(&s);
    fl_checkpoint_close(ck);
    return status;
}
