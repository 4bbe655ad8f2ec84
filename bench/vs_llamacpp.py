"""Firstlight beside llama.cpp on the same weights, in one run.

    python3 bench/vs_llamacpp.py LLAMA_CPP BUILD FIRSTLIGHT MODEL GGUF [--threads N] [--prompts 1,32,512,4096]
                                 [--contexts 0,8192,65536] [--batches 1,4,16] [--modes exact,fast,fast+q8]
                                 [--steps N] [--limit SECONDS] [--keep DIR] [--no-logits]

LLAMA_CPP is llama.cpp's source folder, BUILD where it was built as static libraries (cmake -S LLAMA_CPP -B
BUILD -DBUILD_SHARED_LIBS=OFF -DCMAKE_BUILD_TYPE=Release, target llama), MODEL a folder of
tools/make_model.py and GGUF the same weights by bench/to_gguf.py.  llama.cpp has no indexer for this family:
both attend to everything (--dense).  With GGUF "-" Firstlight is measured alone.

Prints how far the logits agree, on a small model written for it in which every token meets every expert:
where experts are chosen, the choices of random weights are so close that each engine's rounding turns some
of them, and with them the logits.  Then a table: tokens per second of llama.cpp, and of Firstlight as it is
(exact), with rounded activations (fast) and with an 8-bit trunk too (fast+q8), each also as a multiple of
llama.cpp's, and below it the share of the machine's limit that the same process measured: for prompts of the
BF16 peak, for generation of the speed of memory.  Engines take turns cell by cell, so that what else the
machine does meets both.  With --keep llama.cpp's state after each context stays in a folder, for all its
sequences and for later runs.  llama.cpp multiplies BF16 weights with BF16 activations and MXFP4 with 8-bit ones:
`fast` is its like.

A row is printed when it is measured.  A cell whose prompts alone would take more than --limit seconds, by the
speed of the longest prompt measured before, is left out, and one that takes four times as long is stopped;
either is said.  Needs numpy, a C and a C++ compiler.
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

MODES = {"exact": [], "fast": ["--precision", "fast"], "fast+q8": ["--precision", "fast", "--trunk", "q8"]}
PEER = "llama.cpp"

o = argparse.ArgumentParser()
for name in ("llama_cpp", "build", "firstlight", "model", "gguf"):
    o.add_argument(name)
o.add_argument("--threads", default="2")
o.add_argument("--steps", type=int, default=32, help="tokens generated per sequence")
o.add_argument("--runs", default="2")
o.add_argument("--limit", type=float, default=120, help="seconds that the prompts of a cell may take")
o.add_argument("--keep", help="a folder in which llama.cpp's contexts stay")
o.add_argument("--no-logits", action="store_true", help="leave the comparison of logits out")
for name, default in (("contexts", "0,8192,65536"), ("prompts", "1,32,512,4096"), ("batches", "1,4,16"), ("modes", ",".join(MODES))):
    o.add_argument("--" + name, default=default)
args = o.parse_args()
modes = [m for m in args.modes.split(",") if m]
if not set(modes) <= set(MODES):
    raise SystemExit(f"--modes: of {', '.join(MODES)}")
peer = args.gguf != "-"


def numbers(text):
    return [int(x) for x in text.split(",") if x]


def output(*command, timeout=None):
    return subprocess.run([str(c) for c in command], check=True, capture_output=True, text=True, timeout=timeout).stdout


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
    for mode in modes:
        output(args.firstlight, "run", model, "--ids", ids, "-n", "0", "--dump", folder / "ours", "--dense", *MODES[mode])
        ours = dumped(folder / "ours", vocab)
        error = np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)
        same = (ours.argmax(1) == theirs.argmax(1)).mean()
        print(f"logits of 64 positions, {mode}: relative difference {error:.1e}, the same best token at {same:.0%}", flush=True)
        if error > (.3 if "q8" in mode else .1):
            raise SystemExit("the engines do not compute the same model")


def measured(cell, *command):
    """What a command prints; None, with the reason printed, when it fails or takes too long."""
    try:
        return output(*command, timeout=4 * args.limit)
    except subprocess.TimeoutExpired:
        print(f"    {cell}: stopped after {4 * args.limit:.0f} s", flush=True)
    except subprocess.CalledProcessError as e:
        print(f"    {cell}: {(e.stderr.strip().splitlines() or ['failed'])[-1]}", flush=True)
    return None


def cells(what, tokens, speeds, theirs, ours, speed_key, share):
    """Measures a row: theirs() and ours(mode) give commands.  tokens: of its prompts, for the limit; speeds: of
    the longest prompt yet, by engine.  Returns the speeds of the row."""
    got, shares = {}, {}
    for name in ([PEER] if peer else []) + modes:
        if tokens and name in speeds and tokens / speeds[name] > args.limit:
            print(f"    {what}, {name}: left out, its prompts would take {tokens / speeds[name]:.0f} s", flush=True)
            continue
        text = measured(f"{what}, {name}", *(theirs() if name == PEER else ours(name)))
        if text is None:
            continue
        if name == PEER:
            got[name] = float(text)
        else:
            result = json.loads(text)
            got[name] = result[speed_key]
            shares[name] = share(result)
    base = got.get(PEER)
    columns = [f"{got[m]:9.1f} {got[m] / base:5.2f}x" if base and m in got else f"{got[m]:9.1f}       " if m in got else f"{'-':>16}"
               for m in modes]
    print(f"{what:30} {f'{base:9.1f}' if base else f'{chr(45):>9}'}   " + "   ".join(columns))
    print(f"{'    share of the limit':30} {'':9}   " + "   ".join(f"{shares[m]:9.0%}       " if m in shares else f"{'':16}" for m in modes),
          flush=True)
    return got


def main():
    def bench(*options):
        return lambda mode: [args.firstlight, "bench", args.model, "--json", "--dense", "-t", args.threads, *options, *MODES[mode]]

    def kept(context):
        return [pathlib.Path(args.keep) / f"{context}.state"] if args.keep and context else []

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        driver = build_driver(folder) if peer else None
        if peer and not args.no_logits:
            compare_logits(folder, driver)
        machine = json.loads(output(args.firstlight, "bench", "machine", "--json", "-t", args.threads))["all"]
        print(f"{args.threads} threads: memory {machine['memory'] / 1e9:.1f} GB/s, f32 {machine['f32'] / 1e9:.0f}, bf16 "
              f"{machine['bf16'] / 1e9:.0f}, int8 {machine['int8'] / 1e9:.0f} GFLOP/s")
        print(f"{'tokens/s':30} {PEER:>9}   " + "   ".join(f"{m:>16}" for m in modes), flush=True)
        speeds = {}
        for n in numbers(args.prompts):
            speeds.update(cells(
                f"prompt of {n}", n, speeds, lambda: [driver, args.gguf, args.threads, "prompt", n, args.runs],
                bench("-p", n, "-n", "2", "-r", args.runs), "prompt_tokens_per_second",
                lambda v: v["prompt_tokens_per_second"] * v["prompt_flops_per_token"] / (v["machine"]["bf16"] or v["machine"]["f32"])))
        for context in numbers(args.contexts):
            for batch in numbers(args.batches):
                cells(f"generation, {batch} at context {context}", batch * context, speeds,
                      lambda: [driver, args.gguf, args.threads, "generate", batch, context, args.steps] + kept(context),
                      bench("-p", max(context, 1), "-n", args.steps, "--batch", batch, "-r", args.runs if context == 0 else "1"),
                      "generation_tokens_per_second", lambda v: v["bytes_per_second"] / v["machine"]["memory"])


main()
