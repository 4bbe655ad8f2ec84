"""Writes src/text/nfc_table.h: what Normalization Form C needs of the Unicode Character Database,
as Python's unicodedata has it.

    python3 tools/make_nfc_table.py > src/text/nfc_table.h
"""
import sys
import unicodedata as u


def decomposition(c):
    d = u.decomposition(chr(c))
    return None if not d or d.startswith("<") else [int(x, 16) for x in d.split()]


def rows(items, width=100):
    line = "   "
    for item in items:
        if len(line) + 1 + len(item) > width:
            yield line
            line = "   "
        line += " " + item
    yield line


pairs, classes = [], []
for c in range(0x110000):
    if 0xac00 <= c < 0xd7a4 or 0xd800 <= c < 0xe000:
        continue
    d = decomposition(c)
    if d:
        composes = len(d) == 2 and u.normalize("NFC", chr(c)) == chr(c)
        pairs.append((c, d[0], d[1] if len(d) == 2 else 0, composes))
    k = u.combining(chr(c))
    if k and classes and classes[-1][1] == c - 1 and classes[-1][2] == k:
        classes[-1][1] = c
    elif k:
        classes.append([c, c, k])
by_pair = sorted((i for i, p in enumerate(pairs) if p[3]), key=lambda i: pairs[i][1:3])
out = [f"/* Unicode {u.unidata_version}, written by tools/make_nfc_table.py. */", "#ifndef FL_TEXT_NFC_TABLE_H",
       "#define FL_TEXT_NFC_TABLE_H", "", "#include <stdint.h>", "", "/* clang-format off */",
       "/* Canonical decompositions: character, first and second (or 0), in order of character. */",
       "static const uint32_t decompositions[][3] = {"]
out += rows("{%#x,%#x,%#x}," % p[:3] for p in pairs)
out += ["};", "/* Those of them that compose, as places above, in order of first and second. */",
        "static const uint16_t compositions[] = {"]
out += rows(f"{i}," for i in by_pair)
out += ["};", "/* Combining classes: first character, last, class; others have 0. */",
        "static const uint32_t classes[][3] = {"]
out += rows("{%#x,%#x,%d}," % tuple(k) for k in classes)
out += ["};", "/* clang-format on */", "", "#endif"]
sys.stdout.write("\n".join(out) + "\n")
