#!/usr/bin/env python3
"""Long contexts: speed of the prompt and of generation, the indexer's share, needles, memory.

    python3 bench/long_context.py FIRSTLIGHT MODEL [--contexts 4096,32768,131072] [--depths 0.1,0.5,0.9]
            [--kv f32] [--dense-up-to 32768] [--threads N] [--csv docs/long_context.csv] [--label TEXT]

For each type of cache (--kv; several with commas) and context: `bench` with random tokens, sparse and, up to
--dense-up-to, dense; then for each depth a text of that length with a needle in it, of which the run's memory,
less what the program takes by itself (a run of one word), is compared with what `plan` predicts.  Prints a table and rewrites the rows of the CSV that have the same label,
cache and context; tools/plot_long_context.py draws it.  The needle is that of tests/scripts/needle.py, so the
model is the bundled one; --depths '' leaves needles out and takes any model.
"""
import argparse
import csv
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "scripts"))
FIELDS = ["label", "kv", "context", "attention", "prompt_tokens_per_s", "ms_per_token", "indexer_ms", "indexer_share",
          "prompt_indexer_share", "needles_found", "needles", "peak_mb", "plan_mb"]

o = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
o.add_argument("firstlight")
o.add_argument("model")
o.add_argument("--contexts", default="4096,32768,131072")
o.add_argument("--depths", default="0.1,0.5,0.9")
o.add_argument("--kv", default="", help="types of the cache, as --kv of firstlight takes them; default: its default")
o.add_argument("--dense-up-to", type=int, default=32768, help="longest context that is also run dense")
o.add_argument("--steps", type=int, default=64, help="tokens generated")
o.add_argument("--threads", type=int, help="default: all processors")
o.add_argument("--csv", type=pathlib.Path)
o.add_argument("--label", default="this machine")
args = o.parse_args()


def numbers(text, kind=int):
    return [kind(x) for x in text.split(",") if x]


def command(name, kv, *more):
    c = [args.firstlight, name, args.model, *more]
    if args.threads:
        c += ["--threads", str(args.threads)]
    return [str(x) for x in c + (["--kv", kv] if kv else [])]


def output(c):
    return subprocess.run(c, check=True, stdout=subprocess.PIPE, text=True).stdout


def of_operator(profile, name):
    """Microseconds and share of an operator in a printed profile."""
    total = float(re.search(r"([\d.]+)  in all", profile).group(1))
    us = sum(float(m.group(1)) for m in re.finditer(rf"^ +([\d.]+) .*  {name} ", profile, re.M))
    return us, us / total if total else 0


def speeds(context, kv, dense):
    text = output(command("bench", kv, "-p", context - args.steps, "-n", args.steps, "-r", 1, "--profile",
                          *(["--dense"] if dense else [])))
    prompt, step = re.search(r"\nA prompt\n(.*)\nA step of generation\n(.*)", text, re.S).groups()
    speed = {m.group(1): float(m.group(2)) for m in re.finditer(r"^(prompt|generation) .*?: +([\d.]+) tokens/s", text, re.M)}
    us, share = of_operator(step, "index_select")
    return {"prompt_tokens_per_s": speed["prompt"], "ms_per_token": 1000 / speed["generation"], "indexer_ms": us / 1000,
            "indexer_share": share, "prompt_indexer_share": of_operator(prompt, "index_select")[1]}


def run_needle(text, context, kv):
    """The answer to a text, and the greatest memory of the process in bytes."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as f, tempfile.TemporaryFile("w+") as out:
        f.write(text)
        f.flush()
        p = subprocess.Popen(command("run", kv, "-f", f.name, "--think", "off", "-n", "60", "--context", context, "--json"),
                             stdout=out, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(p.pid, 0)
        p.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        answer = json.loads(out.read()) if p.returncode == 0 else None
    return answer, usage.ru_maxrss * 1024


def plan_bytes(context, kv):
    return json.loads(output(command("plan", kv, "--context", context, "--json")))["memory"]["total"]


def needles(context, kv):
    import needle
    depths = numbers(args.depths, float)
    if not depths:
        return {}
    os.chdir(ROOT)
    unit, found, peak = needle.haystack_text(), 0, 0
    per_unit = run_needle(needle.prompt(unit, 0.5, 11111), 16384, kv)[0]["usage"]["prompt_tokens"]
    room = context - 128
    text = unit * (room // per_unit + 1)
    text = text[:len(text) * room // (per_unit * (room // per_unit + 1))]
    for i, depth in enumerate(depths):
        code = str(20000 + 7919 * (i + 1))
        answer, memory = run_needle(needle.prompt(text, depth, code), context, kv)
        hit = answer is not None and code in answer["text"]
        found, peak = found + hit, max(peak, memory)
        print(f"    depth {depth}: {'found' if hit else 'NOT FOUND'}, " +
              (f"{answer['usage']['prompt_tokens']} tokens in {answer['timing']['prompt_seconds']:.1f} s" if answer
               else "the run failed: does the text fit?"), flush=True)
    peak -= run_needle("Hello", 256, kv)[1] - plan_bytes(256, kv)
    plan = plan_bytes(context, kv)
    print(f"    memory {peak / 1e6:.1f} MB, plan {plan / 1e6:.1f} MB: {100 * (peak / plan - 1):+.1f} %")
    return {"needles_found": found, "needles": len(depths), "peak_mb": peak / 1e6, "plan_mb": plan / 1e6}


def write(rows):
    old = []
    if args.csv.exists():
        with args.csv.open(newline="") as f:
            old = list(csv.DictReader(f))
    new = {(r["label"], r["kv"], str(r["context"]), r["attention"]) for r in rows}
    kept = [r for r in old if (r["label"], r["kv"], r["context"], r["attention"]) not in new]
    with args.csv.open("w", newline="") as f:
        w = csv.DictWriter(f, FIELDS, restval="", lineterminator="\n")
        w.writeheader()
        w.writerows(kept + [{k: f"{v:.4g}" if isinstance(v, float) else v for k, v in r.items()} for r in rows])


def main():
    args.firstlight, args.model = os.path.abspath(args.firstlight), os.path.abspath(args.model)
    if args.csv:
        args.csv = args.csv.absolute()
    for kv in args.kv.split(","):
        for context in numbers(args.contexts):
            for attention in ["sparse"] + ["dense"] * (context <= args.dense_up_to):
                row = {"label": args.label, "kv": kv or "f32", "context": context, "attention": attention}
                row |= speeds(context, kv, attention == "dense")
                print(f"{row['kv']:>5} {context:8d} {attention}: prompt {row['prompt_tokens_per_s']:8.1f} tokens/s (indexer "
                      f"{100 * row['prompt_indexer_share']:4.1f} %), {row['ms_per_token']:.3f} ms per token (indexer "
                      f"{row['indexer_ms']:.3f} ms, {100 * row['indexer_share']:4.1f} %)", flush=True)
                if attention == "sparse":
                    row |= needles(context, kv)
                if args.csv:
                    write([row])


if __name__ == "__main__":
    main()
