"""Writes tests/data/tokenizer_random.json: random texts and the ids that the Python package
tiktoken gives for them, with the split pattern as the release writes it (Rust syntax).

    python3 tools/make_tokenizer_golden.py models/firstlight-tiny tests/data/tokenizer_random.json

Needs tiktoken.  Texts are bytes in hexadecimal, because some are not UTF-8; those are decoded with
errors="replace" first.  Three lists: "plain", "special" (names of special tokens become ids) and
"chunked" (the cutting of long texts, with limits small enough for short texts).  Characters are
those assigned in Unicode 14, the version of Debian 12's PCRE2.
"""
import base64
import json
import random
import sys
import unicodedata

import tiktoken

PATTERN = "|".join([
    r"""[\p{Han}]+""",
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
    r"""\p{N}{1,3}""",
    r""" ?[^\s\p{L}\p{N}]+[\r\n]*""",
    r"""\s*[\r\n]+""",
    r"""\s+(?!\S)""",
    r"""\s+""",
])
MAX_CHARS, MAX_RUN = 40, 6
SEED = 20261129


def encoding(folder):
    ranks = {}
    with open(folder + "/tiktoken.model", "rb") as f:
        for line in f.read().splitlines():
            token, rank = line.split()
            ranks[base64.b64decode(token)] = int(rank)
    size = json.load(open(folder + "/config.json"))["text_config"]["vocab_size"]
    named = json.load(open(folder + "/tokenizer_config.json"))["added_tokens_decoder"]
    names = {i: named[str(i)]["content"] if str(i) in named else f"<|reserved_token_{i}|>"
             for i in range(len(ranks), size)}
    return tiktoken.Encoding("golden", pat_str=PATTERN, mergeable_ranks=ranks,
                             special_tokens={name: i for i, name in names.items()})


