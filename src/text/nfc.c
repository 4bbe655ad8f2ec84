/* Normalization Form C: characters are taken apart as far as they go, marks are ordered by their
 * class, and what has a composed form is put together again.
 *
 * Nothing below U+0300 changes or takes part in a change of what stands before it, so a text is
 * worked on in segments that begin with such a character; a text without any other is not copied.
 * Marks are ordered by counting, which is linear for as many marks as a hostile text has. */
#include "text/nfc_table.h"
#include "text/text_internal.h"

enum {
    FIRST = 0x300, /* below it every character is a starter that composes with nothing before it */
    HANGUL = 0xac00,
    LEADS = 0x1100,
    VOWELS = 0x1161,
    TAILS = 0x11a7, /* one before the first: 0 is no tail */
    N_LEADS = 19,
    N_VOWELS = 21,
    N_TAILS = 28,
    N_HANGUL = N_LEADS * N_VOWELS * N_TAILS
};

#define COUNT(a) (sizeof(a) / sizeof *(a))

typedef struct mark {
    uint32_t c;
    uint8_t class;
} mark;

typedef struct work {
    FL_VEC(mark) marks;  /* a segment, taken apart */
    FL_VEC(mark) sorted; /* room for a run of marks */
} work;

static uint8_t class_of(uint32_t c)
{
    size_t low = 0, high = COUNT(classes);
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (classes[mid][1] < c)
            low = mid + 1;
        else
            high = mid;
    }
    return low < COUNT(classes) && classes[low][0] <= c ? (uint8_t)classes[low][2] : 0;
}

static const uint32_t *decomposition(uint32_t c)
{
    size_t low = 0, high = COUNT(decompositions);
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (decompositions[mid][0] < c)
            low = mid + 1;
        else
            high = mid;
    }
    return low < COUNT(decompositions) && decompositions[low][0] == c ? decompositions[low] : NULL;
}

static bool push(work *w, uint32_t c)
{
    return fl_vec_push(&w->marks, ((mark){c, class_of(c)}));
}

/* Only the first half of a decomposition may have one itself; the longest chain has three links. */
static bool take_apart(work *w, uint32_t c)
{
    if (c >= HANGUL && c < HANGUL + N_HANGUL) {
        uint32_t i = c - HANGUL, tail = i % N_TAILS;
        return push(w, LEADS + i / (N_VOWELS * N_TAILS)) &&
               push(w, VOWELS + i / N_TAILS % N_VOWELS) && (!tail || push(w, TAILS + tail));
    }
    const uint32_t *d = c < 0xc0 ? NULL : decomposition(c);
    if (!d)
        return push(w, c);
    return take_apart(w, d[1]) && (!d[2] || take_apart(w, d[2]));
}

/* Orders marks[begin .. end) by class, equal ones as they stand. */
static bool order_run(work *w, size_t begin, size_t end)
{
    size_t place[256] = {0}, sum = 0;
    w->sorted.n = 0;
    if (!fl_vec_append(&w->sorted, w->marks.data + begin, end - begin))
        return false;
    for (size_t i = begin; i < end; i++)
        place[w->marks.data[i].class]++;
    for (int k = 0; k < 256; k++) {
        size_t n = place[k];
        place[k] = sum;
        sum += n;
    }
    for (size_t i = 0; i < w->sorted.n; i++)
        w->marks.data[begin + place[w->sorted.data[i].class]++] = w->sorted.data[i];
    return true;
}

static bool order(work *w)
{
    for (size_t i = 0, j; i < w->marks.n; i = j) {
        bool sorted = true;
        for (j = i + 1; j < w->marks.n && w->marks.data[i].class && w->marks.data[j].class; j++)
            sorted = sorted && w->marks.data[j - 1].class <= w->marks.data[j].class;
        if (!sorted && !order_run(w, i, j))
            return false;
    }
    return true;
}

/* The character that a and b compose to, or 0. */
static uint32_t compose(uint32_t a, uint32_t b)
{
    if (a >= LEADS && a < LEADS + N_LEADS && b >= VOWELS && b < VOWELS + N_VOWELS)
        return HANGUL + ((a - LEADS) * N_VOWELS + (b - VOWELS)) * N_TAILS;
    if (a >= HANGUL && a < HANGUL + N_HANGUL && (a - HANGUL) % N_TAILS == 0 && b > TAILS &&
        b < TAILS + N_TAILS)
        return a + (b - TAILS);
    size_t low = 0, high = COUNT(compositions);
    while (low < high) {
        size_t mid = (low + high) / 2;
        const uint32_t *d = decompositions[compositions[mid]];
        if (d[1] < a || (d[1] == a && d[2] < b))
            low = mid + 1;
        else
            high = mid;
    }
    if (low == COUNT(compositions))
        return 0;
    const uint32_t *d = decompositions[compositions[low]];
    return d[1] == a && d[2] == b ? d[0] : 0;
}

/* Puts the segment together.  A mark reaches its starter unless one of no lower class stands
 * between; as marks are ordered, the last one kept decides. */
static void put_together(work *w)
{
    mark *m = w->marks.data;
    size_t n = 0, starter = SIZE_MAX;
    for (size_t i = 0; i < w->marks.n; i++) {
        bool adjacent = starter != SIZE_MAX && starter + 1 == n;
        if (starter != SIZE_MAX && (adjacent || m[n - 1].class < m[i].class)) {
            uint32_t c = compose(m[starter].c, m[i].c);
            if (c) {
                m[starter].c = c;
                continue;
            }
        }
        if (!m[i].class)
            starter = n;
        m[n++] = m[i];
    }
    w->marks.n = n;
}

static bool finish_segment(work *w, fl_buf *out)
{
    if (!order(w))
        return false;
    put_together(w);
    for (size_t i = 0; i < w->marks.n; i++) {
        if (!fl_utf8_put(out, w->marks.data[i].c))
            return false;
    }
    w->marks.n = 0;
    return true;
}

bool fl_nfc(fl_bytes *text, fl_buf *scratch)
{
    size_t len, i = 0;
    while (i < text->len && (unsigned char)text->data[i] < 0xcc) /* the lead byte of U+0300 */
        i++;
    if (i == text->len)
        return true;
    work w = {0};
    scratch->n = 0;
    bool ok = true;
    for (i = 0; ok && i < text->len; i += len) {
        uint32_t c = fl_utf8_decode(text->data + i, &len);
        ok = (c >= FIRST || finish_segment(&w, scratch)) && take_apart(&w, c);
    }
    ok = ok && finish_segment(&w, scratch);
    fl_vec_free(&w.marks);
    fl_vec_free(&w.sorted);
    *text = (fl_bytes){scratch->data, scratch->n};
    return ok;
}
