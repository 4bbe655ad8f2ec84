/* UTF-8 as it arrives: whole characters out, the beginning of one held back.
 *
 * What is not UTF-8 becomes U+FFFD the way Unicode recommends and Python's errors="replace" does:
 * one replacement for each maximal subpart, that is for the longest run of bytes that could have
 * begun a character, or for a single byte that could not.  Which bytes may follow a lead byte is
 * decided at each byte, so surrogates, overlong forms and values above U+10FFFF end at their second
 * byte. */
#include "text/tokenizer.h"

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
