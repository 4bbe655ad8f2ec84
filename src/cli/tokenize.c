/* firstlight tokenize MODEL TEXT: token ids of a text, special tokens off unless asked for. */
#include "cli/cli.h"

static struct tokenize_args {
    cli_common common;
    const char *model, *text, *file;
    bool special;
} args;

enum { OPT_SPECIAL = 0x200 };

static const struct argp_option options[] = {
    {"special", OPT_SPECIAL, 0, 0, "Named special tokens in the text become their ids", 0},
    {"file", 'f', "FILE", 0, "Read the text from FILE ('-': standard input)", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    switch (key) {
    case OPT_SPECIAL:
        args.special = true;
        return 0;
    case 'f':
        args.file = arg;
        return 0;
    case ARGP_KEY_ARG:
        if (state->arg_num == 0)
            args.model = arg;
        else if (state->arg_num == 1)
            args.text = arg;
        else
            argp_error(state, "one text only; quote it");
        return 0;
    case ARGP_KEY_END:
        if (!args.model || !args.text == !args.file)
            argp_error(state, "a model and a text are needed");
        return 0;
    default:
        return cli_other_key(key, state);
    }
}

static const struct argp argp = {
    options, parse, "MODEL [--] TEXT", "Prints the token ids of TEXT.", cli_children, 0, 0};

static void print_ids(const fl_tokenizer *t, const fl_ids *ids, bool json)
{
    if (json) {
        printf("{\"ids\": [");
        for (size_t i = 0; i < ids->n; i++)
            printf("%s%d", i ? ", " : "", ids->data[i]);
        printf("]}\n");
        return;
    }
    for (size_t i = 0; i < ids->n; i++) {
        fl_bytes b = fl_tokenizer_bytes(t, ids->data[i]);
        fl_buf quoted = {0};
        if (fl_json_quote(b.data, b.len, &quoted))
            printf("%8d  %.*s\n", ids->data[i], (int)quoted.n, quoted.data);
        fl_vec_free(&quoted);
    }
}

int cmd_tokenize(int argc, char **argv)
{
    fl_error err = {0};
    cli_model m;
    fl_buf text = {0};
    fl_ids ids = {0};
    const fl_tokenizer *t = NULL;
    cli_parse(&argp, argc, argv, &args.common);
    fl_status s = cli_open(args.model, &args.common, FL_OPEN_SURVEY, NULL, &m, &err);
    if (s == FL_OK)
        s = fl_model_tokenizer(m.model, &t, &err);
    if (s == FL_OK && args.file)
        s = cli_read_file(args.file, &text, &err);
    if (s == FL_OK)
        s = fl_tokenizer_encode(t, args.file ? text.data : args.text,
                                args.file ? text.n : strlen(args.text), args.special, &ids, &err);
    if (s == FL_OK)
        print_ids(t, &ids, args.common.json);
    fl_vec_free(&ids);
    fl_vec_free(&text);
    cli_close(&m);
    return s == FL_OK ? 0 : cli_report(&err);
}
