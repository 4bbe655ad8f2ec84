#!/usr/bin/env python3
"""`firstlight bench serve` against a running server with the bundled model.

    server_bench.py BINARY     run from the root of the repository; prints one line per test
"""
import json
import subprocess
import sys

from serving import run_on_one

BINARY = sys.argv[1]


def bench(s, *options, status=0):
    p = subprocess.run([BINARY, "bench", "serve", f"http://127.0.0.1:{s.port}", *options],
                       capture_output=True, text=True, timeout=120)
    assert p.returncode == status, (p.returncode, p.stdout, p.stderr)
    return p


def test_places(s):
    before = s.metric("vllm:generation_tokens_total")
    out = json.loads(bench(s, "--requests", "12", "-c", "4", "--mix", "20:6,50:3:2", "--json").stdout)
    assert out["requests"] == 12 and out["failed"] == 0 and out["tokens_per_second"] > 0, out
    for name in ("ttft_ms", "tpot_ms", "e2e_ms"):
        assert 0 < out[name]["p50"] <= out[name]["p99"] <= out[name]["max"], out
    assert 36 <= s.metric("vllm:generation_tokens_total") - before <= 72


def test_rate(s):
    out = json.loads(bench(s, "--requests", "10", "--rate", "50", "--mix", "8:2", "--json").stdout)
    assert out["failed"] == 0 and "late_ms" in out and out["seconds"] > 0.05, out
    assert "to the first token" in bench(s, "--requests", "2").stdout


def test_failures_are_told(s):
    p = bench(s, "--requests", "2", "--mix", "5000:10", status=1)
    assert "2 failed" in p.stdout and "context" in p.stderr, (p.stdout, p.stderr)
    assert "does not exist" in bench(s, "--requests", "1", "--model", "x", status=1).stderr
    assert "--mix" in bench(s, "--mix", "7", status=64).stderr
    wrong = subprocess.run([BINARY, "bench", "serve", "https://x"], capture_output=True, text=True)
    assert wrong.returncode == 1 and "http://" in wrong.stderr


if __name__ == "__main__":
    sys.exit(run_on_one(BINARY, globals()))
