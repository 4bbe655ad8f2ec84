#!/usr/bin/env python3
"""What PyTorch needs for the work of bench_gpu's mla and index_select, on the same card.

    python3 bench/gpu_peers_attention.py

Latent attention as two matrix products and a softmax, and as scaled_dot_product_attention where it
takes the sizes; scores and choice of the indexer as products and torch.topk.  Medians of 21 runs, or
as many as half a second has, between two events, on random data."""
import torch

RUNS = 21


def measure(call):
    call()
    times = []
    while len(times) < RUNS and sum(times) < 5e5:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return sorted(times)[len(times) // 2]


def report(name, call):
    try:
        print(f"{name:<64} {measure(call):10.1f} us", flush=True)
    except RuntimeError as error:
        print(f"{name:<64} {str(error).splitlines()[0][:60]}", flush=True)


def products(q, cache):
    """q: [rows x heads, 576]; a cached row is key and value."""
    p = torch.softmax((q @ cache.T) * 0.01, dim=-1)
    return p @ cache[:, :512]


def attention(dtype, rows, heads, keys):
    cache = torch.randn(keys, 576, device="cuda", dtype=dtype)
    q = torch.randn(rows * heads, 576, device="cuda", dtype=dtype)
    name = f"{str(dtype)[6:]} {rows} rows, {heads} heads, {keys} keys"
    report(f"latent attention as products, {name}", lambda: products(q, cache))
    k, v = cache.view(1, 1, keys, 576), cache[:, :512].contiguous().view(1, 1, keys, 512)
    query = q.view(1, 1, rows * heads, 576)
    report(f"scaled_dot_product_attention, {name}",
           lambda: torch.nn.functional.scaled_dot_product_attention(query, k, v, scale=0.01))


def expanded(dtype, rows, heads, keys):
    """Keys and values of each head made from the latents, then attention with keys of 192 and values
    of 128 elements, all of which every row sees."""
    latent = torch.randn(keys, 512, device="cuda", dtype=dtype)
    pe = torch.randn(keys, 1, 64, device="cuda", dtype=dtype)
    kv_b = torch.randn(heads * 256, 512, device="cuda", dtype=dtype)
    q = torch.randn(1, heads, rows, 192, device="cuda", dtype=dtype)

    def call():
        kv = (latent @ kv_b.T).view(keys, heads, 256)
        k = torch.cat((kv[..., :128], pe.expand(keys, heads, 64)), -1).transpose(0, 1)[None]
        v = kv[..., 128:].transpose(0, 1)[None]
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=0.01)

    report(f"expanded, {str(dtype)[6:]} {rows} rows, {heads} heads, {keys} keys", call)


def selected(dtype, heads, keys, chosen):
    cache = torch.randn(keys, 576, device="cuda", dtype=dtype)
    q = torch.randn(heads, 576, device="cuda", dtype=dtype)
    rows = torch.randperm(keys, device="cuda")[:chosen].sort().values
    report(f"gathered rows, then products, {str(dtype)[6:]} {chosen} of {keys}",
           lambda: products(q, cache[rows]))


def indexer(dtype, rows, heads, keys):
    k = torch.randn(keys, 128, device="cuda", dtype=dtype)
    q = torch.randn(rows * heads, 128, device="cuda", dtype=dtype)
    w = torch.randn(rows, 1, heads, device="cuda", dtype=dtype)

    def scores():
        return torch.bmm(w, torch.relu(q @ k.T).view(rows, heads, keys)).view(rows, keys).float()

    ready = scores()
    name = f"{str(dtype)[6:]} {rows} rows, {heads} heads, {keys} keys"
    report(f"scores, {name}", scores)
    report(f"topk of 2048, {rows} rows of {keys}", lambda: torch.topk(ready, 2048))
    report(f"scores and topk, {name}", lambda: torch.topk(scores(), 2048))


def main():
    print(torch.__version__, torch.cuda.get_device_name())
    for dtype in (torch.float32, torch.bfloat16):
        for keys in (4096, 32768, 131072, 1 << 20):
            attention(dtype, 1, 96, keys)
        attention(dtype, 256, 96, 4096)
        for rows, keys in ((256, 4096), (512, 4096), (512, 32768), (512, 131072)):
            if dtype == torch.bfloat16 or keys < 131072:  # torch 2.11: an illegal access
                expanded(dtype, rows, 96, keys)
        selected(dtype, 96, 1 << 20, 2048)
        for keys in (4096, 32768, 131072, 1 << 20):
            indexer(dtype, 1, 32, keys)
        for rows, keys in ((64, 32768), (256, 4096), (256, 32768), (256, 131072)):
            indexer(dtype, rows, 32, keys)


if __name__ == "__main__":
    with torch.no_grad():
        main()
