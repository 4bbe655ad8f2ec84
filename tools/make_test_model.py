"""Writes the random test models under tests/data and the outputs that a reference gives for them.

    python3 tools/make_test_model.py --reference DIR tests/data [second sharing linear]

Each model is a small checkpoint of the Kimi-K3 family with sizes that differ from the bundled tiny
model in every dimension:

  second   K3 with other heads, block size and layer pattern; three shards, tensors in random order
  sharing  K3 whose full-attention layers partly reuse the selection of the last one that has an
           indexer; one file, flat configuration, no prefix, odd shapes of small tensors
  linear   Kimi-Linear: plain residual, no latent, low-rank gate, SiLU, softplus decay, BF16 experts

DIR holds model.py and load.py, the reference PyTorch model of K3; it is not part of this
repository.  What it does not implement (sharing, Kimi-Linear) is a subclass here.  Weights are drawn
until no decision of the model (top-k of the indexer, choice of experts, best token) is so close that
another order of summation could turn it.  Needs torch and safetensors; float32 on the CPU.
"""
import argparse
import os
import random
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

options = argparse.ArgumentParser()
options.add_argument("--reference", required=True)
options.add_argument("out")
options.add_argument("names", nargs="*", default=["second", "sharing", "linear"])
args = options.parse_args()
sys.path.insert(0, args.reference)
import load as reference  # noqa: E402
from model import Model, mxfp4_dequant, mxfp4_quant, rms  # noqa: E402
from checkpoint_files import COMMON, K2_NAMES, K3, K3_NAMES, QUANTIZATION  # noqa: E402
from checkpoint_files import shard_header, write_json, write_k3_config, write_tokenizer  # noqa: E402

BF16, F32 = torch.bfloat16, torch.float32
RANKS, VOCAB = 280, 300
SHORT, LONG = 40, 300

# ---- configurations -----------------------------------------------------------------------------

TOKENS = dict(vocab_size=VOCAB, bos_token_id=RANKS, eos_token_id=RANKS + 2, pad_token_id=VOCAB - 1)

SECOND = dict(
    K3, **TOKENS, hidden_size=48, num_hidden_layers=6, intermediate_size=80, first_k_dense_replace=2,
    num_experts=10, num_experts_per_token=3, num_shared_experts=2, moe_intermediate_size=32,
    routed_expert_hidden_size=64, routed_scaling_factor=1.7, activation_situ_beta=3.0, activation_situ_linear_beta=5.0,
    num_attention_heads=3, num_key_value_heads=3, q_lora_rank=40, kv_lora_rank=32,
    qk_nope_head_dim=24, qk_rope_head_dim=8, v_head_dim=40, index_n_heads=2, index_head_dim=16, index_topk=16,
    attn_res_block_size=3,
    linear_attn_config=dict(kda_layers=[1, 3, 4], full_attn_layers=[2, 5, 6], num_heads=3, head_dim=24,
                            short_conv_kernel_size=4, gate_lower_bound=-3.5, use_full_rank_gate=True))

SHARING = dict(
    K3, **TOKENS, hidden_size=40, num_hidden_layers=7, intermediate_size=72, first_k_dense_replace=5,
    num_experts=6, num_experts_per_token=2, num_shared_experts=1, moe_intermediate_size=32,
    routed_expert_hidden_size=32, routed_scaling_factor=1.0, activation_situ_beta=4.0, activation_situ_linear_beta=8.0,
    num_attention_heads=2, num_key_value_heads=2, q_lora_rank=24, kv_lora_rank=20,
    qk_nope_head_dim=16, qk_rope_head_dim=4, v_head_dim=12, index_n_heads=3, index_head_dim=12, index_topk=12,
    # Over the ordinals 0..4 of the full-attention layers: 0, 1 and 3 have an indexer, 2 and 4 reuse.
    index_topk_freq=2, index_skip_topk_offset=2,
    attn_res_block_size=2,
    linear_attn_config=dict(kda_layers=[1, 5], full_attn_layers=[2, 3, 4, 6, 7], num_heads=2, head_dim=16,
                            short_conv_kernel_size=3, gate_lower_bound=-5.0, use_full_rank_gate=True))

