"""Writes tests/data/tokenizers: a small tokenizer.json for each way that releases build one, and for
each a file of texts with the ids that the Python package `tokenizers` gives.

    python3 tools/make_tokenizer_tests.py tests/data/tokenizers

Needs tokenizers and tiktoken.  The pre-tokenizers, regular expressions and flags are those of the
releases; the vocabularies are trained here, on the pages of documentation and on random texts of
many scripts.  Texts are bytes in hexadecimal, because some are not UTF-8; those are decoded with
errors="replace" first.

  splits  three splits in a row; merges as "left right"; tokens with normalized false, special or not
  single  one split; merges as pairs; a whole piece that is a token is that token (ignore_merges)
  sets    one split with intersections of sets; tokens that take white space with them
  nfc     text in Normalization Form C, tokens looked for after it; digits one by one
  mixed   every behaviour of a split, literal patterns, and ByteLevel's own split
"""
import glob
import json
import os
import random
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

sys.path.insert(0, os.path.dirname(__file__))
from make_tokenizer_golden import PATTERN, broken, text  # noqa: E402

SEED = 20261130
SAMPLE = 400
HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
LETTERS = (r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"""
           r"""|\s*[\r\n]+|\s+(?!\S)|\s+""")
PUNCTUATION = (r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
               r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""")


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def token(name, special=True, normalized=False, **flags):
    return AddedToken(name, special=special, normalized=normalized, **flags)


KINDS = {
    "splits": dict(
        normalizer=normalizers.Sequence([]),
        pre=[split(r"\p{N}{1,3}"), split("[一-龥\u3040-ゟ゠-ヿ]+"), split(PUNCTUATION), BYTES],
        tokens=[token("<｜begin▁of▁sentence｜>"), token("<｜end▁of▁sentence｜>"), token("<｜User｜>", False),
                token("<｜Assistant｜>", False), token("<think>", False), token("</think>", False), token("｜DSML｜")]),
    "single": dict(
        pre=[split(LETTERS), BYTES], pairs=True, whole=True,
        tokens=[token("<|endoftext|>"), token("[gMASK]"), token("<sop>"), token("<|user|>"), token("<|assistant|>"),
                token("<|system|>"), token("<|observation|>"), token("<think>", False), token("</think>", False)]
        + [token(f"<{end}{name}>", False) for name in ("tool_call", "arg_key", "arg_value", "tool_response")
           for end in ("", "/")]),
    "sets": dict(
        pre=[split(PATTERN), BYTES], whole=True,
        tokens=[token("[BOS]"), token("<|im_end|>"), token("<|im_user|>", lstrip=True), token("<|im_middle|>", rstrip=True),
                token("[MASK]", lstrip=True, rstrip=True), token("<|im|>", False, True)]),
    "nfc": dict(
        normalizer=normalizers.NFC(), pre=[pre_tokenizers.Digits(individual_digits=True), split(LETTERS), BYTES],
        pairs=True, tokens=[token("<|im_start|>"), token("<|im_end|>"), token("café", False, True), token("<|fim|>", False)]),
    "mixed": dict(
        normalizer=normalizers.Sequence([normalizers.NFC()]),
        pre=[pre_tokenizers.Digits(individual_digits=False), pre_tokenizers.Split("->", "merged_with_previous"),
             split(r"\(|\[", "merged_with_next"), split(r"[a-z]{1,9}", "contiguous"), pre_tokenizers.Split("~", "removed"),
             split(r"[^\s]+", "merged_with_previous", True), pre_tokenizers.ByteLevel(add_prefix_space=False)],
        tokens=[token("<|endoftext|>")]),
}


def train(kind, corpus):
    t = Tokenizer(models.BPE(ignore_merges=kind.get("whole", False)))
    if "normalizer" in kind:
        t.normalizer = kind["normalizer"]
    t.pre_tokenizer = pre_tokenizers.Sequence(kind["pre"])
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(corpus, trainers.BpeTrainer(
        vocab_size=1400, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), min_frequency=2))
    for added in kind["tokens"]:
        t.add_special_tokens([added]) if added.special else t.add_tokens([added])
    return t


def write(t, pairs, path):
    """The file as a release has it: merges in one of the two spellings."""
    root = json.loads(t.to_str())
    merges = [m if isinstance(m, list) else m.split(" ") for m in root["model"]["merges"]]
    root["model"]["merges"] = merges if pairs else [" ".join(m) for m in merges]
    with open(path, "w") as f:
        json.dump(root, f, ensure_ascii=False, separators=(",", ":"))
        f.write("\n")


def sample(t, r, n, names):
    """n texts as bytes, some broken, and whether names of tokens count in them."""
    for i in range(n):
        raw = broken(r) if i % 5 == 4 else text(r).encode()
        if i % 4 == 3:
            parts = [text(r), " ", "\n\u3000", "x", r.choice(names), r.choice(names), r.choice(names)[:-1], "cafe\u0301"]
            raw = "".join(r.choice(parts) for _ in range(r.randint(1, 6))).encode()
        yield raw


def ids(t, raw):
    return t.encode(raw.decode("utf-8", errors="replace"), add_special_tokens=False).ids


def plain(t):
    """The same without added tokens: what a user's text becomes."""
    root = json.loads(t.to_str())
    root["added_tokens"] = []
    return Tokenizer.from_str(json.dumps(root))


def names_of(t):
    return [a["content"] for a in json.loads(t.to_str())["added_tokens"]]


def main():
    r = random.Random(SEED)
    corpus = [open(p).read() for p in sorted(glob.glob(HERE + "/docs/internals/*.md"))]
    corpus += [text(r) for _ in range(3000)]
    for name, kind in KINDS.items():
        folder = f"{sys.argv[1]}/{name}"
        os.makedirs(folder, exist_ok=True)
        write(train(kind, corpus), kind.get("pairs", False), folder + "/tokenizer.json")
        t = Tokenizer.from_file(folder + "/tokenizer.json")
        bare = plain(t)
        out = {"size": t.get_vocab_size(), "cases": []}
        for raw in sample(t, r, SAMPLE, names_of(t)):
            out["cases"].append([raw.hex(), ids(t, raw), ids(bare, raw)])
        with open(folder + "/expected.json", "w") as f:
            cases = ",\n".join(json.dumps(c, separators=(",", ":")) for c in out["cases"])
            f.write(f'{{"size":{out["size"]},"cases":[\n{cases}]}}\n')


if __name__ == "__main__":
    main()
