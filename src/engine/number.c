/* Numbers between bounds.
 *
 * Bounds are scaled to whole numbers of 10^-places, so a range of decimals is a range of integers
 * whose last digits stand behind a point.  A number of a given count of digits is compared with a
 * bound digit by digit: as long as it equals the bound so far, the next digit must not pass the
 * bound's.  With at most 15 digits, different decimals are different doubles, so every reader's
 * comparison agrees with this one. */
#include "engine/grammar_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { INT_DIGITS = 18, REAL_DIGITS = 15, MAX_PLACES = 12 };

static int64_t power10(int n)
{
    int64_t p = 1;
    while (n-- > 0)
        p *= 10;
    return p;
}

/* Digits lo .. hi inclusive, any of [0-9]+ in one move. */
static int32_t digit(fl_grammar *g, int32_t from, int low, int high)
{
    int32_t to = fl_grammar_node(g, g->status == FL_OK ? g->nodes.data[from].rule : 0);
    fl_grammar_bytes(g, from, '0' + low, '0' + high, 0, to);
    return to;
}

/* Up to n further digits, leaving to `end` after each. */
static void some_digits(fl_grammar *g, int32_t from, int n, int32_t end)
{
    for (int i = 0; i < n; i++) {
        from = digit(g, from, 0, 9);
        fl_grammar_jump(g, from, 0, end);
    }
}

/* ---- without bounds ---- */

static void free_number(fl_grammar *g, int32_t rule, bool integer)
{
    int32_t start = g->rules.data[rule].start, end = g->rules.data[rule].end;
    int32_t minus = fl_grammar_byte(g, start, '-', 0), whole = fl_grammar_node(g, rule);
    int32_t zero = fl_grammar_node(g, rule), first = fl_grammar_node(g, rule);
    fl_grammar_bytes(g, start, '0', '0', 0, zero);
    fl_grammar_bytes(g, start, '1', '9', 0, first);
    fl_grammar_bytes(g, minus, '1', '9', 0, first);
    fl_grammar_jump(g, zero, 0, whole);
    fl_grammar_jump(g, first, 0, whole);
    some_digits(g, first, INT_DIGITS - 1, whole);
    fl_grammar_jump(g, whole, 0, end);
    if (integer)
        return;
    fl_grammar_bytes(g, minus, '0', '0', 0, zero);
    int32_t point = fl_grammar_byte(g, whole, '.', 0), fraction = fl_grammar_node(g, rule);
    some_digits(g, point, INT_DIGITS - 1, fraction);
    fl_grammar_jump(g, fraction, 0, end);
    int32_t e = fl_grammar_node(g, rule), sign = fl_grammar_node(g, rule);
    for (int i = 0; i < 2; i++) {
        fl_grammar_bytes(g, i ? whole : fraction, 'e', 'e', 0, e);
        fl_grammar_bytes(g, i ? whole : fraction, 'E', 'E', 0, e);
    }
    fl_grammar_jump(g, e, 0, sign);
    fl_grammar_bytes(g, e, '+', '+', 0, sign);
    fl_grammar_bytes(g, e, '-', '-', 0, sign);
    some_digits(g, sign, 2, end);
}

/* ---- between two magnitudes ---- */

typedef struct range {
    fl_grammar *g;
    int32_t rule, end;
    int whole, places; /* digits before and behind the point */
    char low[40], high[40];
    int32_t nodes[INT_DIGITS + MAX_PLACES + 2][2][2]; /* by digits read, equal to low, to high */
} range;

static bool rest_is_zero(const char *digits, int from)
{
    while (digits[from] == '0')
        from++;
    return digits[from] == '\0';
}

/* The node where `at` digits are read. */
static int32_t range_node(range *r, int at, bool low, bool high)
{
    fl_grammar *g = r->g;
    int32_t *node = &r->nodes[at][low][high];
    if (*node || g->status != FL_OK)
        return *node;
    int32_t here = *node = fl_grammar_node(g, r->rule);
    int total = r->whole + r->places;
    if (at >= r->whole && (!low || rest_is_zero(r->low, at)))
        fl_grammar_jump(g, here, 0, r->end);
    if (at == total)
        return here;
    int32_t from = at == r->whole ? fl_grammar_byte(g, here, '.', 0) : here;
    int a = low ? r->low[at] - '0' : 0, b = high ? r->high[at] - '0' : 9;
    for (int d = a; d <= b;) { /* digits that lead to the same place together */
        bool on_low = low && d == a, on_high = high && d == b;
        int last = on_low || on_high ? d : high ? b - 1 : b;
        fl_grammar_bytes(g, from, '0' + d, '0' + last, 0, range_node(r, at + 1, on_low, on_high));
        d = last + 1;
    }
    return here;
}