LINEAR = dict(
    COMMON, **TOKENS, hidden_size=56, num_hidden_layers=5, intermediate_size=88, hidden_act="silu", first_k_dense_replace=1,
    num_experts=6, num_experts_per_token=2, num_shared_experts=1, moe_intermediate_size=24, routed_scaling_factor=2.446,
    num_attention_heads=2, num_key_value_heads=2, head_dim=28, q_lora_rank=None, kv_lora_rank=28,
    qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=20, rope_theta=10000.0, rope_scaling=None,
    linear_attn_config=dict(kda_layers=[1, 2, 4], full_attn_layers=[3, 5], num_heads=3, head_dim=16,
                            short_conv_kernel_size=4))


def has_indexer(c, layer):
    """The freq/offset rule over the ordinal of a full-attention layer (zero-based layer)."""
    full = sorted(c["linear_attn_config"]["full_attn_layers"])
    ordinal = full.index(layer + 1)
    return max(ordinal - c.get("index_skip_topk_offset", 2) + 1, 0) % c.get("index_topk_freq", 1) == 0


# ---- weights ------------------------------------------------------------------------------------

def weights(c, seed, small=F32):
    """name -> tensor, as in the checkpoint.  small: type of the tensors that K3 keeps in F32."""
    g = torch.Generator().manual_seed(seed)
    T = {}
    rand = lambda *shape: torch.randn(*shape, generator=g)

    def mat(name, out, inp, scale=1.0, dtype=BF16):
        T[name + ".weight"] = (rand(out, inp) * scale * inp ** -.5).to(dtype)

    def norm(name, d, dtype=BF16):
        T[name + ".weight"] = (1 + .3 * rand(d)).to(dtype)

    def expert(name, out, inp, packed):
        w = rand(out, inp) * 1.5 * inp ** -.5
        if not packed:
            T[name + ".weight"] = w.to(BF16)
            return
        code, e = mxfp4_quant(w)
        T[name + ".weight_packed"] = code[:, 0::2] | code[:, 1::2] << 4
        T[name + ".weight_scale"] = (e + 127).to(torch.uint8)

    H, la, k3 = c["hidden_size"], c["linear_attn_config"], c["hidden_act"] == "situ"
    nh, qn, qr, vd = (c[k] for k in ("num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    kh, kd, ck = la["num_heads"], la["head_dim"], la["short_conv_kernel_size"]
    T["model.embed_tokens.weight"] = (.7 * rand(VOCAB, H)).to(BF16)
    mat("lm_head", VOCAB, H, 2.0)
    norm("model.norm", H)
    if k3:
        norm("model.output_attn_res_norm", H)
        mat("model.output_attn_res_proj", 1, H)
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        norm(p + "input_layernorm", H)
        norm(p + "post_attention_layernorm", H)
        if k3:
            for m in ("self_attention", "mlp"):
                norm(p + m + "_res_norm", H)
                mat(p + m + "_res_proj", 1, H)
        a = p + "self_attn."
        if i + 1 in la["kda_layers"]:
            D = kh * kd
            for n in "qkv":
                mat(a + n + "_proj", D, H, 1.5)
                conv = .3 * rand(D, 1, ck)
                conv[:, :, -1] += .8
                T[a + n + "_conv1d.weight"] = conv.to(BF16).to(small)
            mat(a + "f_a_proj", kd, H)
            mat(a + "f_b_proj", D, kd)
            mat(a + "b_proj", kh, H)
            T[a + "A_log"] = rand(kh) * .5
            T[a + "dt_bias"] = torch.rand(D, generator=g) * 5 - 5
            if k3:
                mat(a + "g_proj", D, H)
            else:
                mat(a + "g_a_proj", kd, H)
                mat(a + "g_b_proj", D, kd)
            norm(a + "o_norm", kd, small)
            mat(a + "o_proj", H, D)
        else:
            kl, ql = c["kv_lora_rank"], c["q_lora_rank"]
            if ql:
                mat(a + "q_a_proj", ql, H)
                norm(a + "q_a_layernorm", ql)
                mat(a + "q_b_proj", nh * (qn + qr), ql, 2.0)
            else:
                mat(a + "q_proj", nh * (qn + qr), H, 2.0)
            mat(a + "kv_a_proj_with_mqa", kl + qr, H)
            norm(a + "kv_a_layernorm", kl)
            mat(a + "kv_b_proj", nh * (qn + vd), kl)
            if c.get("mla_use_output_gate"):
                mat(a + "g_proj", nh * vd, H)
            mat(a + "o_proj", H, nh * vd, 2.0)
            if c.get("index_topk") and has_indexer(c, i):
                ih, idm = c["index_n_heads"], c["index_head_dim"]
                mat(a + "indexer.wq_b", ih * idm, ql)
                mat(a + "indexer.wk", idm, H)
                norm(a + "indexer.k_norm", idm)
                T[a + "indexer.k_norm.bias"] = (.2 * rand(idm)).to(BF16)
                mat(a + "indexer.weights_proj", ih, H)
        if i < c["first_k_dense_replace"]:
            f, I = p + "mlp.", c["intermediate_size"]
        else:
            b = p + "block_sparse_moe."
            f, I, E = b + "shared_experts.", c["moe_intermediate_size"], c["num_experts"]
            Z = c.get("routed_expert_hidden_size", H)
            mat(b + "gate", E, H)
            T[b + "gate.e_score_correction_bias"] = .1 * rand(E)
            if k3:
                mat(b + "routed_expert_down_proj", Z, H)
                mat(b + "routed_expert_up_proj", H, Z)
                norm(b + "routed_expert_norm", Z)
            for e in range(E):
                for n, o, k in (("w1", I, Z), ("w3", I, Z), ("w2", Z, I)):
                    expert(f"{b}experts.{e}.{n}", o, k, k3)
            I *= c["num_shared_experts"]
        mat(f + "gate_proj", I, H, 1.5)
        mat(f + "up_proj", I, H, 1.5)
        mat(f + "down_proj", H, I)
    return T


# ---- checkpoint files ---------------------------------------------------------------------------

DTYPE = {F32: "F32", BF16: "BF16", torch.uint8: "U8"}


def write_safetensors(path, names, T, r):
    """Data in the order of names, header in another."""
    def shuffled(keys):
        r.shuffle(keys)
        return keys

    entries = {n: (DTYPE[T[n].dtype], T[n].shape, T[n].numel() * T[n].element_size()) for n in names}
    with open(path, "wb") as f:
        f.write(shard_header(entries, shuffled))
        for n in names:
            f.write(T[n].contiguous().view(torch.uint8).numpy().tobytes())


def tokens():
    words = ("th", "the", " the", "in", "er", "an", " a", "re", "on", "  ", "at", "en", "ou", "ing", " m", " message", "me", "ss",
             "mess", "age", "message", "\n\n", " =", "role")
    out = [bytes([b]) for b in range(256)] + [w.encode() for w in words]
    assert len(out) == RANKS == len(set(out))
    return out


def write_second(folder, c, T, r):
    """As K3 is released: prefix, nested configuration, shards, padded A_log; but in random order."""
    for n in list(T):
        if n.endswith("A_log"):
            T[n] = F.pad(T[n], (0, c["linear_attn_config"]["head_dim"] - len(T[n])))
    T = {"language_model." + n: t for n, t in T.items()}
    names = sorted(T)
    r.shuffle(names)
    shards = [f"model-{i + 1:05d}-of-00003.safetensors" for i in range(3)]
    place = {n: shards[r.randrange(3)] for n in names}
    for s in shards:
        write_safetensors(os.path.join(folder, s), [n for n in names if place[n] == s], T, r)
    total = sum(t.numel() * t.element_size() for t in T.values())
    write_json(os.path.join(folder, "model.safetensors.index.json"), {"metadata": {"total_size": total}, "weight_map": place})
    write_k3_config(folder, c, RANKS)
    write_tokenizer(folder, tokens(), K3_NAMES, VOCAB)


def write_single(folder, c, T, r, special_names):
    """One file, flat configuration, no prefix; A_log [1, 1, H, 1] and convolutions [C, K]."""
    for n in list(T):
        if n.endswith("A_log"):
            T[n] = T[n].reshape(1, 1, -1, 1)
        elif n.endswith("conv1d.weight"):
            T[n] = T[n].squeeze(1)
    names = sorted(T, key=lambda n: (-T[n].element_size(), r.random()))
    write_safetensors(os.path.join(folder, "model.safetensors"), names, T, r)
    write_json(os.path.join(folder, "config.json"), c)
    write_tokenizer(folder, tokens(), special_names, VOCAB)


def write_sharing(folder, c, T, r):
    write_single(folder, dict(c, quantization_config=QUANTIZATION), T, r, K3_NAMES)
    # The same sharing, said as a list over all layers.
    kinds = ["shared" if i + 1 in c["linear_attn_config"]["full_attn_layers"] and not has_indexer(c, i) else "full"
             for i in range(c["num_hidden_layers"])]
    listed = {k: v for k, v in c.items() if k not in ("index_topk_freq", "index_skip_topk_offset")}
    write_json(os.path.join(folder, "config_indexer_types.json"),
               dict(listed, indexer_types=kinds, quantization_config=QUANTIZATION))


# ---- reference forward --------------------------------------------------------------------------

class Checked(Model):
    """The reference on tensors as they are in a checkpoint; notes the narrowest choice of experts."""

    def __init__(s, c, raw):
        nn.Module.__init__(s)
        s.c = dict(c, situ_beta=c.get("activation_situ_beta"), situ_linear_beta=c.get("activation_situ_linear_beta"))
        s.qat, s.sparse, s.topk, s.kda_fn, s.aux, s.load = False, True, c.get("index_topk"), reference.kda, 0.0, {}
        s.keep, s.scores, s.gap = True, [], float("inf")
        la = c["linear_attn_config"]
        P, stacks = {}, {}
        for n, t in raw.items():
            if ".experts." in n:
                base, e, w = n.split(".experts.")[0], *n.split(".experts.")[1].split(".")[:2]
                if n.endswith("_scale"):
                    continue
                if n.endswith("_packed"):
                    code = torch.stack([t & 15, t >> 4], -1).reshape(t.shape[0], -1)
                    t = mxfp4_dequant(code, raw[n.replace("_packed", "_scale")].float() - 127)
                stacks.setdefault(f"{base}.experts.{w}", {})[int(e)] = t.float()
            elif n.endswith("A_log"):
                P[n] = t.float().flatten()[:la["num_heads"]]
            elif n.endswith("conv1d.weight"):
                P[n] = t.float().reshape(la["num_heads"] * la["head_dim"], 1, -1)
            else:
                P[n] = t.float()
        P |= {n: torch.stack([es[e] for e in sorted(es)]) for n, es in stacks.items()}
        s.P = nn.ParameterDict({n.replace(".", "/"): nn.Parameter(t, False) for n, t in P.items()})

    def moe(s, x, f):
        score = torch.sigmoid(F.linear(x, s.w(f + "gate.weight"))) + s.w(f + "gate.e_score_correction_bias")
        k = s.c["num_experts_per_token"]
        best = score.sort(-1, descending=True).values
        s.gap = min(s.gap, (best[..., k - 1] - best[..., k]).min().item())
        return super().moe(x, f)


class Sharing(Checked):
    """Full-attention layers without an indexer look where the last one with an indexer looked."""

    def mla(s, x, a, mask):
        if s.P.get((a + "indexer.wk.weight").replace(".", "/")) is None:
            c, s.c = s.c, dict(s.c, index_topk=0)
            try:
                return super().mla(x, a, s.selected)
            finally:
                s.c = c
        out = super().mla(x, a, mask)
        s.selected = select(s.scores[-1], s.topk) & mask
        return out


def select(scores, topk):
    if scores.shape[-1] <= topk:
        return torch.ones_like(scores, dtype=torch.bool)
    best = torch.sort(scores, dim=-1, descending=True, stable=True).indices[..., :topk]
    return torch.zeros_like(scores, dtype=torch.bool).scatter(-1, best, True)


class Linear(Checked):
    """Kimi-Linear: no attention residuals, no latent space, low-rank gates."""

    def lin(s, x, n):
        if n.endswith("g_proj.weight") and "self_attn" in n:  # the delta rule's gate, of low rank
            a = n.removesuffix("g_proj.weight")
            return s.lin(s.lin(x, a + "g_a_proj.weight"), a + "g_b_proj.weight")
        return super().lin(x, n)

    def mla(s, x, a, mask):
        c, (B, T, _) = s.c, x.shape
        nh, qn, qr, vd, kl = (c[k] for k in ("num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank"))
        q = s.lin(x, a + "q_proj.weight").view(B, T, nh, qn + qr)
        ckv = s.lin(x, a + "kv_a_proj_with_mqa.weight")
        lat = rms(ckv[..., :kl], s.w(a + "kv_a_layernorm.weight"), 1e-6)
        kv = s.lin(lat, a + "kv_b_proj.weight").view(B, T, nh, qn + vd)
        k = torch.cat([kv[..., :qn], ckv[..., None, kl:].expand(-1, -1, nh, -1)], -1)
        logit = torch.einsum("bthd,bshd->bhts", q, k) * (qn + qr) ** -.5
        p = logit.masked_fill(~mask[:, None], -torch.inf).softmax(-1)
        return s.lin(torch.einsum("bhts,bshd->bthd", p, kv[..., qn:]).reshape(B, T, -1), a + "o_proj.weight")

    def glu(s, x, f):
        return s.lin(F.silu(s.lin(x, f + "gate_proj.weight")) * s.lin(x, f + "up_proj.weight"), f + "down_proj.weight")

    def moe(s, x, f):
        c, (B, T, H) = s.c, x.shape
        x = x.reshape(-1, H)
        score = torch.sigmoid(F.linear(x, s.w(f + "gate.weight")))
        best = (score + s.w(f + "gate.e_score_correction_bias")).sort(-1, descending=True)
        k = c["num_experts_per_token"]
        s.gap = min(s.gap, (best.values[:, k - 1] - best.values[:, k]).min().item())
        w = score.gather(-1, best.indices[:, :k])
        w = w / (w.sum(-1, keepdim=True) + 1e-20) * c["routed_scaling_factor"]
        W1, W3, W2 = (s.w(f + "experts." + n) for n in ("w1", "w3", "w2"))
        y = torch.zeros_like(x)
        for t in range(len(x)):
            for j, e in enumerate(best.indices[t, :k].tolist()):
                y[t] += w[t, j] * F.linear(F.silu(F.linear(x[t], W1[e])) * F.linear(x[t], W3[e]), W2[e])
        return (y + s.glu(x, f + "shared_experts.")).view(B, T, H)

    def forward(s, ids, trace):
        c, T = s.c, ids.shape[1]
        m = torch.ones(1, T, T, dtype=torch.bool).tril()
        x = F.embedding(ids, s.w("model.embed_tokens.weight"))
        for i in range(c["num_hidden_layers"]):
            p = f"model.layers.{i}."
            h = rms(x, s.w(p + "input_layernorm.weight"), c["rms_norm_eps"])
            kda = i + 1 in c["linear_attn_config"]["kda_layers"]
            x = x + (s.kda(h, p + "self_attn.") if kda else s.mla(h, p + "self_attn.", m))
            h = rms(x, s.w(p + "post_attention_layernorm.weight"), c["rms_norm_eps"])
            x = x + (s.glu(h, p + "mlp.") if i < c["first_k_dense_replace"] else s.moe(h, p + "block_sparse_moe."))
            trace.append(x)
        return s.lin(rms(x, s.w("model.norm.weight"), c["rms_norm_eps"]), "lm_head.weight")


# ---- golden files -------------------------------------------------------------------------------

def some_ids(n, r):
    """Random ids in which pieces come back, so that attention has something to find."""
    ids = []
    while len(ids) < n:
        at = r.randrange(len(ids)) if ids else 0
        ids += ids[at:at + 5] if len(ids) > 10 and r.random() < .4 else [r.randrange(VOCAB) for _ in range(3)]
    return torch.tensor(ids[:n], dtype=torch.int32)


def outputs(m, ids, logit_rows, layer_rows):
    """name -> tensor of one golden file, and the narrowest decision."""
    m.scores.clear()
    m.gap = float("inf")
    trace = []
    with torch.no_grad():
        logits = m(ids.long()[None], trace=trace)[0]
    out = {"ids": ids, "logits": logits[-logit_rows:].contiguous(), "argmax": logits.argmax(-1).int(),
           "logprob_next": logits.log_softmax(-1)[:-1].gather(1, ids[1:, None].long())[:, 0].contiguous(),
           "layers": torch.stack(trace)[:, 0, -layer_rows:].contiguous()}
    top = logits.topk(2).values
    gap = {"experts": m.gap, "token": (top[:, 0] - top[:, 1]).min().item(), "indexer": float("inf")}
    full = [l - 1 for l in sorted(m.c["linear_attn_config"]["full_attn_layers"])]
    owners = [j for j, l in enumerate(full) if f"model/layers/{l}/self_attn/indexer/wk/weight" in m.P]
    for j, sc in zip(owners, m.scores, strict=True):
        sc = sc[0]
        out[f"indexer{j}_scores_last4"] = sc[-4:].contiguous()
        chosen = select(sc, m.topk)
        out[f"indexer{j}_top_last4"] = torch.stack([row.nonzero()[:, 0] for row in chosen[-4:]]).int()
        best = sc.sort(-1, descending=True).values[m.topk:]
        least, next_best = best[:, m.topk - 1], best[:, m.topk]
        tie = (least == 0) & (next_best == 0)  # no head sees either: exact, the lower position wins
        gap["indexer"] = min(gap["indexer"], torch.where(tie, torch.inf, least - next_best).min().item())
    return out, gap


MODELS = {"second": (SECOND, Checked, write_second, F32), "sharing": (SHARING, Sharing, write_sharing, BF16),
          "linear": (LINEAR, Linear, lambda f, c, T, r: write_single(f, c, T, r, K2_NAMES), BF16)}
ENOUGH = {"experts": 2e-5, "token": 1e-3, "indexer": 2e-5}


def read(folder):
    raw = {}
    for f in sorted(os.listdir(folder)):
        if f.endswith(".safetensors"):
            raw |= load_file(os.path.join(folder, f))
    return {n.removeprefix("language_model."): t for n, t in raw.items()}


def make(name):
    c, cls, write, small = MODELS[name]
    folder = os.path.join(args.out, name)
    os.makedirs(os.path.join(folder, "golden"), exist_ok=True)
    for seed in range(1000):
        r = random.Random(seed)
        write(folder, c, weights(c, seed, small), r)
        m = cls(c, read(folder)).eval()
        files = {"short": outputs(m, some_ids(SHORT, r), SHORT, SHORT), "long": outputs(m, some_ids(LONG, r), 8, 4)}
        gap = {k: min(g[k] for _, g in files.values()) for k in ENOUGH}
        if all(gap[k] >= ENOUGH[k] for k in ENOUGH):
            break
    else:
        sys.exit(f"{name}: every seed makes a decision that is too close")
    for file, (out, _) in files.items():
        save_file(out, os.path.join(folder, "golden", file + ".safetensors"))
    if cls is Checked:  # the reference's own loader reads the same model
        other = reference.load(folder)
        with torch.no_grad():
            assert torch.equal(other(files["short"][0]["ids"].long()[None])[0], files["short"][0]["logits"])
    layers = files["long"][0]["layers"]
    print(f"{name}: seed {seed}, narrowest decisions {gap}")
    print("  size of the running sum after each layer:", [round(x.pow(2).mean().sqrt().item(), 2) for x in layers],
          "of logits:", round(files["long"][0]["logits"].std().item(), 2))


for model_name in args.names:
    make(model_name)
