#!/usr/bin/env python3
"""Draws what bench/long_context.py has measured: time per generated token against the context.

    python3 tools/plot_long_context.py [docs/long_context.csv [docs/long_context.svg]]

Needs matplotlib.  The same CSV gives the same file.
"""
import csv
import sys

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams["svg.hashsalt"] = "firstlight"
import matplotlib.pyplot as plt  # noqa: E402

source = sys.argv[1] if len(sys.argv) > 1 else "docs/long_context.csv"
target = sys.argv[2] if len(sys.argv) > 2 else "docs/long_context.svg"
with open(source, newline="") as f:
    rows = list(csv.DictReader(f))

figure, axes = plt.subplots(figsize=(7, 4.5))
for key in dict.fromkeys((r["label"], r["kv"], r["attention"]) for r in rows):
    line = sorted((int(r["context"]), float(r["ms_per_token"])) for r in rows
                  if (r["label"], r["kv"], r["attention"]) == key)
    style = "--" if key[2] == "dense" else "-"
    axes.plot(*zip(*line), style, marker="o", markersize=4, label=f"{key[2]}, cache {key[1]} ({key[0]})")
axes.set_xscale("log", base=2)
axes.set_xticks([2**i for i in range(12, 21)], ["4K", "8K", "16K", "32K", "64K", "128K", "256K", "512K", "1M"])
contexts = [int(r["context"]) for r in rows]
axes.set_xlim(min(contexts) / 1.2, max(contexts) * 1.2)
axes.set_ylim(bottom=0)
axes.set_xlabel("context, tokens")
axes.set_ylabel("milliseconds per generated token")
axes.grid(alpha=0.3)
axes.legend(fontsize=8)
figure.tight_layout()
figure.savefig(target, metadata={"Date": None})
