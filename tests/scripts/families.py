#!/usr/bin/env python3
"""Each family from text to text: `run` and the server on random models, with a tokenizer of the
family's kind and its own chat format.

    families.py BINARY       run from the root of the repository; prints one line per test

The models of tests/data have fewer rows of the embedding than the tokenizers of tests/data have
tokens; here their rows are repeated.  What such a model says means nothing: it must be the same
whole, streamed and again, and made of what the tokenizer has.
"""
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile

from serving import COMPLETIONS, Server, ask, run

BINARY = sys.argv[1]
DATA = "tests/data"
COLOURS = ["red", "green", "blue"]
TOOLS = [{"type": "function", "function": {"name": "set_light", "parameters": {
    "type": "object", "required": ["colour"], "additionalProperties": False,
    "properties": {"colour": {"type": "string", "enum": COLOURS}}}}}]
# A model, files of a tokenizer, their number of tokens, and whether these write tool calls.
FAMILIES = {
    "deepseek_v32": ("odd", ["tokenizers/splits/tokenizer.json"], 1407, True),
    "glm_moe_dsa": ("list", ["tokenizers/single/tokenizer.json"], 1417, True),
    "kimi_linear": ("odd", ["linear/tiktoken.model", "linear/tokenizer_config.json"], 300, False),
}
PER_VOCABULARY = ("model.embed_tokens.weight", "lm_head.weight")


def widen(source, target, rows):
    """A copy of a checkpoint whose vocabulary has so many rows."""
    with open(f"{source}/config.json") as f:
        config = json.load(f)
    with open(f"{target}/config.json", "w") as f:
        json.dump(config | {"vocab_size": rows, "eos_token_id": None}, f)
    with open(f"{source}/model.safetensors", "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    header.pop("__metadata__", None)
    parts, at = [], 0
    for name, t in header.items():
        part = data[slice(*t["data_offsets"])]
        if name in PER_VOCABULARY:
            row = len(part) // t["shape"][0]
            part = (part * (rows // t["shape"][0] + 1))[:rows * row]
            t["shape"][0] = rows
        t["data_offsets"] = [at, at + len(part)]
        at += len(part)
        parts.append(part)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(f"{target}/model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(parts))


def cli(folder, *arguments):
    done = subprocess.run([BINARY, "run", folder, "-n", "12", *arguments],
                          capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


def check(folder, tools):
    assert cli(folder, "--raw", "-p", "The index of a table") == cli(folder, "--raw", "-p", "The index of a table")
    cli(folder, "-p", "Hello", "--system", "Be brief.", "--think", "off")
    cli(folder, "-p", "Hello", "--think", "high")
    with Server(BINARY, model=folder) as s:
        raw = s.post({"prompt": "The index", "max_tokens": 12}, COMPLETIONS)
        assert raw["usage"]["completion_tokens"] == 12
        parts = s.stream({"prompt": "The index", "max_tokens": 12}, COMPLETIONS)
        assert "".join(p["choices"][0]["text"] for p in parts if p["choices"]) == raw["choices"][0]["text"]
        question = ask("What is the weather in Hanoi?", max_tokens=12)
        answer = s.post(question)["choices"][0]["message"]["content"] or ""
        chunks = [p["choices"][0]["delta"].get("content") or "" for p in s.stream(question) if p["choices"]]
        assert "".join(chunks) == answer
        if not tools:
            return
        for seed in range(3):  # not one greedy: such models repeat themselves
            call = s.post(question | {"tools": TOOLS, "tool_choice": "required", "max_tokens": 200,
                                      "temperature": 1, "seed": seed})["choices"][0]["message"]["tool_calls"][0]
            assert call["function"]["name"] == "set_light"
            assert json.loads(call["function"]["arguments"])["colour"] in COLOURS


def main():
    with tempfile.TemporaryDirectory() as tmp:
        tests = []
        for family, (model, files, rows, tools) in FAMILIES.items():
            folder = os.path.join(tmp, family)
            os.mkdir(folder)
            widen(f"{DATA}/{family}/{model}", folder, rows)
            for name in files:
                shutil.copy(f"{DATA}/{name}", folder)
            tests.append((family, lambda folder=folder, tools=tools: check(folder, tools)))
        return run(tests)


if __name__ == "__main__":
    sys.exit(main())
