"""Firstlight beside llama.cpp on the same weights, in one run.

    python3 bench/vs_llamacpp.py LLAMA_CPP BUILD FIRSTLIGHT MODEL GGUF [--threads N] [--contexts 0,8192]
                                 [--prompts 1,32,512] [--batches 1,4,16]

LLAMA_CPP is llama.cpp's source folder, BUILD where it was built as static libraries (cmake -S LLAMA_CPP -B
BUILD -DBUILD_SHARED_LIBS=OFF -DCMAKE_BUILD_TYPE=Release, target llama), MODEL a folder of
tools/make_model.py and GGUF the same weights by bench/to_gguf.py.  llama.cpp has no indexer for this family:
both attend to everything (--dense).

Prints how far the logits agree, on a small model written for it in which every token meets every expert:
where experts are chosen, the choices of random weights are so close that each engine's rounding turns some
of them, and with them the logits.  Then a table: tokens per second of llama.cpp, and of Firstlight as it is
(exact), with 8-bit activations of the experts (fast) and with an 8-bit trunk (fast, q8), each also as a
multiple of llama.cpp's.  Engines take turns cell by cell, so that what else the machine does meets both.
llama.cpp multiplies BF16 weights with BF16 activations and MXFP4 with 8-bit ones: `fast` is its like.
Needs numpy, a C and a C++ compiler.
"""
import argparse
import glob
import json
import pathlib
import random
import subprocess
import sys
import tempfile

import numpy as np

o = argparse.ArgumentParser()
for name in ("llama_cpp", "build", "firstlight", "model", "gguf"):
    o.add_argument(name)
o.add_argument("--threads", default="2")
o.add_argument("--steps", type=int, default=32, help="tokens generated per sequence")
o.add_argument("--runs", default="2")
for name, default in (("contexts", "0,8192"), ("prompts", "1,32,512"), ("batches", "1,4,16")):
    o.add_argument("--" + name, default=default)
args = o.parse_args()
MODES = {"exact": [], "fast": ["--precision", "fast"], "fast, q8": ["--precision", "fast", "--trunk", "q8"]}


def numbers(text):
    return [int(x) for x in text.split(",") if x]


def output(*command):
    return subprocess.run([str(c) for c in command], check=True, capture_output=True, text=True).stdout


def build_driver(folder):
    driver = folder / "llama_driver"
    source = pathlib.Path(__file__).parent / "llama_driver.c"
    include = [f"-I{args.llama_cpp}/include", f"-I{args.llama_cpp}/ggml/include"]
    output("cc", "-O2", *include, "-c", source, "-o", folder / "driver.o")
    libraries = glob.glob(args.build + "/src/libllama.a") + sorted(glob.glob(args.build + "/ggml/src/**/libggml*.a", recursive=True))
    output("c++", folder / "driver.o", "-Wl,--start-group", *libraries, "-Wl,--end-group", "-fopenmp", "-ldl", "-lpthread", "-lm",
           "-o", driver)
    return driver


def dumped(path, vocab):
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    begin, end = json.loads(data[8:8 + size])["logits"]["data_offsets"]
    return np.frombuffer(data[8 + size + begin:8 + size + end], np.float32).reshape(-1, vocab)


def compare_logits(folder, driver):
    model, gguf, ids = folder / "model", folder / "model.gguf", folder / "ids.txt"
    here, r = pathlib.Path(__file__).parent, random.Random(1)
    output(sys.executable, here.parent / "tools/make_model.py", "tiny", model, "--experts", "4")
    output(sys.executable, here / "to_gguf.py", args.llama_cpp, model, gguf)
    vocab = json.loads(output(args.firstlight, "inspect", model, "--json"))["vocabulary"]
    ids.write_text(" ".join(str(r.randrange(vocab - 300)) for _ in range(64)))
    output(driver, gguf, args.threads, "logits", ids, folder / "theirs")
    theirs = np.fromfile(folder / "theirs", np.float32).reshape(-1, vocab)
    for mode, options in MODES.items():
        output(args.firstlight, "run", model, "--ids", ids, "-n", "0", "--dump", folder / "ours", "--dense", *options)
        ours = dumped(folder / "ours", vocab)
        error = np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)
        same = (ours.argmax(1) == theirs.argmax(1)).mean()
        print(f"logits of 64 positions, {mode}: relative difference {error:.1e}, the same best token at {same:.0%}", flush=True)
        if error > (.3 if "q8" in mode else .1):
            raise SystemExit("the engines do not compute the same model")


def row(what, theirs, ours):
    cells = [f"{v:9.1f} {v / theirs:5.2f}x" for v in ours.values()]
    print(f"{what:32} {theirs:9.1f}   " + "   ".join(cells), flush=True)


def ours(*options):
    return {mode: json.loads(output(args.firstlight, "bench", args.model, "--json", "--dense", "-t", args.threads, "-r", args.runs,
                                    *options, *extra)) for mode, extra in MODES.items()}


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        driver = build_driver(folder)
        compare_logits(folder, driver)
        machine = json.loads(output(args.firstlight, "bench", "machine", "--json", "-t", args.threads))["all"]
        print(f"{args.threads} threads: memory {machine['memory'] / 1e9:.1f} GB/s, f32 {machine['f32'] / 1e9:.0f}, bf16 "
              f"{machine['bf16'] / 1e9:.0f}, int8 {machine['int8'] / 1e9:.0f} GFLOP/s")
        print(f"{'tokens/s':32} {'llama.cpp':>9}   " + "   ".join(f"{m:>16}" for m in MODES))
        for n in numbers(args.prompts):
            theirs = float(output(driver, args.gguf, args.threads, "prompt", n, args.runs))
            got = ours("-p", n, "-n", "2")
            row(f"prompt of {n}", theirs, {m: v["prompt_tokens_per_second"] for m, v in got.items()})
        for context in numbers(args.contexts):
            for batch in numbers(args.batches) if context == 0 else [1]:
                theirs = float(output(driver, args.gguf, args.threads, "generate", batch, context, args.steps))
                got = ours("-p", max(context, 1), "-n", args.steps, "--batch", batch)
                row(f"generation, {batch} at context {context}", theirs,
                    {m: v["generation_tokens_per_second"] for m, v in got.items()})
                print(f"{'':32} {'':9}   " + "   ".join(
                    f"{v['bytes_per_second'] / machine['memory']:9.0%} of memory" for v in got.values()))


main()
