"""The way of docs/porting.md with the live package: tools/dump_activations.py runs the checkpoint of
tests/data/youtu on prompts that are in no file, and `verify` compares.

    python tests/oracles/porting.py BUILD
"""
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
YOUTU = ROOT + "/tests/data/youtu"


def main():
    build, bad = sys.argv[1], 0
    with tempfile.TemporaryDirectory() as folder:
        for n, seed in (1, 1), (64, 2), (300, 3):
            golden = f"{folder}/{n}.safetensors"
            subprocess.run([sys.executable, ROOT + "/tools/dump_activations.py", YOUTU, golden, "--random", str(n),
                            "--seed", str(seed)], check=True, stderr=subprocess.DEVNULL)
            for layers in [], ["--layers", "2"]:
                bad += subprocess.run([build + "/firstlight", "verify", YOUTU, golden, "--model-def",
                                       YOUTU + "/youtu.lua", *layers]).returncode != 0
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
