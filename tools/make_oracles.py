#!/usr/bin/env python3
"""Small random checkpoints and what the transformers package computes from them.

    make_oracles.py OUT [FAMILY/NAME...]      with golden/t{1,100,700}.safetensors in each

The checkpoints are written by the package's own classes (save_pretrained), so that names, shapes
and types are what a user downloads; a few are then changed in the way that releases differ from
that: FP8 with block scales, an extra layer for drafting, keys of config.json as published.
Everything is seeded and computed in float32 on one thread.

A selection or a choice of experts is only worth comparing where rounding cannot decide it.  All
top-k calls of the package are watched; from the first row on where the last chosen value and the
first left out all but tie, the text is drawn anew.
"""
import argparse
import contextlib
import json
import os
import random
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, DeepseekV32Config, GlmMoeDsaConfig, KimiLinearConfig, logging

logging.set_verbosity_error()
logging.disable_progress_bar()
torch.set_num_threads(1)
VOCAB, LENGTHS = 256, (1, 100, 700)
F32, BF16, E4M3 = torch.float32, torch.bfloat16, torch.float8_e4m3fn
SIDE = 128  # of a block of FP8 weights
EAGER = dict(attn_implementation="eager", experts_implementation="eager")

# ---- configurations ------------------------------------------------------------------------------

DSA = dict(vocab_size=VOCAB, hidden_act="silu", scoring_func="sigmoid", topk_method="noaux_tc", moe_layer_freq=1,
           norm_topk_prob=True, routed_scaling_factor=2.5, max_position_embeddings=4096, bos_token_id=0, eos_token_id=1,
           tie_word_embeddings=False, num_nextn_predict_layers=0)
YARN = dict(type="yarn", factor=40, original_max_position_embeddings=4096, beta_fast=32, beta_slow=1, mscale=1.0,
            mscale_all_dim=1.0)


def dsa(layers, dense, hidden, inter, heads, q, kv, nope, rope, v, index_heads, index_dim, topk, experts, per, width, shared,
        groups=1, keep=1, **more):
    return DSA | dict(
        num_hidden_layers=layers, first_k_dense_replace=dense, hidden_size=hidden, intermediate_size=inter,
        num_attention_heads=heads, num_key_value_heads=heads, q_lora_rank=q, kv_lora_rank=kv, qk_nope_head_dim=nope,
        qk_rope_head_dim=rope, v_head_dim=v, index_n_heads=index_heads, index_head_dim=index_dim, index_topk=topk,
        n_routed_experts=experts, num_experts_per_tok=per, moe_intermediate_size=width, n_shared_experts=shared,
        n_group=groups, topk_group=keep) | more


def kimi(layers, full, hidden, inter, heads, kv, nope, pe, v, linear_heads, linear_dim, experts, per, width, shared,
         groups=1, keep=1, q=None, taps=4):
    return dict(
        vocab_size=VOCAB, num_hidden_layers=layers, first_k_dense_replace=1, moe_layer_freq=1, hidden_size=hidden,
        intermediate_size=inter, num_attention_heads=heads, num_key_value_heads=heads, q_lora_rank=q, kv_lora_rank=kv,
        qk_nope_head_dim=nope, qk_rope_head_dim=pe, v_head_dim=v, head_dim=72, num_experts=experts,
        num_experts_per_token=per, moe_intermediate_size=width, num_shared_experts=shared, num_expert_group=groups,
        topk_group=keep, use_grouped_topk=True, moe_renormalize=True, moe_router_activation_func="sigmoid",
        routed_scaling_factor=2.446, hidden_act="silu", mla_use_nope=True, rms_norm_eps=1e-5, model_max_length=4096,
        rope_theta=10000.0, num_nextn_predict_layers=0, tie_word_embeddings=False, bos_token_id=0, eos_token_id=1,
        pad_token_id=None,
        linear_attn_config=dict(num_heads=linear_heads, head_dim=linear_dim, short_conv_kernel_size=taps,
                                full_attn_layers=full, kda_layers=[i for i in range(1, layers + 1) if i not in full]))