/* Magnitudes low .. high (scaled by 10^places) with `whole` digits before the point. */
static void add_range(fl_grammar *g, int32_t from, int whole, int places, int64_t low, int64_t high)
{
    range r = {.g = g, .whole = whole, .places = places};
    if (g->status != FL_OK)
        return;
    r.rule = g->nodes.data[from].rule;
    r.end = g->rules.data[r.rule].end;
    snprintf(r.low, sizeof r.low, "%0*lld", whole + places, (long long)low);
    snprintf(r.high, sizeof r.high, "%0*lld", whole + places, (long long)high);
    fl_grammar_jump(g, from, 0, range_node(&r, 0, true, true));
}

/* All counts of digits from `least` to `most` at once: [1-9] and further digits, any places. */
static void add_lengths(fl_grammar *g, int32_t from, int least, int most, int places)
{
    if (least > most || g->status != FL_OK)
        return;
    int32_t rule = g->nodes.data[from].rule, end = g->rules.data[rule].end;
    int32_t whole = fl_grammar_node(g, rule), at = from;
    for (int i = 1; i <= most; i++) {
        at = digit(g, at, i == 1, 9);
        if (i >= least)
            fl_grammar_jump(g, at, 0, whole);
    }
    fl_grammar_jump(g, whole, 0, end);
    if (places > 0)
        some_digits(g, fl_grammar_byte(g, whole, '.', 0), places, end);
}

static int count_digits(int64_t x)
{
    int n = 1;
    while (x >= 10) {
        x /= 10;
        n++;
    }
    return n;
}

static void add_magnitudes(fl_grammar *g, int32_t from, int64_t low, int64_t high, int places)
{
    int64_t scale = power10(places);
    if (low > high)
        return;
    int first = count_digits(low / scale), last = count_digits(high / scale);
    if (first == last) {
        add_range(g, from, first, places, low, high);
        return;
    }
    add_range(g, from, first, places, low, power10(first) * scale - 1);
    add_lengths(g, from, first + 1, last - 1, places);
    add_range(g, from, last, places, power10(last - 1) * scale, high);
}

/* ---- bounds ---- */

/* x * 10^places rounded down; *exact tells whether nothing was lost.  |x| * 10^places < 10^18. Goes
 * by the shortest decimal that reads back as x, which is what the schema says. */
static int64_t scaled_floor(double x, int places, bool *exact)
{
    char text[64];
    int precision = 1;
    do {
        snprintf(text, sizeof text, "%.*e", precision - 1, x);
    } while (strtod(text, NULL) != x && precision++ < 17);
    int exponent = (int)strtol(strchr(text, 'e') + 1, NULL, 10);
    int64_t value = 0;
    int shift = exponent + places + 1; /* digits that stand before the scaled point */
    *exact = true;
    for (const char *c = text; *c != 'e'; c++) {
        if (*c < '0' || *c > '9')
            continue;
        if (shift > 0)
            value = value * 10 + (*c - '0');
        else if (*c != '0')
            *exact = false;
        shift--;
    }
    for (; shift > 0; shift--)
        value *= 10;
    return x >= 0 ? value : *exact ? -value : -value - 1;
}

int32_t fl_spell_number(fl_grammar *g, const fl_bounds *b, bool integer)
{
    int32_t rule = fl_grammar_rule(g, 0, -1);
    if (g->status != FL_OK)
        return 0;
    bool no_low = !(b->low > -INFINITY), no_high = !(b->high < INFINITY);
    if (no_low && no_high) {
        free_number(g, rule, integer);
        return rule;
    }
    int digits = integer ? INT_DIGITS : REAL_DIGITS;
    double limit = integer ? 1e18 : 1e15, low = b->low, high = b->high;
    if (low >= limit || high <= -limit)
        return rule; /* nothing that is written here */
    no_low |= low <= -limit;
    no_high |= high >= limit;
    int whole = 1;
    double largest = fmax(no_low ? 0 : fabs(low), no_high ? 0 : fabs(high));
    while (whole < digits && largest >= pow(10, whole))
        whole++;
    if (no_low || no_high)
        whole = integer ? digits : whole < 9 ? 9 : whole;
    int places = integer ? 0 : digits - whole < MAX_PLACES ? digits - whole : MAX_PLACES;
    int64_t edge = power10(whole + places) - 1, from = -edge, to = edge;
    bool exact;
    if (!no_low) {
        from = scaled_floor(low, places, &exact);
        from += !exact || b->above_low;
    }
    if (!no_high) {
        to = scaled_floor(high, places, &exact);
        to -= exact && b->below_high;
    }
    int32_t start = g->rules.data[rule].start;
    if (to >= 0)
        add_magnitudes(g, start, from > 0 ? from : 0, to, places);
    if (from < 0)
        add_magnitudes(g, fl_grammar_byte(g, start, '-', 0), to < -1 ? -to : 1, -from, places);
    return rule;
}
