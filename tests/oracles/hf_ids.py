"""Ids of 10,000 random texts for each tokenizer of tests/data/tokenizers, against the Python package
`tokenizers`: many scripts, code, white space, broken UTF-8, with and without added tokens; and a few
long texts.

    python tests/oracles/hf_ids.py BUILD
"""
import os
import random
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, ROOT + "/tools")
from tokenizers import Tokenizer  # noqa: E402

from make_tokenizer_golden import text  # noqa: E402
from make_tokenizer_tests import KINDS, ids, names_of, plain, sample  # noqa: E402

N, SEED = 10000, 6


def ours(build, folder, size, texts, *flags):
    out = subprocess.run([build + "/oracle_hf_ids", folder, str(size), *flags], check=True, stdout=subprocess.PIPE,
                         input="".join(t.hex() + "\n" for t in texts).encode())
    return [[int(i) for i in line.split()] for line in out.stdout.decode().splitlines()]


def main():
    build, bad = sys.argv[1], 0
    for kind in KINDS:
        folder = f"{ROOT}/tests/data/tokenizers/{kind}"
        t = Tokenizer.from_file(folder + "/tokenizer.json")
        size, r = t.get_vocab_size(), random.Random(SEED)
        texts = list(sample(t, r, N, names_of(t)))
        texts += ["".join(text(r) for _ in range(3000)).encode() for _ in range(3)]
        for flags, oracle in ((["--specials"], t), ([], plain(t))):
            want = [ids(oracle, raw) for raw in texts]
            got = ours(build, folder, size, texts, *flags)
            wrong = [i for i in range(len(texts)) if got[i] != want[i]]
            bad += len(wrong)
            print(f"{kind} {' '.join(flags) or '(plain)'}: {len(texts)} texts, {sum(map(len, want))} ids, "
                  f"{len(wrong)} differ")
            for i in wrong[:3]:
                print("   ", texts[i][:200], got[i][:40], want[i][:40])
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