ASSIGNED = [chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")]
SPACES = " \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f\x85\xa0\u1680\u180e\u2000\u2009\u200a\u200b\u2028\u2029\u202f\u205f\u3000\ufeff"
MARKS = "\u0301\u0308\u0300\u0327\u20dd\u093e\u094d\u0e31\u05b0\ufe0f"
HAN = "的一是了我不人在他有这上们来到时大地为子中你说生国年著就那和要々〇〆⺀⼀𠀀𠮷龥㐀"
CJK_MARKS = "。，、；：？！「」『』《》（）・ー〜　"
ALPHABETS = [
    "etaoinshrdlucmfwypvbgkjqxz", "ETAOINSHRDLUCM", "àéîõüßñçøåæœ", "ÀÉÎÕÜÑÇØÅ", "абвгдежзийклмн", "АБВГДЕ",
    "αβγδεζηθ", "ΑΒΓΔ", "אבגדהוזח", "ابتثجحخدذرز", "กขคงจฉชซฌญา", "अआइईउऊकखगघ", "가나다라마바사한국어",
    "あいうえおかきくけこ", "アイウエオカキクケコッャ", "ǅǈǋᾈ", "ʰʲʷˀˠᵃᵇ", "ªº", "ⅠⅡⅢⅰⅱ", "𝐀𝐁𝐚𝐛𝔸",
]
DIGITS = ["0123456789", "٠١٢٣٤٥", "०१२३", "²³¹½¼①②", "〇一二三"]
SYMBOLS = ["!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", "€£¥¢©®™§¶†‡•…‰", "←↑→↓⇒∀∃∈∑√∞≠≤≥", "🎉😀👍🏽❤️🔥🚀👩‍👩‍👧🇩🇪", "─│┌┐└┘█▓▒░"]
CONTRACTIONS = ["'s", "'S", "'t", "'re", "'RE", "'Ve", "'m", "'ll", "'LL", "'d", "'ſ", "'x", "’s"]
CODE = ["def f(x):\n    return x**2\n", "for (int i = 0; i < n; i++) {\n\ta[i] += 1;\n}\n", "SELECT * FROM t WHERE a != 'b';",
        "<div class=\"x\">&amp;</div>", "{\"key\": [1, 2.5, null]}", "https://example.org/a?b=c#d", "#include <stdio.h>\r\n",
        "fn main() { println!(\"{}\", 1); }", "\\frac{1}{2}", "$x->{y}[0]", "// ----------------\n", "x &&= y || !z;"]
WORDS = ["The", "quick", "brown", "vault", "access", "code", "HTTPServer", "camelCase", "snake_case", "SQLite", "PostgreSQL",
         "don't", "I'LL", "naïve", "Straße", "ЁЖИК", "İstanbul", "ﬁne", "東京", "中文abc", "xn--", "3rd", "v2.0.1", "0x1F"]


def segment(r):
    kind = r.randrange(13)
    some = lambda letters, most: "".join(r.choices(letters, k=r.randint(1, most)))
    if kind == 0:
        return r.choice(WORDS)
    if kind == 1:
        return some(r.choice(ALPHABETS), 8)
    if kind == 2:
        return some(r.choice(DIGITS), 7)
    if kind == 3:
        return some(r.choice(SYMBOLS), 5)
    if kind == 4:
        return some(SPACES, 4)
    if kind == 5:
        return r.choice(" \n\t\r") * r.randint(1, 9)
    if kind == 6:
        return some(HAN, 6) + (r.choice(CJK_MARKS) if r.random() < .5 else "")
    if kind == 7:
        return r.choice(WORDS) + r.choice(CONTRACTIONS)
    if kind == 8:
        return some(r.choice(ALPHABETS), 3) + some(MARKS, 2)
    if kind == 9:
        return r.choice(CODE)
    if kind == 10:
        return some(ASSIGNED, 4)
    if kind == 11:
        return "".join(r.choice(r.choice(ALPHABETS)) for _ in range(r.randint(1, 6)))
    return " " + r.choice(WORDS)


def text(r):
    return "".join(segment(r) for _ in range(r.randint(1, 7)))


def broken(r):
    """A text with bytes removed, changed or put in, or bytes without sense."""
    if r.random() < .3:
        return bytes(r.choice([r.randrange(256), r.randrange(0x80, 0x100), 0xed, 0xf0, 0x41]) for _ in range(r.randint(1, 12)))
    b = bytearray(text(r).encode())
    for _ in range(r.randint(1, 4)):
        i = r.randrange(len(b) + 1)
        b[i:i + r.randrange(2)] = bytes([r.choice([r.randrange(256), 0x80, 0xc0, 0xe2, 0xed, 0xf4, 0xff])] * r.randrange(2))
    return bytes(b)


def cut(s):
    """The release's cutting of long texts."""
    for start in range(0, len(s), MAX_CHARS):
        chunk = s[start:start + MAX_CHARS]
        begin, run = 0, 0
        for i, c in enumerate(chunk):
            run = run + 1 if i and c.isspace() == chunk[i - 1].isspace() else 1
            if run > MAX_RUN:
                yield chunk[begin:i]
                begin, run = i, 1
        yield chunk[begin:]


def main():
    enc = encoding(sys.argv[1])
    r = random.Random(SEED)
    plain = lambda s: enc.encode(s, disallowed_special=())
    out = {"max_chars": MAX_CHARS, "max_run": MAX_RUN, "plain": [], "special": [], "chunked": []}
    for i in range(3000):
        raw = broken(r) if i % 5 == 4 else text(r).encode()
        out["plain"].append([raw.hex(), plain(raw.decode("utf-8", errors="replace"))])
    names = list(enc.special_tokens_set)
    names.sort()
    for i in range(200):
        s = "".join(r.choice([text(r), r.choice(names), r.choice(names)[:-1]]) for _ in range(r.randint(1, 3)))
        out["special"].append([s.encode().hex(), enc.encode(s, allowed_special="all")])
    for i in range(400):
        s = "".join(r.choice(["a", " ", "\x1c", "\u180e", "字", "x y", text(r)]) * r.randint(1, 9) for _ in range(r.randint(1, 4)))
        s = s[:150]
        out["chunked"].append([s.encode().hex(), [i for part in cut(s) for i in plain(part)]])
    with open(sys.argv[2], "w") as f:
        lists = [f'"{k}":[\n' + ",\n".join(json.dumps(c, separators=(",", ":")) for c in v) + "]"
                 if isinstance(v, list) else f'"{k}":{v}' for k, v in out.items()]
        f.write("{" + ",\n".join(lists) + "}\n")


if __name__ == "__main__":
    main()
