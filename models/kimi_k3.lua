-- Kimi K3, and by configuration K3 with a DSA indexer: the language model inside a model that sees.

local model = {
  name = "kimi_k3", stop = { "<|end_of_msg|>", "<|im_end|>", "[EOS]" },
  tokenizer = include("kimi_tokenizer"), chat = include("kimi_xtml"), build = include("kimi"),
  unused = { "vision_tower.", "mm_projector.", "mtp." },
}

function model.match(config)
  local text = config:object("text_config", nil)
  return config:string("model_type", "") == "kimi_k3" or text and text:string("model_type", "") == "kimi_linear"
end

return model
