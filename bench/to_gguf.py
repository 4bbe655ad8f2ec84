"""Writes a random model of tools/make_model.py as GGUF, with llama.cpp's own converter.

    python3 bench/to_gguf.py LLAMA_CPP MODEL OUT.gguf

LLAMA_CPP is the source folder of llama.cpp.  Weights keep their types: BF16, F32, and MXFP4 experts
repacked without a change of a code.  What llama.cpp has no place for is left out: the indexer (attention
is then dense) and the tokenizer (the file has none, the bench feeds token ids).  Needs torch and the
converter's other packages.
"""
import sys
from pathlib import Path

llama, model, out = sys.argv[1:]
sys.path[:0] = [llama, llama + "/gguf-py"]
import gguf  # noqa: E402
from conversion.kimi_k3 import KimiK3Model  # noqa: E402


class Converter(KimiK3Model):
    model_arch = gguf.MODEL_ARCH.KIMI_K3

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.model_tensors = {n: t for n, t in self.model_tensors.items() if ".indexer." not in n}

    def set_vocab(self):
        self.gguf_writer.add_tokenizer_model("none")


Converter(Path(model), gguf.LlamaFileType.MOSTLY_BF16, Path(out)).write()
