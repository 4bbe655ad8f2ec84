"""The small files of a checkpoint of the Kimi-K3 family: configuration, tokenizer, header of a shard.

Used by make_test_model.py and make_model.py.
"""
import base64
import json
import os
import struct

K3_NAMES = ["[BOS]", "[EOS]", "<|end_of_msg|>", "<|open|>", "<|close|>", "<|sep|>", "[start_header_id]", "[end_header_id]",
            "<|media_begin|>", "[EOT]", "<|media_content|>", "<|media_end|>", "<|media_pad|>"]
K2_NAMES = ["[BOS]", "[EOS]", "<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|start_header_id|>", "<|end_header_id|>",
            "[EOT]", "<|im_system|>", "<|im_middle|>"]

QUANTIZATION = {
    "quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized", "quantization_status": "compressed",
    "config_groups": {"group_0": {"targets": ["Linear"], "format": "mxfp4-pack-quantized", "input_activations": None,
                                  "output_activations": None,
                                  "weights": {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32,
                                              "symmetric": True, "dynamic": False, "scale_dtype": "torch.uint8"}}},
    "ignore": ["re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*", "re:.*lm_head.*"]}

# What the released configurations of the family agree on.
COMMON = dict(
    architectures=["KimiLinearForCausalLM"], model_type="kimi_linear", rms_norm_eps=1e-5, moe_layer_freq=1,
    moe_router_activation_func="sigmoid", moe_renormalize=True, use_grouped_topk=True, num_expert_group=1, topk_group=1,
    mla_use_nope=True, tie_word_embeddings=False, num_nextn_predict_layers=0, max_position_embeddings=1048576,
    dtype="bfloat16")
K3 = dict(
    COMMON, hidden_act="situ", topk_method="noaux_tc", latent_moe_use_norm=True, mla_use_output_gate=True,
    indexer_rope_dim=0, index_kpool=1)


def write_json(path, value):
    with open(path, "w") as f:
        json.dump(value, f, indent=1)
        f.write("\n")


def write_k3_config(folder, c, ranks):
    """The nested configuration of K3 around the text configuration c."""
    top = {"architectures": ["KimiK3ForConditionalGeneration"], "model_type": "kimi_k3", "dtype": "bfloat16",
           "tie_word_embeddings": False, "bos_token_id": ranks, "eos_token_id": ranks + 2, "pad_token_id": c["vocab_size"] - 1}
    write_json(os.path.join(folder, "config.json"), dict(top, text_config=dict(c, quantization_config=QUANTIZATION)))


def write_tokenizer(folder, tokens, names, vocab):
    """tokens: the byte strings of the ranks.  names: the special tokens that follow them."""
    ranks = len(tokens)
    with open(os.path.join(folder, "tiktoken.model"), "wb") as f:
        for rank, token in enumerate(tokens):
            f.write(base64.b64encode(token) + b" %d\n" % rank)
    named = {ranks + i: n for i, n in enumerate(names)} | {vocab - 2: "[UNK]", vocab - 1: "[PAD]"}
    plain = ("<|open|>", "<|close|>", "<|sep|>")
    write_json(os.path.join(folder, "tokenizer_config.json"), {
        "bos_token": "[BOS]", "eos_token": "[EOS]", "unk_token": "[UNK]", "pad_token": "[PAD]",
        "tokenizer_class": "TikTokenTokenizer",
        "added_tokens_decoder": {str(i): {"content": n, "special": n not in plain} for i, n in named.items()}})
    write_json(os.path.join(folder, "generation_config.json"), {"eos_token_id": ranks + 2})


def shard_header(entries, order):
    """entries: name -> (dtype, shape, bytes) in the order of the data.  order: of the names in the header."""
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, shape, size) in entries.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps({k: header[k] for k in order(list(header))}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text