V32, GLM, KIMI = DeepseekV32Config, GlmMoeDsaConfig, KimiLinearConfig
# name: configuration class, its arguments, what to change in the files (below)
MODELS = {
    # Groups and YaRN.
    "deepseek_v32/groups": (V32, dsa(4, 1, 96, 128, 4, 48, 32, 16, 8, 16, 8, 32, 48, 16, 4, 32, 1, 4, 2, rms_norm_eps=1e-6,
                                     rope_parameters=YARN | dict(rope_type="yarn", rope_theta=10000.0)), []),
    # Odd counts everywhere, plain rotation, a drafting layer.
    "deepseek_v32/odd": (V32, dsa(3, 1, 90, 70, 5, 30, 28, 12, 6, 10, 7, 22, 37, 9, 3, 20, 2, rms_norm_eps=1e-6,
                                  rope_parameters=dict(rope_type="default", rope_theta=10000.0)), ["draft"]),
    # FP8 with ragged blocks, configuration as published.
    "deepseek_v32/fp8": (V32, dsa(3, 1, 160, 136, 6, 72, 40, 16, 8, 16, 8, 24, 64, 8, 2, 36, 1, 2, 1, rms_norm_eps=1e-6,
                                  rope_parameters=YARN | dict(rope_type="yarn", rope_theta=10000.0)), ["fp8", "old rope"]),
    # All layers with an indexer, and groups.
    "glm_moe_dsa/groups": (GLM, dsa(3, 1, 96, 128, 4, 48, 32, 24, 8, 16, 8, 32, 48, 12, 3, 32, 1, 3, 2, rms_norm_eps=1e-5,
                                    rope_parameters=dict(rope_type="default", rope_theta=1000000.0)), []),
    # A list says which layers share; odd counts; a head_dim that means nothing.
    "glm_moe_dsa/list": (GLM, dsa(5, 2, 90, 70, 5, 30, 28, 18, 6, 14, 7, 22, 37, 9, 3, 20, 1, rms_norm_eps=1e-5,
                                  indexer_types=["full", "shared", "full", "shared", "shared"],
                                  rope_parameters=dict(rope_type="default", rope_theta=8000000.0)), ["head_dim", "draft"]),
    # A period says it, and the tensors; FP8.
    "glm_moe_dsa/fp8": (GLM, dsa(4, 1, 160, 136, 6, 72, 40, 24, 8, 16, 8, 24, 64, 8, 2, 36, 1, rms_norm_eps=1e-5,
                                 index_topk_freq=2, index_skip_topk_offset=2,
                                 rope_parameters=dict(rope_type="default", rope_theta=8000000.0)), ["fp8", "no list"]),
    "kimi_linear/plain": (KIMI, kimi(4, [4], 96, 128, 4, 32, 16, 8, 16, 4, 16, 12, 3, 32, 1), []),
    # Odd counts, two shared experts, queries of low rank.
    "kimi_linear/odd": (KIMI, kimi(5, [2, 5], 90, 70, 5, 28, 12, 6, 10, 3, 20, 9, 2, 20, 2, q=36, taps=3), ["mlp"]),
    # Groups, and the small tensors in other types and ranks.
    "kimi_linear/groups": (KIMI, kimi(4, [3, 4], 80, 96, 3, 32, 16, 8, 12, 2, 24, 16, 4, 24, 1, 4, 2), ["mlp", "small bf16"]),
}

# ---- weights -------------------------------------------------------------------------------------


def draw(model, seed):
    """Random weights on which positions, experts and selections all matter, rounded to BF16."""
    g = torch.Generator().manual_seed(seed)
    sharp = ("q_b_proj", "q_proj", "o_proj", "gate_up_proj", "gate_proj", "up_proj")
    with torch.no_grad():
        for name, p in sorted(list(model.named_parameters()) + list(model.named_buffers())):
            part = name.split(".")
            x = torch.randn(p.shape, generator=g)
            if "inv_freq" in name:
                continue
            if part[-1] == "e_score_correction_bias":
                p.copy_(.1 * x)
                continue
            if part[-1] == "A_log":
                x = .5 * x
            elif part[-1] == "dt_bias":
                x = torch.rand(p.shape, generator=g) * 5 - 5
            elif "conv1d" in name:
                x = .3 * x
                x[..., -1] += .8
            elif "embed_tokens" in name:
                x = .7 * x
            elif part[-1] == "bias":
                x = .2 * x
            elif p.ndim == 1:
                x = 1 + .3 * x
            else:
                x *= p.shape[-1] ** -.5 * (2 if "lm_head" in name else 1.5 if any(s in name for s in sharp) else 1)
            p.copy_(x.to(BF16))


IN_F32 = ("gate.weight", "e_score_correction_bias", "A_log", "dt_bias")


def make_checkpoint(folder, config, seed):
    model = AutoModelForCausalLM.from_config(config, **EAGER).float().eval()
    draw(model, seed)
    for name, p in list(model.named_parameters()) + list(model.named_buffers()):
        if not name.endswith(IN_F32) and "inv_freq" not in name:
            p.data = p.data.to(BF16)
    model.save_pretrained(folder)
    os.remove(os.path.join(folder, "generation_config.json"))


# ---- what releases do differently ----------------------------------------------------------------


