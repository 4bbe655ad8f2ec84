#!/usr/bin/env python3
"""Finds a needle in a long text through sparse attention.

    needle.py BINARY [TOKENS] [DEPTH...] [-- OPTION...]     default: 32768 tokens, depths 0.1 0.5 0.9

The haystack is documentation text from a golden file, repeated to the wanted length; the needle is
one sentence with an access code; the answer must contain the code.  The selector keeps 128
positions of the whole text for each token, so finding it proves the indexer, the top-k and the
sparse attention together.
"""
import base64
import json
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

TINY = pathlib.Path("models/firstlight-tiny")
SOURCE = pathlib.Path("tests/data/golden/chat_needle_6k.safetensors")


def haystack_text():
    ranks = {}
    for line in (TINY / "tiktoken.model").read_bytes().splitlines():
        token, rank = line.split()
        ranks[int(rank)] = base64.b64decode(token)
    data = SOURCE.read_bytes()
    (n,) = struct.unpack("<Q", data[:8])
    begin, end = json.loads(data[8:8 + n])["ids"]["data_offsets"]
    ids = struct.unpack(f"<{(end - begin) // 4}i", data[8 + n + begin:8 + n + end])
    text = b"".join(ranks.get(i, b"\n") for i in ids).decode("utf-8", "replace")
    text = text[text.index("56.3. Error"):text.rindex("Tell me the access code")]
    return re.sub(r"\nThe access code of [^\n]*\n", "", text)


def prompt(text, depth, code):
    at = text.index("\n", int(len(text) * depth))
    return (text[:at] + f"\nThe access code of the north vault is {code}.\n" + text[at + 1:] +
            "\n\nWhat is the access code of the north vault?")


def ask(binary, options, text, depth, code):
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as f:
        f.write(prompt(text, depth, code))
        f.flush()
        p = subprocess.run([binary, "run", str(TINY), "-f", f.name, "--think", "off", "-n", "60",
                            "--context", "200000", "--json", *options], capture_output=True, text=True)
    assert p.returncode == 0, p.stderr
    return json.loads(p.stdout)


def main():
    args, options = sys.argv[1:], []
    if "--" in args:
        at = args.index("--")
        args, options = args[:at], args[at + 1:]
    binary = args[0]
    want = int(args[1]) if len(args) > 1 else 32768
    depths = [float(d) for d in args[2:]] or [0.1, 0.5, 0.9]
    unit = haystack_text()
    tokens = ask(binary, options, unit, 0.5, 11111)["usage"]["prompt_tokens"]
    text = unit * (want // tokens + 1)
    failed = 0
    for i, depth in enumerate(depths):
        code = 20000 + 7919 * (i + 1)
        out = ask(binary, options, text, depth, code)
        found = str(code) in out["text"]
        failed += not found
        print(f"{'ok  ' if found else 'FAIL'} depth {depth}: {out['usage']['prompt_tokens']} tokens "
              f"in {out['timing']['prompt_seconds']:.1f} s: {out['text']!r}", flush=True)
        assert out["usage"]["prompt_tokens"] >= want
    print(f"{len(depths) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
