#!/usr/bin/env python3
"""What the transformers package computes from a checkpoint, as a golden file for `firstlight verify`.

    dump_activations.py MODEL OUT.safetensors [--text TEXT | --ids "1 2 3" | --random N] [--rows R]
                        [--seed S] [--trust-remote-code]

Runs one prompt through AutoModelForCausalLM in float32 and writes

    ids [n] I32, logits [R, vocab] F32 and layers [L, R, hidden] F32 of the last R tokens (what leaves
    each layer, before any final norm), argmax [n] I32, logprob_next [n - 1] F32

Any other program may write the same file; `layers`, `argmax` and `logprob_next` may be missing.
Needs torch and transformers.
"""
import argparse
import random

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, logging


def options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("out")
    what = p.add_mutually_exclusive_group()
    what.add_argument("--text", help="the prompt, through the checkpoint's own tokenizer")
    what.add_argument("--ids", help="the prompt as token ids")
    what.add_argument("--random", type=int, default=48, metavar="N", help="N random token ids (default: 48)")
    p.add_argument("--rows", type=int, default=8, help="how many last tokens to keep (default: 8)")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--trust-remote-code", action="store_true", help="run the checkpoint's own Python code")
    return p.parse_args()


def prompt(o, vocab):
    if o.text:
        tokenizer = AutoTokenizer.from_pretrained(o.model, trust_remote_code=o.trust_remote_code)
        return tokenizer(o.text, add_special_tokens=False)["input_ids"]
    if o.ids:
        return [int(i) for i in o.ids.replace(",", " ").split()]
    r = random.Random(o.seed)
    return [r.randrange(vocab) for _ in range(o.random)]


def decoder_layers(model, n):
    """The list of the decoder's layers: the first list of as many modules as the model has layers."""
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.ModuleList) and len(module) == n:
            return name, list(module)
    raise SystemExit(f"no list of {n} layers in {type(model).__name__}")


def main():
    o = options()
    logging.set_verbosity_error()
    config = AutoConfig.from_pretrained(o.model, trust_remote_code=o.trust_remote_code)
    text = config.get_text_config()
    model = AutoModelForCausalLM.from_pretrained(
        o.model, dtype=torch.float32, attn_implementation="eager", trust_remote_code=o.trust_remote_code).eval()
    ids = prompt(o, text.vocab_size)
    where, layers = decoder_layers(model, text.num_hidden_layers)
    seen = [None] * len(layers)

    def keep(i):
        def hook(module, inputs, output):
            seen[i] = (output[0] if isinstance(output, (tuple, list)) else output).detach()
        return hook

    for i, layer in enumerate(layers):
        layer.register_forward_hook(keep(i))
    with torch.no_grad():
        logits = model(torch.tensor([ids]), use_cache=False).logits[0].float()
    rows = min(o.rows, len(ids))
    tensors = {
        "ids": torch.tensor(ids, dtype=torch.int32),
        "logits": logits[-rows:].contiguous(),
        "layers": torch.stack([s.reshape(len(ids), -1)[-rows:].float() for s in seen]).contiguous(),
        "argmax": logits.argmax(-1).to(torch.int32),
    }
    if len(ids) > 1:
        after = torch.tensor(ids[1:])[:, None]
        tensors["logprob_next"] = torch.log_softmax(logits[:-1], -1).gather(1, after)[:, 0].contiguous()
    save_file(tensors, o.out)
    print(f"{o.out}: {len(ids)} tokens, {len(layers)} layers ({where}), the last {rows} rows")


main()
