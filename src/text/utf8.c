/* UTF-8 as it arrives: whole characters out, the beginning of one held back.
 *
 * What is not UTF-8 becomes U+FFFD the way Unicode recommends and Python's errors="replace" does:
 * one replacement for each maximal subpart, that is for the longest run of bytes that could have
 * begun a character, or for a single byte that could not.  Which bytes may follow a lead byte is
 * decided at each byte, so surrogates, overlong forms and values above U+10FFFF end at their second
 * byte. */
#include "text/text_internal.h"

#define REPLACEMENT "\xef\xbf\xbd"

/* Bytes of a character that begins with lead; 0 when none does. */
static int char_length(unsigned char lead)
{
    if (lead < 0x80)
        return 1;
    if (lead < 0xc2 || lead > 0xf4)
        return 0;
    return lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
}

/* Whether byte may stand at place i (from 1) of a character that begins with lead. */
static bool may_follow(unsigned char lead, int i, unsigned char byte)
{
    unsigned char low = 0x80, high = 0xbf;
    if (i == 1) {
        switch (lead) {
        case 0xe0:
            low = 0xa0; /* shorter forms exist */
            break;
        case 0xed:
            high = 0x9f; /* surrogates */
            break;
        case 0xf0:
            low = 0x90;
            break;
        case 0xf4:
            high = 0x8f; /* above U+10FFFF */
            break;
        }
    }
    return byte >= low && byte <= high;
}

/* Takes one byte; what it completes goes to out. */
static bool feed_byte(fl_utf8_stream *s, unsigned char byte, fl_buf *out)
{
    if (s->n && !may_follow(s->held[0], s->n, byte)) {
        s->n = 0;
        if (!fl_vec_append(out, REPLACEMENT, 3))
            return false;
    }
    s->held[s->n++] = byte;
    int length = char_length(s->held[0]);
    if (s->n < length)
        return true;
    s->n = 0;
    return length ? fl_vec_append(out, s->held, (size_t)length)
                  : fl_vec_append(out, REPLACEMENT, 3);
}

bool fl_utf8_feed(fl_utf8_stream *s, const char *bytes, size_t len, fl_buf *out)
{
    fl_utf8_stream before = *s;
    size_t start = out->n;
    if (!fl_vec_reserve(out, len))
        return false;
    for (size_t i = 0; i < len;) {
        size_t run = i;
        while (!s->n && run < len && (unsigned char)bytes[run] < 0x80)
            run++;
        bool ok = run > i ? fl_vec_append(out, bytes + i, run - i)
                          : feed_byte(s, (unsigned char)bytes[run++], out);
        if (!ok) {
            *s = before;
            out->n = start;
            return false;
        }
        i = run;
    }
    return true;
}

bool fl_utf8_end(fl_utf8_stream *s, fl_buf *out)
{
    if (s->n && !fl_vec_append(out, REPLACEMENT, 3))
        return false;
    s->n = 0;
    return true;
}

uint32_t fl_utf8_decode(const char *p, size_t *len)
{
    const unsigned char *b = (const unsigned char *)p;
    if (b[0] < 0x80)
        return *len = 1, b[0];
    if (b[0] < 0xe0)
        return *len = 2, (b[0] & 0x1fu) << 6 | (b[1] & 0x3fu);
    if (b[0] < 0xf0)
        return *len = 3, (b[0] & 0xfu) << 12 | (b[1] & 0x3fu) << 6 | (b[2] & 0x3fu);
    *len = 4;
    return (b[0] & 7u) << 18 | (b[1] & 0x3fu) << 12 | (b[2] & 0x3fu) << 6 | (b[3] & 0x3fu);
}

bool fl_utf8_put(fl_buf *out, uint32_t c)
{
    if (c < 0x80)
        return fl_vec_push(out, (char)c);
    int more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    char bytes[4] = {(char)((0xff80u >> more & 0xffu) | c >> 6 * more)};
    for (int i = 1; i <= more; i++)
        bytes[i] = (char)(0x80u | (c >> 6 * (more - i) & 0x3fu));
    return fl_vec_append(out, bytes, (size_t)more + 1);
}

bool fl_white_space(uint32_t c)
{
    return (c >= 0x09 && c <= 0x0d) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
           c == 0x205f || c == 0x3000;
}
