#!/usr/bin/env python3
"""The random checkpoint that tools/make_model.py writes is one that Firstlight runs.

    make_model.py BINARY

Skipped (77) where no Python has numpy, which the tool needs.
"""
import json
import subprocess
import sys
import tempfile



def has_numpy(python):
    return subprocess.run([python, "-c", "import numpy"], capture_output=True).returncode == 0


# The system's own interpreter has Debian's numpy where another one comes first.
python = next(filter(has_numpy, [sys.executable, "/usr/bin/python3"]), None)
if not python:
    print("no numpy: tools/make_model.py not tested")
    sys.exit(77)
binary = sys.argv[1]


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


with tempfile.TemporaryDirectory() as folder:
    output(python, "tools/make_model.py", "tiny", folder, "--layers", "4", "--experts", "8")
    model = json.loads(output(binary, "inspect", folder, "--json"))
    assert len(model["layers"]) == 4 and not model["missing"] + model["unknown"], model
    output(binary, "tokenize", folder, "random")
    speed = json.loads(output(binary, "bench", folder, "-p", "70", "-n", "8", "-r", "1", "--json"))
    assert speed["generation_tokens_per_second"] > 0, speed
