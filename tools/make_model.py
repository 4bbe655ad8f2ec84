"""Writes a random checkpoint of the Kimi-K3 family that is large enough to measure on.

    python3 tools/make_model.py k3-mini DIR [--seed N] [--layers N] [--experts N]

  tiny      8 layers, hidden size 256: a few megabytes, for trying things out
  k3-mini   12 layers, hidden size 2048, 64 experts of which 8 per token: about 2 GB
  k3-slice  the widths of K3 (hidden 7168, 96 heads, latent 3584, experts 3072), 4 layers, 40 experts of
            which 16 per token: about 8 GB

The folder has the layout of the release: one shard per layer and one for the rest, packed MXFP4 experts,
BF16 trunk, small tensors in F32, an index, a configuration and a tokenizer (of single bytes and pairs).
Nothing in it speaks; but the numbers are of the kind that a trained model has: weights of unit gain, in
groups of unequal size, experts quantised to MXFP4 by the rule of the format, decays between forgetting
at once and remembering for hundreds of tokens, a router that uses all experts.

Large matrices are put together from a dictionary of 65,536 random groups of 32 elements: a group costs
two random bytes and one copy, a gigabyte a few seconds.  Needs numpy.
"""
import argparse
import os

import numpy as np

from checkpoint_files import K3, K3_NAMES, shard_header, write_json, write_k3_config, write_tokenizer

PRESETS = {
    "tiny": dict(
        vocab_size=4096, hidden_size=256, num_hidden_layers=8, intermediate_size=704, num_experts=32, num_experts_per_token=4,
        num_shared_experts=1, moe_intermediate_size=128, routed_expert_hidden_size=128, num_attention_heads=4, q_lora_rank=128,
        kv_lora_rank=96, qk_nope_head_dim=64, qk_rope_head_dim=32, v_head_dim=64, index_n_heads=4, index_head_dim=32,
        index_topk=128, attn_res_block_size=4, kda_head_dim=64),
    "k3-mini": dict(
        vocab_size=32768, hidden_size=2048, num_hidden_layers=12, intermediate_size=8192, num_experts=64, num_experts_per_token=8,
        num_shared_experts=2, moe_intermediate_size=768, routed_expert_hidden_size=1024, num_attention_heads=16, q_lora_rank=512,
        kv_lora_rank=256, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, index_n_heads=16, index_head_dim=128,
        index_topk=2048, attn_res_block_size=4, kda_head_dim=128),
    "k3-slice": dict(
        vocab_size=16384, hidden_size=7168, num_hidden_layers=4, intermediate_size=33792, num_experts=40, num_experts_per_token=16,
        num_shared_experts=2, moe_intermediate_size=3072, routed_expert_hidden_size=3584, num_attention_heads=96, q_lora_rank=1536,
        kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, index_n_heads=64, index_head_dim=128,
        index_topk=2048, attn_res_block_size=12, kda_head_dim=128),
}
GROUP, GROUPS = 32, 1 << 16


def configuration(preset):
    """The text configuration of a preset: every fourth layer attends, the others are KDA."""
    c = dict(K3, **PRESETS[preset])
    layers, ranks = c["num_hidden_layers"], c["vocab_size"] - 256
    full = list(range(4, layers + 1, 4))
    c["linear_attn_config"] = dict(
        kda_layers=[i for i in range(1, layers + 1) if i not in full], full_attn_layers=full, num_heads=c["num_attention_heads"],
        head_dim=c.pop("kda_head_dim"), short_conv_kernel_size=4, gate_lower_bound=-5.0, use_full_rank_gate=True)
    c.update(first_k_dense_replace=1, routed_scaling_factor=1.0, num_key_value_heads=c["num_attention_heads"],
             activation_situ_beta=4.0, activation_situ_linear_beta=25.0, bos_token_id=ranks, eos_token_id=ranks + 2,
             pad_token_id=c["vocab_size"] - 1)
    return c


def to_bf16(x):
    """float32 to BF16 bits, to nearest even."""
    u = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((u + 0x7FFF + (u >> 16 & 1)) >> 16).astype(np.uint16)


def to_mxfp4(x):
    """Groups of 32 float32 -> packed codes [n, 16] and scale exponents [n], by the rule of the format:
    the exponent of the largest magnitude less that of the largest code, codes to nearest."""
    e = np.floor(np.log2(np.abs(x).max(1))).astype(np.int32) - 2
    a = np.abs(x) / np.exp2(e)[:, None]
    code = np.searchsorted(np.array([.25, .75, 1.25, 1.75, 2.5, 3.5, 5.0]), a).astype(np.uint8)
    code |= np.signbit(x).astype(np.uint8) << 3
    return code[:, 0::2] | code[:, 1::2] << 4, e


