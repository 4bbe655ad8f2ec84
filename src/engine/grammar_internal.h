/* Inside the engine room: the automaton that forms and schemas are compiled into.
 *
 * A grammar is a set of rules.  A rule is a graph of nodes from `start` to `end`; an edge takes one
 * byte of a range, one control token, a whole other rule, or nothing.  A rule that runs is a frame
 * of the matcher's stack and has a counter: a TICK edge needs the counter below the rule's max and
 * adds one, an ENOUGH edge needs it at min.
 *
 * Building never fails in between: a failure is kept in g->status and told by fl_grammar_finish. */
#ifndef FL_ENGINE_GRAMMAR_INTERNAL_H
#define FL_ENGINE_GRAMMAR_INTERNAL_H

#include "base/arena.h"
#include "engine/constraint.h"

enum {
    FL_MAX_NODES = 1 << 18,
    FL_MAX_EDGES = 1 << 20,
    FL_MAX_FRAMES = 100, /* nesting of rules, and so of documents */
    FL_NEVER = 255       /* the need of a node from which no end can be reached */
};

typedef enum fl_edge_kind { FL_EDGE_BYTES, FL_EDGE_MARK, FL_EDGE_CALL, FL_EDGE_JUMP } fl_edge_kind;
enum { FL_TICK = 1, FL_ENOUGH = 2 };

typedef struct fl_edge {
    uint8_t kind, flags, low, high; /* BYTES: low .. high */
    int32_t arg;                    /* MARK: the token; CALL: the rule */
    int32_t to;
    int32_t from;
} fl_edge;

typedef struct fl_node {
    int32_t first, n; /* edges, once the grammar is finished */
    int32_t rule;
    uint8_t need; /* frames that a way to the rule's end takes on top of this one; FL_NEVER */
    bool takes;   /* every edge takes a byte or a control token, and it is no end */
} fl_node;

enum { FL_SHAPE_NODES = 64 }; /* of a rule with a shape, at most */
typedef enum fl_shape { FL_SHAPE_NONE, FL_SHAPE_QUOTED, FL_SHAPE_RAW } fl_shape;

typedef struct fl_rule {
    int32_t start, end;
    int32_t min, max; /* of the counter; max -1: none */
    bool calls;       /* has CALL edges */
    uint8_t floor;    /* see grammar_finish.c */
    /* When lengths and structure interact: whether a node with a count leads to the end; bit
     * (node - first) * (top + 1) + count.  NULL: every node does. */
    uint8_t *live;
    int32_t first;
    /* A string without a pattern.  All such rules of one shape have the same nodes, counted from
     * first, and differ in min and max only, so walks of the trie are shared between them. */
    fl_shape shape;
} fl_rule;

/* The counter stops where larger values make no difference. */
static inline int32_t fl_rule_top(const fl_rule *r)
{
    return r->max >= 0 ? r->max : r->min;
}

struct fl_grammar {
    const fl_token_trie *trie;
    int holders;
    FL_VEC(fl_node) nodes;
    FL_VEC(fl_edge) edges;
    FL_VEC(fl_rule) rules;
    int32_t root;
    int32_t space; /* the rule of white space between JSON tokens; 0: not made yet */
    struct fl_mask_cache *cache;
    fl_status status; /* of building */
    fl_error error;
};

/* grammar.c */
fl_grammar *fl_grammar_create(const fl_token_trie *t); /* NULL: no memory */
/* Keeps the first failure. */
void fl_grammar_fail(fl_grammar *g, fl_status status, const char *fmt, ...) FL_PRINTF(3, 4);
int32_t fl_grammar_rule(fl_grammar *g, int32_t min, int32_t max);
int32_t fl_grammar_node(fl_grammar *g, int32_t rule);
void fl_grammar_bytes(fl_grammar *g, int32_t from, int low, int high, int flags, int32_t to);
void fl_grammar_mark(fl_grammar *g, int32_t from, int32_t token, int32_t to);
void fl_grammar_call(fl_grammar *g, int32_t from, int32_t rule, int flags, int32_t to);
void fl_grammar_jump(fl_grammar *g, int32_t from, int flags, int32_t to);
/* The same with a new node as target, which is returned. */
int32_t fl_grammar_text(fl_grammar *g, int32_t from, const char *text, size_t len);
int32_t fl_grammar_byte(fl_grammar *g, int32_t from, int byte, int flags);
int32_t fl_grammar_then(fl_grammar *g, int32_t from, int32_t rule);
/* JSON's white space, none included: a blank, or a line end and blanks. */
int32_t fl_grammar_space(fl_grammar *g, int32_t from);

/* grammar_finish.c: drops what leads nowhere, sorts the edges, checks.  FL_ARGUMENT when nothing
 * fits the grammar or it is recursive without taking a byte. */
FL_MUST_CHECK fl_status fl_grammar_finish(fl_grammar *g, fl_error *err);
/* Fills rule->live for a rule whose nodes, without calls, are all nodes since rule->first. */
void fl_grammar_live(fl_grammar *g, int32_t rule);

/* ---- sets of characters, and patterns ---- */

typedef struct fl_span {
    uint32_t low, high;
} fl_span;
typedef FL_VEC(fl_span) fl_charset; /* sorted, apart from each other */

/* A deterministic automaton over characters.  State 0 is the start. */
typedef struct fl_arc {
    int32_t from, to; /* arcs are sorted by from */
    fl_span span;
} fl_arc;
typedef struct fl_dfa {
    FL_VEC(fl_arc) arcs;
    FL_VEC(bool) accept; /* [states] */
} fl_dfa;
void fl_dfa_free(fl_dfa *d);

