-- Kimi-Linear: a flat configuration, experts in BF16 as wide as the model, low-rank gates, the plain
-- residual stream.

local model = {
  name = "kimi_linear", stop = { "<|im_end|>", "[EOS]" },
  tokenizer = include("kimi_tokenizer"), chat = include("kimi_k2"), build = include("kimi"),
  unused = { "mtp." },
}

function model.match(config)
  return config:string("model_type", "") == "kimi_linear"
end

return model