class Random:
    """Draws tensors.  A tensor is (dtype, shape, function that gives its bytes)."""

    def __init__(s, seed):
        s.rng = np.random.default_rng(seed)
        x = s.rng.standard_normal((GROUPS, GROUP), np.float32) * np.exp(.25 * s.rng.standard_normal((GROUPS, 1), np.float32))
        s.groups = x / x.std()
        codes, s.exponents = to_mxfp4(s.groups)
        s.codes = codes.view(np.uint64)
        s.scaled = {}  # gain -> the dictionary in BF16

    def pick(s, n):
        return np.frombuffer(s.rng.bytes(2 * n), np.uint16)

    def f32(s, values):
        return "F32", values.shape, lambda: np.asarray(values, np.float32)

    def bf16(s, values):
        return "BF16", values.shape, lambda: to_bf16(values)

    def normal(s, *shape):
        return s.rng.standard_normal(shape, np.float32)

    def norm(s, d):
        return 1 + .3 * s.normal(d)

    def matrix(s, out, inp, gain=1.0):
        std = gain * inp ** -.5
        if out * inp % GROUP or out * inp < 1 << 16:
            return s.bf16(std * s.normal(out, inp))
        if std not in s.scaled:
            s.scaled[std] = to_bf16(std * s.groups).view(np.uint64)
        return "BF16", (out, inp), lambda: s.scaled[std][s.pick(out * inp // GROUP)]

    def packed(s, out, inp, gain):
        """Packed codes and scales of one MXFP4 matrix."""
        exponents = s.exponents + int(round(np.log2(gain * inp ** -.5))) + 127
        n, drawn = out * inp // GROUP, []

        def codes():
            drawn.append(s.pick(n))
            return s.codes[drawn[0]]
        return (("U8", (out, inp // 2), codes),
                ("U8", (out, inp // GROUP), lambda: exponents.astype(np.uint8)[drawn.pop()]))


def full_attention(c, r, T, a):
    H, nh, kl, ql = c["hidden_size"], c["num_attention_heads"], c["kv_lora_rank"], c["q_lora_rank"]
    qn, qr, vd, ih, idm = (c[k] for k in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "index_n_heads", "index_head_dim"))
    T[a + "q_a_proj.weight"] = r.matrix(ql, H)
    T[a + "q_a_layernorm.weight"] = r.bf16(r.norm(ql))
    T[a + "q_b_proj.weight"] = r.matrix(nh * (qn + qr), ql, 2.0)
    T[a + "kv_a_proj_with_mqa.weight"] = r.matrix(kl + qr, H)
    T[a + "kv_a_layernorm.weight"] = r.bf16(r.norm(kl))
    T[a + "kv_b_proj.weight"] = r.matrix(nh * (qn + vd), kl)
    T[a + "g_proj.weight"] = r.matrix(nh * vd, H)
    T[a + "o_proj.weight"] = r.matrix(H, nh * vd, 2.0)
    T[a + "indexer.wq_b.weight"] = r.matrix(ih * idm, ql)
    T[a + "indexer.wk.weight"] = r.matrix(idm, H)
    T[a + "indexer.k_norm.weight"] = r.bf16(r.norm(idm))
    T[a + "indexer.k_norm.bias"] = r.bf16(.2 * r.normal(idm))
    T[a + "indexer.weights_proj.weight"] = r.matrix(ih, H)


def linear_attention(c, r, T, a):
    H, la = c["hidden_size"], c["linear_attn_config"]
    kh, kd, taps = la["num_heads"], la["head_dim"], la["short_conv_kernel_size"]
    D = kh * kd
    for n in "qkv":
        T[a + n + "_proj.weight"] = r.matrix(D, H, 1.5)
        conv = .3 * r.normal(D, 1, taps)
        conv[:, :, -1] += .8
        T[a + n + "_conv1d.weight"] = r.f32(conv)
    T[a + "f_a_proj.weight"] = r.matrix(kd, H)
    T[a + "f_b_proj.weight"] = r.matrix(D, kd)
    T[a + "b_proj.weight"] = r.matrix(kh, H)
    A_log = np.zeros(max(kd, kh), np.float32)
    A_log[:kh] = .5 * r.normal(kh)
    T[a + "A_log"] = r.f32(A_log)
    T[a + "dt_bias"] = r.f32(6 * r.rng.random(D, np.float32) - 6)
    T[a + "g_proj.weight"] = r.matrix(D, H)
    T[a + "o_norm.weight"] = r.f32(r.norm(kd))
    T[a + "o_proj.weight"] = r.matrix(H, D)


def layer(c, r, i):
    H, p, T = c["hidden_size"], f"model.layers.{i}.", {}
    for n in ("input_layernorm", "post_attention_layernorm", "self_attention_res_norm", "mlp_res_norm"):
        T[p + n + ".weight"] = r.bf16(r.norm(H))
    for n in ("self_attention_res_proj", "mlp_res_proj"):
        T[p + n + ".weight"] = r.matrix(1, H)
    kda = i + 1 in c["linear_attn_config"]["kda_layers"]
    (linear_attention if kda else full_attention)(c, r, T, p + "self_attn.")
    if i < c["first_k_dense_replace"]:
        f, I = p + "mlp.", c["intermediate_size"]
    else:
        b, E, Z, I = p + "block_sparse_moe.", c["num_experts"], c["routed_expert_hidden_size"], c["moe_intermediate_size"]
        T[b + "gate.weight"] = r.matrix(E, H)
        T[b + "gate.e_score_correction_bias"] = r.f32(.05 * r.normal(E))
        T[b + "routed_expert_down_proj.weight"] = r.matrix(Z, H)
        T[b + "routed_expert_up_proj.weight"] = r.matrix(H, Z)
        T[b + "routed_expert_norm.weight"] = r.bf16(r.norm(Z))
        for e in range(E):
            for n, out, inp in (("w1", I, Z), ("w3", I, Z), ("w2", Z, I)):
                name = f"{b}experts.{e}.{n}.weight_"
                T[name + "packed"], T[name + "scale"] = r.packed(out, inp, 1.5)
        f, I = b + "shared_experts.", I * c["num_shared_experts"]
    T[f + "gate_proj.weight"] = r.matrix(I, H, 1.5)
    T[f + "up_proj.weight"] = r.matrix(I, H, 1.5)
    T[f + "down_proj.weight"] = r.matrix(H, I)
    return T


def rest(c, r):
    H, V = c["hidden_size"], c["vocab_size"]
    return {"lm_head.weight": r.matrix(V, H, 2.0), "model.embed_tokens.weight": r.matrix(V, H, .7 * H ** .5),
            "model.norm.weight": r.bf16(r.norm(H)), "model.output_attn_res_norm.weight": r.bf16(r.norm(H)),
            "model.output_attn_res_proj.weight": r.matrix(1, H)}


SIZE = {"F32": 4, "BF16": 2, "U8": 1}


def main():
    o = argparse.ArgumentParser()
    o.add_argument("preset", choices=PRESETS)
    o.add_argument("folder")
    o.add_argument("--seed", type=int, default=1)
    for n in ("layers", "experts"):
        o.add_argument("--" + n, type=int)
    args = o.parse_args()
    PRESETS[args.preset].update({k: v for k, v in (("num_hidden_layers", args.layers), ("num_experts", args.experts)) if v})
    c, r = configuration(args.preset), Random(args.seed)
    os.makedirs(args.folder, exist_ok=True)
    n, place, total = c["num_hidden_layers"] + 1, {}, 0
    for i in range(n):
        T = layer(c, r, i) if i < n - 1 else rest(c, r)
        T = {"language_model." + name: t for name, t in T.items()}
        sizes = {name: (d, shape, int(np.prod(shape)) * SIZE[d]) for name, (d, shape, _) in T.items()}
        shard = f"model-{i + 1:05d}-of-{n:05d}.safetensors"
        with open(os.path.join(args.folder, shard), "wb") as f:
            f.write(shard_header(sizes, sorted))
            for name, (_, _, draw) in T.items():
                data = draw()
                assert data.nbytes == sizes[name][2], name
                f.write(data)
        place |= dict.fromkeys(T, shard)
        total += sum(size for _, _, size in sizes.values())
    write_json(os.path.join(args.folder, "model.safetensors.index.json"), {"metadata": {"total_size": total}, "weight_map": place})
    ranks = c["vocab_size"] - 256
    write_k3_config(args.folder, c, ranks)
    pairs = [bytes([b]) for b in range(256)] + [bytes([97 + i // 256 & 255, i & 255]) for i in range(ranks - 256)]
    write_tokenizer(args.folder, pairs, K3_NAMES, c["vocab_size"])
    print(f"{args.folder}: {total / 1e9:.2f} GB in {n} shards")


if __name__ == "__main__":
    main()
