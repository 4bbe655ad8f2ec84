"""Times other engines' kernels for Kimi Delta Attention at the shapes of bench_gpu's delta_rule.

    python3 gpu_peers_kda.py [flash] [chunk] [decode]

flash: FlashKDA (PyPI: tokenspeed-flashkda); chunk, decode: the Triton kernels of fla-core (PyPI).
Both take BF16 activations, half the bytes of ours, and keep the state in float32.  FlashKDA includes
the gate, the sigmoid of beta and the norms of q and k; fla's calls here do not.  Medians of 21 calls,
10 between two events for the short ones.
"""

import statistics
import sys
import torch

D = 128
PREFILL = [(1024, 12), (8192, 12), (65536, 12), (1024, 96), (8192, 96), (65536, 96)]
DECODE = [(1, 12), (64, 12), (1, 96), (8, 96), (64, 96)]


def median_us(call, repeat):
    times = []
    for run in range(-3, 21):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(repeat):
            call()
        end.record()
        end.synchronize()
        if run >= 0:
            times.append(begin.elapsed_time(end) * 1e3 / repeat)
    return statistics.median(times)


def rows(n, tokens, heads, width=D, dtype=torch.bfloat16):
    return torch.randn(n, tokens, heads, width, dtype=dtype, device="cuda")


def unit(x):
    return torch.nn.functional.normalize(x.float(), dim=-1).to(x.dtype)


def inputs(n, tokens, heads):
    q, k, v = unit(rows(n, tokens, heads)), unit(rows(n, tokens, heads)), rows(n, tokens, heads)
    beta = torch.rand(n, tokens, heads, dtype=torch.bfloat16, device="cuda")
    state = torch.randn(n, heads, D, D, dtype=torch.float32, device="cuda")
    return q, k, v, beta, state


def flash():
    import flash_kda

    for tokens, heads in PREFILL:
        q, k, v, beta, state = inputs(1, tokens, heads)
        g, out, last = rows(1, tokens, heads), torch.empty_like(v), torch.empty_like(state)
        a_log, bias = torch.zeros(heads, device="cuda"), torch.zeros(heads, D, device="cuda")

        def call():
            flash_kda.fwd(q, k, v, g, beta, D**-0.5, out, a_log, bias, -5.0, state, last)

        us = median_us(call, 1)
        sound = bool(torch.isfinite(out).all()) and bool(torch.isfinite(last).all())
        print(f"FlashKDA {tokens} rows, {heads} heads: {us:.1f} us{'' if sound else ' (not finite)'}",
              flush=True)


def chunk():
    from fla.ops.kda import chunk_kda

    for tokens, heads in PREFILL:
        q, k, v, beta, state = inputs(1, tokens, heads)
        g = -0.3 * torch.rand(1, tokens, heads, D, device="cuda")
        with torch.no_grad():
            us = median_us(lambda: chunk_kda(q, k, v, g, beta, initial_state=state,
                                             output_final_state=True), 1)
        print(f"fla chunk_kda {tokens} rows, {heads} heads: {us:.1f} us", flush=True)


def decode():
    from fla.ops.kda import fused_recurrent_kda

    for n, heads in DECODE:
        q, k, v, beta, state = inputs(n, 1, heads)
        g = -0.3 * torch.rand(n, 1, heads, D, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad():

            def call():
                fused_recurrent_kda(q, k, v, g, beta, initial_state=state, output_final_state=True)

            call()
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                for _ in range(20):
                    call()
        us = median_us(graph.replay, 1) / 20
        print(f"fla fused_recurrent_kda {n} sequences, {heads} heads: {us:.1f} us", flush=True)


def main():
    for name in sys.argv[1:] or ["flash", "decode", "chunk"]:
        try:
            {"flash": flash, "chunk": chunk, "decode": decode}[name]()
        except Exception as why:  # another library's failure is a line of the report
            print(f"{name}: not measured: {type(why).__name__}: {str(why)[:300]}", flush=True)


main()
