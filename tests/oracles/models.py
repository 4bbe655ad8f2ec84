"""The models that tools/make_oracles.py makes against the Python package transformers: the committed
files with texts that are in no file, then new weights of the same configurations.

    python tests/oracles/models.py BUILD
"""
import os
import random
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, ROOT + "/tools")
from make_oracles import LENGTHS, MODELS, golden, load, make, save_file  # noqa: E402

SEED = 20260


def verify(build, folder, files):
    print("==", folder, flush=True)
    command = [build + "/firstlight", "verify", "--tolerance", "1e-4", folder, *files]
    return subprocess.run(command, check=False).returncode == 0


def main():
    build, bad = sys.argv[1], 0
    with tempfile.TemporaryDirectory() as tmp:
        files = [f"{tmp}/t{n}.safetensors" for n in LENGTHS]
        for name in MODELS:
            folder = f"{ROOT}/tests/data/{name}"
            model, r = load(folder), random.Random(SEED)
            for path, n in zip(files, LENGTHS):
                save_file(golden(model, n, r)[0], path)
            bad += not verify(build, folder, files)
            make(tmp, name, SEED)
            bad += not verify(build, f"{tmp}/{name}", [f"{tmp}/{name}/golden/t{n}.safetensors" for n in LENGTHS])
    sys.exit(f"{bad} of {2 * len(MODELS)} models differ" if bad else 0)


if __name__ == "__main__":
    main()