/* What may stand in a string: every character but NUL and the surrogates. */
enum {
    FL_CHAR_FIRST = 1,
    FL_CHAR_LAST = 0x10ffff,
    FL_SURROGATE = 0xd800,
    FL_SURROGATE_END = 0xe000
};

/* charset.c */
bool fl_charset_add(fl_charset *s, uint32_t low, uint32_t high);
bool fl_charset_invert(fl_charset *s); /* within what may stand in a string */

/* regex.c: the strings in which pattern (ECMA-262) finds something, as a DFA.  FL_ARGUMENT for what
 * is not supported or too large. */
FL_MUST_CHECK fl_status fl_regex_compile(fl_bytes pattern, fl_dfa *out, fl_error *err);
/* regex_parse.c: the syntax tree, in the arena. */
typedef enum fl_regex_kind {
    FL_REGEX_EMPTY,
    FL_REGEX_SET, /* spans */
    FL_REGEX_CAT,
    FL_REGEX_ALT,
    FL_REGEX_REPEAT /* of a: min .. max times, max -1: any number */
} fl_regex_kind;
typedef struct fl_regex {
    fl_regex_kind kind;
    struct fl_regex *a, *b;
    const fl_span *spans;
    size_t n_spans;
    int min, max;
} fl_regex;
/* The symbols that ^ and $ match: the text stands between them. */
enum { FL_REGEX_BEGIN = 0x110000, FL_REGEX_END = 0x110001 };
FL_MUST_CHECK fl_status fl_regex_parse(fl_bytes pattern, fl_arena *arena, fl_regex **out,
                                       fl_error *err);

/* spell.c: how strings and numbers are written. */
/* A rule for the strings of d (NULL: all) with min .. max (-1: any) characters: as a JSON string in
 * its shortest spelling, or raw. */
int32_t fl_spell_string(fl_grammar *g, const fl_dfa *d, int32_t min, int32_t max, bool raw);
/* The strings that are none of names. */
int32_t fl_spell_other_names(fl_grammar *g, const fl_bytes *names, size_t n);
/* number.c.  A rule for numbers from low to high (infinite: no bound; not low or high themselves
 * when that is excluded). */
typedef struct fl_bounds {
    double low, high;
    bool above_low, below_high; /* exclusive */
} fl_bounds;
int32_t fl_spell_number(fl_grammar *g, const fl_bounds *b, bool integer);

/* ---- schemas ---- */

/* A compilation of schemas that refer to one root. */
typedef struct fl_schema {
    fl_grammar *g;
    fl_arena *arena; /* for what the grammar does not need once it is built */
    const fl_json *root;
    struct fl_schema_rule *made; /* rules by schema and kinds */
    int depth, n_made;
} fl_schema;

/* schema.c: the rule of one schema (NULL: anything), of the kinds wanted only; raw: strings without
 * quotes.  path names the schema in messages. */
int32_t fl_schema_rule(fl_schema *c, const fl_json *schema, unsigned kinds, bool raw,
                       const char *path);
/* Whether two schemas have no value in common, as far as can be seen (schema_apart.c). */
bool fl_schemas_apart(fl_schema *c, const fl_json *a, const fl_json *b, int depth);
/* What a reference names, or NULL after a failure (schema_ref.c). */
const fl_json *fl_schema_target(fl_schema *c, const fl_json *ref, const char *path);
/* Kinds that the schema's own "type" allows, or what its keywords are about (schema_kinds.c). */
unsigned fl_schema_kinds(fl_schema *c, const fl_json *schema, const char *path);
/* Refuses unknown keywords (schema_kinds.c). */
void fl_schema_check_keywords(fl_schema *c, const fl_json *schema, const char *path);
bool fl_schema_only_notes(fl_schema *c, const fl_json *schema, const char *but, const char *path);
/* An integer keyword that is not negative, or `none`. */
int32_t fl_schema_count(fl_schema *c, const fl_json *schema, const char *name, int32_t none,
                        const char *path);
/* schema_parts.c and schema_object.c */
int32_t fl_schema_literals(fl_schema *c, const fl_json *schema, unsigned kinds, bool raw,
                           const char *path);
int32_t fl_schema_string(fl_schema *c, const fl_json *schema, bool raw, const char *path);
int32_t fl_schema_number(fl_schema *c, const fl_json *schema, bool integer, const char *path);
int32_t fl_schema_array(fl_schema *c, const fl_json *schema, const char *path);
int32_t fl_schema_object(fl_schema *c, const fl_json *schema, const char *path);
/* "path/name" in the arena; "" when memory ran out. */
const char *fl_schema_path(fl_schema *c, const char *path, const char *name);

/* ---- tokens ---- */

/* Tokens of a vocabulary but the special ones, in the order of their bytes, as a tree in preorder.
 */
struct fl_token_trie {
    const fl_tokenizer *tokenizer;
    int64_t vocab;
    int32_t n;                   /* nodes; node 0 is the root */
    uint8_t *byte;               /* [n] the byte that leads to the node */
    uint16_t *depth;             /* [n] */
    int32_t *skip;               /* [n] the first node behind its subtree */
    int32_t *token;              /* [n] the token that ends here, or FL_NO_TOKEN */
    int longest;                 /* bytes */
    uint32_t *all;               /* their bits */
    struct fl_text_walks *walks; /* of strings (text_walk.c), made as they are needed */
};

/* text_walk.c */
struct fl_text_walks *fl_text_walks_create(void); /* NULL: no memory */
void fl_text_walks_free(struct fl_text_walks *w); /* NULL is allowed */

/* mask.c */
void fl_mask_cache_free(struct fl_mask_cache *c);

#endif
