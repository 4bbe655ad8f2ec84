"""What others reach on this GPU with the products that bench_gpu measures.

    python3 bench/gpu_peers.py [linear|experts]...

PyTorch's products in BF16 and FP8, plain and grouped by expert, and a grouped product of MXFP4 weights
written in Triton in the usual way.  Times are medians; figures are those of the products alone (no
gathering, no activation, no sum over a row's experts).  Needs torch, and triton for the last one.
"""
import statistics
import sys

import torch

EXPERTS, TOP, WIDTH, INNER = 896, 16, 3584, 3072


def median(run, n=9):
    for _ in range(2):
        run()
    torch.cuda.synchronize()
    times = []
    for _ in range(n):
        a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        a.record()
        run()
        b.record()
        b.synchronize()
        times.append(a.elapsed_time(b) * 1e-3)
    return statistics.median(times)


def report(name, seconds, flops):
    print(f"{name:62s} {seconds * 1e6:10.1f} us {flops / seconds * 1e-12:8.1f} TFLOP/s", flush=True)


def attempt(name, flops, make):
    try:
        report(name, median(make()), flops)
    except Exception as e:  # a peer that is missing or refuses is a line of the table, too
        print(f"{name:62s} not run: {str(e).splitlines()[0][:150]}", flush=True)
    torch.cuda.empty_cache()


def linear():
    n, k = 12288, 7168
    w = torch.randn(n, k, device="cuda", dtype=torch.bfloat16)
    for rows in (1, 64, 256, 1024, 4096):
        x = torch.randn(rows, k, device="cuda", dtype=torch.bfloat16)
        attempt(f"torch linear BF16 {n} x {k}, {rows} rows", 2 * rows * n * k, lambda: lambda: x @ w.T)


def offsets(rows):
    """Where each expert's pairs end when all experts are equally wanted."""
    ids = torch.randint(EXPERTS, (rows * TOP,), device="cuda")
    return torch.bincount(ids, minlength=EXPERTS).cumsum(0).to(torch.int32)


def grouped(rows, kind):
    """Both products of experts whose weights were expanded beforehand."""
    ends, pairs = offsets(rows), rows * TOP

    def matrices(n, k):
        w = torch.empty(EXPERTS, n, k, device="cuda", dtype=torch.bfloat16).normal_()
        return w if kind == "BF16" else w.to(torch.float8_e4m3fn)

    def product(x, w):
        if kind == "BF16":
            return torch._grouped_mm(x, w.transpose(1, 2), offs=ends, out_dtype=torch.bfloat16)
        ones = torch.ones(max(pairs, 1), device="cuda")
        scales = torch.ones(EXPERTS, w.shape[1], device="cuda")
        return torch._scaled_grouped_mm(x.to(torch.float8_e4m3fn), w.transpose(1, 2), ones, scales,
                                        offs=ends, out_dtype=torch.bfloat16, use_fast_accum=True)

    up, down = matrices(2 * INNER, WIDTH), matrices(WIDTH, INNER)
    x = torch.randn(pairs, WIDTH, device="cuda", dtype=torch.bfloat16)
    return lambda: product(product(x, up)[:, :INNER].contiguous(), down)


def mxfp4(rows):
    """One product for each tile of an expert's pairs: Triton expands the codes itself."""
    import triton
    import triton.language as tl

    @triton.jit
    def kernel(x, w, scale, y, expert, first, last, N: tl.constexpr, K: tl.constexpr,
               M_TILE: tl.constexpr, N_TILE: tl.constexpr, K_TILE: tl.constexpr):
        t = tl.program_id(0)
        e = tl.load(expert + t).to(tl.int64)
        m = tl.load(first + t) + tl.arange(0, M_TILE)
        n = tl.program_id(1) * N_TILE + tl.arange(0, N_TILE)
        here = m[:, None] < tl.load(last + t)
        k, kb, ks = tl.arange(0, K_TILE), tl.arange(0, K_TILE // 2), tl.arange(0, K_TILE // 32)
        acc = tl.zeros((M_TILE, N_TILE), dtype=tl.float32)
        for k0 in range(0, K, K_TILE):
            a = tl.load(x + m[:, None].to(tl.int64) * K + k0 + k[None, :], mask=here, other=0.0)
            b = tl.load(w + e * N * (K // 2) + n[None, :] * (K // 2) + k0 // 2 + kb[:, None])
            s = tl.load(scale + e * N * (K // 32) + n[:, None] * (K // 32) + k0 // 32 + ks[None, :])
            acc = tl.dot_scaled(a, None, "bf16", b, s, "e2m1", acc)
        tl.store(y + m[:, None].to(tl.int64) * N + n[None, :], acc.to(tl.bfloat16), mask=here)

    ends = offsets(rows).tolist()
    tile = 128 if rows >= 2048 else 64 if rows >= 1024 else 16
    tiles, begin = [], 0
    for e, end in enumerate(ends):
        tiles += [(e, at, min(at + tile, end)) for at in range(begin, end, tile)]
        begin = end
    expert, first, last = (torch.tensor(c, device="cuda", dtype=torch.int32) for c in zip(*tiles))

    def matrices(n, k):
        codes = torch.randint(256, (EXPERTS, n, k // 2), device="cuda", dtype=torch.uint8)
        return codes, torch.randint(118, 123, (EXPERTS, n, k // 32), device="cuda", dtype=torch.uint8)

    def product(x, w, n, k, to):
        kernel[(len(tiles), n // 128)](x, *w, to, expert, first, last, n, k, tile, 128, 128,
                                       num_warps=8, num_stages=3)

    up, down = matrices(2 * INNER, WIDTH), matrices(WIDTH, INNER)
    pairs = rows * TOP
    x = torch.randn(pairs, WIDTH, device="cuda", dtype=torch.bfloat16)
    both = torch.empty(pairs, 2 * INNER, device="cuda", dtype=torch.bfloat16)
    hidden = torch.randn(pairs, INNER, device="cuda", dtype=torch.bfloat16)
    y = torch.empty(pairs, WIDTH, device="cuda", dtype=torch.bfloat16)

    def run():
        product(x, up, 2 * INNER, WIDTH, both)
        product(hidden, down, WIDTH, INNER, y)
    return run


def experts():
    for rows in (1, 64, 512, 4096, 16384):
        flops = 6 * rows * TOP * WIDTH * INNER
        attempt(f"torch _grouped_mm BF16, {rows} rows", flops, lambda: grouped(rows, "BF16"))
        attempt(f"torch _scaled_grouped_mm FP8, {rows} rows", flops, lambda: grouped(rows, "FP8"))
        attempt(f"Triton MXFP4 grouped, {rows} rows", flops, lambda: mxfp4(rows))


def main():
    for name in sys.argv[1:] or ["linear", "experts"]:
        {"linear": linear, "experts": experts}[name]()


if __name__ == "__main__":
    main()