def to_fp8(w, exact):
    """Values and factors; a factor is a power of two where `exact` says so."""
    rows, cols = w.shape
    scale = torch.empty(-(-rows // SIDE), -(-cols // SIDE))
    q = torch.empty_like(w, dtype=F32)
    for i in range(scale.shape[0]):
        for j in range(scale.shape[1]):
            at = slice(i * SIDE, (i + 1) * SIDE), slice(j * SIDE, (j + 1) * SIDE)
            s = w[at].float().abs().max() / 448
            scale[i, j] = 2 ** torch.ceil(torch.log2(s)) if exact else s
            q[at] = w[at].float() / scale[i, j]
    return q.to(E4M3), scale


def from_fp8(q, scale):
    s = scale.repeat_interleave(SIDE, 0)[:q.shape[0]].repeat_interleave(SIDE, 1)[:, :q.shape[1]]
    return q.float() * s


NOT_FP8 = ("embed_tokens.weight", "lm_head.weight", "mlp.gate.weight", "weights_proj.weight", "conv1d.weight")


def change(folder, what, exact):
    path, names = os.path.join(folder, "model.safetensors"), os.path.join(folder, "config.json")
    T, c = load_file(path), json.load(open(names))
    n = c["num_hidden_layers"]
    if "draft" in what:
        g = torch.Generator().manual_seed(7)
        D = c["hidden_size"]
        for name, shape in {"eh_proj.weight": (D, 2 * D), "enorm.weight": (D,), "hnorm.weight": (D,),
                            "shared_head.norm.weight": (D,), "self_attn.q_a_proj.weight": (c["q_lora_rank"], D)}.items():
            T[f"model.layers.{n}.{name}"] = torch.randn(shape, generator=g).to(BF16)
        c["num_nextn_predict_layers"] = 1
    if "fp8" in what:
        for name in [n for n, t in T.items() if n.endswith(".weight") and t.ndim == 2 and not n.endswith(NOT_FP8)]:
            T[name], T[name + "_scale_inv"] = to_fp8(T[name], exact)
        c["quantization_config"] = dict(activation_scheme="dynamic", fmt="e4m3", quant_method="fp8",
                                        weight_block_size=[SIDE, SIDE])
    if "mlp" in what:  # save_pretrained names the dense layers like the others, the release does not
        for name in [n for n in T if "block_sparse_moe" in n and n.split(".")[4] in ("gate_proj", "up_proj", "down_proj")]:
            T[name.replace("block_sparse_moe", "mlp")] = T.pop(name)
    if "small bf16" in what:
        for name in list(T):
            if name.endswith(("A_log", "dt_bias")):
                T[name] = T[name].to(BF16)
            if name.endswith("A_log"):
                T[name] = T[name].flatten()
            if "conv1d" in name:
                T[name] = T[name].reshape(T[name].shape[0], -1).contiguous()
    if "old rope" in what:
        r = c.pop("rope_parameters")
        c["rope_theta"] = r.pop("rope_theta")
        c["rope_scaling"] = {k: v for k, v in r.items() if k != "rope_type"} | dict(type="yarn")
        del c["mlp_layer_types"], c["layer_types"]
    if "no list" in what:
        del c["indexer_types"]
    if "head_dim" in what:
        c["head_dim"] = 192
    save_file(T, path, metadata={"format": "pt"})
    with open(names, "w") as f:
        json.dump(c, f, indent=1, sort_keys=True)
        f.write("\n")
    os.chmod(path, 0o644)


# ---- the package's forward pass ------------------------------------------------------------------


def load(folder):
    """The package's model in float32.  FP8 is expanded first: its kernels for that need a GPU."""
    T, c = load_file(os.path.join(folder, "model.safetensors")), json.load(open(os.path.join(folder, "config.json")))
    T = {n: from_fp8(t, T[n + "_scale_inv"]) if t.dtype == E4M3 else t for n, t in T.items()}
    for name, t in list(T.items()):  # the shapes of the package's classes
        if name.endswith("A_log"):
            T[name] = t.reshape(1, 1, -1, 1)
        elif "conv1d" in name:
            T[name] = t.reshape(t.shape[0], 1, -1)
    c.pop("quantization_config", None)
    with tempfile.TemporaryDirectory() as tmp:
        save_file({n: t for n, t in T.items() if not n.endswith("_scale_inv")}, os.path.join(tmp, "model.safetensors"),
                  metadata={"format": "pt"})
        json.dump(c, open(os.path.join(tmp, "config.json"), "w"))
        return AutoModelForCausalLM.from_pretrained(tmp, dtype=F32, **EAGER).eval()


class Watch:
    """Notes for each row the narrowest decision of the top-k calls of a run, what the indexers
    chose, and the stream after each layer."""

    def __init__(self, model, n):
        self.n, self.margin, self.layers, self.chosen = n, torch.full((n,), torch.inf), [], {}
        for i, layer in enumerate(model.model.layers):
            layer.watch = [layer.register_forward_hook(self.see_layer)]
            indexer = getattr(layer.self_attn, "indexer", None)
            if indexer is not None:
                layer.watch.append(indexer.register_forward_hook(lambda m, a, out, i=i: self.see_choice(i, out)))

    def see_layer(self, module, args, out):
        self.layers.append((out[0] if isinstance(out, tuple) else out)[0])

    def see_choice(self, i, out):
        seen = torch.zeros(self.n, self.n, dtype=torch.bool)
        seen.scatter_(1, out[0].long(), True)
        self.chosen[i] = seen.tril()

    def see_topk(self, x, k):
        if x.ndim == 3 and x.shape[0] == self.n > 1:
            return  # the two best of each group: only their sum counts
        x = x.reshape(self.n, -1).float()
        x = x.masked_fill(x < -1e30, -torch.inf)
        if k >= x.shape[1]:
            return
        best = x.topk(k + 1).values
        spread = x.masked_fill(x == -torch.inf, torch.nan)
        spread = (spread - spread.nanmean(1, keepdim=True)).pow(2).nanmean(1).sqrt() + 1e-30
        gap = torch.where(best[:, k] == -torch.inf, torch.inf, (best[:, k - 1] - best[:, k]) / spread)
        self.margin = torch.minimum(self.margin, gap)


@contextlib.contextmanager
def watching(model, n):
    w, function, method = Watch(model, n), torch.topk, torch.Tensor.topk

    def watched(x, k, *args, **kw):
        with torch.no_grad():
            torch.topk, torch.Tensor.topk = function, method
            w.see_topk(x, k)
            torch.topk, torch.Tensor.topk = watched, watched
        return method(x, k, *args, **kw)

    torch.topk, torch.Tensor.topk = watched, watched
    try:
        yield w
    finally:
        torch.topk, torch.Tensor.topk = function, method
        for layer in model.model.layers:
            for hook in layer.watch:
                hook.remove()


ENOUGH = 5e-5  # of the spread of the values among which something is chosen


def run(model, ids):
    with watching(model, len(ids)) as w, torch.no_grad():
        logits = model(ids.long()[None], use_cache=False).logits[0]
    top = logits.topk(2).values
    return logits, w, torch.minimum(w.margin, (top[:, 0] - top[:, 1]) / logits.std(-1))


def golden(model, n, r, tries=400):
    """A text of n tokens without narrow decisions, and what the package computes from it."""
    ids = torch.tensor([r.randrange(VOCAB) for _ in range(n)], dtype=torch.int32)
    for attempt in range(tries):
        logits, w, margin = run(model, ids)
        narrow = (margin < ENOUGH).nonzero()[:, 0]
        if not len(narrow):
            break
        for t in range(int(narrow[0]), n):
            ids[t] = r.randrange(VOCAB)
    else:
        sys.exit("every text has a narrow decision")
    out = {"ids": ids, "logits": logits[-8:].contiguous(), "argmax": logits.argmax(-1).int(),
           "layers": torch.stack(w.layers)[:, -4:].contiguous()}
    if n > 1:
        out["logprob_next"] = logits.log_softmax(-1)[:-1].gather(1, ids[1:, None].long())[:, 0].contiguous()
    for i, seen in w.chosen.items():
        # Bit p % 8 of byte p / 8 of a row: position p is selected.
        bits = torch.nn.functional.pad(seen, (0, -n % 8)).reshape(n, -1, 8).to(torch.uint8)
        out[f"indexer{i}_selected"] = (bits << torch.arange(8, dtype=torch.uint8)).sum(-1).to(torch.uint8)
        if n - 4 >= model.config.index_topk:
            out[f"indexer{i}_top_last4"] = torch.stack([row.nonzero()[:, 0] for row in seen[-4:]]).int()
    return out, margin.min().item(), attempt + 1


def make(folder, model, seed, lengths=LENGTHS):
    cls, config, what = model
    os.makedirs(os.path.join(folder, "golden"), exist_ok=True)
    make_checkpoint(folder, cls(**config), seed)
    change(folder, what, exact=cls is V32)
    model, r = load(folder), random.Random(seed)
    for n in lengths:
        tensors, margin, tries = golden(model, n, r)
        path = os.path.join(folder, "golden", f"t{n}.safetensors")
        save_file(tensors, path)
        os.chmod(path, 0o644)
        sizes = [round(x.pow(2).mean().sqrt().item(), 2) for x in tensors["layers"]]
        print(f"{folder} {n}: narrowest decision {margin:.1e} after {tries} texts, stream {sizes}, "
              f"logits {tensors['logits'].std():.2f}")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("out")
    p.add_argument("names", nargs="*", default=list(MODELS))
    p.add_argument("--seed", type=int, default=1)
    args = p.parse_args()
    for name in args.names:
        make(os.path.join(args.out, name), MODELS[name], args.seed)


if __name__ == "__main__":
    main()
